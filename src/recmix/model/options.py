"""Options of models, training and inference, with their defaults, help texts and valid values.

Each option is defined once, as a field of a frozen dataclass. Python arguments, the command line, TOML
files, grids, the documentation and the run folder all read these fields. To add an option, add a field
and the line of code that uses it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

from recmix.errors import ConfigError, unknown

__all__ = ["ModelOptions", "Option", "Options", "option", "options_of"]

MAX_LATENT = 10**5
"""Largest dimension of z."""


def option(
    default: Any,
    help: str,
    *,
    choices: Iterable[str] = (),
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
) -> Any:
    """Make a dataclass field that defines an option, in a subclass of `Options`.

    Args:
        default: the default value. None means that the code chooses a value.
        help: the text that describes the option to users.
        choices: all valid values of a text option.
        at_least: limit of a number, which is itself valid. The same holds for `at_most`.
        above: limit of a number, which is itself not valid. The same holds for `below`.
    """
    limits = {"at least": at_least, "above": above, "at most": at_most, "below": below}
    about = {"help": help, "choices": tuple(choices), "limits": limits}
    return field(default=default, metadata=about)


_HOLDS: dict[str, Callable[[float, float], bool]] = {
    "at least": operator.ge,
    "above": operator.gt,
    "at most": operator.le,
    "below": operator.lt,
}


class Option(NamedTuple):
    """One option: its name, type, default, help text and valid values.

    Attributes:
        name: the name in Python, in TOML files and on the command line.
        kind: the type, such as `int` or `str | None`.
        choices: all valid values of a text option. It is empty if any text is valid.
        limits: limits of a number, {name: limit}. The names are "at least", "above", "at most" and
            "below". The value None means that there is no such limit.
    """

    name: str
    kind: Any
    default: Any
    help: str = ""
    choices: tuple[str, ...] = ()
    limits: Mapping[str, float | None] = types.MappingProxyType({})

    def read(self, value: Any) -> Any:
        """Convert a value, such as text from the command line, to this option's type and check it.

        Raise a `ConfigError` if the value is not valid.

        >>> Option("order", int, 5, "").read("3")
        3
        """
        kinds = [k for k in _kinds(self.kind) if k is not type(None)]
        if value is None and type(None) in _kinds(self.kind):
            return None
        for kind in kinds:
            found = _convert(kind, value)
            if found is not None:
                self.check(found)
                return found
        expected = " or ".join(_name(kind) for kind in kinds)
        raise ConfigError(f"{self.name} must be {expected}, got {value!r}")

    def check(self, value: Any) -> None:
        """Raise a `ConfigError` if the value is not one of the choices or not within the limits."""
        if self.choices and value not in self.choices:
            raise ConfigError(unknown(f"value of {self.name}", value, self.choices))
        if isinstance(value, bool) or not isinstance(value, int | float) or value == self.default:
            return
        valid = [(words, limit) for words, limit in self.limits.items() if limit is not None]
        if not math.isfinite(value) or any(not _HOLDS[words](value, limit) for words, limit in valid):
            expected = " and ".join(f"{words} {limit:g}" for words, limit in valid) or "finite"
            raise ConfigError(f"{self.name} must be {expected}, got {value}")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base class of a group of options: a frozen dataclass whose fields are made by `option`.

    The constructor converts and checks the option values.
    """

    def __post_init__(self) -> None:
        for one in options_of(type(self)).values():
            value = one.read(getattr(self, one.name))
            object.__setattr__(self, one.name, value)
        self.check()

    def check(self) -> None:
        """Raise an error if option values contradict each other. Subclasses may override this method."""

    def to_json(self) -> dict[str, Any]:
        """The values of all options as a dict {name: value}, which JSON can store."""
        return dataclasses.asdict(self)

    def changed(self) -> dict[str, Any]:
        """The options that differ from their defaults, {name: value}.

        Hashes that identify settings are computed from these options alone. So a hash stays the same
        when a later version of the library adds an option whose default changes nothing.
        """
        known = options_of(type(self))
        return {k: v for k, v in vars(self).items() if v != known[k].default}


def options_of(group: type) -> dict[str, Option]:
    """The options of a group, {name: option}. A group is a subclass of `Options`.

    >>> options_of(ModelOptions)["latent"].default
    20
    """
    return _options_of(group)  # type: ignore[arg-type]  # classes are hashable


