"""Apply the refinement and the calibration of an `Inference` to a posterior q(z | x)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor

from recmix.inference.refinement import refine
from recmix.inference.safeguard import never_worse
from recmix.model.latent import LatentModel
from recmix.posteriors import Posterior

if TYPE_CHECKING:
    from recmix.inference.inference import Inference

__all__ = ["LARGEST_SCALE", "calibrate", "example_scales", "improve"]

LARGEST_SCALE = 8.0
"""Limit of `example_scales`: each factor is clamped to the range from 1 / this number to this number."""


def improve(inference: Inference, model: LatentModel, x: Tensor, q: Posterior) -> Posterior:
    """The posterior q of examples x, refined and then calibrated: see `Inference`."""
    if inference.refine:
        settings = {name: getattr(inference, name) for name in ("how", "reuse", "restarts")}
        refined = refine(model, x, q, steps=inference.refine, **settings)
        pairs = inference.checks
        q = never_worse(model, x, q, refined, pairs) if pairs else refined
    return calibrate(inference, model, x, q)


def calibrate(inference: Inference, model: LatentModel, x: Tensor, q: Posterior) -> Posterior:
    """The posterior q of examples x, with its standard deviations multiplied by a calibrated factor.

    The factor is `inference.scale` for all examples if `inference.slope` is 0. Otherwise each example
    has its own factor, see `example_scales`.
    """
    if inference.slope:
        fit = model.log_joint(x, q.mean[None])[0]
        shortfall = inference.reference - fit
        return q.scaled(example_scales(inference.scale, inference.slope, shortfall))
    return q if inference.scale == 1 else q.scaled(inference.scale)


def example_scales(scale: float, slope: float, shortfall: Tensor) -> Tensor:
    """The factor of the posterior's standard deviations for each example, (B,).

    It is scale · exp(slope · shortfall), limited to the range from 1/`LARGEST_SCALE` to
    `LARGEST_SCALE`.

    Args:
        scale: the factor at a shortfall of 0.
        slope: increase of the factor's logarithm per nat of shortfall.
        shortfall: a reference value minus log p(x, mean of q), in nats, (B,).

    >>> import torch
    >>> example_scales(2.0, 0.1, torch.tensor([0.0, 1.0, -1.0, 1e9]))
    tensor([2.0000, 2.2103, 1.8097, 8.0000])
    """
    largest = math.log(LARGEST_SCALE)
    return (math.log(scale) + slope * shortfall).clamp(-largest, largest).exp()
