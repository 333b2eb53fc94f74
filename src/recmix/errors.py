"""Errors a user can act on: each says what was given, what was expected and what to do."""

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
    """Base of every error that is the input's fault and not the program's."""


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
    """The message for a name that does not exist, with the nearest valid names first.

    >>> unknown("method", "rmi", ["vae", "rme"])
    "unknown method 'rmi': did you mean 'rme'? Valid: rme, vae"
    """
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f" did you mean {' or '.join(map(repr, close))}?" if close else ""
    return f"unknown {what} {name!r}:{hint} Valid: {', '.join(names)}".replace(":  ", ": ")
