"""Calibration: choose the scale of a posterior's standard deviations on held-out data.

On examples that an encoder was not trained on, the error of its mean is larger than its standard
deviations say. Then most importance samples have a low p(x, z). Two numbers, fitted to held-out
examples, correct much of this: a factor of the standard deviations (the scale), and how much this
factor grows for examples that the posterior explains badly (the slope). The density of the
calibrated posterior is still exact, so every lower bound of log p(x) stays a lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from recmix.errors import ConfigError
from recmix.evaluation.bounds import at_once, bounds_of, iwae_at_seed
from recmix.inference import Inference
from recmix.inference.improve import LARGEST_SCALE, example_scales
from recmix.methods.method import Method, infer

__all__ = ["EXAMPLES", "Calibration", "calibrate"]

EXAMPLES = 1000
"""Number of held-out examples to which scale and slope are fitted."""
OCTAVE = 0.25
"""Distance between two scales that are tried, in octaves."""
NOISE_OCTAVE = 0.125
"""Distance between two values of the noise that are tried, in octaves."""
LARGEST_NOISE = 6.0
"""Largest factor of the noise that is tried, and of its inverse, in octaves."""
SLOPE_STEP = 0.1
"""Distance between two slopes, as log-scale per standard deviation of log p(x, mean)."""
LARGEST_SLOPE = 1.0
"""Largest slope that is tried, in the same unit."""


class Calibration(NamedTuple):
    """The result of `calibrate`: the chosen scale of the posterior, and what it gains.

    Attributes:
        inference: the inference settings before calibration, with the chosen scale, slope and noise,
            and with the reference: the value of log p(x, mean) at which the factor is the scale.
        before: mean IWAE bound of the held-out examples without calibration, in nats.
        after: mean IWAE bound of the held-out examples with calibration, in nats.
    """

    inference: Inference  # with scale, slope, reference and noise
    before: float  # IWAE of the uncalibrated posterior
    after: float  # IWAE of the calibrated posterior


@torch.no_grad()
def calibrate(
    method: Method,
    x: Tensor,
    inference: Inference | None = None,
    *,
    samples: int = 100,
    seed: int = 0,
    memory: int | None = None,
    noise: bool = False,
) -> Calibration:
    """Find the scale and slope of the calibration with the highest IWAE bound on held-out examples.

    The scale multiplies all standard deviations of the posterior. The slope says how much the scale
    grows for examples with a low log p(x, z) at the posterior mean z.

    First, scales are tried from 1 upwards and from 1 downwards, in steps of the factor 2^(1/4). All use
    the same sampling noise. The search goes on as long as a step raises the mean bound by more than
    twice the standard error of this gain. Then slopes are tried in the same way; then, if the slope is
    not 0, scales again. With `noise`, factors of the likelihood's noise are tried first, and once more
    at the end.

    Args:
        method: a trained method; its posterior must be a Gaussian or a mixture of Gaussians.
        x: held-out examples (B, *shape).
        inference: how the posterior is refined before the calibration; None for no refinement. A
            calibration that it contains is ignored.
        noise: whether the likelihood's noise is chosen too. This changes p(x).
    """
    used = (inference or Inference()).uncalibrated
    count = at_once(method.model, memory)
    if noise:

        def reached(base: Inference, octaves: float) -> Tensor:
            changed = replace(base, noise=2.0**octaves)
            return iwae_at_seed(method, x, changed, samples, seed, memory)

        start = reached(used, 0.0)
        octaves, _ = _line_search(partial(reached, used), 0.0, start, NOISE_OCTAVE, LARGEST_NOISE)
        changed = replace(used, noise=2.0**octaves)
        scaled = _calibrate(method, x, changed, samples, seed, count).inference
        begin = reached(scaled, octaves)
        octaves, best = _line_search(
            partial(reached, scaled), octaves, begin, NOISE_OCTAVE, LARGEST_NOISE
        )
        chosen = replace(scaled, noise=2.0**octaves)
        return Calibration(chosen, float(start.mean()), float(best.mean()))
    return _calibrate(method, x, used, samples, seed, count)


def _calibrate(
    method: Method, x: Tensor, used: Inference, samples: int, seed: int, count: int
) -> Calibration:
    """Choose scale and slope as `calibrate` does, but keep the noise of the likelihood.

    Args:
        used: the refinement, and the noise of the likelihood.
        count: largest number of latent vectors that are decoded at a time.
    """
    model = used.model(method.model)
    parts = x.split(max(1, count // used.restarts))
    posteriors = [(part, infer(method, part, used)) for part in parts]
    if not posteriors[0][1].can_scale:
        posteriors[0][1].scaled(1.0)  # raises the error that says why
        raise ConfigError(f"the posterior of {method.name} cannot be calibrated")
    fits = [model.log_joint(part, q.mean[None])[0] for part, q in posteriors]
    fit = torch.cat(fits).double()
    reference, spread = float(fit.mean()), float(fit.std(correction=0))

    def reached(octaves: float, slope: float) -> Tensor:
        noise = torch.Generator(x.device).manual_seed(seed)
        found = []
        for (part, q), good in zip(posteriors, fits, strict=True):
            scale: float | Tensor = 2.0**octaves
            if slope:
                scale = example_scales(2.0**octaves, slope / spread, reference - good)
            found.append(bounds_of(model, part, q.scaled(scale), samples, noise, count).iwae)
        return torch.cat(found).double()

    largest = math.log2(LARGEST_SCALE)
    before = reached(0.0, 0.0)
    octaves, best = _line_search(lambda value: reached(value, 0.0), 0.0, before, OCTAVE, largest)
    slope = 0.0
    if spread > 0:
        slope, best = _line_search(
            lambda value: reached(octaves, value), 0.0, best, SLOPE_STEP, LARGEST_SLOPE
        )
    if slope:
        octaves, best = _line_search(lambda value: reached(value, slope), octaves, best, OCTAVE, largest)
    found = replace(
        used,
        scale=2.0**octaves,
        slope=slope / spread if slope else 0.0,
        reference=reference if slope else 0.0,
    )
    return Calibration(found, float(before.mean()), float(best.mean()))


def _line_search(
    reached: Callable[[float], Tensor], start: float, best: Tensor, step: float, limit: float
) -> tuple[float, Tensor]:
    """Find the value of one number (scale, slope or noise) with the highest mean bound.

    The search goes from `start` upwards in steps, then from `start` downwards. Each direction ends
    when a step does not clearly increase the bound (see `_is_higher`), or at an absolute value of
    `limit`.

    Args:
        reached: function that returns the bound of each example, (B,), for a value of the number.
        best: the bound of each example at `start`, (B,).

    Returns:
        The value that was found, and the bound of each example at this value, (B,).
    """
    ends = []
    for way in (step, -step):
        value, top = start, best
        while abs(value + way) <= limit + step / 2 and _is_higher(now := reached(value + way), top):
            value, top = value + way, now
        ends.append((value, top))
    return max(ends, key=lambda end: float(end[1].mean()))


def _is_higher(one: Tensor, other: Tensor) -> bool:
    """Whether the bounds `one` (B,) are clearly higher than the bounds `other` (B,).

    The mean of their difference over examples must be more than twice its standard error.
    """
    gains = one - other
    return bool(gains.mean() > 2 * gains.std(correction=0) / len(gains) ** 0.5)
