"""Estimate how long the remaining runs of a grid will take. A run trains and scores one model."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import fmean
from types import MappingProxyType
from typing import NamedTuple

from recmix.experiments.grid import GridJob
from recmix.experiments.job_queue import JobQueue
from recmix.experiments.time_updates import Kind, kind_of

__all__ = ["Clock", "TimeLeft", "in_words"]


class TimeLeft(NamedTuple):
    """An estimate of the time that the remaining runs of a grid will take."""

    seconds: float  # of all remaining runs with an estimate, done by all workers
    known: int  # number of remaining runs with an estimate
    unknown: int  # number of remaining runs without an estimate
    measured: int  # number of finished runs whose times the estimate uses
    all_epochs: bool  # whether some runs are counted with all their epochs; they may stop earlier
    timed: int = 0  # number of runs whose estimate comes from a few timed updates

    def __str__(self) -> str:
        if not self.known and not self.unknown:
            return "none"
        if not self.known:
            return "unknown until the first epoch of a run is done"
        more = f", and {self.unknown} runs without an estimate" if self.unknown else ""
        sources = [f"{self.measured} finished runs"] if self.measured or not self.timed else []
        sources += ["a few timed updates of each kind of run"] if self.timed else []
        less = "; runs that stop early take less" if self.all_epochs else ""
        return f"about {in_words(self.seconds)} (from {' and '.join(sources)}{less}){more}"


class Clock:
    """Estimates how long the remaining runs of a grid will take.

    The setting of a run is the value of its method's main option, such as 2 for RME(2). The time of a
    run is taken from the first of these sources that exists:

    - the mean time of finished runs with the same method, setting, data and model;
    - a few training updates of such a run, which were timed before the grid started;
    - the mean time of finished runs with the same method, data and model, but any setting;
    - the mean time of finished runs with any method, but the same stage (training from random weights,
      or from a trained model), data and model;
    - the time of the last epoch of similar runs that are in progress.

    Args:
        queue: the runs of the grid with their states.
        workers: number of runs that are done at a time.
        timed: {kind of run: seconds of one run}, computed from a few timed updates.
    """

    def __init__(
        self, queue: JobQueue, workers: int, timed: Mapping[Kind, float] = MappingProxyType({})
    ) -> None:
        self.queue = queue
        self.workers = workers
        self.timed = timed
        self._kinds = {digest: _kinds(entry.job) for digest, entry in queue.entries.items()}
        self._seconds: dict[str, float] = {}

    def left(self) -> TimeLeft:
        """Estimate the time that the remaining runs will take from now on."""
        store = self.queue.store
        for digest in (entry.job.digest for entry in self.queue.of_kind("done")):
            if digest not in self._seconds:  # each job file is read once
                self._seconds[digest] = store.job_file(digest).get("seconds") or 0.0
        running = [entry.job.digest for entry in self.queue.of_kind("running")]
        per_run = self._by_kind(self._seconds)
        per_epoch = self._by_kind({digest: store.last_epoch(digest)[1] for digest in running})
        total, known, unknown, all_epochs, timed = 0.0, 0, 0, False, 0
        for entry in self.queue.of_kind("waiting", "running", "elsewhere"):
            kinds = self._kinds[entry.job.digest]
            if kinds[0] in self.timed and kinds[0] not in per_run:
                total += self.timed[kinds[0]]
                timed, all_epochs = timed + 1, True
            elif (seconds := _first(per_run, kinds)) is not None:
                spent = time.monotonic() - entry.since if entry.kind == "running" else 0.0
                total += max(0.0, seconds - spent)
            elif (seconds := _first(per_epoch, kinds)) is not None:
                done, _ = store.last_epoch(entry.job.digest)
                total += seconds * max(0, entry.job.definition["training"]["epochs"] - done)
                all_epochs = True
            else:
                unknown += 1
                continue
            known += 1
        measured = sum(1 for seconds in self._seconds.values() if seconds)
        shared = total / max(1, min(self.workers, known))
        return TimeLeft(shared, known, unknown, measured, all_epochs, timed)

    def _by_kind(self, seconds: Mapping[str, float]) -> dict[Kind, float]:
        """Return the mean seconds of each group of similar runs, from {name of a run: seconds}.

        Runs without a time, or with 0 seconds, do not count.
        """
        found = defaultdict(list)
        for digest, taken in seconds.items():
            for kind in self._kinds[digest] if taken else ():
                found[kind].append(taken)
        return {kind: fmean(times) for kind, times in found.items()}


def _first(times: Mapping[Kind, float], kinds: Iterable[Kind]) -> float | None:
    return next((times[kind] for kind in kinds if kind in times), None)


def in_words(seconds: float) -> str:
    """Return a duration in seconds as text for people.

    >>> in_words(42), in_words(5000), in_words(200_000)
    ('42 s', '1 h 23 min', '2 d 7 h')
    """
    minutes, hours, days = seconds / 60, seconds / 3600, seconds / 86400
    if days >= 1:
        return f"{int(days)} d {int(hours) % 24} h"
    if hours >= 1:
        return f"{int(hours)} h {int(minutes) % 60} min"
    return f"{int(minutes)} min {int(seconds) % 60} s" if minutes >= 1 else f"{seconds:.0f} s"


def _kinds(job: GridJob) -> list[Kind]:
    """Return the groups of similar runs to which a run belongs, the most similar group first."""
    kind = _, column = kind_of(job)
    stage = "second" if job.depends else "first"
    return [kind, (job.label, column), (stage, column)]
