"""Make several starting points for each example, and choose the best end point."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["best_restart", "repeated", "restart_scales"]

STRIDE = 0.2
"""Distance between neighbouring factors of `restart_scales`."""


def repeated(x: Tensor, count: int) -> Tensor:
    """Repeat the batch x (B, ...) `count` times: (count · B, ...).

    The order is: the whole batch, then the whole batch again, and so on.
    """
    return x if count == 1 else x.repeat(count, *(1 for _ in x.shape[1:]))


def best_restart(score: Tensor, ends: Tensor, restarts: int) -> Tensor:
    """Select, for each example, the end point with the highest score among T starting points.

    Args:
        score: score of each end point, (T·B,). All examples of the first starting point come first.
            Scores that are not finite are never selected if another score is finite.
        ends: end points (T·B, D), in the same order.
        restarts: T, the number of starting points for each example.

    Returns:
        The selected end points, (B, D).

    >>> best_restart(torch.tensor([1.0, 5.0, 2.0, torch.nan]), torch.arange(4.0)[:, None], 2).tolist()
    [[2.0], [1.0]]
    """
    finite = score.nan_to_num(-torch.inf, posinf=-torch.inf)
    which = finite.unflatten(0, (restarts, -1)).argmax(0)
    picked = which[None, :, None].expand(1, -1, ends.shape[-1])
    best: Tensor = ends.unflatten(0, (restarts, -1)).gather(0, picked).squeeze(0)
    return best


def restart_scales(restarts: int) -> list[float]:
    """The factors by which the posterior's mean is multiplied to make several starting points.

    The first factor is 1. The next factors are alternately smaller and larger than 1.

    Args:
        restarts: number of starting points.

    >>> restart_scales(5)
    [1.0, 0.8, 1.2, 0.6, 1.4]
    """
    return [round(1 + (-1) ** k * ((k + 1) // 2) * STRIDE, 6) for k in range(restarts)]
