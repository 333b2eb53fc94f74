"""The decorator `evaluates`, for the methods of `recmix.Model` that evaluate the networks."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from torch import nn

__all__ = ["evaluates"]

F = TypeVar("F", bound=Callable[..., Any])
_LOCK = threading.Lock()
_RUNNING: WeakKeyDictionary[nn.Module, tuple[int, list[nn.Module]]] = WeakKeyDictionary()
"""For each method that is evaluated now: the number of calls, and the parts whose mode was changed."""


def evaluates(function: F) -> F:
    """Decorator: during the call of a method, the networks are in evaluation mode.

    A wrapped model shares its networks with the user's code, which may set them to training mode. Then
    dropout would change the result, and batch normalisation would change the networks. After the call,
    each network gets back the mode that it had. After ``model.train()`` the modes are left as they are.
    """

    @functools.wraps(function)
    def evaluated(model: Any, /, *args: Any, **given: Any) -> Any:
        if model.training:
            return function(model, *args, **given)
        with _evaluation(model.method, model._parts):
            return function(model, *args, **given)

    return cast(F, evaluated)


@contextmanager
def _evaluation(method: nn.Module, parts: Sequence[nn.Module]) -> Iterator[None]:
    """Context in which all parts of a method are in evaluation mode, for calls in several threads.

    The first call that begins changes the modes, and the last one that ends restores them.
    """
    with _LOCK:
        calls, changed = _RUNNING.get(method, (0, []))
        if not calls:
            changed = [part for part in parts if part.training]
            _set_training(changed, to=False)
        _RUNNING[method] = (calls + 1, changed)
    try:
        yield
    finally:
        with _LOCK:
            calls, changed = _RUNNING[method]
            if calls > 1:
                _RUNNING[method] = (calls - 1, changed)
            else:
                del _RUNNING[method]
                _set_training(changed, to=True)


def _set_training(parts: Sequence[nn.Module], *, to: bool) -> None:
    for part in parts:
        part.training = to
