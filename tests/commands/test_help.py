"""The help, completion in the shell, and the number of threads."""

import os
import re
import subprocess
import sys

import pytest
from cases.commands import call

from recmix.commands import threads
from recmix.commands.program import COMMANDS, HINTS
from recmix.commands.train_help import FIRST, GROUPS
from recmix.errors import ConfigError


def test_the_help_groups_commands_and_gives_examples(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert call("--help") == 0
    text = capsys.readouterr().out
    for name, (panel, _, example) in COMMANDS.items():
        assert f"─ {panel} ─" in text
        assert example.startswith(f"recmix {name}")
        assert example in text  # on one line
    assert "<bool>" not in text
    assert "recmix.wrap" in text
    assert call("tune", "--help") == 0
    assert "<bool>" not in capsys.readouterr().out


def test_the_help_of_train_shows_twelve_options_and_the_others_by_group(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert len(FIRST) == 12
    assert call("train", "--help") == 0
    text = capsys.readouterr().out
    assert text.count("\n") < 50
    shown = re.findall(r"│ --([a-z-]+)", text)
    assert shown == [*(name.replace("_", "-") for name in FIRST), *["help-all"] * (len(GROUPS) + 1)]
    assert call("train", "--help-all") == 0
    everything = capsys.readouterr().out
    for group in GROUPS:
        assert f"--help-all {group} " in text
        assert call("train", "--help-all", group) == 0
        part = re.findall(r"│ --([a-z-]+)", capsys.readouterr().out)
        assert part
        assert all(f"│ --{name} " in everything for name in part)
    assert call("train", "--help-all", "modell") == 2
    assert "did you mean 'model'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("refine", "runs/vae"), "evaluate RUN --refine 2"),
        (("refine", "runs/vae"), "tune RUN --milliseconds"),
        (("calibrate",), "evaluate RUN --calibrate"),
        (("trian", "--help"), "did you mean 'train'"),
        (("train", "--lr", "1"), "--learning-rate)"),
        (("train", "--architecture", "mlp"), "options: --network)"),
        (("evaluate", "runs/vae", "--refnie", "2"), "options: --refine)"),
        (("evaluate",), "Example: recmix evaluate runs/vae"),
        (("evaluate", "runs/a", "runs/b"), "give one run. `recmix report FOLDER`"),
        (("evaluate", "runs/a", "--refine", "two"), "valid integer, got 'two'"),
        (("train", "--epochs=ten"), "valid integer, got 'ten'"),
        (("train",), "--data, --method, --out are missing. Example: recmix train --data"),
        (("train", "--resume"), "--out is missing."),
        (("train", "--data", "no.npy", "--method", "VAE", "--out", "x"), "did you mean 'vae'?"),
    ],
)
def test_wrong_words_get_a_hint(words, hint, capsys):
    assert call(*words) == 2
    said = " ".join(capsys.readouterr().err.replace("│", "").split())
    said = re.sub(r"Did you mean (\S+)\?", r"(Possible options: \1)", said)  # click before 8.2
    # older typer and click:
    said = re.sub(r"('\w+') is not a valid int(?:eger)?", r"valid integer, got \1", said)
    assert hint in said


def test_hints_name_commands_and_options_that_exist(capsys):
    for hint in HINTS.values():
        for name, rest in re.findall(r"`recmix ([a-z]+)([^`]*)`", hint):
            assert call(name, "--help-all" if name == "train" else "--help") == 0
            text = capsys.readouterr().out
            assert all(flag in text for flag in re.findall(r"--[a-z-]+", rest) if flag != "--help")


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
    monkeypatch.setattr(threads, "cores", lambda: 8)
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
    assert threads.cores() >= 1
