"""The tables of all methods and components by name, and functions to find and register them."""

from __future__ import annotations

from typing import Any, TypeVar

from recmix.errors import ConfigError, shown, unknown
from recmix.methods.component import Component
from recmix.methods.method import Method

__all__ = ["COMPONENTS", "METHODS", "find_component", "find_method", "register", "register_component"]

METHODS: dict[str, Any] = {}
"""Method classes by name; each is called as (model, encoder, *, options)."""
COMPONENTS: dict[str, Any] = {}
"""Component classes by kind; each is called as (encoder, model, *, options)."""
_M = TypeVar("_M", bound=type[Method])
_C = TypeVar("_C", bound=type[Component])


def register(cls: _M) -> _M:
    """Class decorator for methods: adds the class to `METHODS` under its `name`."""
    if cls.name in METHODS:
        raise ConfigError(f"two methods are called {cls.name!r}: {METHODS[cls.name]} and {cls}")
    METHODS[cls.name] = cls
    return cls


def register_component(cls: _C) -> _C:
    """Class decorator for components: adds the class to `COMPONENTS` under its `kind`.

    A mixture can then use it by the option `component`.
    """
    if cls.kind in COMPONENTS:
        raise ConfigError(f"two components are called {cls.kind!r}: {COMPONENTS[cls.kind]} and {cls}")
    COMPONENTS[cls.kind] = cls
    return cls


def find_component(kind: str) -> type[Component]:
    """Return the component class of a kind, such as ``gaussian``. Raise ConfigError if unknown."""
    if kind not in COMPONENTS:
        raise ConfigError(unknown("component", kind, COMPONENTS))
    found: type[Component] = COMPONENTS[kind]
    return found


def find_method(method: str | type[Method] | Method) -> type[Method]:
    """Return the class of a method, which is given as a name, a class or an instance.

    Raises:
        ConfigError: `method` is an unknown name, or an object of another type.
    """
    if isinstance(method, Method):
        return type(method)
    if isinstance(method, type) and issubclass(method, Method):
        return method
    trained = getattr(method, "method", None)
    if isinstance(trained, Method):
        own = repr(trained.name) if trained.name in METHODS else type(trained).__name__
        raise ConfigError(
            f"method is a trained model, {shown(method)}; expected a name, a Method class or a Method "
            f"instance: write recmix.fit({own}, x, init=model), or recmix.fit(model.method, x)"
        )
    if not isinstance(method, str):
        raise ConfigError(
            f"method must be a name, a Method class or a Method instance, got {shown(method)}: the "
            "method comes first, then the data, as in recmix.fit('vae', x)"
        )
    if method not in METHODS:
        raise ConfigError(unknown("method", method, METHODS))
    found: type[Method] = METHODS[method]
    return found
