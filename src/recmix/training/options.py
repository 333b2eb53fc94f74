"""Options as keyword arguments: which exist, of what type, and what they say of themselves."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, NamedTuple

from recmix.errors import ConfigError, unknown
from recmix.methods.method import Method
from recmix.methods.recursive import MAX_ORDER, RecursiveMixture
from recmix.runs.options import Training

__all__ = [
    "AUTO",
    "Option",
    "growth_options",
    "method_options",
    "read_options",
    "split_auto",
    "training_options",
]

AUTO = "auto"
"""The order that stands for: as many components as there is a gain from."""


class Option(NamedTuple):
    """One tunable: its name, type, default and the line of the docstring about it."""

    name: str
    kind: Any
    default: Any
    help: str

    def read(self, value: Any) -> Any:
        """`value` as this option's type; text (from a command line) is converted.

        >>> Option("order", int, 5, "").read("3")
        3
        """
        kinds = [k for k in _kinds(self.kind) if k is not type(None)]
        if value is None and type(None) in _kinds(self.kind):
            return None
        for kind in kinds:
            found = _convert(kind, value)
            if found is not None:
                return found
        expected = " or ".join(_name(kind) for kind in kinds)
        raise ConfigError(f"{self.name} must be {expected}, got {value!r}")


def method_options(method: type[Method]) -> dict[str, Option]:
    """A method's own options: the keyword-only arguments of its constructor."""
    hints = typing.get_type_hints(method.__init__)
    about = _arguments(method.__doc__ or "")
    return {
        name: Option(name, hints[name], parameter.default, about.get(name, ""))
        for name, parameter in inspect.signature(method).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }


def growth_options(method: type[Method]) -> dict[str, Option]:
    """What a method that grows takes beside its own: the order may be left open.

    >>> growth_options(RecursiveMixture)["order"].read("auto")
    'auto'
    """
    if not issubclass(method, RecursiveMixture):
        return {}
    order = method_options(method)["order"]
    about = f"{order.help.rstrip('.')}; auto: as many as there is a gain from."
    return {
        "order": Option("order", int | typing.Literal["auto"], order.default, about),
        "max_order": Option("max_order", int, 8, f"with order auto: at most so many, to {MAX_ORDER}."),
        "significance": Option(
            "significance", float, 0.05, "with order auto: level of the test that a component must pass."
        ),
    }


def split_auto(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Options apart into those a method is made with and, if the order is open, how to choose it.

    >>> split_auto({"order": "auto", "jitter": 0.1, "max_order": 4, "significance": 0.05})
    ({'order': 1, 'jitter': 0.1}, {'order': 'auto', 'max_order': 4, 'significance': 0.05})
    """
    if options.get("order") != AUTO:
        return dict(options), None
    names = ("order", "max_order", "significance")
    auto = {name: options[name] for name in names}
    if not 2 <= auto["max_order"] <= MAX_ORDER:
        raise ConfigError(f"max_order must be 2 to {MAX_ORDER}, got {auto['max_order']}")
    if not 0 < auto["significance"] < 0.5:
        raise ConfigError(
            "significance is the level of a test, between 0 and 0.5; "
            f"got {auto['significance']}: try 0.05"
        )
    return {"order": 1} | {k: v for k, v in options.items() if k not in names}, auto


def training_options() -> dict[str, Option]:
    """The options of training, common to all methods."""
    hints = typing.get_type_hints(Training)
    about = _arguments(Training.__doc__ or "")
    return {
        f.name: Option(
            f.name, hints[f.name], f.default if f.default is not MISSING else None, about[f.name]
        )
        for f in fields(Training)
    }


def read_options(
    method: type[Method], given: Mapping[str, Any], also: typing.Iterable[str] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split keyword arguments into the method's options (complete) and training's (as given).

    Args:
        method: whose options.
        given: keyword arguments.
        also: further names that would have been valid, for the message.
    """
    growth, common = growth_options(method), training_options()
    own = method_options(method) | growth
    for name in given:
        if name not in own and name not in common:
            raise ConfigError(unknown(f"option for {method.name}", name, {*own, *common, *also}))
    if "order" in own and not growth and given.get("order") == AUTO:
        raise ConfigError(
            f"order = 'auto' grows a mixture one component at a time, which {method.name} does not: "
            "use rme, or give a number"
        )
    mine = {name: option.default for name, option in own.items()}
    mine |= {name: own[name].read(value) for name, value in given.items() if name in own}
    if mine.get("order") != AUTO:
        for name in [name for name in growth if name != "order"]:
            if name in given:
                raise ConfigError(
                    f"{name} is for order = 'auto', got order = {mine['order']}: leave {name} out"
                )
            del mine[name]
    return mine, {name: common[name].read(given[name]) for name in given if name in common}


def _kinds(kind: Any) -> tuple[Any, ...]:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return typing.get_args(kind)
    return (kind,)


def _convert(kind: Any, value: Any) -> Any:  # noqa: PLR0911  (one return per type)
    if typing.get_origin(kind) is typing.Literal:
        choices = typing.get_args(kind)
        return next((c for c in choices if value == c or value == str(c)), None)
    if kind is bool:
        if isinstance(value, bool):
            return value
        return {"true": True, "false": False, "yes": True, "no": False}.get(str(value).lower())
    if isinstance(value, bool):
        return None
    if kind is str:
        return value if isinstance(value, str) else None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    if kind is int:
        return int(number) if number == int(number) else None
    return number


def _name(kind: Any) -> str:
    if typing.get_origin(kind) is typing.Literal:
        choices = ", ".join(map(repr, typing.get_args(kind)))
        return f"one of {choices}" if len(typing.get_args(kind)) > 1 else choices
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[kind]


def _arguments(docstring: str) -> dict[str, str]:
    """The lines of a docstring's Args section, by name."""
    found: dict[str, str] = {}
    name = ""
    for line in inspect.cleandoc(docstring).partition("Args:\n")[2].splitlines():
        if not line.startswith("    "):
            break
        if not line.startswith("     ") and ": " in line:
            name, _, text = line.strip().partition(": ")
            found[name] = text
        elif name:
            found[name] += " " + line.strip()
    return found
