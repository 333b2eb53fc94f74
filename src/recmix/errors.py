"""Errors that the user can correct. Each says what was given, what was expected and what to do."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

__all__ = [
    "ConfigError",
    "DataError",
    "Interrupted",
    "NonFiniteError",
    "OutOfMemory",
    "RecmixError",
    "RunError",
    "check_arguments",
    "memory_advice",
    "nearest",
    "shown",
    "unknown",
]

P = ParamSpec("P")
R = TypeVar("R")


class RecmixError(Exception):
    """Base class of all errors that the user can correct, such as wrong input."""


class DataError(RecmixError, ValueError):
    """Data are missing, corrupt, or of a form that is not supported."""


class ConfigError(RecmixError, ValueError):
    """An option does not exist or has a value that is not valid."""


class RunError(RecmixError):
    """A run folder cannot be read or written, or its training cannot be continued."""


class NonFiniteError(RecmixError, ArithmeticError):
    """A loss in training, or a bound in evaluation, is not a finite number."""


class Interrupted(KeyboardInterrupt):
    """Training was asked to stop (Ctrl-C or SIGTERM) and has saved its state.

    It is a `KeyboardInterrupt` and not a `RecmixError`, so that a loop over trainings with
    ``except Exception`` stops, too.
    """


class OutOfMemory(RecmixError, RuntimeError):
    """The memory of a GPU or of the computer is too small; the message says what to lower."""


@contextmanager
def memory_advice(advice: str) -> Iterator[None]:
    """Context or decorator that converts out-of-memory errors to an `OutOfMemory` with advice.

    Args:
        advice: what the user can do, such as "lower samples".

    >>> with memory_advice("lower samples"):
    ...     raise MemoryError("cannot allocate 3 GB")
    Traceback (most recent call last):
        ...
    recmix.errors.OutOfMemory: out of memory (cannot allocate 3 GB): lower samples
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        ours = isinstance(error, OutOfMemory)
        kinds = ("MemoryError", "OutOfMemoryError")  # the second is torch's, for a GPU
        if ours or not (type(error).__name__ in kinds or "can't allocate memory" in str(error)):
            raise
        why = (str(error).splitlines() or ["no details"])[0].partition(". GPU ")[0]
        raise OutOfMemory(f"out of memory ({why}): {advice}") from error


MANY = 20
"""An error message lists all valid names only if there are at most this many."""
OTHER_WORDS = {
    "network": ("architecture", "arch", "backbone", "net"),
    "widths": ("hidden", "hidden_dims", "hidden_sizes", "hidden_units", "layers"),
    "units": ("hidden",),
    "progress": ("verbose",),
    "latent": ("z_dim", "zdim", "dim", "latent_dim"),
    "out": ("output", "output_dir", "save", "folder"),
    "device": ("gpu", "cuda"),
    "milliseconds": ("ms",),
    "patience": ("early_stopping",),
    "data": ("dataset", "input"),
    "val": ("validation", "valid"),
    "method": ("model", "algorithm"),
    "bernoulli": ("bce", "binary_cross_entropy", "bce_with_logits"),
    "categorical": ("ce", "cross_entropy"),
    "gaussian": ("mse", "l2", "normal", "squared_error"),
}
"""{name of an option, a likelihood or a part of the data: names that other programs use for it}."""
LONGEST = 80
"""Largest number of characters of a value in an error message."""


def shown(value: Any) -> str:
    """Return a short text that describes a value, for an error message.

    The text is `repr` of the value if `repr` is short. Otherwise, strings and containers are cut, arrays
    are described by their shape, and other objects by their class. A class is described by its name.

    >>> shown("vae"), shown(dict), shown(list(range(100)))[:30]
    ("'vae'", 'the class dict', '[0, 1, 2, 3, 4, 5, 6, 7, 8, 9,')
    """
    if isinstance(value, type):
        return f"the class {value.__name__}"
    text = repr(value)
    if len(text) <= LONGEST and "\n" not in text:
        return text
    if isinstance(value, str | bytes | list | tuple | set | dict):
        return " ".join(text[:LONGEST].split()) + "…"
    shape = getattr(value, "shape", None)
    if shape is None:
        return f"an object of the class {type(value).__name__}"
    return f"{type(value).__name__} of shape {tuple(shape)}"


def nearest(name: str, valid: Iterable[str]) -> list[str]:
    """Return at most three names of `valid` that are similar to `name` or mean the same.

    A valid name with the initials `name` is similar, too, such as learning_rate for lr. If no name is
    similar, those that begin with `name` are returned.

    >>> nearest("lr", ["crop", "learning_rate"]), nearest("architecture", ["curvature", "network"])
    (['learning_rate'], ['network'])
    >>> nearest("VAE", ["iwae", "vae"])
    ['vae']
    """
    names = sorted(valid)
    same = [one for one in names if name.lower() == one.lower() or name in OTHER_WORDS.get(one, ())]
    words = {one: one.replace("-", "_").split("_") for one in names}
    same += [one for one in names if len(words[one]) > 1 and "".join(w[:1] for w in words[one]) == name]
    similar = same or difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    return similar or [one for one in names if len(name) > 1 and one.startswith(name)][:3]


def unknown(what: str, name: str, valid: Iterable[str]) -> str:
    """Return the error message for a name that does not exist. The message suggests similar valid names.

    If there are few valid names, the message lists all of them.

    Args:
        what: the kind of thing that was named, such as "method".
        name: the unknown name.
        valid: all valid names.

    >>> unknown("method", "rmi", ["vae", "rme"])
    "unknown method 'rmi': did you mean 'rme'? Valid: rme, vae"
    """
    names = sorted(valid)
    close = nearest(name, names)
    hint = f": did you mean {' or '.join(map(repr, close))}?" if close else ""
    if len(names) <= MANY:
        hint += f"{'' if close else '.'} Valid: {', '.join(names)}"
    return f"unknown {what} {name!r}{hint}"


def check_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: a misspelt or missing argument raises a `ConfigError` that suggests valid names.

    If the function takes any keyword (``**options``), it checks the names of its options itself.

    >>> @check_arguments
    ... def refine(steps, *, how=None): ...
    >>> refine(step=2)
    Traceback (most recent call last):
        ...
    recmix.errors.ConfigError: unknown argument of refine 'step': did you mean 'steps'? Valid: how, steps
    """
    signature = inspect.signature(function)
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = signature.parameters.values()
    names = [p.name for p in parameters if p.kind in kinds and p.name != "self"]
    any_keyword = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)

    @functools.wraps(function)
    def checked(*args: P.args, **given: P.kwargs) -> R:
        for name in given:
            if name not in names and not any_keyword:
                raise ConfigError(unknown(f"argument of {function.__name__}", name, names))
        try:
            signature.bind(*args, **given)
        except TypeError as error:
            raise ConfigError(f"{function.__name__}(): {error}. Valid: {', '.join(names)}") from None
        return function(*args, **given)

    return checked
