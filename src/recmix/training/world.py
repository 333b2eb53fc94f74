"""`World`: the processes that train one model together under ``torchrun``.

A `World` object has the rank of this process and the number of processes. It computes sums over all
processes.

Without ``torchrun`` there is one process, and nothing is exchanged.
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
    """The processes that train one model together (data parallel, started by ``torchrun``)."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    @property
    def writer(self) -> bool:
        """Whether this process writes the run folder and prints; only the process of rank 0 does."""
        return self.rank == 0

    def share(self, order: Tensor) -> Tensor:
        """Return the example indices that this process trains on, (steps, batch / number of processes).

        Args:
            order: example indices of each batch of an epoch, for all processes, (steps, batch).
        """
        if order.shape[1] % self.size:
            raise ConfigError(
                f"a batch of {order.shape[1]} examples cannot be divided equally between {self.size} "
                f"processes: make batch_size a multiple of {self.size}"
            )
        return order.chunk(self.size, dim=1)[self.rank]

    def average_gradients(self, optimizers: Optimizers) -> None:
        """Make each optimiser average its gradients over all processes before every update.

        This registers a hook on each optimiser. Call it once, before training.
        """

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
        """Replace each element of `values` by its sum over all processes, and return `values`."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def smallest(self, values: Tensor) -> Tensor:
        """Replace each element of `values` by its minimum over all processes, and return `values`."""
        if self.size > 1:
            dist.all_reduce(values, dist.ReduceOp.MIN)
        return values

    def agree(self, values: Tensor) -> Tensor:
        """Return the `values` of the process of rank 0, as float64, in every process.

        Args:
            values: a tensor, of the same shape in all processes.
        """
        box = values.to("cuda" if dist.get_backend() == "nccl" else "cpu", torch.float64)
        dist.broadcast(box, src=0)
        return box

    def any(self, flag: bool) -> bool:
        """Whether `flag` is true in at least one process. All processes get the same answer."""
        return self._sum_of_numbers(float(flag)) > 0

    def _sum_of_numbers(self, value: float) -> float:
        """Return the sum of `value` over all processes."""
        if self.size == 1:
            return value
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        return float(self.sum(torch.tensor(value, dtype=torch.float64, device=device)))

    def wait(self) -> None:
        """Wait until all processes have called this method."""
        if self.size > 1:
            dist.barrier()


def world() -> World:
    """Return the `World` of this process. Under ``torchrun``, the first call joins the process group."""
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
    """Leave the process group at exit, because the threads of the group could abort the process.

    Do not leave the group after an uncaught error. Leaving waits for the other processes, and they may
    be waiting for this process.
    """
    if dist.is_initialized() and getattr(sys, "last_value", None) is None:
        dist.destroy_process_group()
