"""Small arithmetic that an engine may have compiled into single kernels.

A step on a GPU is bound by the number of its kernels, and most of them are a few additions and
exponentials around the networks. Functions marked `fusible` are plain functions; inside `fusing()` they
go through `torch.compile`, which makes one or two kernels of each, forward and backward.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import torch

__all__ = ["fusible", "fusing"]

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
