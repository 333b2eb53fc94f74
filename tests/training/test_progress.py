"""Progress without a terminal and in a notebook, and what is printed before a training."""

import sys
import types

import numpy as np
import pytest

import recmix
from recmix.training import fit, plan, progress


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_long_training_prints_lines_without_a_terminal(clock, capsys):
    with progress.watch("vae", 10, unit="epoch") as report:
        report(0.4)
        assert capsys.readouterr().err == ""
        clock[0] = 16
        report(0.5)  # within the first epoch
        assert "vae: epoch 0.5/10, 304 s left at most" in capsys.readouterr().err
        clock[0] = 20
        report(1, "validation -9.00")
        assert capsys.readouterr().err == ""
        report(10, "validation -8.00")
    assert "epoch 10/10 validation -8.00" in capsys.readouterr().err


@pytest.mark.parametrize(("show", "lines"), [(None, 0), (True, 1), (False, 0)])
def test_a_short_training_prints_a_line_only_if_asked(clock, capsys, show, lines):
    with progress.watch("vae", 2, show=show) as report:
        report(1, "validation -9.00")
        report(2, "validation -8.00")
    assert len(capsys.readouterr().err.splitlines()) == lines


def test_counted_work_prints_lines_without_a_terminal(clock, capsys):
    with progress.watch("evaluating", 100) as report:
        report(10)
        clock[0] = 20
        report(50)
    assert capsys.readouterr().err == "evaluating: 50/100, 20 s left at most\n"


def test_a_notebook_shows_a_bar(monkeypatch, clock, capsys):
    shown = []

    class Handle:
        def update(self, what):
            shown.append(what)

    def display(what, display_id):
        assert display_id
        shown.append(what)
        return Handle()

    shell = types.SimpleNamespace(kernel=object())
    module = types.ModuleType("IPython")
    module.get_ipython = lambda: shell
    module.display = types.SimpleNamespace(HTML=str, display=display)
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", module.display)
    progress.say("likelihood: gaussian", None)
    assert capsys.readouterr().err == "likelihood: gaussian\n"
    with progress.watch("vae <1>", 4) as report:
        report(0.1)  # the first one is shown at once
        clock[0] = 2
        report(1, "validation -9.00")
        clock[0] = 2.1
        report(1.5)  # too soon to show
        report(4, "validation -8.00")
    assert [text.count("<progress") for text in shown] == [1, 1, 1, 1]
    assert "1/4 validation -9.00, 6 s left" in shown[2]
    assert shown[3].startswith("vae &lt;1&gt; <progress value='4' max='4'>")
    assert capsys.readouterr() == ("", "")


def test_an_early_stop_is_the_last_line(clock, capsys):
    with progress.watch("vae", 300, show=True) as report:
        report(7, "validation 1.00, stopped: no better validation bound for 5 epochs")
    said = capsys.readouterr().err
    assert said.endswith("7/300 validation 1.00, stopped: no better validation bound for 5 epochs\n")


@pytest.fixture
def x():
    return np.random.default_rng(0).random((30, 1, 8, 8), np.float32)


def test_the_choices_of_a_training_are_printed_in_a_terminal(x, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    model = recmix.fit("vae", x, epochs=1, latent=2, device="cpu")
    said = capsys.readouterr().err
    assert "likelihood: gaussian, because the values lie between 0 and 1" in said
    assert "learning rate" not in said
    recmix.fit("rme", x, init=model, epochs=1, order=2, device="cpu")
    said = capsys.readouterr().err
    assert "learning rate 1e-06: the default" in said
    assert "With 24 examples little changes: try the option learning_rate = 0.0001" in said
    assert "likelihood:" not in said
    recmix.fit("rme", x, init=model, epochs=1, order=2, device="cpu", learning_rate=1e-4)
    recmix.fit("vae", x, epochs=1, latent=2, device="cpu", progress=False)
    said = capsys.readouterr().err
    assert "little changes" not in said
    assert "likelihood:" not in said


def test_the_engine_is_printed_only_if_progress_is_shown(x, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    recmix.fit("vae", x, epochs=1, latent=2, engine="eager", device="cpu")
    assert "eager engine, as requested" in capsys.readouterr().err
    recmix.fit("vae", x, epochs=1, latent=2, engine="eager", device="cpu", progress=False)
    assert capsys.readouterr().err == ""


def test_each_process_chooses_its_gpu_before_it_makes_a_model(x, monkeypatch):
    calls = []
    for module, name in ((fit, "world"), (plan, "make_model")):
        before = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *a, name=name, f=before, **k: calls.append(name) or f(*a, **k)
        )
    recmix.fit("vae", x, epochs=1, latent=2, device="cpu", progress=False)
    assert calls[:2] == ["world", "make_model"]
