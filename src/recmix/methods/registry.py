"""The central objects: a latent model p(x, z), a posterior q(z | x), a method that learns both."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import nn

from recmix.errors import ConfigError, unknown
from recmix.methods.component import Component
from recmix.methods.method import Method
from recmix.model.latent import LatentModel

__all__ = ["COMPONENTS", "METHODS", "find_method", "make_component", "register", "register_component"]


METHODS: dict[str, Any] = {}
"""Method classes by name; each is called as (model, encoder, *, options)."""
COMPONENTS: dict[str, Any] = {}
"""Component classes by kind; each is called as (encoder, model, *, options)."""
_M = TypeVar("_M", bound=type[Method])
_C = TypeVar("_C", bound=type[Component])


def register(cls: _M) -> _M:
    """Make a method known under its name."""
    if cls.name in METHODS:
        raise ConfigError(f"two methods are called {cls.name!r}: {METHODS[cls.name]} and {cls}")
    METHODS[cls.name] = cls
    return cls


def register_component(cls: _C) -> _C:
    """Make a component known under its kind, for mixtures to be made of."""
    if cls.kind in COMPONENTS:
        raise ConfigError(f"two components are called {cls.kind!r}: {COMPONENTS[cls.kind]} and {cls}")
    COMPONENTS[cls.kind] = cls
    return cls


def make_component(
    kind: str, encoder: nn.Module, model: LatentModel, setting: int | None = None
) -> Component:
    """A component of this kind; `setting` is the option that its tables vary (steps, flows)."""
    import recmix.methods  # noqa: F401  (fills the registry)

    if kind not in COMPONENTS:
        raise ConfigError(unknown("component", kind, COMPONENTS))
    cls = COMPONENTS[kind]
    if setting is None:
        made: Component = cls(encoder, model)
        return made
    if cls.setting is None:
        raise ConfigError(f"component {kind!r} has no setting, got component_setting={setting}")
    made = cls(encoder, model, **{cls.setting: setting})
    return made


def find_method(name: str) -> type[Method]:
    """The method class of this name."""
    import recmix.methods  # noqa: F401  (fills the registry)

    if name not in METHODS:
        raise ConfigError(unknown("method", name, METHODS))
    found: type[Method] = METHODS[name]
    return found
