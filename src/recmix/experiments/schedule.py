"""Which run is next: dependencies, retries, and what another driver has taken."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from recmix.errors import RunError
from recmix.experiments.grid import Job
from recmix.experiments.store import Claim, Store

__all__ = ["RETRIES", "Entry", "Schedule"]

RETRIES = 2
"""How often a run is begun again whose worker was killed."""
LOOK_AGAIN = 1.0
"""Seconds between two looks at a run that another driver has."""

Kind = Literal["waiting", "running", "elsewhere", "done", "failed", "blocked"]


@dataclass
class Entry:
    """How one run stands, as this driver sees it."""

    job: Job
    kind: Kind = "waiting"
    reason: str = ""
    attempts: int = 0
    since: float = 0.0
    look_again: float = 0.0


class Schedule:
    """The runs of a grid, in order, and how they stand.

    Args:
        store: where they are.
        jobs: the runs; one comes after the run that it starts from.
        retry_failed: try those again that failed before.
    """

    def __init__(self, store: Store, jobs: Iterable[Job], *, retry_failed: bool = False) -> None:
        self.store = store
        self.entries = {job.digest: Entry(job) for job in jobs}
        self._forgive: set[str] = set()
        self._next_look = 0.0
        for entry in self.entries.values():
            state = store.state(entry.job)
            if state.kind == "done":
                entry.kind = "done"
            elif state.kind == "failed" and retry_failed:
                self._forgive.add(entry.job.digest)
            elif state.kind == "failed":
                entry.kind, entry.reason = "failed", state.reason
            elif state.kind == "damaged":
                entry.reason = f"damaged, will be mended: {state.reason}"
        self._settle()

    @property
    def counts(self) -> Counter[str]:
        """How many runs stand how."""
        return Counter(entry.kind for entry in self.entries.values())

    def of_kind(self, *kinds: Kind) -> Iterator[Entry]:
        """The runs that stand so."""
        return (entry for entry in self.entries.values() if entry.kind in kinds)

    @property
    def open(self) -> bool:
        """Whether there is, or will be, something to begin."""
        return any(self.of_kind("waiting", "elsewhere"))

    def block(self, jobs: Iterable[Job], reason: str) -> None:
        """Leave runs out that cannot begin, for a reason outside the store."""
        for job in jobs:
            entry = self.entries[job.digest]
            if entry.kind == "waiting":
                entry.kind, entry.reason = "blocked", reason
        self._settle()

    def take(self, threads: int, like: Job | None = None) -> tuple[Job, Claim] | None:
        """The next run that can begin, with the claim to it; its job file is written.

        Args:
            threads: that it will have.
            like: only one of the same row and data, to be trained together with this one.
        """
        now = time.monotonic()
        for entry in list(self.of_kind("waiting", "elsewhere")):
            before = entry.job.depends
            if before is not None and self.entries[before].kind != "done":
                continue
            if entry.look_again > now:
                continue
            if like is not None and not _alike(entry.job, like):
                continue
            claim = self.store.claim(entry.job.digest)
            if claim is None:
                entry.kind, entry.look_again = "elsewhere", now + LOOK_AGAIN
                entry.reason = self.store.holder(entry.job.digest)
                continue
            try:
                if self._begin(entry, threads):
                    return entry.job, claim
            except BaseException:
                claim.release()
                raise
            claim.release()
        return None

    def look(self) -> None:
        """See how the runs stand that another driver has and others wait for."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_AGAIN
        for entry in list(self.of_kind("elsewhere")):
            self._read(entry)
        self._settle()

    def see_others(self) -> None:
        """Find out which of the waiting runs somebody works on."""
        for entry in list(self.of_kind("waiting")):
            if holder := self.store.holder(entry.job.digest):
                entry.kind, entry.reason = "elsewhere", holder

    def ended(self, job: Job, how: str, *, stopping: bool = False) -> Entry:
        """The worker of a run has ended: find out what it has achieved.

        Args:
            job: the run.
            how: how the worker ended, in words, if it did not finish.
            stopping: it was asked to.
        """
        entry = self.entries[job.digest]
        entry.kind, entry.reason = "waiting", ""
        self._read(entry)
        if entry.kind == "waiting" and not stopping:
            entry.attempts += 1
            entry.reason = f"{how}; tried again"
            if entry.attempts > RETRIES:
                entry.kind = "failed"
                entry.reason = f"{how}, {entry.attempts} times"
                try:
                    self.store.fail(job.digest, entry.reason)
                except RunError as error:  # a full disk must not stop the others
                    entry.reason += f"; {error}"
        self._settle()
        return entry

    def _begin(self, entry: Entry, threads: int) -> bool:
        """Whether a run that we hold is really ours to do: another driver may have done it meanwhile."""
        digest = entry.job.digest
        if digest in self._forgive:
            self._forgive.discard(digest)
            self.store.forget_failure(digest)
        entry.kind, entry.reason = "waiting", ""
        self._read(entry)
        if entry.kind != "waiting":
            self._settle()
            return False
        self.store.prepare(entry.job, threads)
        entry.kind, entry.since = "running", time.monotonic()
        return True

    def _read(self, entry: Entry) -> None:
        state = self.store.state(entry.job)
        if state.kind == "done":
            entry.kind, entry.reason = "done", ""
        elif state.kind == "failed":
            entry.kind, entry.reason = "failed", state.reason

    def _settle(self) -> None:
        """What starts from a run that cannot be had is blocked; one pass does, for jobs are in order."""
        for entry in self.entries.values():
            if entry.kind in ("waiting", "blocked") and entry.job.depends is not None:
                before = self.entries[entry.job.depends]
                if before.kind in ("failed", "blocked"):
                    entry.kind, entry.reason = "blocked", f"it starts from {before.job.title}, which "
                    entry.reason += f"is {before.kind}"


def _alike(one: Job, other: Job) -> bool:
    """Whether two runs have as many batches to an epoch, and go through them alike."""
    return one.definition["data"] == other.definition["data"] and one.label == other.label
