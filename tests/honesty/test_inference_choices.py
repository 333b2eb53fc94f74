"""Choices about inference use the validation part, and never the training or the test part."""

import json

import numpy as np
import pytest
from cases.commands import call
from cases.honesty import easy, hard, one_sided_model

RUN = "cases.honesty:one_sided_model"
ARRANGEMENTS = pytest.mark.parametrize(("held_out", "other"), [(easy, hard), (hard, easy)])


def write(folder, val, other, **more):
    """A file of data whose validation examples differ from all others."""
    parts = {"x_train": other(seed=1), "x_val": val(seed=2, **more), "x_test": other(seed=3)}
    np.savez(folder / "parts.npz", **parts)
    return folder / "parts.npz"


def scored(capsys, path, *options):
    assert call("evaluate", RUN, "--data", path, "--samples", 10, "--json", *options) == 0
    return json.loads(capsys.readouterr().out)


@ARRANGEMENTS
def test_calibration_of_a_command_uses_validation_data(tmp_path, capsys, held_out, other):
    path = write(tmp_path, held_out, other)
    used = scored(capsys, path, "--calibrate")["inference"]
    expected = one_sided_model().calibrated(held_out(seed=2), samples=10).inference
    assert used == expected.to_json()
    assert (used["scale"] > 2) == (held_out is hard)


@pytest.mark.parametrize("noise", [1.0, 3.0])
def test_calibrated_noise_of_a_command_uses_validation_data(tmp_path, capsys, noise):
    path = write(tmp_path, easy, easy, noise=noise)
    used = scored(capsys, path, "--calibrate-noise")["inference"]
    if noise == 1:
        assert 0.7 < used["noise"] < 1.5
    else:
        assert used["noise"] > 5


@ARRANGEMENTS
def test_the_chosen_kind_of_refinement_depends_on_validation_data(tmp_path, capsys, held_out, other):
    path = write(tmp_path, held_out, other)
    found = scored(capsys, path, "--how", "auto", "--refine", 2)
    model, x = one_sided_model(), held_out(seed=2)
    assert found["inference"] == model.refined(2, how="auto", x=x).inference.to_json()
    if held_out is hard:
        assert found["inference"]["refine"] == 2


def test_the_tuned_inference_depends_on_validation_data(tmp_path, capsys, monkeypatch):
    for name in ("REPEATS", "MOST_REPEATS"):
        monkeypatch.setattr(f"recmix.evaluation.tune.{name}", 1)
    path = write(tmp_path, hard, easy)
    words = ["--milliseconds", 1e6, "--samples", 10, "--examples", 60, "--json"]
    assert call("tune", RUN, "--data", path, *words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["inference"]["refine"] > 0
    plain = next(trial for trial in found["trials"] if not trial["inference"]["refine"])
    expected = one_sided_model().log_likelihood(hard(seed=2), 10).mean()
    assert plain["bound"] == pytest.approx(float(expected), abs=1e-4)


def test_the_choices_of_a_model_depend_on_the_given_examples(monkeypatch):
    for name in ("REPEATS", "MOST_REPEATS"):
        monkeypatch.setattr(f"recmix.evaluation.tune.{name}", 1)
    model = one_sided_model()
    assert model.calibrated(easy(), samples=10).inference == model.inference
    assert model.calibrated(hard(), samples=10).inference.scale > 2
    assert model.calibrated(easy(noise=3.0), samples=10, noise=True).inference.noise > 5
    assert model.refined(2, how="auto", x=hard()).inference.refine == 2
    assert model.tuned(hard(20), milliseconds=1e6, samples=5).inference.refine > 0
