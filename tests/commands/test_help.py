"""The help, completion in the shell, and the number of threads."""

import os
import subprocess
import sys

import pytest
from cases.commands import call

from recmix.cli import COMMANDS
from recmix.commands import threads
from recmix.commands.train_help import FIRST
from recmix.errors import ConfigError


def test_the_help_groups_commands_and_gives_examples(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert call("--help") == 0
    text = capsys.readouterr().out
    for name, (panel, _, example) in COMMANDS.items():
        assert f"─ {panel} ─" in text
        assert example.startswith(f"recmix {name}")
        assert example in text  # on one line


def test_the_help_of_train_begins_with_twelve_options(capsys):
    assert len(FIRST) == 12
    assert call("train", "--help") == 0
    text = capsys.readouterr().out
    first, rest = text.split("─ The run ─")
    for name in FIRST:
        flag = f"--{name.replace('_', '-')} "
        assert flag in first
        assert f"│ {flag}" not in rest
    for panel in ("Methods", "Model", "Training", "Inference"):
        assert f"─ {panel} ─" in rest


@pytest.mark.parametrize(
    ("words", "expected"),
    [("recmix ev", ["evaluate"]), ("recmix train --method rm", ["rme"])],
)
def test_the_shell_completes(words, expected):
    asked = {"_RECMIX_COMPLETE": "complete_bash", "COMP_WORDS": words}
    asked["COMP_CWORD"] = str(len(words.split()) - 1)
    found = subprocess.run(
        [sys.executable, "-m", "recmix.cli"],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout.split() == expected, found.stderr


def test_threads_are_a_flag_of_every_command(capsys):
    assert threads.take_threads(["--threads=3", "demo"]) == (["demo"], 3)
    for wrong in ("0", "two", ""):
        with pytest.raises(ConfigError, match="--threads must be a whole number"):
            threads.take_threads(["demo", "--threads", wrong])
    assert call("train", "--threads", "none") == 2
    assert "--threads must be" in capsys.readouterr().err


@pytest.mark.parametrize(("free", "expected"), [(7.8, None), (5.2, 5), (0.1, 1)])
def test_a_busy_machine_gets_fewer_threads(monkeypatch, free, expected):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "available_cores", lambda: 8)
    monkeypatch.setattr(threads, "free_cores", lambda cores: free)
    number, why = threads.choose_threads(["demo"])
    assert number == expected
    assert why == "" if expected is None else f"{expected} of 8 threads" in why
    assert threads.choose_threads(["grid"]) == (None, "")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert threads.choose_threads(["demo"]) == (None, "")


def test_a_resumed_run_gets_the_threads_it_had(monkeypatch, tmp_path):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "free_cores", lambda cores: 0.0)
    (tmp_path / "log.jsonl").write_text('{"event": "start", "threads": 3}\n{"event": "epoch"}\n')
    assert threads.choose_threads(["train", "--resume", "--out", str(tmp_path)]) == (3, "")


def test_free_cores_are_between_none_and_all():
    assert 0 <= threads.free_cores(2) <= 2
    assert threads.available_cores() >= 1
