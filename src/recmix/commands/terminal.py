"""What several commands use: the terminal, common flags and the table of scores."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from recmix._version import __version__

if TYPE_CHECKING:
    from recmix.data import Data

__all__ = [
    "Json",
    "Root",
    "before_command",
    "err",
    "first_process",
    "load_data",
    "out",
    "plain",
    "print_scores",
    "sigterm_ends",
]

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
    """Whether this process may print; of the processes of ``torchrun``, only the first one may."""
    return "TORCHELASTIC_RUN_ID" not in os.environ or os.environ.get("RANK", "0") == "0"


@contextmanager
def sigterm_ends() -> Iterator[None]:
    """While the context is open, SIGTERM ends the process with a message and status 143.

    Trainings and grids have handlers of their own, which save first. The process ends without
    exceptions, because a library that is interrupted during its import may turn one into another.
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


def plain(message: object) -> str:
    """Convert a message to text in which `rich` does not read brackets as markup."""
    return str(message).replace("[", r"\[")


def load_data(
    name: str,
    *,
    root: str | Path | None = None,
    seed: int = 0,
    init: Any = None,
    **options: Any,
) -> Data:
    """Load the data for a training; `Data.notes` is to be printed and is not given as a warning.

    Texts are read with the vocabulary of the run that the training starts from, if there is one.

    Args:
        name: name of a data set, or a path.
        root: folder of the data sets.
        seed: seed of the split.
        init: folder of the run that the training starts from, or None.
        **options: the options of `recmix.runs.data_options.DATA_OPTIONS`; None if not given.
    """
    from recmix.data import DataWarning, load
    from recmix.runs.folder import Run

    start = Run(init) if isinstance(init, str | Path) else None  # other values are refused later
    given = any(options.get(key) for key in ("length", "vocabulary_size", "graphs"))
    if start is not None and start.exists and not given:
        options["vocabulary"] = start.vocabulary()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        return load(name, root=root, seed=seed, **options)


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
