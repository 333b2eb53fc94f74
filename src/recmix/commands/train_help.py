"""Print the help of `recmix train`: the options that people change first, or all options of a group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from recmix.commands.parsing import Command
from recmix.commands.terminal import out
from recmix.errors import ConfigError, unknown

__all__ = ["ALL", "FIRST", "TrainCommand", "complete", "epilog"]

ALL = "--help-all"
"""The flag that shows all options; if names of groups follow it, only the options of these groups."""
FIRST = (
    *("data", "method", "out", "init", "resume", "latent", "epochs"),
    *("learning_rate", "batch_size", "order", "refine", "device"),
)
"""The options that people change first, in the order of the help."""
GROUPS = {
    "run": "data, splits, presets, own networks, what is replaced",
    "methods": "options of single methods, such as the number of flows",
    "model": "likelihood, prior and networks",
    "training": "optimizer, schedule, early stopping, seed, speed",
    "inference": "refinement and calibration of the posterior",
}
"""{group of options: what these options are about}."""
WIDTH = 25
"""Width, in characters, of the column with the name of an option and the kind of its value."""


class TrainCommand(Command):
    """A command whose ``--help`` shows only a few options. ``--help-all`` shows all options by group.

    The text of an option gets most of the width of the terminal. The usual help also has a column for
    flags such as ``--no-resume``, and one for types; this help does not.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words after the name of the command.

        If the words contain ``--help-all``, print the help with all options and end the program.
        """
        if ALL in args:
            groups = args[args.index(ALL) + 1 :]
            for name in groups:
                if name not in GROUPS:
                    raise ConfigError(unknown("group of options", name, GROUPS))
            self._print_groups(ctx, groups or [*GROUPS])
            ctx.exit()
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help: the options that people change first, and the names of the groups."""
        self._print_usage(ctx)
        by_name = {option.name: option for option in self.params}
        out.print(_panel("Used most", [by_name[name] for name in FIRST if name in by_name]))
        table = Table.grid(padding=(0, 1))
        table.add_column(width=WIDTH)
        for name, about in GROUPS.items():
            table.add_row(Text(f"{ALL} {name}", style="bold cyan"), about)
        table.add_row(Text(ALL, style="bold cyan"), "all options")
        out.print(Panel(table, title="More options", title_align="left", border_style="dim"))
        out.print(self.epilog, highlight=False)

    def _print_usage(self, ctx: Any) -> None:
        usage = f"\n Usage: [bold]{ctx.command_path} \\[OPTIONS][/]\n"
        out.print(usage)
        out.print(f" {self.help}\n", highlight=False)

    def _print_groups(self, ctx: Any, groups: list[str]) -> None:
        """Print all options of these groups."""
        self._print_usage(ctx)
        for name in groups:
            options = [o for o in self.params if getattr(o, "rich_help_panel", None) == name]
            out.print(_panel(name.capitalize(), options))
        out.print(" [dim]--no-NAME turns the switch --NAME off.[/]\n", highlight=False)


def _panel(name: str, options: list[Any]) -> Panel:
    table = Table.grid(padding=(0, 1))
    table.add_column(width=WIDTH, overflow="fold")
    table.add_column(overflow="fold", ratio=1)
    for option in options:
        kind = f" {option.metavar}" if option.metavar else ""
        words = Text(max(option.opts, key=len), style="bold cyan").append(kind, style="yellow")
        text = Text.from_markup((option.help or "").replace("``", ""))
        table.add_row(words, text)
    return Panel(table, title=name, title_align="left", border_style="dim")


def epilog(examples: dict[str, str]) -> str:
    """Return the text at the end of the help, from {example command: short explanation or ""}."""
    lines = [f"   {line}" + (f"   [dim]{about}[/]" if about else "") for line, about in examples.items()]
    return "\n".join([" Examples:", *lines, ""])


def complete(names: Callable[[], list[str]]) -> Any:
    """Make a function for shell completion: it returns the names that begin with a given text."""

    def find(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return find
