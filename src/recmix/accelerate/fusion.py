"""Fewer kernels one after the other: arithmetic compiled into single ones, and branches side by side.

A step on a GPU is bound by the number of its kernels, and most of them are a few additions and
exponentials around the networks. Functions marked `fusible` are plain functions; inside `fusing()` they
go through `torch.compile`, which makes one or two kernels of each, forward and backward. What is formed
`beside` something else becomes a branch of the CUDA graph that is captured.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

__all__ = ["beside", "fusible", "fusing"]

P = ParamSpec("P")
R = TypeVar("R")
_active = False


def fusible(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a pure function of tensors and numbers.

    >>> @fusible
    ... def twice(x):
    ...     return x + x
    >>> twice(torch.ones(2))
    tensor([2., 2.])
    """
    compiled: list[Callable[P, R]] = []

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not _active or torch.compiler.is_compiling():
            return function(*args, **kwargs)
        if not compiled:
            compiled.append(torch.compile(function))
        return compiled[0](*args, **kwargs)

    return call


@contextmanager
def fusing() -> Iterator[None]:
    """In here, fusible functions are compiled."""
    global _active  # noqa: PLW0603  (one switch for the process, read at every call)
    import torch._dynamo

    before, _active = _active, True
    try:
        # The shapes of a step are few and fixed; each combination is compiled once.
        with torch._dynamo.config.patch(recompile_limit=64):
            yield
    finally:
        _active = before


@contextmanager
def beside(x: Tensor) -> Iterator[Callable[[], None]]:
    """In here, while a CUDA graph is captured, kernels make a branch of their own.

    They see what came before, and run beside what comes next until what is yielded is called.

    >>> with beside(torch.ones(1)) as joined:
    ...     one = torch.ones(1) + 1
    >>> joined()
    """
    with torch.cuda.device_of(x):
        if not (x.is_cuda and torch.cuda.is_current_stream_capturing()):
            yield lambda: None
            return
        main = torch.cuda.current_stream()
        side = next(stream for stream in _sides(x.device) if stream != main)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            yield lambda: main.wait_stream(side)


@functools.cache
def _sides(device: torch.device) -> list[torch.cuda.Stream]:
    """Two streams to branch to: a graph may be captured in one of them."""
    return [torch.cuda.Stream(device) for _ in range(2)]
