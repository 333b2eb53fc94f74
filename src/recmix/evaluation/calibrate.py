"""How wide a posterior should be to estimate log p(x) of images that nobody trained on.

An encoder knows its training images better than others: on those its mean is further off than its
standard deviations say, and most importance samples miss. Two numbers, fitted to held-out images, mend
much of it: how much wider it should be, and how much more so for images that it explains badly.
Densities stay exact and every bound stays a bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from recmix.evaluation.bounds import at_once, bounds_of, parts
from recmix.methods.method import Method
from recmix.posteriors.posterior import WIDEST, tilted

__all__ = ["IMAGES", "Calibration", "calibrate"]

IMAGES = 1000
"""Held-out images that the numbers are fitted to."""
OCTAVE = 0.25
"""From one factor that is tried to the next, in octaves."""
LEAN = 0.1
"""From one tilt to the next: the log of the factor for a standard deviation of how images fit."""
STEEPEST = 1.0
"""No tilt beyond this is tried."""


class Calibration(NamedTuple):
    """What was found; bounds in nats per held-out image."""

    factor: float  # how much wider, see `Posterior.widened`
    tilt: float  # e to this times wider for each nat that an image fits worse
    at: float  # than this: the mean of log p(x, mean)
    before: float  # IWAE of the posterior as it is
    after: float  # and as wide as it should be


@torch.no_grad()
def calibrate(
    method: Method, x: Tensor, *, samples: int = 100, seed: int = 0, memory: int | None = None
) -> Calibration:
    """The width of a posterior that makes IWAE-`samples` of images x highest.

    Factors a quarter of an octave apart are tried with the same noise, uphill from 1, as long as the
    gain over the one before is more than twice its standard error over images; then tilts, uphill from
    none; then, if there is one, factors again.

    Args:
        method: trained; its posterior a Gaussian or a mixture of Gaussians. Its `widen` is ignored.
        x: held-out images (B, C, H, W).
        samples: K.
        seed: of the noise.
        memory: bytes for the decoder's activations at a time; by default what suits the device.
    """
    count = at_once(method.model, memory)
    formed = [(part, method.formed(part)) for part in parts(method, x, count)]
    fits = [method.model.log_joint(part, q.mean[None])[0] for part, q in formed]
    fit = torch.cat(fits).double()
    at, spread = float(fit.mean()), float(fit.std(correction=0))

    def reached(octaves: float, lean: float) -> Tensor:
        noise = torch.Generator(x.device).manual_seed(seed)
        found = []
        for (part, q), good in zip(formed, fits, strict=True):
            width = tilted(2.0**octaves, lean / spread, at - good) if lean else 2.0**octaves
            found.append(bounds_of(method.model, part, q.widened(width), samples, noise, count).iwae)
        return torch.cat(found).double()

    before = reached(0.0, 0.0)
    octaves, best = _uphill(lambda value: reached(value, 0.0), 0.0, before, OCTAVE, math.log2(WIDEST))
    lean = 0.0
    if spread > 0:
        lean, best = _uphill(lambda value: reached(octaves, value), 0.0, best, LEAN, STEEPEST)
    if lean:
        octaves, best = _uphill(
            lambda value: reached(value, lean), octaves, best, OCTAVE, math.log2(WIDEST)
        )
    tilt = lean / spread if lean else 0.0
    return Calibration(2.0**octaves, tilt, at if lean else 0.0, float(before.mean()), float(best.mean()))


def _uphill(
    reached: Callable[[float], Tensor], start: float, best: Tensor, step: float, furthest: float
) -> tuple[float, Tensor]:
    """The value, as many steps from the start as it goes uphill either way, and what is reached there.

    Args:
        reached: what each image has for a value, (B,).
        start: the first value.
        best: what is reached there.
        step: between values.
        furthest: no value beyond this, or below its negative.
    """
    ends = []
    for way in (step, -step):
        value, top = start, best
        while abs(value + way) <= furthest + step / 2 and _higher(now := reached(value + way), top):
            value, top = value + way, now
        ends.append((value, top))
    return max(ends, key=lambda end: float(end[1].mean()))


def _higher(one: Tensor, other: Tensor) -> bool:
    """Whether one is higher than the other on average, by more than chance."""
    gains = one - other
    return bool(gains.mean() > 2 * gains.std(correction=0) / len(gains) ** 0.5)
