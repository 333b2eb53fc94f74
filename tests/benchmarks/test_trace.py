"""A training is easy to follow: it seldom returns to a room of the package that it had left."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

from benchmarks.trace import Call, first_calls, returns

ROOT = Path(__file__).parents[2]
MOST_RETURNS = 30
"""Measured: 30. Lower it when the way becomes shorter.

Seven returns are before the folder of the run is made: the command, the options, the data, the model and
the method come one after the other, and the values of the data are checked when the likelihood is known.
Fourteen are the run folder, the optimisers and the validation of an untrained VAE. In a validation,
evaluation, methods, model and posteriors call each other: a method asks the model to standardise
examples, and a bound needs samples of a posterior. Five are the first batch and the end of
the first training. Four are what a recursive mixture calls in addition.
"""


def test_training_seldom_returns_to_a_room():
    # In a new process: functions with a cache are not called again here. Without a GPU: the faster
    # versions for a GPU are asked on a machine that has one, also when they are not used.
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.trace"],
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    found = re.search(r"^(\d+) returns to a room; (\d+) functions in", done.stdout, re.MULTILINE)
    assert int(found[2]) > 100
    assert int(found[1]) <= MOST_RETURNS, done.stdout


def test_first_calls_are_recorded_in_order_without_imports(tmp_path, monkeypatch):
    for name in ("training", "methods"):
        (tmp_path / "traced" / name).mkdir(parents=True)
    (tmp_path / "traced" / "cli.py").write_text(
        "def main():\n"
        "    from traced.training import loop\n"
        "    loop.run()\n"
        "    loop.run()\n"
        "    end()\n"
        "def end(): pass\n"
    )
    (tmp_path / "traced" / "training" / "loop.py").write_text(
        "from traced.methods import rme\n"
        "rme.register()\n"  # a call while importing
        "def run():\n"
        "    rme.step()\n"
        "    close()\n"
        "def close(): pass\n"
    )
    (tmp_path / "traced" / "methods" / "rme.py").write_text(
        "def register(): pass\n"
        "class Method:\n"
        "    register()\n"
        "def step():\n"
        "    register()\n"
        "    return [register() for _ in range(2)]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    before = sys.getprofile()

    def work():
        importlib.import_module("traced.cli").main()

    calls = first_calls(work, tmp_path / "traced")
    assert sys.getprofile() is before
    assert calls == [
        Call("cli", "main"),
        Call("training", "run"),
        Call("methods", "step"),
        Call("methods", "register"),
        Call("training", "close"),
        Call("cli", "end"),
    ]
    assert [(one.room, two.function) for one, two in returns(calls)] == [
        ("methods", "close"),
        ("training", "end"),
    ]
