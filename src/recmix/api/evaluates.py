"""The decorator `evaluates`, for the methods of `recmix.Model` that evaluate the networks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from recmix.model.encoder_decoder import evaluation_mode

__all__ = ["evaluates"]

F = TypeVar("F", bound=Callable[..., Any])


def evaluates(function: F) -> F:
    """Decorator: during the call of a method, the networks are in evaluation mode.

    A wrapped model shares its networks with the user's code, which may set them to training mode. Then
    dropout would change the result, and batch normalisation would change the networks. After the call,
    each network gets back the mode that it had. If the model itself is in training mode, by
    ``model.train()``, nothing is changed.
    """

    @functools.wraps(function)
    def evaluated(model: Any, /, *args: Any, **given: Any) -> Any:
        if model.training or not any(part.training for part in model._parts):
            return function(model, *args, **given)
        with evaluation_mode(model.method):
            return function(model, *args, **given)

    return cast(F, evaluated)
