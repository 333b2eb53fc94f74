"""The clock: blocks of work that are timed in turn, and ratios of their times.

The blocks that are compared are timed alternately, many times. A ratio is the median over these
repetitions and its spread is their interquartile range.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from benchmarks.registry import Context

Name = TypeVar("Name")
"""The name of a block: any value that can be a key of a dictionary."""


@dataclass
class Block:
    """Work that is timed, a number of units at a time.

    Args:
        work: does the given number of units. It need not wait for the device.
        most: the largest number of units in one call.
        fixed: the number of units in each call; 0 means as many as fill the time.
    """

    work: Callable[[int], object]
    most: int = 5000
    fixed: int = 0


def interleave(
    context: Context, blocks: Mapping[Name, Block], *, repeats: int, seconds: float
) -> dict[Name, list[float]]:
    """Milliseconds per unit of each block, one number for each repetition.

    All blocks are warmed up first. Then they take turns, in alternating order (AB, BA, AB, ...), so that
    a slow phase of the machine affects all of them.

    Args:
        context: for its device.
        blocks: what is timed, by name.
        repeats: number of repetitions.
        seconds: duration of one block in one repetition, if its number of units is not fixed.
    """
    units = {name: _warm_up(context, block, seconds) for name, block in blocks.items()}
    times: dict[Name, list[float]] = {name: [] for name in blocks}
    names = list(blocks)
    for repeat in range(repeats):
        gc.collect()
        for name in names if repeat % 2 == 0 else reversed(names):
            duration = time_work(context, blocks[name].work, units[name])
            times[name].append(1e3 * duration / units[name])
    return times


def _warm_up(context: Context, block: Block, seconds: float) -> int:
    """Run a block a few times. Returns the number of units that fill the time."""
    if block.fixed:
        time_work(context, block.work, block.fixed)
        return block.fixed
    for _ in range(2):
        once = time_work(context, block.work, 1)
    few = max(1, min(block.most, 5, int(seconds / once)))
    once = time_work(context, block.work, few) / few
    return max(1, min(block.most, round(seconds / once)))


def time_work(context: Context, work: Callable[[int], object], units: int) -> float:
    """Seconds that the work takes, until the device has finished it. Garbage collection is off."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        context.synchronize()
        start = time.perf_counter()
        work(units)
        context.synchronize()
        return time.perf_counter() - start
    finally:
        if collecting:
            gc.enable()


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> tuple[float, float]:
    """Median and interquartile range of the ratios of paired repetitions.

    >>> ratio([4.0, 6.0, 8.0], [2.0, 2.0, 2.0])
    (3.0, 1.0)
    """
    return median_and_spread([a / b for a, b in zip(numerator, denominator, strict=True)])


def median_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Median and interquartile range."""
    if len(values) < 2:
        return values[0], 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return statistics.median(values), high - low


def medians(times: Mapping[Any, Sequence[float]]) -> dict[str, float]:
    """The median of each list, by name."""
    return {str(name): statistics.median(values) for name, values in times.items()}
