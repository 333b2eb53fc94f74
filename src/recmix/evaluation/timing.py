"""How long a posterior takes."""

from __future__ import annotations

import statistics
import time

import torch
from torch import Tensor

from recmix.captured import Captured
from recmix.core import Method

__all__ = ["posterior_milliseconds"]


@torch.no_grad()
def posterior_milliseconds(method: Method, x: Tensor, *, repeats: int = 20, warmup: int = 3) -> float:
    """Median milliseconds to form q(z | x) for the batch x and draw one sample from it.

    On a GPU the posterior is formed as a trained model forms it, see `recmix.captured`.
    """
    form = Captured(method)

    def once() -> None:
        form(x).rsample_and_log_prob(1)
        if x.is_cuda:
            torch.cuda.synchronize(x.device)

    for _ in range(warmup):
        once()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        once()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)
