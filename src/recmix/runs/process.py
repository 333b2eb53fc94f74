"""What this process may use of the machine."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cores"]

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
