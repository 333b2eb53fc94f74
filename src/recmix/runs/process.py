"""What this process may use of the machine."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["THREADS", "cores", "given_threads"]

THREADS = "OMP_NUM_THREADS"
"""Torch reads its number of threads from this environment variable."""

LIMIT = Path("/sys/fs/cgroup/cpu.max")
"""File with the CPU limit of a container: microseconds of CPU time, and the period in microseconds."""


def cores() -> int:
    """Return how many CPU cores this process may use, by its CPU affinity and its cgroup limit."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = LIMIT.read_text().split()
        return found if quota == "max" else max(1, min(found, round(int(quota) / int(period))))
    except (OSError, ValueError):
        return found


def given_threads() -> int | None:
    """Return the number of CPU threads that the user chose with ``--threads`` or OMP_NUM_THREADS.

    The option sets the variable, so only the variable is read. The result is None if it is not set, or
    if it is not a whole number of at least 1.
    """
    text = os.environ.get(THREADS, "").strip()
    return int(text) if text.isdecimal() and int(text) > 0 else None
