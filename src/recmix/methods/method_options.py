"""Find the options of a method in its constructor."""

from __future__ import annotations

import inspect
import typing

from recmix.errors import ConfigError
from recmix.methods.component import MAX_ORDER
from recmix.methods.method import Method
from recmix.methods.registry import find_method
from recmix.model.options import Option

__all__ = ["growth_options", "method_options"]


def method_options(method: str | type[Method] | Method) -> dict[str, Option]:
    """Return the options that belong to this method only, as {name: option}.

    They are the keyword-only arguments of the constructor.

    Raises:
        ConfigError: an option has no type annotation, or a method class has a positional constructor
            argument in addition to model and encoder.

    >>> list(method_options("iaf"))
    ['flows', 'hidden']
    """
    cls = find_method(method)
    hints = typing.get_type_hints(cls.__init__)
    help_texts = _arguments(cls.__doc__ or "")
    parameters = inspect.signature(cls.__init__).parameters
    for name in [n for n, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD][3:]:
        if not isinstance(method, Method):  # an instance has its value
            raise ConfigError(
                f"the option {name} of the class {cls.__name__} must be keyword-only: put it after *, "
                f"as in def __init__(self, model, encoder, *, {name}: int = 3); see docs/new_method.md"
            )
    own = {name: p.default for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    if untyped := [name for name in own if name not in hints]:
        raise ConfigError(
            f"the option {untyped[0]} of the class {cls.__name__} needs a type annotation, such as "
            f"{untyped[0]}: int = 3; see docs/new_method.md"
        )
    return {
        name: Option(name, hints[name], default, help_texts.get(name, ""))
        for name, default in own.items()
    }


def growth_options(method: str | type[Method] | Method) -> dict[str, Option]:
    """Return the option `order` and the options that are used with ``order = "auto"``, {name: option}.

    With ``order = "auto"``, the number of mixture components is chosen automatically. The result is
    empty if components cannot be added to this method.
    """
    if not find_method(method).can_grow:
        return {}
    order = method_options(method)["order"]
    text = f"{order.help.rstrip('.')}; auto: as many as give a significant gain."
    limits = {"at least": 2, "at most": MAX_ORDER}
    return {
        "order": Option("order", int | typing.Literal["auto"], order.default, text),
        "max_order": Option("max_order", int, 8, "With order auto: the largest order.", limits=limits),
        "significance": Option(
            "significance",
            float,
            0.05,
            "With order auto: level of the test that a new component must pass.",
            limits={"above": 0, "below": 0.5},
        ),
    }


def _arguments(docstring: str) -> dict[str, str]:
    """Return the text of each argument in the Args section of a docstring, by name."""
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
