"""Which run is next: dependencies, retries, and runs that another driver works on."""

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

RETRIES = 2
"""How often a run is started again after its worker was killed."""
LOOK_AGAIN = 1.0
"""Seconds between two checks of a run that another driver has."""

Kind = Literal["waiting", "running", "elsewhere", "done", "failed", "blocked"]


@dataclass
class QueuedJob:
    """The state of one run, as this driver sees it."""

    job: GridJob
    kind: Kind = "waiting"
    reason: str = ""
    attempts: int = 0
    since: float = 0.0
    look_again: float = 0.0
    retry: bool = False
    claim: Claim = field(default_factory=Claim)


class JobQueue:
    """The runs of a grid with their states; each run comes after the run it starts from."""

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
        """Number of runs in each state."""
        return Counter(entry.kind for entry in self.entries.values())

    def of_kind(self, *kinds: Kind) -> Iterator[QueuedJob]:
        """The runs in these states."""
        return (entry for entry in self.entries.values() if entry.kind in kinds)

    @property
    def open(self) -> bool:
        """Whether there is, or may be later, a run to start."""
        return any(self.of_kind("waiting", "elsewhere"))

    def block(self, jobs: Iterable[GridJob], reason: str) -> None:
        """Leave out runs that cannot start."""
        for job in jobs:
            entry = self.entries[job.digest]
            if entry.kind == "waiting":
                entry.kind, entry.reason = "blocked", reason
        self._block_dependent()

    def take(self, threads: int, like: GridJob | None = None) -> QueuedJob | None:
        """Claim the next run that can start, and write its job file with this number of threads.

        With `like`, only a run with the same label and data, to train it together with that one.
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
        """Update the states of runs that another driver has."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_AGAIN
        for entry in list(self.of_kind("elsewhere")):
            self._read(entry)
        self._block_dependent()

    def find_others(self) -> None:
        """Mark the waiting runs that another driver works on."""
        for entry in list(self.of_kind("waiting")):
            if holder := self.store.holder(entry.job.digest):
                entry.kind, entry.reason = "elsewhere", holder

    def ended(self, entry: QueuedJob, how: str, *, stopping: bool = False) -> QueuedJob:
        """Update the state of a run whose worker has ended, and release its claim.

        `how` says in words how it ended; `stopping` whether it was asked to stop.
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
        """Whether a claimed run has to be done: another driver may have finished it in the meantime."""
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
        """Block runs that start from a failed or blocked run. One pass is enough: jobs are in order."""
        for entry in self.entries.values():
            if entry.kind in ("waiting", "blocked") and entry.job.depends is not None:
                before = self.entries[entry.job.depends]
                if before.kind in ("failed", "blocked"):
                    entry.kind = "blocked"
                    entry.reason = f"it starts from {before.job.title}, which is {before.kind}"


def _kind(job: GridJob) -> tuple[str, str]:
    """Runs of one kind have the same number of batches per epoch and can train together."""
    return job.label, str(job.definition["data"])
