"""Define functions and flags that several commands use: terminal output, notes, the table of scores."""

from __future__ import annotations

import os
import re
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from recmix._version import __version__

__all__ = [
    "Device",
    "Json",
    "Memory",
    "Root",
    "Seed",
    "before_command",
    "err",
    "first_process",
    "out",
    "plain",
    "print_scores",
    "sigterm_ends",
    "warnings_as_notes",
]

out = Console(soft_wrap=True, emoji=False)
err = Console(stderr=True, soft_wrap=True, emoji=False)
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters, which can change the state of a terminal. Tabs and line ends are not included."""
BRACKET = re.compile(r"(\\*)(\[[a-z#/@][^\[]*?\])|\[")
"""A tag that `rich` would read as markup, with the backslashes before it; or another opening bracket."""
Root = Annotated[
    Path | None,
    typer.Option("--data-root", help="Folder of the data sets (default: RECMIX_DATA, then a cache)."),
]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda ...")]
Seed = Annotated[int, typer.Option(help="Seed of the sampling noise.")]
Memory = Annotated[
    int | None, typer.Option(help="MiB for the decoder's activations (default: by device).")
]


def _show_version(show: bool) -> None:
    if show:
        out.print(f"recmix {__version__}", highlight=False)
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
]


Threads = Annotated[
    int | None,
    typer.Option(
        help="CPU threads for a command that computes; also after its name. By default the cores that "
        "no other program uses."
    ),
]


def before_command(version: Version = False, threads: Threads = None) -> None:
    """Handle the flags that come before the name of a command, such as ``recmix --version``."""


def first_process() -> bool:
    """Whether this process is the one that prints messages.

    If ``torchrun`` started several processes, only the first of them prints.
    """
    return "TORCHELASTIC_RUN_ID" not in os.environ or os.environ.get("RANK", "0") == "0"


@contextmanager
def sigterm_ends() -> Iterator[None]:
    """Context in which SIGTERM ends the process with a message and status 143.

    Trainings and grids have other handlers, which save first. The process ends without an exception,
    because a library that is being imported could hide an exception.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: Any) -> None:
        os.write(2, b"stopped by SIGTERM; what was saved before is kept\n")
        os._exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Context in which a UserWarning is printed as a note, without the line of code that issued it."""
    with warnings.catch_warnings():
        usual: Any = warnings.showwarning

        def show(message: Any, category: Any, *where: Any, **more: Any) -> None:
            if issubclass(category, UserWarning):
                err.print(f"note: {plain(message)}", highlight=False)
            else:
                usual(message, category, *where, **more)

        warnings.showwarning = show
        yield


def plain(message: object) -> str:
    """Convert a message to text that `rich` prints as it is, with control characters as escapes."""
    shown = CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", str(message))
    return BRACKET.sub(lambda found: f"{2 * (found[1] or '')}\\{found[2] or '['}", shown)


def print_scores(rows: list[tuple[str, dict[str, Any]]], title: str) -> None:
    """Print a table of scores with a row for each model.

    Args:
        rows: a pair (name, scores) for each model, with scores from `recmix.evaluation.score.score`.
    """
    samples = rows[0][1]["samples"]
    table = Table("model", title=title)
    for words in ("ELBO\n(nats)", f"IWAE-{samples}\n(nats)", "posterior,\nms per\nexample"):
        table.add_column(words, no_wrap=True)
    for name, found in rows:
        cells = [
            f"{found['elbo']:.2f} ± {found['elbo_se']:.2f}",
            f"{found['iwae']:.2f} ± {found['iwae_se']:.2f}",
            f"{found['milliseconds'] / found['batch']:.3g}",
        ]
        table.add_row(name, *cells)
    out.print(table)
    for name, found in rows:
        if len(weights := found["weights"]) > 1:
            shown = " ".join(f"{w:.3f}" for w in weights)
            out.print(f"mean mixing weights of {name}: {shown}", highlight=False)
