"""Print the progress, the plan and the summary of a grid (a list of models to train)."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from recmix.errors import RunError
from recmix.experiments.estimate import Clock, in_words
from recmix.experiments.grid import Grid
from recmix.experiments.job_queue import JobQueue, QueuedJob
from recmix.experiments.store import Store
from recmix.experiments.time_updates import Kind, Timed
from recmix.runs.scores import ScoreKey

__all__ = ["Watcher", "print_plan", "print_status", "print_summary", "progress", "watching"]

REFRESH = 1.0  # seconds between two updates of the live table
LINE_EVERY = 30.0  # seconds between two lines about the whole grid, if there is no terminal
SHOWN = 12  # most runs of one kind that are listed
NOT_TIMED = (
    "note: times from timed updates include validation and scores, and hold if no other program uses "
    "the machine. The start of each worker process (some seconds), loading the data and calibration "
    "come on top."
)
COLOURS = {"done": "green", "running": "cyan", "waiting": "white", "failed": "red", "blocked": "yellow"}


@contextmanager
def watching(grid: Grid, queue: JobQueue, workers: int, console: Console) -> Iterator[Watcher]:
    """Context that yields an object that shows the progress of a grid while its runs are done.

    The object draws a live table if the console is a terminal, and prints lines otherwise. `workers` is
    the number of runs that are done at a time, for the estimate of the remaining time.
    """
    clock = Clock(queue, workers)
    if console.is_terminal:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            yield _LiveTable(grid, queue, clock, live)
    else:
        watcher = Watcher(queue, clock, console)
        yield watcher
        watcher.summary()


class Watcher:
    """Prints a line when a run of a grid begins or ends, and from time to time a summary."""

    def __init__(self, queue: JobQueue, clock: Clock, console: Console) -> None:
        self.queue, self.clock, self.console = queue, clock, console
        self.last = time.monotonic()

    def began(self, entry: QueuedJob) -> None:
        """Show that a run has begun."""
        self._print(f"begun: {entry.job.title} ({entry.job.digest})")

    def ended(self, entry: QueuedJob) -> None:
        """Show that the worker process of a run has ended, with or without a result."""
        if entry.kind == "done":
            self._print(f"done: {entry.job.title}, {_scores(self.queue.store, entry)}")
        elif entry.kind == "failed":
            self._print(f"FAILED: {_failure(self.queue, entry)}")
        else:
            self._print(f"not done: {entry.job.title}: {entry.reason or 'saved, to be continued'}")

    def tick(self) -> None:
        """Show the state of the grid again if enough time has passed. Called often during the runs."""
        if time.monotonic() - self.last > LINE_EVERY:
            self.summary()

    def summary(self) -> None:
        """Print the number of runs in each state, the time left, and the progress of running runs."""
        self.last = time.monotonic()
        self._print(f"{_counted(self.queue)}; time left: {self.clock.left()}")
        for entry in list(self.queue.of_kind("running"))[:SHOWN]:
            self._print(f"  {entry.job.row} {progress(self.queue.store, entry)}")

    def _print(self, line: str) -> None:
        _print(self.console, f"[{self.queue.counts['done']}/{len(self.queue.entries)}] {line}")


class _LiveTable(Watcher):
    """Draws a table of the grid's runs in the terminal, and updates it about once per second."""

    def __init__(self, grid: Grid, queue: JobQueue, clock: Clock, live: Live) -> None:
        super().__init__(queue, clock, live.console)
        self.grid, self.live, self.last = grid, live, 0.0

    def began(self, entry: QueuedJob) -> None:
        """Do nothing: the next update of the table shows that the run has begun."""

    def ended(self, entry: QueuedJob) -> None:
        if entry.kind == "failed":
            line = escape(_failure(self.queue, entry))
            self.live.console.print(f"[red]failed:[/] {line}", highlight=False, soft_wrap=True)

    def tick(self) -> None:
        if time.monotonic() - self.last < REFRESH:
            return
        self.last = time.monotonic()
        parts: list[Any] = [_rows(self.queue, self.grid.title)]
        if running := list(self.queue.of_kind("running")):
            parts.append(_running(self.queue.store, running))
        parts.append(f"{_counted(self.queue)}. Time left: {self.clock.left()}")
        self.live.update(Group(*parts), refresh=True)


def print_plan(
    grid: Grid,
    queue: JobQueue,
    workers: int,
    console: Console,
    data_root: Path | None = None,
    timed: Mapping[Kind, Timed] = MappingProxyType({}),
) -> None:
    """Print what `recmix grid` would do, for the option ``--dry-run``.

    `workers` is the number of runs that are done at a time. `timed` has the times of a few training
    updates of each kind of run, from `time_updates`.
    """
    console.print(_rows(queue, grid.title))
    protocol = grid.protocol
    bounds = ", ".join(f"IWAE-{samples}" for samples in protocol["samples"])
    columns = {tuple(sorted(map(str, job.column.items()))) for job in grid.jobs}
    lines = [
        f"runs: {len(grid.jobs)}; columns: {len(columns)}, splits: {len(protocol['splits'])}, "
        f"restarts: {len(protocol['restarts'])}; validation bound: IWAE-{protocol['choose_by']}; "
        f"test bounds: {bounds}{_calibrations(grid)}",
        *(f"note: {note}" for note in grid.notes),
    ]
    waiting = [entry for entry in queue.of_kind("waiting") if entry.reason]
    lines += [f"note: {entry.job.title} is {entry.reason}" for entry in waiting]
    lines += _data({job.column["data"] for job in grid.jobs}, data_root)
    for line in lines:
        _print(console, line)
    _print_problems(queue, console)
    slowest = sorted(timed.values(), key=lambda kind: -kind.runs * kind.run)[:SHOWN]
    for kind in slowest:
        _print(
            console,
            f"timed: {kind.name}: {1e3 * kind.update:.3g} ms per update, about {in_words(kind.run)} "
            f"per run, {kind.runs} runs",
        )
    clock = Clock(queue, workers, {name: kind.run for name, kind in timed.items()})
    _print(console, f"time left with {workers} runs at a time: {clock.left()}")
    if timed:
        _print(console, NOT_TIMED)


