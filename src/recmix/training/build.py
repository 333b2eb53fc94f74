"""Make a method from a spec, and load a trained one from its folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from recmix.errors import ConfigError, RunError
from recmix.methods.method import Method
from recmix.methods.registry import find_method
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import make_likelihood
from recmix.model.networks import check_decoder, check_encoder, make_decoder, make_encoder
from recmix.runs.folder import Run
from recmix.runs.spec import Spec
from recmix.training.checkpoint import load_weights

__all__ = ["OWN", "Trained", "TrainedModel", "build", "load_trained", "pick_device", "place"]

OWN = "own"
"""The name of a network that is a user's own module."""


@dataclass(frozen=True)
class Trained:
    """A trained method with its spec, its history (one row per epoch) and its folder, if it has one."""

    method: Method
    spec: Spec
    history: list[dict[str, float]] = field(default_factory=list)
    folder: Path | None = None


class TrainedModel(Protocol):
    """What a training can start from: a `Trained`, or a `recmix.Model`."""

    @property
    def method(self) -> Any:
        """The trained method."""

    @property
    def spec(self) -> Spec:
        """What defines the run."""

    @property
    def folder(self) -> Path | None:
        """Where it is stored, if it is."""


def pick_device(name: str) -> torch.device:
    """The device of this name; ``auto`` is a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device {name!r} does not exist: try auto, cpu, cuda or cuda:0") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device {name!r} needs a GPU, but torch finds no CUDA device: try cpu")
    return device


def build(
    spec: Spec,
    *,
    encoder: nn.Module | None = None,
    decoder: nn.Module | None = None,
    centre: np.ndarray | None = None,
    variance: float = 1.0,
    method: type[Method] | None = None,
) -> Method:
    """A new method for a spec, with weights from torch's global random stream.

    Args:
        spec: what to make.
        encoder: a user's own encoder.
        decoder: a user's own decoder.
        centre: the training mean (C, H, W).
        variance: where the variance of a Gaussian likelihood starts.
        method: the class, if it is not registered.
    """
    model, shape = spec.model, spec.shape
    if encoder is None:
        encoder = make_encoder(_built_in(model.network, "encoder"), shape, model.latent)
    else:
        check_encoder(encoder, shape, model.latent)
    if decoder is None:
        kind = _built_in(model.decoder_network or model.network, "decoder")
        decoder = make_decoder(kind, shape, model.latent)
    else:
        check_decoder(decoder, shape, model.latent)
    likelihood = model.likelihood or "gaussian"
    given = {"variance": max(variance, 1e-6)} if likelihood == "gaussian" else {}
    latent_model = LatentModel(
        decoder,
        make_likelihood(likelihood, **given),
        latent=model.latent,
        shape=shape,
        centre=None if centre is None else torch.from_numpy(centre),
    )
    make: Callable[..., Method] = method or find_method(spec.method)
    made = make(latent_model, encoder, **spec.options)
    return place(made, spec)


def place(method: Method, spec: Spec) -> Method:
    """Move a method to the device and dtype of its spec."""
    device = pick_device(spec.training.device)
    method.to(device, getattr(torch, spec.training.dtype))
    if device.type == "cpu":  # convolutions are faster in this layout there
        method.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return method


def _built_in(kind: str, what: str) -> str:
    if kind == OWN:
        raise RunError(
            f"this run has its user's own {what}. Modules are code and are not stored: pass {what}=…"
        )
    return kind


def load_trained(
    folder: str | Path,
    *,
    device: str = "auto",
    encoder: nn.Module | None = None,
    decoder: nn.Module | None = None,
    method: type[Method] | None = None,
) -> Trained:
    """A trained run from its folder. Nothing in the folder is executed.

    Args:
        folder: written by `recmix.fit`, `recmix.Model.save` or ``recmix train``.
        device: where to put it.
        encoder: a module of the class it was trained with, if that was the user's own.
        decoder: the same for the decoder.
        method: the class of the method, if it is not registered.
    """
    run = Run(folder)
    stored = run.spec()
    spec = replace(stored, training=replace(stored.training, device=device))
    with torch.random.fork_rng():  # the random weights are replaced at once
        made = build(spec, encoder=encoder, decoder=decoder, method=method)
    load_weights(run.weights, made)
    return Trained(made, spec, run.history(), run.folder)
