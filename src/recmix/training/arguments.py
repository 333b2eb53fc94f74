"""Sort the arguments of `recmix.fit` into options of method, model, training and inference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch

from recmix.errors import OTHER_WORDS, ConfigError, unknown
from recmix.inference import Inference
from recmix.methods.method import Method
from recmix.methods.method_options import growth_options, method_options
from recmix.methods.registry import METHODS, find_method
from recmix.model.options import ModelOptions, options_of
from recmix.runs.training_options import Training

__all__ = ["AUTO", "GROUPS", "Given", "as_text", "read_options", "split_auto"]

AUTO = "auto"
"""The value of the option `order` that means: add mixture components as long as the gain of each is
significant."""
GROUPS: dict[str, type] = {"model": ModelOptions, "training": Training, "inference": Inference}
"""The groups of options that all methods share."""


class Given(NamedTuple):
    """A method's class, and the options that a user gave, as four dicts {name: value}.

    Attributes:
        method: options of the method. Options that were not given have their defaults.
        inference: the given inference options: how the posterior is refined and calibrated.
    """

    cls: type[Method]
    method: dict[str, Any]  # complete, with defaults
    model: dict[str, Any]  # only what was given
    training: dict[str, Any]
    inference: dict[str, Any]


def split_auto(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Separate the options for ``order = "auto"`` from the other options of a method.

    The order is the number of mixture components; ``auto`` means that it is chosen automatically.

    >>> split_auto({"order": "auto", "jitter": 0.1, "max_order": 4, "significance": 0.05})
    ({'order': 1, 'jitter': 0.1}, {'order': 'auto', 'max_order': 4, 'significance': 0.05})

    Returns:
        The options of the method, and the options for choosing the order. If the order is a number,
        there is nothing to choose, and the second value is None. If the order is ``auto``, the options
        of the method have the order 1, because the choice starts with one component.
    """
    if options.get("order") != AUTO:
        return dict(options), None
    names = ("order", "max_order", "significance")
    auto = {name: options[name] for name in names}
    return {"order": 1} | {k: v for k, v in options.items() if k not in names}, auto


def read_options(
    method: str | type[Method] | Method, given: Mapping[str, Any], also: Iterable[str] = ()
) -> Given:
    """Check the options that a user gave, and sort them: method, model, training, inference.

    Args:
        method: the method whose options are read: its name, its class or an instance.
        also: names that are not options but are valid arguments; the error message lists them too.

    Returns:
        The method's class, and the options of the method, the model, the training and the inference.
        Only the options of the method include defaults for options that were not given.

    Raises:
        ConfigError: a name is unknown, or a value is not valid.
    """
    cls = find_method(method)
    growth = growth_options(method)
    own = method_options(method) | growth
    given = {name: as_text(value) for name, value in given.items()}
    groups = {name: options_of(group) for name, group in GROUPS.items()}
    known = {*own, *also, *(name for group in groups.values() for name in group)}
    for name in given:
        if name not in known:
            raise ConfigError(_unknown_option(cls.name, name, known))
    if "order" in own and not growth and given.get("order") == AUTO:
        raise ConfigError(
            f"order = 'auto' adds components one at a time, which {cls.name} cannot do: use rme, or "
            "give a number"
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
    shared = {
        group: {name: options[name].read(given[name]) for name in given if name in options}
        for group, options in groups.items()
    }
    return Given(cls, mine, **shared)


def as_text(value: Any) -> Any:
    """Return a torch device or dtype as text, such as ``float64``; return other values unchanged."""
    return str(value).removeprefix("torch.") if isinstance(value, torch.device | torch.dtype) else value


def _unknown_option(method: str, name: str, known: Iterable[str]) -> str:
    """Return the error message for an option that a method does not have.

    If other methods have this option, the message names these methods.

    Args:
        known: all valid names of options, from which the message suggests a similar one.
    """
    text = unknown(f"option for {method}", name, known)
    others = [one for one in sorted(METHODS) if _has_option(one, name)]
    if others and not any(name in words for words in OTHER_WORDS.values()):
        text = f"unknown option for {method} {name!r}: it is an option of {', '.join(others)}"
    end = "" if text.endswith("?") else "."
    return f"{text}{end} `recmix train --help-all` describes all options"


def _has_option(method: str, name: str) -> bool:
    """Whether a registered method has this option. A class with wrong options has none."""
    try:
        return name in method_options(method) | growth_options(method)
    except ConfigError:
        return False
