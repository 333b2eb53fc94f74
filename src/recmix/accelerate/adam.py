"""Adam, fused where it can be, and busy on the whole of a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

__all__ = ["ChunkedAdam", "adam", "device_of", "with_rates"]

CHUNK = 2**13
"""Numbers that one block of the GPU moves: few enough for a small network to keep many blocks busy."""


class ChunkedAdam(torch.optim.Adam):
    """torch's fused Adam with its tensors handed over in small pieces; the same numbers, sooner.

    The fused kernel gives one block of threads 65,536 numbers at a time, so a network of a few hundred
    thousand weights occupies a handful of the GPU's processors. In pieces of 8,192 they are spread over
    many of them.

    >>> weight = torch.nn.Parameter(torch.zeros(3))
    >>> weight.grad = torch.ones(3)
    >>> ChunkedAdam([weight], lr=0.1, fused=True).step()
    >>> weight.data
    tensor([-0.1000, -0.1000, -0.1000])
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Move every parameter that has a gradient."""
        if closure is not None:
            raise NotImplementedError("give the gradients before the step, not a closure")
        for group in self.param_groups:
            self.move(group)

    def move(self, group: dict[str, Any]) -> None:
        """Move the parameters of one group."""
        lists: tuple[list[Tensor], ...] = ([], [], [], [], [], [])
        self._init_group(group, *lists)
        params, grads, firsts, seconds, _, steps = lists
        if not params:
            return
        torch._foreach_add_(steps, 1)
        pieces: tuple[list[Tensor], ...] = ([], [], [], [], [])
        for row in zip(params, grads, firsts, seconds, steps, strict=True):
            for into, piece in zip(pieces, zip(*_pieces(*row), strict=True), strict=True):
                into.extend(piece)
        beta1, beta2 = group["betas"]
        torch._fused_adam_(  # type: ignore[call-overload]
            *pieces[:4],
            [],
            pieces[4],
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )


def _pieces(*row: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """A parameter, its gradient and its two moments cut alike, each piece with the step."""
    *tensors, step = row
    if tensors[0].numel() <= CHUNK or not all(t.is_contiguous() for t in tensors):
        yield row
        return
    for cut in zip(*(t.view(-1).split(CHUNK) for t in tensors), strict=True):
        yield (*cut, step)


def adam(groups: Iterable[dict[str, Any]], learning_rate: float) -> torch.optim.Adam:
    """Adam, fused where it can be; on a GPU ready to be captured, with its rates as tensors there."""
    groups = list(groups)
    device = device_of(groups)
    if device.type == "cuda":
        return with_rates(ChunkedAdam(groups, lr=learning_rate, fused=True, capturable=True))
    return with_rates(torch.optim.Adam(groups, lr=learning_rate, fused=device.type == "cpu"))


def device_of(groups: Iterable[dict[str, Any]]) -> torch.device:
    """Where the parameters are; a decoder of a user may have none."""
    found = (p.device for group in groups for p in group["params"])
    return next(found, torch.device("cpu"))


def with_rates(optimizer: torch.optim.Adam) -> torch.optim.Adam:
    """The optimiser, knowing the rates it began with; on a GPU they are tensors, for a graph to read."""
    device = device_of(optimizer.param_groups)
    for group in optimizer.param_groups:
        group["initial_lr"] = float(group["lr"])
        if device.type == "cuda":
            group["lr"] = torch.tensor(group["initial_lr"], device=device)
    return optimizer
