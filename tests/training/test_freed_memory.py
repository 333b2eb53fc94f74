"""Freed memory is kept while a model is trained, and returned afterwards."""

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is set")

COUNT = """
import resource
from contextlib import nullcontext
import torch
from recmix.training import freed_memory

def faults(mebibytes):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(mebibytes * 2**18)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
"""


def run(code: str) -> list[float]:
    command = [sys.executable, "-c", COUNT + code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [float(word) for word in done.stdout.split()]


def test_larger_arrays_take_their_memory_once_while_freed_memory_is_kept():
    outside, inside = run(
        "print(faults(48))\n"
        "with freed_memory.keep_freed_memory():\n    faults(48)\n    print(faults(48))\n"
    )
    assert inside < max(1000, 0.1 * outside)  # with huge pages there are few anyway


def test_memory_is_returned_at_the_end():
    before, inside, after = run(
        "print(resident())\n"
        "with freed_memory.keep_freed_memory():\n    torch.ones(2**27)\n    print(resident())\n"
        "print(resident())"
    )
    assert inside - before > 400 * 2**20
    assert after - before < 100 * 2**20


def test_another_c_library_is_left_alone(monkeypatch):
    from recmix.training import freed_memory

    monkeypatch.setattr(sys, "platform", "darwin")
    assert freed_memory._glibc() is None
    with freed_memory.keep_freed_memory():
        pass


def test_settings_of_the_user_are_left_alone(monkeypatch):
    from recmix.training import freed_memory

    for name in freed_memory.SET_BY_USER:
        monkeypatch.delenv(name, raising=False)
    assert freed_memory._glibc() is not None
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "100000")
    assert freed_memory._glibc() is None
