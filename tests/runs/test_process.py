"""What this process may use of the machine."""

import os

import pytest

from recmix.commands import doctor
from recmix.experiments.local_workers import Slot, make_slots
from recmix.runs import process


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("200000 100000", 2), ("50000 100000", 1), ("max 100000", 64), ("9900000 100000", 64), ("", 64)],
)
def test_cores_are_at_most_those_of_the_container(monkeypatch, tmp_path, limit, expected):
    (tmp_path / "cpu.max").write_text(limit)
    monkeypatch.setattr(process, "LIMIT", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    assert process.cores() == expected
    assert make_slots(None, "cpu") == [Slot(1)] * expected
    assert next(doctor._processor()).detail.split()[0] == str(expected)
