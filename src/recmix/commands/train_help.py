"""The help of `recmix train`: first the options that people change first, then all others by group."""

from __future__ import annotations

from typing import Any

from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand

from recmix.commands.terminal import out

__all__ = ["FIRST", "TrainCommand", "complete", "epilog"]

FIRST = (
    *("data", "method", "out", "init", "resume", "latent", "epochs"),
    *("learning_rate", "batch_size", "order", "refine", "device"),
)
"""The options that people change first, in the order of the help."""
WIDTH = 25
"""Columns for the name of an option and the kind of its value."""


class TrainCommand(TyperCommand):
    """A command whose help gives the text of an option most of the width of the terminal.

    The usual help has a column for the opposite of switches, such as ``--no-resume``, and one for the
    type. With many options they leave too little for the text.
    """

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help.

        Args:
            ctx: the context of the command.
            formatter: not used, because the help is printed at once.
        """
        out.print(
            f"\n Usage: [bold]{ctx.command_path} [OPTIONS][/]\n".replace("[OPTIONS]", r"\[OPTIONS]")
        )
        out.print(f" {self.help}\n", highlight=False)
        panels: dict[str, list[Any]] = {"Used most": []}
        for option in self.params:
            name = getattr(option, "rich_help_panel", None) or "Other options"
            panels.setdefault(name, []).append(option)
        by_name = {option.name: option for option in self.params}
        panels["Used most"] = [by_name[name] for name in FIRST if name in by_name]
        panels["Other options"] = panels.pop("Other options", [])
        for name, options in panels.items():
            shown = [o for o in options if name == "Used most" or o.name not in FIRST]
            if shown:
                out.print(_panel(name, shown), soft_wrap=False)
        out.print(" [dim]--no-NAME turns the switch --NAME off.[/]\n", highlight=False)
        out.print(self.epilog, highlight=False)


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
    """Write examples, each with a word about it, for the end of the help."""
    lines = [f"   {line}" + (f"   [dim]{about}[/]" if about else "") for line, about in examples.items()]
    return "\n".join([" Examples:", *lines, ""])


def complete(names: list[str]) -> Any:
    """Make the function that completes a value in the shell, from all valid values."""

    def find(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return find
