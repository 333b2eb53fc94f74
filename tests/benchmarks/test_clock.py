"""Blocks take turns, and a ratio is a median of paired ratios. Doctests of the benchmarks run here."""

import doctest

import pytest

from benchmarks import clock, record, trace
from benchmarks.clock import Block, interleave, ratio


def test_blocks_take_turns_in_alternating_order(context):
    calls = []
    blocks = {
        name: Block(lambda units, name=name: calls.append((name, units)), fixed=units)
        for name, units in (("a", 3), ("b", 5))
    }
    times = interleave(context, blocks, repeats=2, seconds=1.0)
    assert "".join(name for name, _ in calls) == "ab" + "ab" + "ba"
    assert set(calls) == {("a", 3), ("b", 5)}
    assert [len(values) for values in times.values()] == [2, 2]


def test_ratio_is_the_median_of_paired_ratios():
    # In the second repetition the machine is ten times slower, for both sides.
    assert ratio([2.0, 20.0, 2.0], [1.0, 10.0, 1.0]) == (2.0, 0.0)
    assert ratio([3.0], [2.0]) == (1.5, 0.0)


@pytest.mark.parametrize("module", [clock, record, trace])
def test_doctests_pass(module):
    failed, tried = doctest.testmod(module)
    assert tried
    assert not failed
