"""How wide a posterior should be to estimate log p(x) of images that nobody trained on.

An encoder knows its training images better than others: on those its mean is further off than its
standard deviations say, and most importance samples miss. One number mends much of it, the factor of
all standard deviations, fitted to held-out images. Densities stay exact and every bound stays a bound.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from recmix.core import Method
from recmix.evaluation.bounds import at_once, bounds_of

__all__ = ["IMAGES", "Calibration", "calibrate"]

IMAGES = 1000
"""Held-out images that one number is fitted to."""
STEP = 2**0.25
"""From one factor that is tried to the next."""
WIDEST = 8.0
"""No factor beyond this, or below its inverse, is tried."""


class Calibration(NamedTuple):
    """What was found, in nats per held-out image."""

    factor: float  # of all standard deviations
    before: float  # IWAE of the posterior as it is
    after: float  # and as wide as it should be


@torch.no_grad()
def calibrate(
    method: Method, x: Tensor, *, samples: int = 100, seed: int = 0, memory: int | None = None
) -> Calibration:
    """The factor of a posterior's standard deviations that makes IWAE-`samples` of images x highest.

    Factors a quarter of an octave apart are tried with the same noise, uphill from 1, as long as the
    gain over the one before is more than twice its standard error over images.

    Args:
        method: trained; its posterior a Gaussian or a mixture of Gaussians. Its `widen` is ignored.
        x: held-out images (B, C, H, W).
        samples: K.
        seed: of the noise.
        memory: bytes for the decoder's activations at a time; by default what suits the device.
    """
    count = at_once(method.model, memory)
    formed = [(part, method.refined(part, method.posterior(part))) for part in x.split(count)]

    def reached(factor: float) -> Tensor:
        noise = torch.Generator(x.device).manual_seed(seed)
        found = [
            bounds_of(method.model, part, q.widened(factor), samples, noise, count).iwae
            for part, q in formed
        ]
        return torch.cat(found).double()

    before = best = reached(1.0)
    factor = 1.0
    for step in (STEP, 1 / STEP):
        while 1 / WIDEST <= factor * step <= WIDEST and _higher(now := reached(factor * step), best):
            best, factor = now, factor * step
        if factor != 1:
            break
    return Calibration(factor, float(before.mean()), float(best.mean()))


def _higher(one: Tensor, other: Tensor) -> bool:
    """Whether one is higher than the other on average, by more than chance."""
    gains = one - other
    return bool(gains.mean() > 2 * gains.std(correction=0) / len(gains) ** 0.5)
