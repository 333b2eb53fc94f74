"""Make a method for a model p(x, z), and put it on a device."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import nn

from recmix.methods.method import Method
from recmix.model.latent import LatentModel
from recmix.model.priors import VampPrior

__all__ = ["make_method", "place"]

KEPT = 2**25 - 2**14
"""Size in bytes of an array that `_keep_freed_memory` makes and frees."""


def make_method(kind: Any, model: LatentModel, encoder: nn.Module, options: Mapping[str, Any]) -> Method:
    """Make a new, untrained method for a model p(x, z), with the options {name: value}.

    Its initial weights come from torch's global random generator.

    Args:
        kind: a subclass of `Method`, such as `VAE`.
        model: p(x, z).
        encoder: a new encoder for the model.
        options: keyword arguments of the constructor of `kind`.
    """
    made: Method = kind(model, encoder, **options)
    if isinstance(model.prior, VampPrior):
        model.prior.use(made.base_encoder)
    return made


def place(method: Method, device: torch.device, dtype: torch.dtype) -> Method:
    """Move a method to a device, convert its weights to `dtype`, and return the method."""
    method.to(device, dtype)
    if device.type == "cpu":
        _keep_freed_memory()
        for part in method.modules():  # convolutions are faster in this layout there
            if isinstance(part, nn.Conv2d | nn.ConvTranspose2d):
                part.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return method


@cache
def _keep_freed_memory() -> None:
    """Make the C library of Linux keep the memory of freed arrays of up to 32 MiB in this process.

    Otherwise it returns large arrays to the system. To get their memory again takes up to half of the
    time of a posterior or a training step on a CPU. The C library changes its limit when a large array
    is freed, so one array is enough.
    """
    torch.empty(KEPT, dtype=torch.uint8, device="cpu")
