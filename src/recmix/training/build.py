"""A trained model as a user holds it: numpy or torch in, answers in nats and pixels out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from recmix.errors import ConfigError, RunError
from recmix.methods.method import Method
from recmix.methods.registry import find_method
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import make_likelihood
from recmix.model.networks import check_decoder, check_encoder, make_decoder, make_encoder
from recmix.runs.options import USE
from recmix.runs.spec import Spec

__all__ = ["build", "pick_device"]


def pick_device(name: str) -> torch.device:
    """The device of this name; ``auto`` takes a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device {name!r} does not exist: try auto, cpu, cuda or cuda:0") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device {name!r} was asked for, but torch sees no CUDA device: try cpu")
    return device


def build(
    spec: Spec,
    *,
    encoder: nn.Module | None = None,
    decoder: nn.Module | None = None,
    centre: np.ndarray | None = None,
    variance: float = 1.0,
) -> Method:
    """A new method as the spec says, with fresh weights (from torch's global random stream)."""
    if spec.latent < 1:
        raise ConfigError(f"latent is the dimension of z, at least 1; got {spec.latent}")
    if encoder is None:
        encoder = make_encoder(_paper(spec.network, "encoder"), spec.shape, spec.latent)
    else:
        check_encoder(encoder, spec.shape, spec.latent)
    if decoder is None:
        decoder = make_decoder(_paper(spec.decoder_network, "decoder"), spec.shape, spec.latent)
    else:
        check_decoder(decoder, spec.shape, spec.latent)
    given = {"variance": max(variance, 1e-6)} if spec.likelihood == "gaussian" else {}
    model = LatentModel(
        decoder,
        make_likelihood(spec.likelihood, **given),
        latent=spec.latent,
        shape=spec.shape,
        centre=None if centre is None else torch.from_numpy(centre),
    )
    make: Callable[..., Method] = find_method(spec.method)
    method = make(model, encoder, **spec.options)
    for name in USE:
        setattr(method, name, getattr(spec.training, name))
    device = pick_device(spec.training.device)
    method.to(device, getattr(torch, spec.training.dtype))
    if device.type == "cpu":  # there convolutions are faster in this layout
        method.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return method


def _paper(kind: str, what: str) -> str:
    if kind == "own":
        raise RunError(
            f"this run has its user's own {what}, which is code and not stored: pass {what}=…"
        )
    return kind
