"""The processes that train one model under ``torchrun``: rank, size, and sums over all processes.

Without ``torchrun`` there is one process, and nothing here has an effect.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from recmix.errors import ConfigError
from recmix.methods.method import Optimizers

__all__ = ["World", "world"]


class World:
    """The processes of one training.

    Args:
        rank: number of this process, from 0.
        size: number of processes.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    @property
    def writer(self) -> bool:
        """Whether this process writes the run folder and prints."""
        return self.rank == 0

    def share(self, order: Tensor) -> Tensor:
        """The part of each batch for this process: (steps, batch) -> (steps, batch / size)."""
        if order.shape[1] % self.size:
            raise ConfigError(
                f"a batch of {order.shape[1]} examples cannot be divided equally between {self.size} "
                f"processes: make batch_size a multiple of {self.size}"
            )
        return order.chunk(self.size, dim=1)[self.rank]

    def average_gradients(self, optimizers: Optimizers) -> None:
        """Average the gradients over all processes before each update."""

        def hook(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
            found = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
            flat = torch.cat([gradient.flatten() for gradient in found])  # one message for all
            dist.all_reduce(flat)
            flat /= self.size
            for gradient, part in zip(found, flat.split([g.numel() for g in found]), strict=True):
                gradient.copy_(part.view_as(gradient))

        for optimizer in optimizers.values():
            optimizer.register_step_pre_hook(hook)

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def smallest(self, values: Tensor) -> Tensor:
        """The elementwise minimum over all processes."""
        if self.size > 1:
            dist.all_reduce(values, dist.ReduceOp.MIN)
        return values

    def agree(self, values: dict[str, float]) -> dict[str, float]:
        """The numbers of the first process, in all processes."""
        if self.size == 1:
            return values
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        box = torch.tensor(list(values.values()), dtype=torch.float64, device=device)
        dist.broadcast(box, src=0)
        return dict(zip(values, box.tolist(), strict=True))

    def any(self, flag: bool) -> bool:
        """Whether the flag is true in any process."""
        return self._sum_of_numbers(float(flag)) > 0

    def _sum_of_numbers(self, value: float) -> float:
        """The sum of a number over all processes."""
        if self.size == 1:
            return value
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        return float(self.sum(torch.tensor(value, dtype=torch.float64, device=device)))

    def wait(self) -> None:
        """Wait for the other processes."""
        if self.size > 1:
            dist.barrier()


def world() -> World:
    """The processes of this training. Its first call under ``torchrun`` joins the process group."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or "TORCHELASTIC_RUN_ID" not in os.environ:
        return World(0, 1)
    if not dist.is_initialized():
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
        atexit.register(_leave)
    return World(dist.get_rank(), size)


def _leave() -> None:
    """Leave the process group before the interpreter ends.

    Threads of the group that still run then can abort the process. After an uncaught error the group is
    left open: other processes may wait for this one, and this one would wait for them.
    """
    if dist.is_initialized() and getattr(sys, "last_value", None) is None:
        dist.destroy_process_group()
