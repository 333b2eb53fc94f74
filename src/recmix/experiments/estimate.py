"""How long the rest will take, from the runs that are done."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

from recmix.experiments.grid import Job
from recmix.experiments.schedule import Schedule

__all__ = ["Clock", "Left", "in_words"]


@dataclass(frozen=True)
class Left:
    """What is known of the time left.

    Attributes:
        seconds: for the runs of which something is known, shared among the workers.
        known: how many those are.
        unknown: runs of which nothing is known yet.
        measured: how many finished runs it is taken from.
    """

    seconds: float
    known: int
    unknown: int
    measured: int

    def __str__(self) -> str:
        if not self.known and not self.unknown:
            return "nothing is left"
        if not self.known:
            return "unknown until the first run is done"
        more = f", and {self.unknown} runs of columns where none is done yet" if self.unknown else ""
        return f"about {in_words(self.seconds)} (from {self.measured} finished runs){more}"


class Clock:
    """Estimates from finished runs of the same row and column, or at least of the same column.

    Args:
        schedule: the runs.
        workers: how many are done at a time.
    """

    def __init__(self, schedule: Schedule, workers: int) -> None:
        self.schedule = schedule
        self.workers = workers
        self._kinds = {digest: _kinds(entry.job) for digest, entry in schedule.entries.items()}
        self._seconds: dict[str, float] = {}

    def left(self) -> Left:
        """The time left now."""
        times: dict[tuple[str, ...], list[float]] = {}
        measured = 0
        for entry in self.schedule.of_kind("done"):
            seconds = self._took(entry.job.digest)
            if seconds:
                measured += 1
                for kind in self._kinds[entry.job.digest]:
                    times.setdefault(kind, []).append(seconds)
        means = {kind: sum(found) / len(found) for kind, found in times.items()}
        total, known, unknown = 0.0, 0, 0
        for entry in self.schedule.of_kind("waiting", "running", "elsewhere"):
            usual = next((means[k] for k in self._kinds[entry.job.digest] if k in means), None)
            if usual is None:
                unknown += 1
            else:
                known += 1
                spent = time.monotonic() - entry.since if entry.kind == "running" else 0.0
                total += max(0.0, usual - spent)
        return Left(total / max(1, min(self.workers, known)), known, unknown, measured)

    def _took(self, digest: str) -> float:
        """How long a finished run took; read once."""
        if digest not in self._seconds:
            self._seconds[digest] = self.schedule.store.job_file(digest).get("seconds") or 0.0
        return self._seconds[digest]


def in_words(seconds: float) -> str:
    """A length of time.

    >>> in_words(42), in_words(5000), in_words(200_000)
    ('42 s', '1 h 23 min', '2 d 8 h')
    """
    minutes, hours, days = seconds / 60, seconds / 3600, seconds / 86400
    if days >= 1:
        return f"{int(days)} d {int(hours) % 24} h"
    if hours >= 1:
        return f"{int(hours)} h {int(minutes) % 60} min"
    return f"{int(minutes)} min {int(seconds) % 60} s" if minutes >= 1 else f"{seconds:.0f} s"


def _kinds(job: Job) -> list[tuple[str, ...]]:
    """What a run is like, the nearest first."""
    column = json.dumps(job.column, sort_keys=True)
    stage = "second" if job.depends else "first"
    return [(job.row, column), (job.label, column), (stage, column)]
