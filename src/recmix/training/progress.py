"""Show the progress of a training: a bar with the time left, or printed lines without a terminal."""

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

__all__ = ["Report", "count", "watch"]

QUIET_SECONDS = 15.0
"""Seconds between two lines if there is no terminal."""


class Report(Protocol):
    """A function that the training loop calls to report its progress."""

    def __call__(self, epoch: float, note: str = "") -> None:
        """Report that `epoch` epochs are done.

        Args:
            epoch: number of finished epochs, with a fraction for the epoch that is running.
            note: a short text to show, such as the validation bound.
        """


@contextmanager
def watch(title: str, epochs: int, done: int, show: bool | None = None) -> Iterator[Report]:
    """Show the progress of a training while the context is open.

    The context gives a function, which the training calls to report its progress.

    Args:
        title: what is trained.
        epochs: the largest number of epochs.
        done: epochs that are already done.
        show: True for a bar on a terminal and printed lines elsewhere; False for nothing; None for
            a bar on a terminal and nothing elsewhere.
    """
    console = Console(stderr=True)
    if show is False or (show is None and not console.is_terminal):
        yield lambda epoch, note="": None
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
        yield _Lines(title, epochs, done)


@contextmanager
def count(title: str, total: int, show: bool | None = None) -> Iterator[Callable[[int], None]]:
    """Show a bar with the time left while the context is open, if there is a terminal.

    The context gives a function. Call it with the number of items that are done.

    Args:
        title: text in front of the bar.
        total: number of items.
        show: False for no bar.
    """
    console = Console(stderr=True)
    if show is False or not console.is_terminal:
        yield lambda done: None
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
    """Prints a line of progress at the end of an epoch, at most once in `QUIET_SECONDS` seconds."""

    def __init__(self, title: str, epochs: int, done: int) -> None:
        self.title, self.epochs = title, epochs
        self.first = done
        self.start = self.last = time.monotonic()

    def __call__(self, epoch: float, note: str = "") -> None:
        now = time.monotonic()
        if note and (epoch >= self.epochs or now - self.last > QUIET_SECONDS):
            self.last = now
            rate = (now - self.start) / max(epoch - self.first, 1e-9)
            left = rate * (self.epochs - epoch)
            line = f"{self.title}: epoch {epoch:g}/{self.epochs} {note}, {left:.0f} s left at most"
            print(line, file=sys.stderr, flush=True)
