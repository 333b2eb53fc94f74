"""Exports of models of any data: vectors, every likelihood, wrapped networks, other noise."""

import json
import math

import numpy as np
import pytest
import torch
from cases.exports import run
from cases.likelihoods import CASES
from torch import nn
from torch.distributions import MultivariateNormal

import recmix
from recmix.errors import ConfigError
from recmix.exports.graphs import example_values
from recmix.exports.operators import lgamma
from recmix.model.fields import Fields
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Gaussian

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")

RANGES = {
    "gaussian": (None, None),
    "gaussian-features": (None, None),
    "gaussian-decoded": (None, None),
    "bernoulli": ([0, 1], [0, 1]),
    "bernoulli-probabilities": ([0, 1], [0, 1]),
    "categorical": ([None, 3], [0, None]),
    "poisson": ([0, None], [0, None]),
    "negative-binomial": ([0, None], [0, None]),
    "zero-inflated-negative-binomial": ([0, None], [0, None]),
    "multinomial": ([0, None], [0, None]),
    "logistic-mixture": ([0, 1], [0, 1]),
}
"""The ranges of examples and of mean examples, for each likelihood."""


def wrapped(name, **options):
    """A wrapped model with this likelihood, in float32, and examples of it."""
    case = CASES[name]
    model = case.model().float()
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(case.shape), 4))
    x = case.examples(case.model(), count=7).float()
    return recmix.wrap(encoder, model.decoder, likelihood=model.likelihood, example=x, **options), x


def agree(model, folder, x, tolerance=1e-4):
    """Assert that both graphs of a folder give the results of the model, for two batch sizes."""
    for batch in (1, len(x)):
        q = model.posterior(x[:batch])
        log_weights, means, scales = run(folder, "posterior", x[:batch])
        spread = [part.describe() for part in q.components]
        name = "log_variances" if "log_variances" in spread[0] else "scale_tril"
        expected = (
            (log_weights.exp(), q.weights),
            (means, torch.stack([part.mean for part in q.components], 1)),
            (scales, torch.stack([part[name] for part in spread], 1)),
        )
        for found, wanted in expected:
            torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)
        (decoded,) = run(folder, "decoder", q.mean)
        torch.testing.assert_close(decoded, model.decode(q.mean), rtol=tolerance, atol=tolerance)


def described(folder):
    return json.loads((folder / "export.json").read_text())


def test_every_likelihood_is_tried():
    elsewhere = {"autoregressive", "graph"}  # test_export_text.py
    assert set(RANGES) | {"own"} | elsewhere == set(CASES)


@pytest.mark.parametrize("name", RANGES)
def test_posterior_and_decoder_of_every_likelihood(name, tmp_path):
    model, x = wrapped(name)
    folder = model.export(tmp_path / "x", format="torchscript")
    agree(model, folder, x)
    about, (given, decoded) = described(folder), RANGES[name]
    assert about["posterior"]["inputs"] == {"examples": ["batch", *CASES[name].shape]}
    assert about["posterior"]["range"] == {"examples": given}
    assert about["posterior"]["values"] == {"examples": model.latent_model.likelihood.requirement}
    mean = model.decode(torch.zeros(1, 2))
    assert about["decoder"]["outputs"] == {"examples": ["batch", *mean.shape[1:]]}
    assert about["decoder"]["range"] == {"examples": decoded}
    assert about["format"] == 2


def test_the_decoder_of_classes_gives_their_probabilities(tmp_path):
    model, _ = wrapped("categorical")
    folder = model.export(tmp_path / "x", format="pt2")
    (found,) = run(folder, "decoder", torch.randn(3, 2))
    assert found.shape == (3, 5, 4)
    torch.testing.assert_close(found.sum(-1), torch.ones(3, 5))


@pytest.mark.parametrize("name", ["poisson", "categorical", "multinomial", "gaussian-features"])
def test_refined_posteriors(name, tmp_path):
    model, x = wrapped(name)
    agree(model.refined(1), model.refined(1).export(tmp_path / "x", format="torchscript"), x, 1e-3)


def test_derivatives_of_the_likelihood_are_found(tmp_path):
    """This likelihood has no formula for its derivative: the graph differentiates."""
    model, x = wrapped("gaussian-decoded")
    with pytest.raises(ConfigError, match="cannot trace: use --format onnx or --format pt2"):
        model.refined(1).export(tmp_path / "x", format="torchscript")
    refined = model.using(refine=1, reuse=0)
    agree(refined, refined.export(tmp_path / "y", format="pt2"), x, 1e-3)