def print_status(grid: Grid, queue: JobQueue, console: Console) -> None:
    """Print the states of all runs of a grid.

    Runs that another process of `recmix grid` works on are shown as running.
    """
    queue.find_others()
    console.print(_rows(queue, grid.title))
    if held := list(queue.of_kind("elsewhere")):
        console.print(_running(queue.store, held))
    _print_problems(queue, console)
    _print(console, _counted(queue))


def print_summary(
    queue: JobQueue, console: Console, *, stopped: str, seconds: float, command: str
) -> None:
    """Print, when `recmix grid` ends, which runs are done, which failed, and how to continue.

    Args:
        stopped: why the grid was stopped early; empty if it was not.
        seconds: how long the command took.
        command: the command that continues the grid.
    """
    _print_problems(queue, console)
    _print(console, f"{_counted(queue)} after {in_words(seconds)}")
    if stopped:
        _print(console, f"stopped by {stopped}; running runs are saved. Continue with: {command}")
    elif queue.counts["failed"]:
        _print(console, f"To try failed runs again: {command} --retry-failed")


def progress(store: Store, entry: QueuedJob) -> str:
    """Return the progress of a run, in words, from the files in its folder.

    During training this is the epoch and the validation bound, afterwards the number of scores.
    """
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


def _calibrations(grid: Grid) -> str:
    """Return text that says how many runs are also scored with calibration.

    Runs that are also scored with calibrated noise of the likelihood are counted separately.
    """
    keys = [[key for key in map(ScoreKey.parse, job.evaluate) if key] for job in grid.jobs]
    counts = {
        "calibrated": sum(any(k.calibrated and not k.noise for k in of_job) for of_job in keys),
        "calibrated with noise": sum(any(k.noise for k in of_job) for of_job in keys),
    }
    return "".join(f"; {how}: {n} run{'s' * (n != 1)}" for how, n in counts.items() if n)


def _rows(queue: JobQueue, title: str) -> Table:
    """Return a table of the number of runs in each state, with one row for each method."""
    table = Table(title=escape(title), title_justify="left")
    table.add_column("method")
    for kind in ("runs", *COLOURS):
        table.add_column(kind, justify="right")
    found: dict[str, Counter[str]] = {}
    for entry in queue.entries.values():
        kind = "running" if entry.kind == "elsewhere" else entry.kind
        found.setdefault(entry.job.row, Counter())[kind] += 1
    for row, counts in found.items():
        cells = [f"[{c}]{counts[k]}[/]" if counts[k] else "" for k, c in COLOURS.items()]
        table.add_row(escape(row), str(counts.total()), *cells)
    return table


def _running(store: Store, entries: Sequence[QueuedJob]) -> Table:
    table = Table("run", "folder", "progress", "time / worker")
    now = time.monotonic()
    for entry in entries[:SHOWN]:
        since = in_words(now - entry.since) if entry.since else entry.reason
        table.add_row(escape(entry.job.title), entry.job.digest, progress(store, entry), since)
    if len(entries) > SHOWN:
        table.add_row(f"and {len(entries) - SHOWN} more", "", "", "")
    return table


def _print_problems(queue: JobQueue, console: Console) -> None:
    """Print the failed runs with the paths of their logs, and why runs are blocked."""
    failed = list(queue.of_kind("failed"))
    for entry in failed[:SHOWN]:
        _print(console, f"failed: {_failure(queue, entry)}")
    if len(failed) > SHOWN:
        _print(console, f"and {len(failed) - SHOWN} more failed: see failed.json in their folders")
    reasons = Counter(entry.reason for entry in queue.of_kind("blocked"))
    for reason, count in reasons.most_common(SHOWN):
        _print(console, f"blocked: {count} run{'s' * (count > 1)}: {reason}")


def _failure(queue: JobQueue, entry: QueuedJob) -> str:
    return f"{entry.job.title}: {entry.reason}; its log is {queue.store.log(entry.job.digest)}"


def _counted(queue: JobQueue) -> str:
    counts = queue.counts
    counts["running"] += counts.pop("elsewhere", 0)
    said = ", ".join(f"{counts[kind]} {kind}" for kind in COLOURS if counts[kind] or kind == "done")
    return f"{len(queue.entries)} runs: {said}"


def _data(names: Iterable[str], root: Path | None) -> Iterator[str]:
    """Yield a line of text for each named data set in `names`, which says whether its files exist.

    Args:
        names: names of data sets, and paths of a user's own data. No line is yielded for a path.
        root: folder of the named data sets; None for the default folder.
    """
    from recmix.data import inventory

    known = {entry.name: entry for entry in inventory(root)}
    for name in sorted(names):
        if name in known:
            missing = known[name].missing
            yield f"data: {name} is {known[name].state}" + (
                f" (missing files: {', '.join(missing)})" if missing else ""
            )


def _scores(store: Store, entry: QueuedJob) -> str:
    with contextlib.suppress(RunError, KeyError, TypeError):
        found = store.run(entry.job.digest).scores()
        return "IWAE " + ", ".join(f"{key} {found[key]['iwae']:.2f}" for key in entry.job.evaluate)
    return "scored"


def _print(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
