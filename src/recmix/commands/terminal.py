"""What several commands use: the terminal, common flags and the table of scores."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from recmix._version import __version__

__all__ = ["Json", "Root", "before_command", "err", "first_process", "out", "plain", "print_scores"]

out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)
Root = Annotated[
    Path | None,
    typer.Option("--data-root", help="Folder of the data sets (default: RECMIX_DATA, then a cache)."),
]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


def _show_version(show: bool) -> None:
    if show:
        out.print(f"recmix {__version__}", highlight=False)
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
]


def before_command(version: Version = False) -> None:
    """Handle the flags that come before the name of a command, such as ``recmix --version``."""


def first_process() -> bool:
    """Whether this process may print; of the processes of ``torchrun``, only the first one may."""
    return "TORCHELASTIC_RUN_ID" not in os.environ or os.environ.get("RANK", "0") == "0"


def plain(message: object) -> str:
    """Convert a message to text in which `rich` does not read brackets as markup."""
    return str(message).replace("[", r"\[")


def print_scores(rows: list[tuple[str, dict[str, Any]]], title: str) -> None:
    """Print a table of scores with a row for each model.

    Args:
        rows: the name and the scores of each model, as `recmix.evaluation.score.score` returns
            them.
        title: title of the table.
    """
    samples = rows[0][1]["samples"]
    batch = rows[0][1]["batch"]
    table = Table(
        "model",
        "ELBO (nats)",
        f"IWAE-{samples} (nats)",
        "mean mixing weights",
        f"posterior, ms per batch of {batch}",
        title=title,
    )
    for name, found in rows:
        table.add_row(
            name,
            f"{found['elbo']:.2f} ± {found['elbo_se']:.2f}",
            f"{found['iwae']:.2f} ± {found['iwae_se']:.2f}",
            " ".join(f"{w:.3f}" for w in found["weights"]),
            f"{found['milliseconds']:.2f}",
        )
    out.print(table)
