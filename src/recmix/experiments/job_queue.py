"""Decide which run of a grid is done next.

A run that starts from the trained model of another run waits for that run. A run is tried again if its
worker was killed. A driver is a process of `recmix grid`. There may be several drivers. A driver does
not start a run that another driver works on.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from recmix.errors import RunError
from recmix.experiments.grid import GridJob
from recmix.experiments.store import Claim, Store

__all__ = ["RETRIES", "JobQueue", "QueuedJob"]

RETRIES = 2  # how often a run is started again after its worker was killed
LOOK_AGAIN = 1.0  # seconds between two checks of a run that another driver has

Kind = Literal["waiting", "running", "elsewhere", "done", "failed", "blocked"]


@dataclass
class QueuedJob:
    """A run of a grid with its state, as this driver (the process of `recmix grid`) sees it.

    The state ``elsewhere`` means that another driver works on the run. ``blocked`` means that the run
    cannot start, for instance because the run of its initial model failed.
    """

    job: GridJob  # what to train and score
    kind: Kind = "waiting"  # the state of the run
    reason: str = ""  # why it has this state, in words
    attempts: int = 0  # how often its worker ended without a result
    since: float = 0.0  # when this driver started it, in seconds of `time.monotonic`
    look_again: float = 0.0  # when to try to claim a run that another driver has, in the same seconds
    retry: bool = False  # whether the run failed earlier and must be tried again
    claim: Claim = field(default_factory=Claim)  # the right of this driver to work on the run


class JobQueue:
    """The runs of a grid with their states, as this driver (the process of `recmix grid`) sees them.

    The files in `store` say which runs are already done. If `retry_failed` is true, runs that failed
    earlier are tried again. A run that starts from the trained model of another run is listed after that
    run.
    """

    def __init__(self, store: Store, jobs: Iterable[GridJob], *, retry_failed: bool = False) -> None:
        self.store = store
        self.entries = {job.digest: QueuedJob(job) for job in jobs}
        self._next_look = 0.0
        for entry in self.entries.values():
            self._read(entry)
            if entry.kind == "failed" and retry_failed:
                entry.kind, entry.reason, entry.retry = "waiting", "", True
        self._block_dependent()

    @property
    def counts(self) -> Counter[str]:
        """The number of runs in each state, {state: number}, such as {"done": 3}."""
        return Counter(entry.kind for entry in self.entries.values())

    def of_kind(self, *kinds: Kind) -> Iterator[QueuedJob]:
        """Return the runs that are in one of the states `kinds`."""
        return (entry for entry in self.entries.values() if entry.kind in kinds)

    @property
    def open(self) -> bool:
        """Whether there are runs left that this process can start now or perhaps later."""
        return any(self.of_kind("waiting", "elsewhere"))

    def block(self, jobs: Iterable[GridJob], reason: str) -> None:
        """Change the state of runs from ``waiting`` to ``blocked``, so that they are not started.

        Runs in another state do not change. `reason` is shown to the user.
        """
        for job in jobs:
            entry = self.entries[job.digest]
            if entry.kind == "waiting":
                entry.kind, entry.reason = "blocked", reason
        self._block_dependent()

    def take(self, threads: int, like: GridJob | None = None) -> QueuedJob | None:
        """Lock the next run that can start, and write the file ``job.json`` for its worker process.

        The result is None if no run can start now. If `like` is given, only a run that can be trained
        together with this run is taken: a run with the same method label and data.
        """
        now = time.monotonic()
        for entry in list(self.of_kind("waiting", "elsewhere")):
            job = entry.job
            if job.depends is not None and self.entries[job.depends].kind != "done":
                continue
            if entry.look_again > now or (like is not None and _kind(job) != _kind(like)):
                continue
            claim = self.store.claim(job.digest)
            if claim is None:
                entry.kind, entry.look_again = "elsewhere", now + LOOK_AGAIN
                entry.reason = self.store.holder(job.digest)
                continue
            entry.claim = claim
            try:
                if self._begin(entry):
                    self.store.prepare(job, threads)
                    entry.kind, entry.reason, entry.since = "running", "", time.monotonic()
                    return entry
            finally:
                if entry.kind != "running":
                    claim.release()
        return None

    def look(self) -> None:
        """Update the states of the runs that other drivers work on, at most once per second."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_AGAIN
        for entry in list(self.of_kind("elsewhere")):
            self._read(entry)
        self._block_dependent()

    def find_others(self) -> None:
        """Look for waiting runs that another driver works on. Their state becomes ``elsewhere``."""
        for entry in list(self.of_kind("waiting")):
            if holder := self.store.holder(entry.job.digest):
                entry.kind, entry.reason = "elsewhere", holder

    def ended(self, entry: QueuedJob, how: str, *, stopping: bool = False) -> QueuedJob:
        """Update the state of a run whose worker process has ended, and release the lock of the run.

        Args:
            entry: the run, which is also returned.
            how: how the worker ended, in words.
            stopping: whether the worker was asked to stop. Otherwise a worker without a result counts as
                a failed attempt.
        """
        entry.kind, entry.reason = "waiting", ""
        self._read(entry)
        if entry.kind == "waiting" and not stopping:
            entry.attempts += 1
            entry.reason = f"{how}; it is tried again"
            if entry.attempts > RETRIES:
                entry.kind = "failed"
                entry.reason = f"{how}, {entry.attempts} times"
                try:
                    self.store.fail(entry.job.digest, entry.reason)
                except RunError as error:  # such as a full disk: the other runs go on
                    entry.reason += f"; {error}"
        self._block_dependent()
        entry.claim.release()
        return entry

    def _begin(self, entry: QueuedJob) -> bool:
        """Whether a run that this driver has just locked must still be done.

        Another driver may have finished it. If the run is tried again, its old failure is removed.
        """
        if entry.retry:
            entry.retry = False
            self.store.forget_failure(entry.job.digest)
        entry.kind = "waiting"
        self._read(entry)
        self._block_dependent()
        return entry.kind == "waiting"

    def _read(self, entry: QueuedJob) -> None:
        state = self.store.state(entry.job)
        if state.kind in ("done", "failed"):
            entry.kind, entry.reason = state.kind, state.reason
        elif state.kind == "damaged":
            entry.reason = f"damaged and will be repaired: {state.reason}"

    def _block_dependent(self) -> None:
        """Block runs that start from a failed or blocked run.

        One pass is enough, because each run comes after the run from which it starts.
        """
        for entry in self.entries.values():
            if entry.kind in ("waiting", "blocked") and entry.job.depends is not None:
                before = self.entries[entry.job.depends]
                if before.kind in ("failed", "blocked"):
                    entry.kind = "blocked"
                    entry.reason = f"it starts from {before.job.title}, which is {before.kind}"


def _kind(job: GridJob) -> tuple[str, str]:
    """Return the method label and the data of a run.

    Runs for which both are equal can be trained together.
    """
    return job.label, str(job.definition["data"])
