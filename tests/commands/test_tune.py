"""`recmix tune`, and the kinds of refinement of `recmix evaluate`."""

import importlib
import json
from dataclasses import replace

import numpy as np
import pytest
from cases.commands import call

import recmix
from recmix import Inference
from recmix.evaluation import tune as module
from recmix.reports.frontier import RefinementPoint, refinement_times
from recmix.runs.folder import TUNED, Run

FEW = ("--samples", 2, "--examples", 20, "--device", "cpu")
MODULE = """
import torch
from torch import nn

import recmix
from recmix.model.likelihoods import Gaussian


def networks():
    torch.manual_seed(0)
    return {"encoder": nn.Linear(6, 4), "decoder": nn.Linear(2, 6)}


def vae():
    return recmix.wrap(**networks(), likelihood=Gaussian(0.1), example=torch.zeros(1, 6))
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The folder of a small run, in the current directory. Every inference is timed once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "REPEATS", 1)
    monkeypatch.setattr(module, "MOST_REPEATS", 1)
    np.save("x.npy", np.random.default_rng(0).random((60, 6), np.float32))
    recmix.fit("vae", "x.npy", epochs=1, latent=2, device="cpu", out="vae")
    return Run("vae")


@pytest.fixture
def best(monkeypatch):
    """Make two steps of ``conjugate`` the winner, whatever is measured."""
    used = Inference(how="conjugate", refine=2)

    def some(_method, steps=(), base=None):
        return [Inference(), Inference(refine=1), used]

    real = module.iwae_at_seed

    def iwae(method, x, inference, *rest):
        return real(method, x, Inference(), *rest) + inference.refine

    monkeypatch.setattr(module, "candidates", some)
    monkeypatch.setattr(module, "iwae_at_seed", iwae)
    return used


def test_a_budget_that_is_too_small_names_the_smallest_one(run, best, capsys, monkeypatch):
    monkeypatch.setattr(module, "_once", lambda _method, _x, used: 1.0 + 20 * used.refine)
    assert call("tune", run.folder, "--budget", "3x", *FEW) == 0
    shown = capsys.readouterr().out
    assert "the fastest one takes 21.0 times the encoder" in shown
    assert "nothing is stored, because the limit allows no refinement" in shown
    assert not (run.folder / TUNED).exists()
    assert call("tune", run.folder, "--budget", "24x", *FEW) == 0  # the budget that it named
    assert "chosen: gauss-newton, 1 step" in capsys.readouterr().out


def test_the_winner_becomes_the_inference_of_the_run(run, best, capsys):
    assert call("tune", run.folder, "--budget", "100000x", *FEW, "--plot", "a.png") == 0
    shown = capsys.readouterr().out
    lines = {line.split("  ")[0].strip(): line for line in shown.splitlines()}
    assert "chosen" in lines["conjugate, 2 steps"]
    assert "+2.00 ± 0.00" in lines["conjugate, 2 steps"]
    assert lines["gauss-newton, 1 step"].split()[-2:] != ["chosen"]
    assert "IWAE-2" in shown
    assert "To undo this: recmix tune vae --reset" in " ".join(shown.split())
    assert "measured on cpu" in shown
    assert max(len(line) for line in shown.splitlines()[:7]) <= 80
    stored = json.loads((run.folder / TUNED).read_text())
    assert stored["inference"] == best.to_json()
    assert {"limit", "device", "torch", "trials", "samples", "examples"} <= stored.keys()
    assert len(stored["trials"]) == 3
    assert recmix.load(run.folder).inference == best
    assert (run.folder.parent / "a.png").stat().st_size > 5000


@pytest.mark.parametrize("steps", [1, 2])
def test_the_calibration_of_the_run_is_not_part_of_the_comparison(run, best, steps, capsys):
    stored = replace(best, refine=steps, scale=2.0)
    run.set_tuned(stored)
    assert call("tune", run.folder, "--budget", "100000x", *FEW) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "the run's calibration (scale 2.00) was left out of this comparison" in shown
    assert ("It is kept" in shown) == (steps == best.refine)
    assert ("recmix evaluate --calibrate" in shown) == (steps != best.refine)
    assert run.tuned() == (stored if steps == best.refine else best)


def test_evaluate_uses_the_tuned_inference_and_can_remove_it(run):
    used = Inference(refine=1, reuse=0)
    run.set_tuned(used)
    assert call("evaluate", run.folder, "--samples", 2) == 0
    assert call("evaluate", run.folder, "--samples", 2, "--refine", 0) == 0
    assert run.scores().keys() == {f"test/2/{used.key}", "test/2"}


@pytest.mark.parametrize("words", [(), ("--how", "auto")])
def test_the_name_of_a_score_has_no_restarts_without_effect(run, best, words):
    run.set_tuned(Inference(how="conjugate", refine=2, restarts=3))
    assert call("evaluate", run.folder, "--samples", 2, "--refine", 2, *words) == 0
    assert run.scores().keys() == {f"test/2/{best.key}"}


def test_reset_deletes_the_choice(run, capsys):
    run.set_tuned(Inference(refine=1))
    assert call("tune", run.folder, "--reset") == 0
    assert "deleted vae/tuned.json: vae is used again as it was trained (refinement: none)" in " ".join(
        capsys.readouterr().out.split()
    )
    assert run.tuned() is None
    assert call("tune", run.folder, "--reset", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"run": "vae", "reset": False}
    assert call("tune", run.folder, "--reset", "--budget", "3x") == 2
    assert call("tune", "nowhere", "--reset") == 2


def test_a_damaged_file_is_named(run, capsys):
    (run.folder / TUNED).write_text("{")
    assert call("evaluate", run.folder) == 2
    assert f"vae/{TUNED}" in capsys.readouterr().err
    assert call("tune", run.folder, "--budget", "3x") == 2
    assert "recmix tune vae --reset" in capsys.readouterr().err
    assert call("tune", run.folder, "--reset") == 0
    assert run.tuned() is None


def test_a_dry_run_stores_nothing(run, best, capsys):
    assert call("tune", run.folder, "--milliseconds", 1000, *FEW, "--dry-run", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["inference"] == best.to_json()
    assert shown["limit"] == 1000
    assert not shown["stored"]
    assert run.tuned() is None


def test_json_has_all_trials_and_the_choice(run, capsys):
    assert call("tune", run.folder, "--budget", 1e6, *FEW, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["stored"]
    assert shown["examples"] == run_examples(run)
    assert {t["inference"]["refine"] for t in shown["trials"]} == {0, 1, 2, 4, 8}
    chosen = next(t for t in shown["trials"] if t["inference"] == shown["inference"])
    plain = next(t for t in shown["trials"] if not t["inference"]["refine"])
    assert chosen["milliseconds"] <= shown["limit"]
    assert chosen["bound"] >= plain["bound"]


def run_examples(run):
    """Validation examples that ``--examples 20`` leaves."""
    return min(20, len(recmix.data.rebuild(run.spec().data).x_val))


def test_a_limit_below_the_encoder_is_said(run, best, capsys):
    assert call("tune", run.folder, "--milliseconds", 1e-9, *FEW, "--plot", "b.svg") == 0
    shown = capsys.readouterr().out
    assert "more than the limit" in shown
    assert "chosen: no refinement" in shown
    assert recmix.load(run.folder).inference == Inference()
    assert "</svg>" in (run.folder.parent / "b.svg").read_text()


def test_the_model_of_a_function_is_measured_but_not_stored(run, best, monkeypatch, capsys):
    (run.folder.parent / "tunable.py").write_text(MODULE)
    monkeypatch.syspath_prepend(".")
    assert call("tune", "tunable:vae", "--budget", "3x", *FEW) == 2
    assert "--data is missing" in capsys.readouterr().err
    assert call("tune", "tunable:vae", "--budget", "3x", "--data", "x.npy", *FEW) == 0
    assert "nothing is stored" in capsys.readouterr().out


def test_a_wrapped_model_is_tuned_for_one_data_set(run, best, monkeypatch, capsys):
    (run.folder.parent / "tunable.py").write_text(MODULE)
    monkeypatch.syspath_prepend(".")
    made = importlib.import_module("tunable")
    made.vae().save("wrapped")
    np.save("other.npy", np.random.default_rng(1).random((60, 6), np.float32))
    words = ("tune", "wrapped", "--networks", "tunable:networks", "--budget", "1e6x", *FEW)
    assert call(*words, "--data", "x.npy") == 0
    stored = json.loads((run.folder.parent / "wrapped" / TUNED).read_text())
    assert stored["data"]["name"] == "x"
    assert call(*words, "--data", "other.npy") == 0
    shown = capsys.readouterr()
    assert "the results in wrapped are on x, and other.npy has other examples" in shown.err
    assert "nothing is stored" in shown.out
    assert json.loads((run.folder.parent / "wrapped" / TUNED).read_text()) == stored


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            (),
            "give a time limit: a budget (--budget), such as 100 for 100 times the encoder's time, or "
            "milliseconds (--milliseconds)",
        ),
        (("--budget", "3x", "--milliseconds", 2), "give a time limit"),
        (("--budget", "fast"), "such as 3, got 'fast'"),
        (("--budget", "nan"), "such as 3, got 'nan'"),
        (("--budget", "0.5x"), "at least 1,"),
        (("--milliseconds", 0), "positive"),
        (("--budget", "3x", "--samples", 0), "samples must be positive"),
        (("--budget", "3x", "--examples", 1), "2 to 1000"),
        (("--budget", "3x", "--plot", "a.doc"), "PNG or SVG"),
    ],
)
def test_wrong_options_are_refused(tmp_path, capsys, options, message):
    assert call("tune", tmp_path, *options) == 2
    assert message in capsys.readouterr().err


def test_evaluate_takes_the_kind_and_the_checks(run):
    words = ("--samples", 2, "--refine", 1, "--how", "conjugate", "--checks", 0)
    assert call("evaluate", run.folder, *words) == 0
    assert run.scores().keys() == {"test/2/conjugate,refine=1"}


def test_evaluate_says_which_kind_is_chosen(run, capsys):
    assert call("evaluate", run.folder, "--samples", 2, "--refine", 1, "--how", "auto") == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("chosen on validation data: refinement ")
    (key,) = run.scores()
    assert ("none" in first) == (key == "test/2")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--how", "learned"), "--how is for refinement: give --refine too"),
        (("--how", "auto"), "--how is for refinement: give --refine too"),
        (("--checks", 2), "--checks is for refinement: give --refine too"),
        (("--refine", 1, "--how", "newton"), "auto"),
        (("--refine", 1, "--how", "auto", "--split", "val"), "leave --split val out"),
        (("--refine", 1, "--how", "conjugate", "--reuse", 1), "no effect on the refinement conjugate"),
        (("--refine", 1, "--how", "variational", "--restarts", 2), "no effect"),
        (("--refine", 1, "--how", "learned"), "curvature"),
    ],
)
def test_evaluate_refuses_wrong_kinds(run, capsys, options, message):
    assert call("evaluate", run.folder, *options) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("own", "limit"), [(0.00497, 0.0149), (1.0, 1.0)])
def test_the_figure_can_have_one_point(tmp_path, own, limit):
    values = {"milliseconds": own, "bound": 35.58, "error": 0.0, "efficient": True, "chosen": True}
    point = RefinementPoint(how="none", steps=0, **values)
    path = refinement_times([point], tmp_path / "one.png", limit=limit, samples=5)
    assert path.stat().st_size > 5000
