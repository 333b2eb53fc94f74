"""Scores of a trained method on a set of images: what tables are made of."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from recmix.data import Images
from recmix.evaluation.bounds import at_once, bounds_of, parts
from recmix.evaluation.timing import posterior_milliseconds
from recmix.methods.method import Method

__all__ = ["TIMED_BATCH", "device_name", "score"]

AT_ONCE = 500
TIMED_BATCH = 128
"""The paper times its posteriors on batches of this size."""


@torch.no_grad()
def score(
    method: Method,
    images: Images,
    *,
    samples: int = 100,
    seed: int = 0,
    memory: int | None = None,
    report: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """ELBO and IWAE with standard errors, mean mixing weights and the posterior's time.

    Args:
        method: a trained method.
        images: what to score it on.
        samples: K of IWAE-K; the ELBO is averaged over the same samples.
        seed: of the sampling noise.
        memory: bytes for the decoder's activations at a time; by default what suits the device.
        report: called with the number of images done.
    """
    centre = method.model.centre
    generator = torch.Generator(centre.device).manual_seed(seed)
    count = at_once(method.model, memory)
    elbo, iwae, weights = [], [], []
    for start in range(0, len(images), AT_ONCE):
        for x in parts(method, _batch(images, slice(start, start + AT_ONCE), centre), count):
            q = method.infer(x)
            found = bounds_of(method.model, x, q, samples, generator, count)
            elbo.append(found.elbo)
            iwae.append(found.iwae)
            weights.append(q.weights)
        report(min(start + AT_ONCE, len(images)))
    timed = _batch(images, slice(0, TIMED_BATCH), centre)
    return {
        "images": len(images),
        "samples": samples,
        "seed": seed,
        **method.climbs(),
        "widen": method.widen,
        "widen_tilt": method.widen_tilt,
        "widen_at": method.widen_at,
        **_mean("elbo", torch.cat(elbo)),
        **_mean("iwae", torch.cat(iwae)),
        "weights": torch.cat(weights).double().mean(0).tolist(),
        "milliseconds": posterior_milliseconds(method, timed),
        "batch": len(timed),
        "device": device_name(centre.device),
    }


def device_name(device: torch.device) -> str:
    """What a measurement says it was made on."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _batch(images: Images, index: slice, like: Tensor) -> Tensor:
    return torch.from_numpy(images[index]).to(like.device, like.dtype)


def _mean(name: str, values: Tensor) -> dict[str, float]:
    """Mean and its standard error."""
    values = values.double()
    error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return {name: float(values.mean()), f"{name}_se": error}
