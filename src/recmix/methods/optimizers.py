"""Make an optimiser by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from recmix.errors import ConfigError, unknown
from recmix.model.latent import LatentModel
from recmix.model.replaceable import load_accelerated

__all__ = ["OPTIMIZERS", "adam", "device_of", "make_optimizer", "model_groups"]


def adam(groups: list[dict[str, Any]], learning_rate: float) -> torch.optim.Optimizer:
    """Make torch's Adam for parameter groups, {"params": [...], "lr": ...} each.

    A group without ``lr`` gets `learning_rate`. Each group of the optimiser also stores its learning
    rate at the start as ``initial_lr``.
    """
    fused = device_of(groups).type in ("cpu", "cuda")
    made = torch.optim.Adam(groups or [{"params": []}], lr=learning_rate, fused=fused)
    for group in made.param_groups:
        group["initial_lr"] = float(group["lr"])
    return made


def device_of(groups: Iterable[dict[str, Any]]) -> torch.device:
    """The device of the parameters in these parameter groups; the CPU if there are none."""
    found = (p.device for group in groups for p in group["params"])
    return next(found, torch.device("cpu"))


OPTIMIZERS: dict[str, Callable[[list[dict[str, Any]], float], torch.optim.Optimizer]] = {"adam": adam}
"""Functions (parameter groups, learning rate) -> optimiser, by name. `recmix.accelerate` adds more."""


def make_optimizer(
    name: str, groups: Iterable[dict[str, Any]], learning_rate: float
) -> torch.optim.Optimizer:
    """Make an optimiser by its name, ``adam`` or ``muon``.

    Args:
        name: name of the optimiser. An unknown name raises a ConfigError.
        groups: parameter groups, {"params": [...], "lr": ...} each.
        learning_rate: learning rate of groups without ``lr``.
    """
    load_accelerated()
    if name not in OPTIMIZERS:
        raise ConfigError(unknown("optimizer", name, OPTIMIZERS))
    return OPTIMIZERS[name](list(groups), learning_rate)


def model_groups(model: LatentModel, learning_rate: float, variance_rate: float) -> list[dict[str, Any]]:
    """Make the parameter groups of the model p(x, z) for an optimiser.

    The parameters of decoder, prior, curvature network and networks inside the likelihood get the rate
    learning_rate. The likelihood's own parameters, such as the noise variance, get the rate
    learning_rate · variance_rate.
    `variance_rate` is often above 1: Adam moves a scalar by at most the learning rate per step, and the
    variance must change by a large factor.
    """
    networks = [model.decoder, *model.likelihood.children(), model.prior]
    networks += [] if model.curvature is None else [model.curvature]
    parameters = [list(network.parameters()) for network in networks]
    groups: list[dict[str, Any]] = [{"params": ps, "lr": learning_rate} for ps in parameters if ps]
    if own := list(model.likelihood.parameters(recurse=False)):
        groups.append({"params": own, "lr": learning_rate * variance_rate})
    return groups
