"""What a person sees of a grid: a live table or lines, and the answers to --dry-run and --status."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from recmix.errors import RunError
from recmix.experiments.estimate import Clock, in_words
from recmix.experiments.grid import Grid
from recmix.experiments.schedule import Entry, Schedule
from recmix.experiments.store import Store
from recmix.runs.folder import Run

__all__ = ["Watcher", "print_plan", "print_status", "print_summary", "watching"]

REFRESH = 1.0
"""Seconds between two pictures of the live table."""
QUIET_SECONDS = 30.0
"""Seconds between two lines about the whole grid where there is no terminal."""
SHOWN = 12
"""Runs of one kind that are listed by name."""
COLOURS = {"done": "green", "running": "cyan", "waiting": "white", "failed": "red", "blocked": "yellow"}


class Watcher:
    """Is told what happens; this one says nothing.

    `began` and `ended` are called for each run, `tick` again and again in between.
    """

    def began(self, entry: Entry) -> None:
        """A run has begun."""

    def ended(self, entry: Entry) -> None:
        """Its worker has ended, for better or worse."""

    def tick(self) -> None:
        """Time has passed."""


@contextmanager
def watching(grid: Grid, schedule: Schedule, workers: int, console: Console) -> Iterator[Watcher]:
    """A watcher that draws a live table on a terminal, and writes lines elsewhere."""
    clock = Clock(schedule, workers)
    if not console.is_terminal:
        lines = _Lines(schedule, clock, console)
        yield lines
        lines.whole()
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield _Picture(grid, schedule, clock, live)


class _Lines(Watcher):
    """A line for each run that ends, and one for the whole now and then."""

    def __init__(self, schedule: Schedule, clock: Clock, console: Console) -> None:
        self.schedule, self.clock, self.console = schedule, clock, console
        self.last = time.monotonic()

    def began(self, entry: Entry) -> None:
        self._say(f"begun: {entry.job.title} ({entry.job.digest})")

    def ended(self, entry: Entry) -> None:
        if entry.kind == "done":
            self._say(f"done: {entry.job.title}, {_scores(self.schedule.store, entry)}")
        elif entry.kind == "failed":
            log = self.schedule.store.log(entry.job.digest)
            self._say(f"FAILED: {entry.job.title}: {entry.reason}; its log is {log}")
        else:
            self._say(f"not done: {entry.job.title}: {entry.reason or 'saved, to be continued'}")

    def tick(self) -> None:
        if time.monotonic() - self.last > QUIET_SECONDS:
            self.whole()

    def whole(self) -> None:
        """A line about all runs."""
        self.last = time.monotonic()
        running = [
            f"{entry.job.row} {progress(self.schedule.store, entry)}"
            for entry in self.schedule.of_kind("running")
        ]
        self._say(f"{_counted(self.schedule)}; time left: {self.clock.left()}")
        for line in running[:SHOWN]:
            self._say(f"  {line}")

    def _say(self, line: str) -> None:
        total = len(self.schedule.entries)
        done = self.schedule.counts["done"]
        self.console.print(f"[{done}/{total}] {line}", markup=False, highlight=False, soft_wrap=True)


class _Picture(Watcher):
    """The live table."""

    def __init__(self, grid: Grid, schedule: Schedule, clock: Clock, live: Live) -> None:
        self.grid, self.schedule, self.clock, self.live = grid, schedule, clock, live
        self.last = 0.0

    def ended(self, entry: Entry) -> None:
        if entry.kind == "failed":
            log = self.schedule.store.log(entry.job.digest)
            line = escape(f"{entry.job.title}: {entry.reason}; its log is {log}")
            self.live.console.print(f"[red]failed:[/] {line}", highlight=False, soft_wrap=True)

    def tick(self) -> None:
        if time.monotonic() - self.last < REFRESH:
            return
        self.last = time.monotonic()
        self.live.update(self.draw(), refresh=True)

    def draw(self) -> Group:
        """The picture now."""
        parts: list[Any] = [_rows(self.schedule, self.grid.title)]
        if running := list(self.schedule.of_kind("running")):
            parts.append(_running(self.schedule.store, running))
        parts.append(f"{_counted(self.schedule)}. Time left: {self.clock.left()}")
        return Group(*parts)


def print_plan(
    grid: Grid, schedule: Schedule, workers: int, console: Console, data_root: Path | None = None
) -> None:
    """What a grid would do: its runs, what is done, what it needs, how long it may take."""
    console.print(_rows(schedule, grid.title))
    protocol = grid.protocol
    bounds = ", ".join(f"IWAE-{samples}" for samples in protocol["samples"])
    _say(
        console,
        f"runs: {len(grid.jobs)}; columns: {_columns(grid)}, splits: {len(protocol['splits'])}, "
        f"restarts: {len(protocol['restarts'])}, of which the best by IWAE-{protocol['choose_by']} of "
        f"the validation images counts; scored by {bounds} of the test images",
    )
    for note in grid.notes:
        _say(console, f"note: {note}")
    for entry in schedule.of_kind("waiting"):
        if entry.reason:
            _say(console, f"note: {entry.job.title} is {entry.reason}")
    names = {job.column["data"] for job in grid.jobs}
    for line in _data(names, data_root):
        _say(console, line)
    _troubles(schedule, console)
    left = Clock(schedule, workers).left()
    _say(console, f"time left with {workers} at a time: {left}")


def print_status(grid: Grid, schedule: Schedule, console: Console) -> None:
    """How the runs of a grid stand, whoever does them."""
    schedule.see_others()
    console.print(_rows(schedule, grid.title))
    if held := list(schedule.of_kind("elsewhere")):
        console.print(_running(schedule.store, held))
    _troubles(schedule, console)
    _say(console, _counted(schedule))


def print_summary(
    schedule: Schedule, console: Console, *, stopped: str, seconds: float, command: str
) -> None:
    """What was achieved, what failed, and how to go on."""
    _troubles(schedule, console)
    _say(console, f"{_counted(schedule)} after {in_words(seconds)}")
    if stopped:
        _say(console, f"stopped by {stopped}; what was running is saved. Continue with: {command}")
    elif schedule.counts["failed"]:
        _say(console, f"To try failed runs again: {command} --retry-failed")


def progress(store: Store, entry: Entry) -> str:
    """How far a run is: epoch and validation bound, from its folder."""
    run = store.run(entry.job.digest)
    if not run.exists:
        return "not yet training"
    try:
        if run.status()["status"] == "done":
            return f"trained, {len(run.scores())} of {len(entry.job.evaluate)} scored"
        rows = run.history()
        epochs = entry.job.definition["training"]["epochs"]
        if not rows:
            return f"epoch 1 of at most {epochs}"
        best = max(row["val_iwae"] for row in rows)
        now = f"validation {rows[-1]['val_iwae']:.2f}, best {best:.2f}"
        return f"epoch {len(rows) + 1} of at most {epochs}, {now}"
    except (RunError, KeyError, TypeError):
        return "unknown"


def _rows(schedule: Schedule, title: str) -> Table:
    """Runs by row of the table and how they stand."""
    table = Table(title=escape(title), title_justify="left")
    table.add_column("method")
    for kind in ("runs", *COLOURS):
        table.add_column(kind, justify="right")
    found: dict[str, Counter[str]] = {}
    for entry in schedule.entries.values():
        kind = "running" if entry.kind == "elsewhere" else entry.kind
        found.setdefault(entry.job.row, Counter())[kind] += 1
    for row, counts in found.items():
        cells = [f"[{c}]{counts[k]}[/]" if counts[k] else "" for k, c in COLOURS.items()]
        table.add_row(escape(row), str(counts.total()), *cells)
    return table


def _running(store: Store, entries: Sequence[Entry]) -> Table:
    table = Table("run", "folder", "how far", "for / by")
    now = time.monotonic()
    for entry in entries[:SHOWN]:
        since = in_words(now - entry.since) if entry.since else entry.reason
        table.add_row(escape(entry.job.title), entry.job.digest, progress(store, entry), since)
    if len(entries) > SHOWN:
        table.add_row(f"and {len(entries) - SHOWN} more", "", "", "")
    return table


def _troubles(schedule: Schedule, console: Console) -> None:
    """What failed, with its log, and what is blocked by it."""
    failed, blocked = list(schedule.of_kind("failed")), list(schedule.of_kind("blocked"))
    for entry in failed[:SHOWN]:
        log = schedule.store.log(entry.job.digest)
        _say(console, f"failed: {entry.job.title}: {entry.reason}\n  its log is {log}")
    if len(failed) > SHOWN:
        _say(console, f"and {len(failed) - SHOWN} more failed: see failed.json in their folders")
    reasons = Counter(entry.reason for entry in blocked)
    for reason, count in reasons.most_common(SHOWN):
        _say(console, f"blocked: {count} run{'s' * (count > 1)}: {reason}")


def _counted(schedule: Schedule) -> str:
    counts = schedule.counts
    counts["running"] += counts.pop("elsewhere", 0)
    said = ", ".join(f"{counts[kind]} {kind}" for kind in COLOURS if counts[kind] or kind == "done")
    return f"{len(schedule.entries)} runs: {said}"


def _columns(grid: Grid) -> int:
    return len({tuple(sorted(map(str, job.column.items()))) for job in grid.jobs})


def _data(names: Iterable[str], root: Path | None) -> Iterator[str]:
    from recmix.data import inventory

    known = {entry.name: entry for entry in inventory(root)}
    for name in sorted(names):
        if name in known:
            entry = known[name]
            lacking = f" (not there: {', '.join(entry.missing)})" if entry.missing else ""
            yield f"data: {name} is {entry.state}{lacking}"


def _scores(store: Store, entry: Entry) -> str:
    with contextlib.suppress(RunError, KeyError, TypeError):
        found = Run(store.folder(entry.job.digest)).scores()
        scores = [f"{key} {found[key]['iwae']:.2f}" for key in entry.job.evaluate]
        return f"IWAE {', '.join(scores)}"
    return "scored"


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
