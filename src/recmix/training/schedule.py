"""The learning rate over the epochs."""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import Tensor
from torch.optim import Optimizer

from recmix.runs.training_options import Training

__all__ = ["rate_factor", "set_rate"]


def rate_factor(epoch: int, epochs: int, training: Training) -> float:
    """Return the factor by which the learning rate is multiplied in an epoch.

    >>> [round(rate_factor(e, 5, Training(schedule="linear", final_rate=0.0)), 2) for e in range(5)]
    [1.0, 0.75, 0.5, 0.25, 0.0]

    Args:
        epoch: number of the epoch, counted from 0.
        epochs: total number of epochs.
        training: training options; `warmup`, `schedule` and `final_rate` are used.
    """
    if epoch < training.warmup:
        return (epoch + 1) / (training.warmup + 1)
    if training.schedule == "constant":
        return 1.0
    t = min(1.0, (epoch - training.warmup) / max(1, epochs - training.warmup - 1))
    remaining = 0.5 * (1 + math.cos(math.pi * t)) if training.schedule == "cosine" else 1 - t
    return training.final_rate + (1 - training.final_rate) * remaining


def set_rate(optimizers: Iterable[Optimizer], factor: float) -> None:
    """Set the learning rate of each parameter group to its initial learning rate times `factor`."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            rate = group.setdefault("initial_lr", float(group["lr"])) * factor
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)  # in place: a captured graph reads this tensor
            else:
                group["lr"] = rate
