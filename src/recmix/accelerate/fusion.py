"""Fewer kernels: elementwise arithmetic compiled into single kernels, and parallel branches.

On a GPU a training step is bound by the number of its kernels, and most of them are a few additions and
exponentials around the networks. Inside `fusing()` the functions marked `fusable` go through
`torch.compile`, which makes one or two kernels of each, forward and backward. Work inside `branch`
becomes a parallel branch of the CUDA graph that is being captured.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from recmix.model.replaceable import FUSABLE, Replaceable

__all__ = ["branch", "fusing"]


@contextmanager
def fusing() -> Iterator[None]:
    """In this context, fusable functions are compiled."""
    import torch._dynamo

    fused = [(function, _fused(function)) for function in FUSABLE]
    for function, alternative in fused:
        function.alternatives.insert(0, alternative)
    try:
        # The shapes of a step are few and fixed; each combination is compiled once.
        with torch._dynamo.config.patch(recompile_limit=64):
            yield
    finally:
        for function, alternative in fused:
            function.alternatives.remove(alternative)


@functools.cache
def _fused(function: Replaceable[..., Any]) -> Callable[..., Any]:
    """The compiled form of a function. Inside code that is being compiled it does not apply."""
    compiled = torch.compile(function.plain)

    def call(*args: Any, **kwargs: Any) -> Any:
        return NotImplemented if torch.compiler.is_compiling() else compiled(*args, **kwargs)

    return call


@contextmanager
def branch(x: Tensor) -> Iterator[Callable[[], None]]:
    """While a CUDA graph is captured, kernels in this context form a parallel branch.

    They can read the results of all earlier kernels. They run in parallel with later kernels until the
    yielded function is called, which joins the branch.

    >>> with branch(torch.ones(1)) as join:
    ...     one = torch.ones(1) + 1
    >>> join()
    """
    with torch.cuda.device_of(x):
        if not (x.is_cuda and torch.cuda.is_current_stream_capturing()):
            yield lambda: None
            return
        main = torch.cuda.current_stream()
        side = next(stream for stream in _side_streams(x.device) if stream != main)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            yield lambda: main.wait_stream(side)


@functools.cache
def _side_streams(device: torch.device) -> list[torch.cuda.Stream]:
    """Two streams for branches: one of them may be the stream of the capture."""
    return [torch.cuda.Stream(device) for _ in range(2)]
