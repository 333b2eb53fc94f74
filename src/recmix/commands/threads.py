"""Choose the number of threads with which torch computes on the CPU.

The threads of torch wait for each other. If other programs use the cores, one slow thread delays all,
and training can be many times slower than with fewer threads.
"""

from __future__ import annotations

import os
import sys
import time
from itertools import pairwise
from pathlib import Path

from recmix.errors import ConfigError
from recmix.runs.folder import Run
from recmix.runs.process import THREADS, cores

__all__ = ["choose_threads", "free_cores", "take_threads", "use_threads"]

COMPUTING = ("train", "demo", "compare", "evaluate", "tune", "figure1", "export")
"""Commands that compute in this process. Grids and the explorer choose threads themselves."""
SECONDS = 0.2
MOST_THREADS = 1024
"""Largest number of threads that is accepted from a log. A larger number is ignored."""


def take_threads(words: list[str]) -> tuple[list[str], int | None]:
    """Remove the flag ``--threads N`` from the words of a command, and read N.

    Returns:
        The other words, and N. N is None if the words do not have the flag.

    >>> take_threads(["train", "--threads", "2", "--out", "runs/a"])
    (['train', '--out', 'runs/a'], 2)
    """
    left, given = [], None
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name != "--threads":
            left.append(word)
            continue
        text = value if equals else next(rest, "")
        if not text.isdecimal() or int(text) < 1:
            raise ConfigError(f"--threads must be a whole number, at least 1, got {text!r}")
        given = int(text)
    return left, given


def choose_threads(words: list[str]) -> tuple[int | None, str]:
    """Choose the number of CPU threads for a command, from the words of the command line.

    A run that is resumed gets as many threads as before, because another number changes rounding.
    Other commands that compute get as many threads as there are idle cores.

    Returns:
        The number of threads, and a sentence for the user, or "". The number is None if torch should
        choose: if OMP_NUM_THREADS is set, the command does not compute, or all cores are idle.
    """
    command = next((word for word in words if not word.startswith("-")), "")
    if THREADS in os.environ or command not in COMPUTING or {"-h", "--help", "--help-all"} & set(words):
        return None, ""
    if "--resume" in words and (before := _threads_of_run(words)) is not None:
        return before, ""
    usable = cores()
    threads = max(1, min(usable, round(free_cores(usable))))
    if threads == usable:
        return None, ""
    return threads, (
        f"other programs use the processor: computing with {threads} of {usable} threads (--threads N "
        "chooses another number)"
    )


def use_threads(threads: int) -> None:
    """Let torch use this number of threads, whether it is imported already or later."""
    os.environ[THREADS] = str(threads)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(threads)


def free_cores(usable: int) -> float:
    """Measure how many of the `usable` cores, which this process may use, are idle now."""
    before = _idle_and_total()
    time.sleep(SECONDS)
    after = _idle_and_total()
    if before and after and after[1] > before[1]:
        return usable * (after[0] - before[0]) / (after[1] - before[1])
    if hasattr(os, "getloadavg"):
        return max(0.0, usable - os.getloadavg()[0])
    return usable


def _idle_and_total() -> tuple[int, int] | None:
    """The idle time and the total time of all cores since the machine started.

    They are read from ``/proc/stat`` of Linux. The result is None if this file cannot be read.
    """
    try:
        with open("/proc/stat", encoding="ascii") as file:
            numbers = [int(word) for word in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    return (numbers[3] + numbers[4], sum(numbers)) if len(numbers) == 8 else None


def _threads_of_run(words: list[str]) -> int | None:
    """The number of threads with which the run in ``--out`` was last started, according to its log.

    The result is None if the words have no ``--out``, or the log does not say the number.
    """
    out = next((b for a, b in pairwise(words) if a == "--out"), None)
    out = out or next((word[6:] for word in words if word.startswith("--out=")), None)
    if out is None:
        return None
    found = None
    for folder in (Path(out) / "vae", Path(out)):  # an interrupted first stage has its own log
        for event in Run(folder).events():
            threads = event.get("threads") if event.get("event") == "start" else None
            if type(threads) is int and 0 < threads <= MOST_THREADS:
                found = threads
    return found
