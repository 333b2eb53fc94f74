"""Decorators for functions that a faster implementation may replace.

The library is plain PyTorch. The package `recmix.accelerate` registers faster versions of the
functions that are marked with these decorators (CUDA graphs, Triton kernels, several networks
evaluated as one). Without this package everything works, but slower.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

import torch

__all__ = ["FUSABLE", "Replaceable", "fusable", "load_accelerated", "replaceable"]

P = ParamSpec("P")
R = TypeVar("R")


class Replaceable(Generic[P, R]):
    """A function with alternative implementations, which are tried before the function itself.

    An alternative takes the same arguments as the function. It returns NotImplemented for arguments
    that it does not support; then the next alternative is tried. If all alternatives return
    NotImplemented, the function itself is called.

    >>> @replaceable
    ... def double(x: float) -> float:
    ...     return x + x
    >>> @double.register
    ... def double_integers(x: float) -> float:
    ...     return 2 * x if isinstance(x, int) else NotImplemented
    >>> double(2), double(1.5)
    (4, 3.0)
    """

    def __init__(self, function: Callable[P, R]) -> None:
        self.plain = function
        self.alternatives: list[Callable[..., Any]] = []
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the first alternative that supports the arguments, else the plain function.

        In code that is compiled by `torch.compile`, the plain function is always called.
        """
        if torch.compiler.is_dynamo_compiling():
            return self.plain(*args, **kwargs)
        load_accelerated()
        for alternative in self.alternatives:
            result: R = alternative(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return self.plain(*args, **kwargs)

    def register(self, alternative: Callable[..., Any]) -> Callable[..., Any]:
        """Add an alternative implementation and return it. This method can be used as a decorator.

        The alternative has the arguments of the plain function. It returns NotImplemented for arguments
        that it does not support.
        """
        self.alternatives.append(alternative)
        return alternative

    def register_for_gpu(self, alternative: Callable[..., Any]) -> Callable[..., Any]:
        """Like `register`, but add the alternative only if the machine can run GPU kernels.

        This is so if there is a GPU, or if the environment variable TRITON_INTERPRET is 1. Then Triton
        kernels run on the CPU. The alternative is returned in any case.
        """
        interpreted = os.environ.get("TRITON_INTERPRET") == "1"  # kernels run on the CPU, for tests
        return self.register(alternative) if torch.cuda.is_available() or interpreted else alternative


def replaceable(function: Callable[P, R]) -> Replaceable[P, R]:
    """Decorator that marks a function which a faster implementation may replace."""
    return Replaceable(function)


FUSABLE: list[Replaceable[..., Any]] = []
"""All functions that are marked with `fusable`: a compiler may fuse each into one GPU kernel."""


def fusable(function: Callable[P, R]) -> Replaceable[P, R]:
    """Decorator that marks a function which a compiler may fuse into one GPU kernel.

    The function must be a pure function of tensors and numbers. It is added to `FUSABLE`.
    """
    made = Replaceable(function)
    FUSABLE.append(made)
    return made


@functools.cache
def load_accelerated() -> None:
    """Import `recmix.accelerate`, which registers its faster implementations, if it is installed.

    Later calls do nothing.
    """
    try:
        importlib.import_module("recmix.accelerate")
    except ModuleNotFoundError as error:
        if error.name != "recmix.accelerate":
            raise
