"""Measure how long it takes to compute a posterior."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from recmix.inference import Inference
from recmix.methods.method import Method, infer_no_grad

__all__ = ["PASSES", "pass_milliseconds", "posterior_milliseconds"]

WARMUP = 3
SLOW = 1.0
"""Seconds. A posterior that takes longer is timed once, and with less warm-up on a CPU."""
PASSES = 5
"""Passes over all batches, as in the paper's table of inference times."""


def posterior_milliseconds(
    method: Method, x: Tensor, inference: Inference | None = None, *, repeats: int = 20
) -> float:
    """The median time in milliseconds to compute q(z | x) for a batch x and draw one sample from it.

    Args:
        x: the examples of the batch (B, *shape).
        inference: refinement and calibration of the posterior; None for neither.
        repeats: number of repetitions; a posterior that takes more than a second is timed once.
    """
    used = inference or Inference()
    _warm_up(method, x, used)
    first = _once(method, x, used)
    more = 0 if first > SLOW else repeats - 1
    return 1e3 * statistics.median([first, *(_once(method, x, used) for _ in range(more))])


def pass_milliseconds(
    method: Method,
    batches: Sequence[Tensor],
    inference: Inference | None = None,
    *,
    passes: int = PASSES,
) -> list[float]:
    """Compute the posteriors of all batches several times, and measure the time of each pass.

    The result has one number for each pass: its mean time per batch in milliseconds.

    Args:
        batches: batches of the same size, (B, *shape) each.
        inference: refinement and calibration of the posterior; None for neither.
    """
    used = inference or Inference()
    _warm_up(method, batches[0], used)
    return [1e3 * statistics.fmean(_once(method, x, used) for x in batches) for _ in range(passes)]


def _warm_up(method: Method, x: Tensor, inference: Inference) -> None:
    for _ in range(WARMUP):
        if _once(method, x, inference) > SLOW and not x.is_cuda:
            break


@torch.no_grad()
def _once(method: Method, x: Tensor, inference: Inference) -> float:
    start = time.perf_counter()
    infer_no_grad(method, x, inference).rsample_and_log_prob(1)
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
    return time.perf_counter() - start
