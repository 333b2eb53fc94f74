"""Show the progress of a training: a bar in a terminal or a notebook, printed lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from recmix.training.notebook import NotebookBar, in_notebook

__all__ = ["Report", "count", "watch"]

QUIET_SECONDS = 15.0
"""Smallest number of seconds between two printed lines of progress."""


class Report(Protocol):
    """A function that the training loop calls to report its progress. `watch` yields such a function."""

    def __call__(self, epoch: float, /, note: str = "") -> None:
        """Report that `epoch` epochs are done.

        Args:
            epoch: number of finished epochs, with a fraction for the epoch that is running.
            note: a short text to show, such as the validation bound.
        """


@contextmanager
def watch(title: str, epochs: int, done: int, show: bool | None = None) -> Iterator[Report]:
    """Show the progress of a training while the context is open.

    The context yields a function, which the training calls to report its progress.

    Args:
        title: text in front of the progress.
        epochs: number of epochs of the whole training.
        done: number of epochs that were done before, if the training is resumed.
        show: False shows nothing. Otherwise there is a bar in a terminal or a notebook, and elsewhere
            a printed line every 15 seconds. True also prints a line at the end of a shorter training.
    """
    console = Console(stderr=True)
    if show is False:
        yield lambda epoch, note="": None
    elif in_notebook():
        yield NotebookBar(title, epochs, done)
    elif console.is_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("epoch"),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
        )
        with Progress(*columns, console=console, speed_estimate_period=120) as bar:
            task = bar.add_task(title, total=epochs, completed=done, note="")

            def update(epoch: float, note: str = "") -> None:
                if note:
                    bar.update(task, completed=epoch, note=note)
                else:
                    bar.update(task, completed=epoch)

            yield update
    else:
        yield _Lines(title, epochs, done, unit="epoch ", short=bool(show))


@contextmanager
def count(title: str, total: int, show: bool | None = None) -> Iterator[Callable[[int], None]]:
    """Show how many items of a task are done, and the time left, while the context is open.

    The progress is a bar in a terminal or a notebook, and elsewhere a printed line every 15 seconds. The
    context yields a function. Call this function with the total number of items done so far.

    Args:
        title: text in front of the progress.
        total: number of items of the whole task.
        show: False shows nothing; True and None both show the progress.
    """
    console = Console(stderr=True)
    if show is False:
        yield lambda done: None
        return
    if in_notebook():
        yield NotebookBar(title, total)
        return
    if not console.is_terminal:
        yield _Lines(title, total)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.update(task, completed=done)


class _Lines:
    """Prints lines of progress, at most one in `QUIET_SECONDS` seconds.

    If the progress is reported with notes, there is also a line at the end.

    Args:
        total: number of epochs or items of the whole task.
        done: number of epochs or items that were done before.
        unit: text in front of the numbers, such as "epoch ".
        short: whether the line at the end is printed even if no other line was printed.
    """

    def __init__(
        self, title: str, total: int, done: int = 0, *, unit: str = "", short: bool = False
    ) -> None:
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
        words = f"{self.title}: {self.unit}{number}/{self.total} {self.note}".rstrip()
        words += "" if "stopped" in self.note else f", {left:.0f} s left at most"
        print(words, file=sys.stderr, flush=True)
