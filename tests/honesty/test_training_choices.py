"""Choices during training use the validation part, and never the training or the test part."""

import numpy as np
import pytest
import torch
from cases.honesty import data_of, easy, hard, one_sided_model
from cases.training import images

import recmix
from recmix.runs.folder import Run

QUICK = {"latent": 2, "network": "dense", "batch_size": 20, "progress": False, "device": "cpu"}
PRESET = """
[[stages]]
name = "vae"
method = "vae"
epochs = 6
learning_rate = 1e-2
batch_size = 20
[[stages]]
name = "mixture"
method = "me"
order = 2
epochs = 2
learning_rate = 1e-2
batch_size = 20
"""


def inverted():
    """Validation images are inverted: the longer the training, the lower their bound."""
    return data_of(images(100), 1 - images(40, seed=1), images(40, seed=2))


def best_epoch(folder):
    return Run(folder).status()["best_epoch"]


def assert_is_the_best_on_validation(model, data, history):
    """The weights are those of the epoch with the best validation bound, for data like `inverted`."""
    bounds = [row["val_iwae"] for row in history]
    x_val, x_train = (part[:] for part in (data.x_val, data.x_train))
    samples = model.spec.training.validation_samples
    found = float(model.log_likelihood(x_val, samples).mean())
    assert found == pytest.approx(max(bounds), rel=0.05, abs=5)
    assert found < float(model.log_likelihood(x_train, samples).mean()) - 20


def test_the_best_epoch_is_chosen_on_validation_data(tmp_path):
    data = inverted()
    found = recmix.fit("vae", data, epochs=6, learning_rate=1e-2, out=tmp_path / "run", **QUICK)
    bounds = [row["val_iwae"] for row in found.history]
    assert found.history[-1]["elbo"] > found.history[0]["elbo"]  # training data prefer the last epoch
    assert best_epoch(tmp_path / "run") == 1 + int(np.argmax(bounds)) < 6
    assert_is_the_best_on_validation(found, data, found.history)


def test_patience_counts_epochs_without_a_better_validation_bound():
    options = QUICK | {"epochs": 8, "learning_rate": 2e-3, "patience": 3}
    like_train = data_of(images(100), images(40, seed=1), 1 - images(40, seed=2))
    assert len(recmix.fit("vae", inverted(), **options).history) < 7
    assert len(recmix.fit("vae", like_train, **options).history) == 8


@pytest.mark.parametrize("averaged", [0.0, 0.5])
def test_first_weights_are_kept_if_training_lowers_the_validation_bound(tmp_path, averaged):
    first = recmix.fit("vae", 1 - images(100), epochs=3, learning_rate=1e-2, **QUICK)
    data = data_of(images(100), 1 - images(40, seed=1), images(40, seed=2))
    options = {"epochs": 2, "learning_rate": 1e-2, "weight_average": averaged}
    options |= {name: QUICK[name] for name in ("batch_size", "progress", "device")}
    found = recmix.fit("vae", data, init=first, out=tmp_path / "run", **options)
    assert best_epoch(tmp_path / "run") == 0
    for name, value in first.method.state_dict().items():
        assert torch.equal(value, found.method.state_dict()[name]), name
    assert found.history[-1]["elbo"] > found.history[0]["elbo"]


def test_each_model_of_fit_many_has_its_own_validation_data(tmp_path):
    upright = data_of(images(100), images(40, seed=1), 1 - images(40, seed=2))
    options = QUICK | {"method": "vae", "epochs": 5, "learning_rate": 1e-2}
    del options["progress"]
    requests = [
        options | {"data": data, "out": tmp_path / name}
        for name, data in (("upright", upright), ("inverted", inverted()))
    ]
    recmix.fit_many(requests, progress=False)
    assert best_epoch(tmp_path / "inverted") < best_epoch(tmp_path / "upright")


@pytest.mark.filterwarnings("ignore:the validation bound was")  # the rate is high on purpose
def test_every_stage_of_a_preset_is_chosen_on_validation_data(tmp_path):
    (tmp_path / "two.toml").write_text(PRESET)
    out, model = tmp_path / "run", {"latent": 2, "network": "dense"}
    found = recmix.fit_preset(
        tmp_path / "two.toml", inverted(), out=out, progress=False, device="cpu", **model
    )
    bounds = [row["val_iwae"] for row in Run(out / "vae").history()]
    assert best_epoch(out / "vae") == 1 + int(np.argmax(bounds)) < 6
    assert best_epoch(out) == 0
    assert_is_the_best_on_validation(found, inverted(), Run(out / "vae").history())


@pytest.mark.parametrize(("held_out", "other"), [(easy, hard), (hard, easy)])
def test_the_step_size_is_tuned_on_validation_data(held_out, other):
    """A large step helps if the encoder is wrong. If it is exact, a large step only adds noise."""
    data = data_of(other(40, seed=1), held_out(40, seed=2), other(40, seed=3))
    options = {"steps": 4, "step_size": 0.1, "epochs": 1, "learning_rate": 1e-9, "dtype": "float64"}
    options |= {"progress": False, "device": "cpu"}
    found = recmix.fit("sa", data, init=one_sided_model(), **options)
    size = found.method.components[0].step_size
    assert size > 0.01 if held_out is hard else size < 0.001
