"""Errors that the user can correct. Each says what was given, what was expected and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "ConfigError",
    "DataError",
    "Interrupted",
    "NonFiniteError",
    "RecmixError",
    "RunError",
    "unknown",
]


class RecmixError(Exception):
    """Base class of every error that comes from wrong input and not from a fault of the program."""


class DataError(RecmixError, ValueError):
    """Data that is missing, corrupt, or of a form that is not supported."""


class ConfigError(RecmixError, ValueError):
    """An option that does not exist or has a value out of range."""


class RunError(RecmixError):
    """A run folder that cannot be read, written or continued."""


class NonFiniteError(RecmixError, ArithmeticError):
    """Training met a loss that is not a finite number."""


class Interrupted(RecmixError):
    """Training was asked to stop (Ctrl-C or SIGTERM) and has saved its state."""


def unknown(what: str, name: str, valid: Iterable[str]) -> str:
    """The error message for a name that does not exist. It suggests the most similar valid names.

    A name may also be made of the initials of a valid name, such as lr for learning_rate.

    Args:
        what: the kind of thing that was named, such as "method".
        name: the unknown name.
        valid: all valid names.

    >>> unknown("method", "rmi", ["vae", "rme"])
    "unknown method 'rmi': did you mean 'rme'? Valid: rme, vae"
    """
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    initials = ["".join(word[:1] for word in valid_name.split("_")) for valid_name in names]
    close = close or [one for one, letters in zip(names, initials, strict=True) if letters == name]
    hint = f" did you mean {' or '.join(map(repr, close))}?" if close else ""
    return f"unknown {what} {name!r}:{hint} Valid: {', '.join(names)}".replace(":  ", ": ")
