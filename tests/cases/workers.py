"""Helpers for tests with worker processes."""

import os
import re
import time

# On the CPU, where results are equal bit by bit.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"the condition is still false after {seconds} seconds"
        time.sleep(0.02)


def worker_pids(store, jobs):
    """Process ids of the workers that hold these runs."""
    holders = [re.search(r"process (\d+)", store.holder(job.digest)) for job in jobs]
    return [int(found[1]) for found in holders if found]
