"""Sort the arguments of `recmix.fit` into options of method, model, training and inference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from recmix.errors import ConfigError, unknown
from recmix.inference import Inference
from recmix.methods.method import Method
from recmix.methods.method_options import growth_options, method_options
from recmix.methods.registry import find_method
from recmix.model.options import ModelOptions, options_of
from recmix.runs.training_options import Training

__all__ = ["AUTO", "GROUPS", "Given", "read_options", "split_auto"]

AUTO = "auto"
"""The value of `order` that means: as many components as give a significant gain."""
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
    growth = growth_options(cls)
    own = method_options(cls) | growth
    groups = {name: options_of(group) for name, group in GROUPS.items()}
    known = {*own, *also, *(name for group in groups.values() for name in group)}
    for name in given:
        if name not in known:
            message = unknown(f"option for {cls.name}", name, known)
            raise ConfigError(f"{message} `recmix train --help-all` describes all options")
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
