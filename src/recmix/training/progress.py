"""Show the progress of a training: a bar in a terminal or a notebook, printed lines elsewhere."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from recmix.training.world import world

__all__ = ["Report", "say", "watch"]

QUIET_SECONDS = 15.0
"""Smallest number of seconds between two printed lines of progress."""
NOTEBOOK_SECONDS = 0.3
"""Seconds between two updates of the bar in a notebook."""

Report = Callable[..., None]
"""A function that is called with the number of finished epochs or items, and perhaps a short note."""


@contextmanager
def watch(
    title: str, total: int, *, done: int = 0, unit: str = "", show: bool | None = None
) -> Iterator[Report]:
    """Show the progress of a task while the context is open.

    The context yields a function. Call it with the number of epochs or items that are done, with a
    fraction for the one in progress. A second argument is a short note to show.

    Args:
        title: text in front of the progress.
        total: number of epochs or items of the whole task.
        done: number of epochs or items that were done before.
        unit: what is counted, such as "epoch".
        show: False shows nothing. Otherwise there is a bar in a terminal or a notebook, and elsewhere
            a printed line every 15 seconds. With True and a note there is also a line at the end of a
            shorter task.
    """
    console = Console(stderr=True)
    if show is False:
        yield lambda done, note="": None
    elif _in_notebook():
        yield _NotebookBar(title, total, done)
    elif console.is_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            *([TextColumn(unit)] if unit else []),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, speed_estimate_period=120) as bar:
            task = bar.add_task(title, total=total, completed=done, note="")

            def update(done: float, note: str = "") -> None:
                fields: dict[str, Any] = {"note": note} if note else {}
                bar.update(task, completed=done, **fields)

            yield update
    else:
        yield _Lines(title, total, done, unit=unit, short=bool(show))


def say(line: object, show: bool | None) -> None:
    """Print a line about a training, from the first process only.

    Args:
        show: whether to print it. None means: only in a terminal and in a notebook.
    """
    if (show or (show is None and (_in_notebook() or sys.stderr.isatty()))) and world().writer:
        print(line, file=sys.stderr, flush=True)


def _in_notebook() -> bool:
    """Whether the program runs in a Jupyter notebook, which can show HTML."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


class _Lines:
    """Prints lines of progress, at most one in `QUIET_SECONDS` seconds.

    If the progress is reported with notes, there is also a line at the end.

    Args:
        total: number of epochs or items of the whole task.
        done: number of epochs or items that were done before.
        unit: text in front of the numbers, such as "epoch".
        short: whether the line at the end is printed even if no other line was printed.
    """

    def __init__(self, title: str, total: int, done: int, *, unit: str, short: bool) -> None:
        self.title, self.total, self.first, self.unit, self.short = title, total, done, unit, short
        self.note = ""
        self.start = self.last = time.monotonic()

    def __call__(self, done: float, note: str = "") -> None:
        now = time.monotonic()
        self.note = note or self.note
        last = done >= self.total or "stopped" in note
        ended = last and bool(note) and (self.short or self.last > self.start)
        if not ended and now - self.last <= QUIET_SECONDS:
            return
        self.last = now
        rate = (now - self.start) / max(done - self.first, 1e-9)
        left = rate * (self.total - done)
        number = f"{done:.1f}".removesuffix(".0")
        unit = f"{self.unit} " if self.unit else ""
        words = f"{self.title}: {unit}{number}/{self.total} {self.note}".rstrip()
        words += "" if "stopped" in self.note else f", {left:.0f} s left at most"
        print(words, file=sys.stderr, flush=True)


class _NotebookBar:
    """A progress bar in the output of a Jupyter notebook cell. It needs IPython, but no widgets.

    Args:
        total: number of epochs or items.
        done: how many of them are already done.
    """

    def __init__(self, title: str, total: int, done: int = 0) -> None:
        from IPython.display import HTML, display  # type: ignore[import-not-found, unused-ignore]

        self.title, self.total, self.first, self.note = title, total, done, ""
        self.start, self.last = time.monotonic(), -NOTEBOOK_SECONDS
        self._html = HTML
        self._shown: Any = display(HTML(self._text(done)), display_id=True)

    def __call__(self, done: float, note: str = "") -> None:
        self.note = note or self.note
        now = time.monotonic()
        if now - self.last >= NOTEBOOK_SECONDS or (done >= self.total and (note or done == self.total)):
            self.last = now
            self._shown.update(self._html(self._text(done)))

    def _text(self, done: float) -> str:
        seconds = time.monotonic() - self.start
        left = seconds / max(done - self.first, 1e-9) * (self.total - done)
        when = f"{left:.0f} s left" if self.first < done < self.total else f"{seconds:.0f} s"
        words = f"{int(done)}/{self.total} {self.note}".strip()
        return (
            f"{html.escape(self.title)} <progress value='{done:g}' max='{self.total}'></progress> "
            f"{html.escape(words)}, {when}"
        )
