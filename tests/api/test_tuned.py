"""`Model.frontier`, `Model.tuned`, and the tuned inference of a run folder."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

import recmix
from recmix import Inference
from recmix.errors import ConfigError, RunError
from recmix.evaluation import tune as module
from recmix.runs.folder import TUNED, Run

CHOSEN = Inference(how="conjugate", refine=3, restarts=2)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Time every inference once."""
    monkeypatch.setattr(module, "REPEATS", 1)
    monkeypatch.setattr(module, "MOST_REPEATS", 1)


@pytest.fixture
def x():
    return np.random.default_rng(0).random((40, 1, 8, 8), np.float32)


@pytest.fixture
def run(x, tmp_path):
    recmix.fit("vae", x, epochs=1, latent=2, device="cpu", out=tmp_path / "vae")
    return Run(tmp_path / "vae")


def test_refinements_are_compared_without_the_calibration_of_the_model(x, monkeypatch):
    every = module.candidates
    monkeypatch.setattr(module, "candidates", lambda method, base: every(method, [1], base))
    model = recmix.fit("vae", x, epochs=1, latent=2, device="cpu")
    calibrated = model.using(refine=2, scale=3.0, slope=0.1, reference=5.0, noise=1.5)
    found = calibrated.frontier(x, budget=1e6, samples=2)
    assert {trial.inference.calibrated for trial in found.trials} == {False}
    assert {trial.inference.noise for trial in found.trials} == {1.5}
    assert found.encoder.inference == Inference(noise=1.5)
    plain = model.using(noise=1.5).frontier(x, budget=1e6, samples=2)
    assert found.encoder.bound == plain.encoder.bound


@pytest.mark.parametrize(("best", "kept"), [(0, False), (1, False), (2, True)])
def test_the_calibration_is_kept_if_the_present_refinement_is_chosen(x, monkeypatch, best, kept):
    def bounds(_method, x, inference, *_rest):
        return torch.full((len(x),), 1.0 * (inference.refine == best and inference.how == "conjugate"))

    monkeypatch.setattr(module, "iwae_at_seed", bounds)
    model = recmix.fit("vae", x, epochs=1, latent=2, device="cpu", dtype="float64")
    used = Inference(how="conjugate", refine=2, scale=3.0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        tuned = model.using(**vars(used)).tuned(x, budget=1e6, samples=2)
    assert tuned.inference.refine == best
    assert tuned.inference.calibrated == kept
    assert any("its calibration is removed" in str(one.message) for one in said) != kept


def test_a_calibrated_encoder_stays_calibrated_if_no_refinement_fits(x):
    model = recmix.fit("vae", x, epochs=1, latent=2, device="cpu").using(scale=1.25)
    with pytest.warns(UserWarning, match="no refinement fits"):
        tuned = model.tuned(x, budget=1.0, samples=2)
    assert tuned.inference == Inference(scale=1.25)
    assert tuned.method is model.method


def test_a_run_is_loaded_with_its_tuned_inference(run):
    assert recmix.load(run.folder).inference == Inference()
    run.set_tuned(CHOSEN, limit=2.0)
    assert recmix.load(run.folder).inference == CHOSEN
    assert run.spec().inference == Inference()  # what was trained does not change
    assert run.reset_tuned()
    assert not run.reset_tuned()
    assert recmix.load(run.folder).inference == Inference()


def test_a_new_run_does_not_inherit_the_tuned_inference(run, x, tmp_path):
    run.set_tuned(CHOSEN)
    for number, init in enumerate((run.folder, recmix.load(run.folder, device="cpu"))):
        out = tmp_path / str(number)
        made = recmix.fit("vae", x, epochs=1, init=init, device="cpu", out=out)
        assert made.inference == recmix.load(out).inference == Inference()
        assert made.spec.label == "VAE+"
        assert not (out / TUNED).exists()


def test_overwriting_a_run_removes_its_tuned_inference(run, x):
    run.set_tuned(CHOSEN)
    recmix.fit("vae", x, epochs=1, latent=2, device="cpu", out=run.folder, overwrite=True)
    assert run.tuned() is None


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "{}",
        '{"inference": 3}',
        '{"inference": {"refine": -1}}',
        '{"inference": {"new": 1}}',
        '{"inference": {"how": 3}}',
    ],
)
def test_a_damaged_file_is_named_and_can_be_reset(run, content):
    (run.folder / TUNED).write_text(content)
    with pytest.raises(RunError) as caught:
        recmix.load(run.folder)
    assert str(run.folder / TUNED) in str(caught.value)
    assert "--reset" in str(caught.value)
    assert run.reset_tuned()
    recmix.load(run.folder)


def test_auto_is_chosen_without_the_calibration_of_the_model(x, monkeypatch):
    model = recmix.fit("vae", x, epochs=1, latent=2, device="cpu").using(scale=1.25, reuse=0)
    bases = []

    def chosen(method, x, steps, base):
        bases.append(base)
        return replace(base, refine=steps)

    monkeypatch.setattr("recmix.api.improvable_posterior.best_refinement", chosen)
    with pytest.warns(UserWarning, match="calibration is removed"):
        found = model.refined(1, how="auto", x=x)
    assert found.inference == Inference(refine=1, reuse=0)
    assert model.refined(0, how="auto", x=x).inference == model.inference
    assert bases == [Inference(reuse=0)] * 2


def test_learned_steps_need_a_curvature_network_at_once(run):
    model = recmix.load(run.folder)
    with pytest.raises(ConfigError, match="no curvature network.*--method curvature"):
        model.refined(2, how="learned")
    assert model.using(how="learned").inference.refine == 0  # nothing is refined
