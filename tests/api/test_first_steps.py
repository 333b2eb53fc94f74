"""Mistakes of a first day with the Python interface: each is repaired, or has an error that helps."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import recmix
from recmix.errors import shown
from recmix.evaluation import tune as tune_module

SIDE, LATENT = 6, 2
GAUSSIAN = recmix.likelihoods.Gaussian(0.1, learned=False)
X = np.random.default_rng(0).random((40, SIDE, SIDE), np.float32)


class Encoder(nn.Module):
    """Reads examples (H, W) without a channel axis. The posterior has `parts` tensors."""

    def __init__(self, parts=2):
        super().__init__()
        self.layer = nn.Linear(SIDE**2, 2 * LATENT)
        self.parts = parts

    def forward(self, x):
        if x.ndim != 3:
            raise ValueError(f"expected (B, H, W), got {tuple(x.shape)}")
        mean, log_variance = self.layer(x.flatten(1)).chunk(2, 1)
        return (mean, mean, log_variance)[-self.parts :]


def decoder():
    return nn.Sequential(nn.Linear(LATENT, SIDE**2), nn.Unflatten(1, (SIDE, SIDE)))


def wrapped(**changes):
    torch.manual_seed(0)
    given = {"encoder": Encoder(), "decoder": decoder(), "likelihood": GAUSSIAN, "example": X[:2]}
    return recmix.wrap(**given | changes)


@pytest.fixture(scope="module")
def data():
    return recmix.data.from_arrays(X)


WRAPPED_WRONG = {
    "three tensors": ({"encoder": Encoder(3)}, r"3 parts \(\(2, 2\), \(2, 2\), \(2, 2\)\).*\[1:\]"),
    "without example": ({"encoder": Encoder(3), "example": None, "latent": 2}, "exactly two tensors"),
    "a class": ({"likelihood": recmix.likelihoods.Bernoulli}, r"class Bernoulli: write Bernoulli\("),
    "a number": ({"likelihood": 3}, "must be a name or an object"),
    "bce": ({"likelihood": "bce"}, "did you mean 'bernoulli'"),
    "mse": ({"likelihood": "mse"}, "did you mean 'gaussian'"),
    "decoder class": ({"decoder": nn.Linear}, r"give an object, such as Linear\("),
    "latent text": ({"latent": "4"}, "dimension of z, such as 4.*got '4'"),
}


@pytest.mark.parametrize("case", WRAPPED_WRONG)
def test_wrap_refuses(case):
    changes, message = WRAPPED_WRONG[case]
    with pytest.raises(recmix.RecmixError, match=message):
        wrapped(**changes)


CALLS = {
    "data first": (lambda m, run: recmix.fit(X, "vae"), r"ndarray of shape.*the method comes first"),
    "name first": (lambda m, run: recmix.fit("digits", "vae"), r"write fit\('vae', 'digits'\)"),
    "encoder as init": (
        lambda m, run: recmix.fit("vae", X, init=nn.Sequential(nn.ReLU(), nn.ReLU())),
        "the class Sequential: .*recmix.wrap",
    ),
    "preset init": (lambda m, run: recmix.fit_preset("best", X, init=nn.ReLU()), "recmix.wrap"),
    "another latent": (lambda m, run: recmix.fit("vae", X, init=m, latent=5), "trained with latent 2"),
    "array as steps": (lambda m, run: m.refined(X), r"got ndarray of shape \(40, 6, 6\): try 1"),
    "number to calibrate": (lambda m, run: m.calibrated(2), "expected numbers of shape"),
    "no limit": (lambda m, run: m.tuned(X), "give a time limit: a budget"),
    "no number": (lambda m, run: m.tuned(X, budget="fast"), "positive number such as 3, got 'fast'"),
    "saved twice": (lambda m, run: m.save(run), "give another folder, or overwrite=True"),
    "other name": (lambda m, run: recmix.load(run, likelihood="poisson"), "leave likelihood out"),
    "class to load": (
        lambda m, run: recmix.load(run, likelihood=recmix.likelihoods.Gaussian),
        r"write Gaussian\(",
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_calls_with_a_helpful_error(case, tmp_path):
    model = wrapped()
    run = model.save(tmp_path / "run")
    call, message = CALLS[case]
    with pytest.raises(recmix.RecmixError, match=message) as caught:
        call(model, run)
    assert "resume" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_load_takes_the_name_of_the_likelihood(tmp_path):
    model = wrapped()
    networks = {"encoder": Encoder(), "decoder": decoder(), "device": "cpu"}
    again = recmix.load(model.save(tmp_path / "run"), likelihood="gaussian", **networks)
    assert torch.equal(again.elbo(X, 2), model.elbo(X, 2))


@pytest.mark.filterwarnings("ignore:.*held-out examples are few")
def test_models_take_examples_with_other_axes_of_size_1(data):
    model = wrapped(example=data.x_val[:2])
    assert model.spec.shape == (SIDE, SIDE) != data.shape
    flat = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 2 * LATENT))  # takes both shapes
    assert wrapped(encoder=flat, example=data.x_val[:2]).spec.shape == (SIDE, SIDE)
    bare = np.asarray(data.x_val)[:, 0]
    assert torch.equal(model.elbo(data.x_val, 2), model.elbo(bare, 2))
    assert torch.equal(model.posterior(data.x_val).mean, model.posterior(bare).mean)
    assert model.calibrated(data.x_val, 2).inference == model.calibrated(bare, 2).inference
    assert model.latent_report(data.x_val, 2).elbo == model.latent_report(bare, 2).elbo


def test_refinement_removes_a_calibration_that_was_chosen_without_it():
    model = wrapped().using(scale=1.5, slope=0.1, reference=-3.0, noise=1.2)
    with pytest.warns(UserWarning, match=r"call calibrated\(x\) after refined\(\)"):
        refined = model.refined(1)
    assert refined.inference == recmix.Inference(refine=1, noise=1.2)  # the noise belongs to p(x)
    assert model.refined(0).inference == model.inference
    again = refined.using(scale=1.5)
    assert again.refined(1).inference == again.inference


@pytest.mark.parametrize("fits", [True, False])
def test_tuned_warns_if_no_refinement_fits(fits, monkeypatch):
    def times(method, x, inferences, **how):
        return [1.0, *(9.0 + i for i in range(len(inferences) - 1))]

    monkeypatch.setattr(tune_module, "_milliseconds", times)
    model = wrapped()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tuned = model.tuned(X, budget="30x" if fits else "2X", samples=2)
    assert bool(tuned.inference.refine) == fits
    texts = [text for w in caught if "no refinement fits" in (text := str(w.message))]
    assert len(texts) == (0 if fits else 1)
    assert fits or "budget=10, or milliseconds=9.9" in texts[0]


def test_the_preset_leaves_augment_out_for_examples_that_are_no_images():
    made = recmix.fit_preset("best", X, init=wrapped(), epochs=1, progress=False, device="cpu")
    assert made.spec.training.augment == 0
    assert made.spec.training.decoder_samples == 0.3
    with pytest.raises(recmix.RecmixError, match="augment rotates"):
        recmix.fit_preset("best", X, init=wrapped(), epochs=1, progress=False, augment=0.2)


def test_values_in_messages_are_short():
    assert shown(torch.zeros(30, 30)) == "Tensor of shape (30, 30)"
    assert shown(decoder()) == "an object of the class Sequential"
    assert len(shown(["word"] * 1000)) <= 81