def test_what_is_estimated_from_samples_is_refused(tmp_path):
    model, _ = wrapped("own")
    with pytest.raises(ConfigError, match=r"StudentT\) estimates E\[x \| z\] from samples.*define its"):
        model.export(tmp_path / "x", format="pt2")
    for name in ("own", "logistic-mixture"):
        model, _ = wrapped(name)
        with pytest.raises(ConfigError, match="curvature from samples.* export without refinement"):
            model.refined(1).export(tmp_path / "x", format="pt2")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", ["bernoulli", "categorical", "gaussian"])
def test_the_noise_of_the_inference_is_exported(name, tmp_path):
    model, x = wrapped(name)
    noisy = model.using(noise=2.5, scale=1.5)
    agree(noisy, noisy.export(tmp_path / "x", format="torchscript"), x)
    z = torch.randn(3, 2)
    same = torch.equal(noisy.decode(z), model.decode(z))
    assert same == (name == "gaussian")  # a temperature changes the mean


def test_an_encoder_that_returns_a_full_gaussian(tmp_path):
    class Full(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 4)

        def forward(self, x):
            mean, log_variance = self.layer(x).chunk(2, -1)
            low = torch.tensor([[0.0, 0.0], [0.3, 0.0]])
            return MultivariateNormal(
                mean, scale_tril=low + torch.diag_embed((0.5 * log_variance).exp())
            )

    torch.manual_seed(0)
    x = torch.randn(7, 5)
    model = recmix.wrap(Full(), nn.Linear(2, 5), likelihood=Gaussian(0.5), example=x)
    for form in ("torchscript", "pt2"):
        agree(model, model.export(tmp_path / form, format=form), x)


@pytest.mark.parametrize("fuse", [True, False])
def test_a_mixture_of_a_standardised_table(fuse, tmp_path):
    x = torch.randn(60, 6, generator=torch.Generator().manual_seed(0)) * torch.tensor([1, 9, 1, 1, 1, 1])
    how = {"standardise": "features", "widths": (8,), "epochs": 1, "device": "cpu", "progress": False}
    model = recmix.fit("rme", x.numpy(), order=2, latent=2, vae_epochs=1, learning_rate=0.05, **how)
    agree(model, model.export(tmp_path / "x", format="torchscript", fuse=fuse), x[:7])


def test_fields_are_described(tmp_path):
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(torch.cat([x["counts"], x["size"][:, None]], 1))

    data = {"counts": np.ones((40, 3), np.float32), "size": np.arange(40, dtype=np.float32)}
    torch.manual_seed(0)
    model = recmix.fit(
        "vae",
        data,
        encoder=Encoder(),
        decoder=nn.Linear(2, 4),
        likelihood=FieldGaussian(),
        latent=2,
        epochs=1,
        device="cpu",
        progress=False,
    )
    folder = model.export(tmp_path / "x", format="torchscript")
    fields = described(folder)["posterior"]["fields"]["examples"]
    assert Fields.from_json(fields).shapes == {"counts": (3,), "size": ()}
    agree(model, folder, torch.from_numpy(Fields.from_json(fields).pack(data))[:5])


class FieldGaussian(Gaussian):
    """A Gaussian of all fields."""

    name = "own"
    centred = False

    def __init__(self):
        super().__init__(1.0, learned=False)

    def log_prob(self, x, decoded):
        return super().log_prob(torch.cat([x["counts"], x["size"][:, None]], 1), decoded)


def test_log_gamma_in_simple_operations():
    x = torch.cat([torch.linspace(0.01, 20, 500), torch.tensor([1e3, 1e6])]).double()
    torch.testing.assert_close(lgamma(x), torch.lgamma(x), rtol=1e-9, atol=1e-9)


def test_example_values_fit_the_likelihood():
    from recmix.data import check_values

    uniform = torch.rand(50, 6, generator=torch.Generator().manual_seed(0))
    for name in RANGES:
        model: LatentModel = CASES[name].model()
        likelihood = model.likelihood
        check_values(example_values(uniform, likelihood), likelihood.requirement, likelihood.name)
