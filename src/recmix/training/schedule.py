"""Set the learning rate and the weight of the KL in each epoch, and clip gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from recmix.runs.training_options import Training

__all__ = ["KLWeight", "clip_gradients", "rate_factor", "set_rate"]


def rate_factor(epoch: int, epochs: int, training: Training) -> float:
    """Return the factor by which the learning rate is multiplied in an epoch.

    >>> [round(rate_factor(e, 5, Training(schedule="linear", final_rate=0.0)), 2) for e in range(5)]
    [1.0, 0.75, 0.5, 0.25, 0.0]

    Epochs are counted from 0. The training options `warmup`, `schedule` and `final_rate` are used.
    """
    if epoch < training.warmup:
        return (epoch + 1) / (training.warmup + 1)
    if training.schedule == "constant":
        return 1.0
    t = min(1.0, (epoch - training.warmup) / max(1, epochs - training.warmup - 1))
    remaining = 0.5 * (1 + math.cos(math.pi * t)) if training.schedule == "cosine" else 1 - t
    return training.final_rate + (1 - training.final_rate) * remaining


def clip_gradients(optimizers: Iterable[Optimizer], norm: float) -> None:
    """Make each optimiser clip the norm of its gradient to `norm` before every update."""

    def hook(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        torch.nn.utils.clip_grad_norm_(parameters, norm)

    for optimizer in optimizers:
        optimizer.register_step_pre_hook(hook)


def set_rate(optimizers: Iterable[Optimizer], factor: float) -> None:
    """Set the learning rate of each parameter group to its initial learning rate times `factor`."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            rate = group.setdefault("initial_lr", float(group["lr"])) * factor
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)  # in place: a captured graph reads this tensor
            else:
                group["lr"] = rate


class KLWeight:
    """The weight of the KL in the loss: it rises linearly from 0 to 1 over the first epochs.

    The weight is a tensor on the device. Each training step computes it from the number of the step. So
    a CUDA graph can read it, and a resumed training continues with the same weight.

    Args:
        epochs: number of epochs over which the weight rises; 0 means that the weight is always 1.
        steps: number of training steps in an epoch.
        like: a tensor on the device and of the dtype of the weight.

    >>> weight = KLWeight(2, 4, like=torch.zeros(()))
    >>> weight.begin(epoch=1)
    >>> weight.update(torch.tensor([2]))  # 6 of 8 steps are done
    >>> weight.value
    tensor(0.7500)
    """

    def __init__(self, epochs: int, steps: int, *, like: Tensor) -> None:
        self.value = torch.ones((), device=like.device, dtype=like.dtype)
        self.epochs, self.steps = epochs, steps
        self._before = torch.zeros((), device=like.device, dtype=torch.int64)

    def begin(self, epoch: int) -> None:
        """Begin an epoch; epochs are counted from 0."""
        self._before.fill_(epoch * self.steps)

    def update(self, step: Tensor) -> None:
        """Set the weight for a training step: `step` is its number in the epoch, from 0, shape (1,)."""
        if self.epochs:
            done = (self._before + step.squeeze()) / (self.epochs * self.steps)
            self.value.copy_(done.clamp(max=1))