@functools.cache
def _options_of(group: Any) -> dict[str, Option]:
    hints = typing.get_type_hints(group)
    return {f.name: Option(f.name, hints[f.name], f.default, **f.metadata) for f in fields(group)}


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Options):
    """The options that define the model p(x, z) and its encoder.

    >>> ModelOptions(latent=0)
    Traceback (most recent call last):
    recmix.errors.ConfigError: latent must be at least 1, got 0
    """

    latent: int = option(20, "Dimension of z, at most 100,000.", at_least=1)
    likelihood: str | None = option(
        None,
        "p(x | z): gaussian, gaussian-features (a variance for each value), gaussian-decoded "
        "(variances from the decoder), bernoulli, bernoulli-probabilities, categorical, autoregressive "
        "(tokens, each given those before it), graph, poisson, negative-binomial, "
        "zero-inflated-negative-binomial, multinomial or logistic-mixture. Default: bernoulli for "
        "binary data, poisson for counts, autoregressive for texts, graph for graphs, gaussian for "
        "other data.",
    )
    variance: float | None = option(None, "gaussian: a fixed variance. Default: it is learned.", above=0)
    classes: int | None = option(
        None,
        "categorical, autoregressive and networks for tokens: number of classes. Default: that of the "
        "vocabulary, or one more than the largest value.",
        at_least=2,
    )
    node_classes: int | None = option(
        None, "graph: number of node classes. Default: that of the vocabulary.", at_least=2
    )
    edge_classes: int | None = option(
        None, "graph: number of edge classes. Default: that of the vocabulary.", at_least=2
    )
    end_token: bool = option(
        False, "Class 0 ends a text: what follows it is padding. Texts have it by default."
    )
    causal: str = option(
        "transformer",
        "autoregressive: the network that sees the tokens before.",
        choices=["transformer", "gru"],
    )
    standardise: str = option(
        "mean",
        "gaussian likelihoods: what is done to x first, and undone on output: mean (subtract the "
        "training mean), features (also divide each value by its standard deviation) or none.",
        choices=["mean", "features", "none"],
    )
    prior: str = option(
        "standard", "p(z): standard (normal), mixture (of Gaussians), vamp (VampPrior) or flow."
    )
    prior_components: int = option(
        50, "mixture: number of Gaussians. vamp: number of pseudo-examples.", at_least=1
    )
    network: str = option(
        "conv",
        "conv (the paper's), dense (fully connected, as large as conv), mlp (fully connected, for "
        "examples of any shape), resnet (residual, larger), transformer or gru (for tokens), graph, "
        "video, or auto, which is also used where none is given: transformer for texts, graph for "
        "graphs, video for clips, conv for images with sides of 8 to 128, else mlp.",
    )
    decoder_network: str | None = option(
        None, "The decoder's network, if it differs from the encoder's."
    )
    widths: tuple[int, ...] | None = option(
        None,
        "mlp: sizes of the hidden layers (512,512). resnet: channels at each resolution (32,64,128). "
        "The first number is next to the example.",
    )
    blocks: int = option(
        2,
        "resnet: residual blocks at each resolution. Networks for tokens and graphs, and "
        "autoregressive: number of layers.",
        at_least=1,
    )
    units: int = option(
        128,
        "Networks for tokens, graphs and clips, and autoregressive: size of hidden states.",
        at_least=1,
    )
    heads: int = option(4, "transformer: number of attention heads, which divides units.", at_least=1)
    activation: str | None = option(
        None,
        "mlp, resnet and transformer: the activation (by default relu, silu and gelu).",
        choices=["relu", "leaky_relu", "elu", "silu", "gelu", "tanh"],
    )
    normalisation: str = option(
        "none", "mlp: normalisation before each activation.", choices=["none", "layer", "batch"]
    )
    curvature: str = option(
        "none",
        "A network that predicts the posterior's covariance, for the refinement learned: none, full, or "
        "low-rank (for many latent dimensions). The method curvature trains it and chooses the kind.",
        choices=["none", "full", "low-rank"],
    )
    curvature_rank: int = option(32, "curvature low-rank: the rank.", at_least=1)
    dropout: float = option(
        0.0,
        "mlp, networks for tokens, autoregressive: share of hidden units set to zero in training.",
        at_least=0,
        below=1,
    )
    token_dropout: float = option(
        0.0,
        "autoregressive: share of the tokens before that are hidden in training, so that more is known "
        "from z.",
        at_least=0,
        below=1,
    )

    def check(self) -> None:
        """Raise a `ConfigError` if the dimension of z is larger than `MAX_LATENT`."""
        if self.latent > MAX_LATENT:
            raise ConfigError(f"latent must be at most {MAX_LATENT:,}, got {self.latent}")


def _kinds(kind: Any) -> tuple[Any, ...]:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return typing.get_args(kind)
    return (kind,)


def _convert(kind: Any, value: Any) -> Any:  # noqa: PLR0911  (one return per type)
    if typing.get_origin(kind) is Literal:
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
    if kind == tuple[int, ...]:  # (512, 512), or the text "512,512"
        given = value.split(",") if isinstance(value, str) else value
        numbers = [_convert(int, one) for one in given] if isinstance(given, list | tuple) else [None]
        return None if None in numbers else tuple(numbers)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    if kind is int:
        whole = math.isfinite(number) and number == int(number)
        return (value if isinstance(value, int) else int(number)) if whole else None
    return number


def _name(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        choices = ", ".join(map(repr, typing.get_args(kind)))
        return f"one of {choices}" if len(typing.get_args(kind)) > 1 else choices
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return names.get(kind, "whole numbers such as 512,512")
