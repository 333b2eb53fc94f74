"""Apply an `Inference` to a posterior."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor

from recmix.inference.refinement import refine
from recmix.model.latent import LatentModel
from recmix.posteriors import Posterior

if TYPE_CHECKING:
    from recmix.inference.inference import Inference

__all__ = ["LARGEST_SCALE", "calibrate", "example_scales", "improve"]

LARGEST_SCALE = 8.0
"""Scales of single examples are kept between this and its inverse."""


def improve(inference: Inference, model: LatentModel, x: Tensor, q: Posterior) -> Posterior:
    """q(z | x), refined and then calibrated.

    Args:
        inference: how.
        model: p(x, z).
        x: examples (B, ...).
        q: the posterior of the encoder for x.
    """
    if inference.refine:
        steps, reuse, restarts = inference.refine, inference.reuse, inference.restarts
        q = refine(model, x, q, steps=steps, reuse=reuse, restarts=restarts)
    return calibrate(inference, model, x, q)


def calibrate(inference: Inference, model: LatentModel, x: Tensor, q: Posterior) -> Posterior:
    """q with the inference's scale, slope and reference applied to its standard deviations."""
    if inference.slope:
        fit = model.log_joint(x, q.mean[None])[0]
        shortfall = inference.reference - fit
        return q.scaled(example_scales(inference.scale, inference.slope, shortfall))
    return q if inference.scale == 1 else q.scaled(inference.scale)


def example_scales(scale: float, slope: float, shortfall: Tensor) -> Tensor:
    """The scale of each example (B,), whose log p(x, mean) lies `shortfall` nats below the reference.

    >>> import torch
    >>> example_scales(2.0, 0.1, torch.tensor([0.0, 1.0, -1.0, 1e9]))
    tensor([2.0000, 2.2103, 1.8097, 8.0000])
    """
    largest = math.log(LARGEST_SCALE)
    return (math.log(scale) + slope * shortfall).clamp(-largest, largest).exp()
