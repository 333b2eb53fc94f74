"""How long a posterior takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from recmix.accelerate.captured import Captured
from recmix.methods.method import Method

__all__ = ["PASSES", "pass_milliseconds", "posterior_milliseconds"]

WARMUP = 3
SLOW = 1.0
"""Seconds: a posterior that takes longer needs neither warmth nor a median of many."""
PASSES = 5
"""Passes over all batches, as the paper's table of inference times has them."""


def posterior_milliseconds(method: Method, x: Tensor, *, repeats: int = 20) -> float:
    """Median milliseconds to form q(z | x) for the batch x and draw one sample from it.

    On a GPU the posterior is formed as a trained model forms it, see `recmix.accelerate.captured`.
    """
    form = _warm(method, x)
    first = _once(form, x)
    more = 0 if first > SLOW else repeats - 1
    return 1e3 * statistics.median([first, *(_once(form, x) for _ in range(more))])


def pass_milliseconds(method: Method, batches: Sequence[Tensor], *, passes: int = PASSES) -> list[float]:
    """The same per batch, averaged over all batches of each pass; batches are of one size."""
    form = _warm(method, batches[0])
    return [1e3 * statistics.fmean(_once(form, x) for x in batches) for _ in range(passes)]


def _warm(method: Method, x: Tensor) -> Captured:
    form = Captured(method)
    for _ in range(WARMUP):
        if _once(form, x) > SLOW and not x.is_cuda:
            break
    return form


@torch.no_grad()
def _once(form: Captured, x: Tensor) -> float:
    start = time.perf_counter()
    form(x).rsample_and_log_prob(1)
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
    return time.perf_counter() - start
