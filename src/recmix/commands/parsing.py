"""Extend Typer: clearer errors for a wrong command line, and help that shows switches without a type."""

from __future__ import annotations

from typing import Any

from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from recmix.errors import nearest

__all__ = ["Command", "Group", "Stopped"]


class Stopped(Exception):
    """A command was stopped by Ctrl-C. The message is that of the `KeyboardInterrupt`, if it had one."""


class _PlainSwitches:
    """Base class of commands whose help shows no value type beside a switch, which takes no value."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the arguments and options of the command."""
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for option in found:
            if getattr(option, "is_flag", False) and option.metavar is None:
                option.metavar = ""
        return found


class Group(_PlainSwitches, TyperGroup):
    """The Typer group of all commands of recmix. Its help shows no value type beside a switch."""


class Command(_PlainSwitches, TyperCommand):
    """A Typer command. If the command line is wrong, the error says what was given and what to do."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words after the name of the command into `ctx`; return the words that are left."""
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # the class of the error depends on the version of typer
            self._explain(error, ctx, words)
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command. On a `KeyboardInterrupt` Typer would end the process without its message."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            raise Stopped(*stop.args) from None

    def _explain(self, error: Any, ctx: Any, words: list[str]) -> None:
        """Add to the message of a click error what the user gave and what to do.

        Args:
            error: the error, which is changed.
            ctx: the click context of the command.
            words: the words after the name of the command.
        """
        message = getattr(error, "message", None)
        if hasattr(error, "possibilities") and hasattr(error, "option_name"):
            options = [name for option in self.get_params(ctx) for name in option.opts]
            names = {name.lstrip("-").replace("-", "_"): name for name in options if name[:2] == "--"}
            given = error.option_name.lstrip("-").replace("-", "_")
            error.possibilities = [names[name] for name in nearest(given, names)]
        elif type(error).__name__ == "MissingParameter":
            error.message = Text.from_markup(self.epilog or "").plain
        elif isinstance(message, str) and "extra argument" in message:
            if any(option.name == "run" for option in self.params):
                error.message += ": give one run. `recmix report FOLDER` shows all runs of a folder"
        elif isinstance(message, str) and (param := getattr(error, "param", None)) is not None:
            value = _value_of(param.opts, words)
            if value is not None and repr(value) not in message:
                error.message = f"{message.partition(', unable to')[0]}, got {value!r}"


def _value_of(names: list[str], words: list[str]) -> str | None:
    """The value that the words of a command line give to an option; None if they do not have the option.

    `names` are all names of the option. If the option is given several times, its last value counts.
    """
    found = None
    for word, following in zip(words, [*words[1:], None], strict=True):
        name, equals, value = word.partition("=")
        if name in names:
            found = value if equals else following
    return found
