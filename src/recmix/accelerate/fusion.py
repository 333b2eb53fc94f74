"""Make training steps faster on a GPU: compile elementwise functions, and run work in parallel.

On a GPU the time of a training step depends mainly on its number of kernels. Most of these kernels
are a few additions and exponentials around the networks. Inside `fusing()` the functions marked
`fusable` go through `torch.compile`, which makes one or two kernels of each function, forward and
backward. Work inside `branch` becomes a parallel branch of the CUDA graph that is being captured.
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
    """Context in which `torch.compile` compiles the functions marked `fusable`.

    These are elementwise functions. Compiled, each needs only one or two GPU kernels.
    """
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
    """Return a version of `function` whose plain code is compiled.

    Inside code that `torch.compile` is already compiling, this version returns NotImplemented.
    """
    compiled = torch.compile(function.plain)

    def call(*args: Any, **kwargs: Any) -> Any:
        return NotImplemented if torch.compiler.is_compiling() else compiled(*args, **kwargs)

    return call


@contextmanager
def branch(x: Tensor) -> Iterator[Callable[[], None]]:
    """Put the kernels of this context on a parallel branch of the CUDA graph being captured.

    Kernels of the branch can read the results of all kernels before it. They run in parallel with
    the kernels that come after the context, until the yielded function is called. This function
    joins the branch: later kernels wait for the kernels of the branch. If no graph is being captured,
    the context changes nothing.

    Args:
        x: a tensor on the device of the capture.

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
    """Two CUDA streams for `branch`; at least one of them is not the stream of the capture."""
    return [torch.cuda.Stream(device) for _ in range(2)]
