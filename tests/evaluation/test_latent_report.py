"""`latent_report`: against a linear-Gaussian model, a collapsed model and literal formulas."""

import math

import numpy as np
import pytest
import torch
from cases.oracle import LinearEncoder, LinearGaussian
from torch import nn

import recmix
from recmix.errors import ConfigError
from recmix.evaluation.bounds import bounds
from recmix.evaluation.latent_report import aggregated_log_prob, latent_report
from recmix.methods.method import Method
from recmix.methods.vae import VAE
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Categorical
from recmix.posteriors import FullGaussian, Gaussian, Mixture


class Exact(Method):
    """The true posterior of a linear-Gaussian model."""

    name = "exact"

    def __init__(self, world):
        super().__init__(world.model, [])
        self.world = world

    def posterior(self, x):
        true = self.world.posterior(x)
        return FullGaussian(true.loc, true.scale_tril)


def joint_draws(world, count):
    """Draws of x from the model itself, so that the aggregated posterior is the prior."""
    torch.manual_seed(3)
    z = torch.randn(1, count, world.latent, dtype=torch.float64)
    mean = world.model.decode(z)[0]
    return (mean + world.model.likelihood.variance.sqrt() * torch.randn_like(mean)).detach()


def test_linear_gaussian_model_has_the_known_values():
    """With the true posterior and x from p(x): q(z) = p(z), so the KL is the mutual information.

    I(x; z) = ½ log det(I + Wᵀ W / σ²) for x = W z + noise of variance σ².
    """
    world = LinearGaussian(latent=2, variance=0.5)
    x = joint_draws(world, 3000)
    found = latent_report(Exact(world), x, samples=4)
    weight = world.model.decoder.linear.weight.detach()
    variance = world.model.likelihood.variance.detach()
    inner = torch.eye(2, dtype=torch.float64) + weight.T @ weight / variance
    information = float(0.5 * torch.logdet(inner))
    assert 0.2 < information < 4  # well below log 3000
    assert found.kl == pytest.approx(information, abs=5 * found.kl_se)
    assert found.mutual_information == pytest.approx(information, abs=0.08)
    assert found.marginal_kl == pytest.approx(0, abs=0.02)
    evidence = world.log_evidence(x)
    assert found.nll == pytest.approx(-float(evidence.mean()))  # every weight is p(x)
    assert found.nll_se == pytest.approx(float(evidence.std()) / math.sqrt(3000))
    assert found.elbo == pytest.approx(float(evidence.mean()), abs=0.05)
    assert found.elbo == pytest.approx(found.reconstruction - found.kl)
    assert found.active_units == found.latent == 2
    assert found.tokens is None
    assert found.perplexity is None


@pytest.mark.parametrize("mixture", [False, True])
def test_collapsed_model_holds_nothing(mixture):
    world = LinearGaussian(latent=3)
    method = VAE(world.model, LinearEncoder(3)).double()
    nn.init.zeros_(method.base_encoder.mean.weight)
    nn.init.zeros_(method.base_encoder.mean.bias)
    if mixture:
        plain = method.posterior
        method.posterior = lambda x: Mixture(
            [plain(x), plain(x)], torch.zeros(len(x), 2).double() - math.log(2)
        )
    found = latent_report(method, world.images(50), samples=5)
    assert found.kl == pytest.approx(0, abs=1e-9)
    assert found.mutual_information == pytest.approx(0, abs=1e-9)
    assert found.marginal_kl == pytest.approx(0, abs=1e-9)
    assert found.active_units == 0


def test_posteriors_that_do_not_overlap_give_the_largest_value():
    """M examples whose posteriors are far apart: I = log M, which says which example it was."""
    world = LinearGaussian(latent=1)
    method = VAE(world.model, LinearEncoder(1)).double()
    places = 1000.0 * torch.arange(20, dtype=torch.float64)[:, None]
    method.posterior = lambda x: Gaussian(
        places[x.flatten(1)[:, 0].long()], torch.zeros(len(x), 1).double()
    )
    x = torch.arange(20, dtype=torch.float64).reshape(20, 1, 1, 1).expand(20, 1, 2, 3)
    found = latent_report(method, x, samples=1)
    assert found.mutual_information == pytest.approx(math.log(20))
    assert found.mutual_information + found.marginal_kl == pytest.approx(found.kl, rel=0.01)


def test_aggregated_density_is_the_literal_mean():
    torch.manual_seed(0)
    parts = [Gaussian(torch.randn(n, 2).double(), 0.3 * torch.randn(n, 2).double()) for n in (3, 4)]
    z = torch.randn(5, 2).double()
    expected = torch.stack(
        [
            torch.stack([q.log_prob(point.expand(len(q.mean), 2)).exp() for q in [part]]).sum()
            for point in z
            for part in parts
        ]
    )
    expected = (expected.reshape(5, 2).sum(1) / 7).log()
    torch.testing.assert_close(aggregated_log_prob(list(parts), z), expected)


@pytest.mark.parametrize(("values", "points"), [(1, [1] * 5), (16, [2, 2, 1]), (999, [5])])
def test_aggregated_density_is_computed_with_few_values_at_a_time(monkeypatch, values, points):
    """A point needs 4 x 2 values: there are 4 examples and 2 dimensions."""
    monkeypatch.setitem(aggregated_log_prob.__globals__, "PAIRS_AT_ONCE", values)
    q, sizes = Gaussian(torch.zeros(4, 2).double(), torch.zeros(4, 2).double()), []
    density = q.log_prob
    monkeypatch.setattr(q, "log_prob", lambda z: (sizes.append(len(z)), density(z))[1])
    found = aggregated_log_prob([q], torch.zeros(5, 2).double())
    torch.testing.assert_close(found, torch.full((5,), -math.log(2 * math.pi)).double())
    assert sizes == points


class Tokens(nn.Module):
    """Logits (N, T, K) that are linear in z."""

    def __init__(self, latent, length, classes):
        super().__init__()
        self.linear = nn.Linear(latent, length * classes)
        self.shape = (length, classes)

    def forward(self, z):
        return self.linear(z).unflatten(-1, self.shape)


def test_perplexity_counts_the_end_and_not_the_padding():
    """A model that gives every token the same probability has the perplexity K."""
    decoder = Tokens(2, 5, 7)
    nn.init.zeros_(decoder.linear.weight)
    nn.init.zeros_(decoder.linear.bias)
    model = LatentModel(decoder, Categorical(7), latent=2, shape=(5,))
    method = VAE(model, LinearEncoder(2, (5,))).double()
    nn.init.zeros_(method.base_encoder.mean.weight)
    nn.init.zeros_(method.base_encoder.mean.bias)
    x = torch.tensor([[3, 4, 0, -1, -1], [2, 0, -1, -1, -1], [1, 2, 3, 4, 0.0]]).double()
    found = latent_report(method, x, samples=2)
    assert found.tokens == 3 + 2 + 5
    assert found.perplexity == pytest.approx(7)
    assert found.nll == pytest.approx(10 / 3 * math.log(7))
    assert "perplexity per token: 7.00" in str(found)


def test_perplexity_above_the_largest_number_is_infinite():
    model = LatentModel(Tokens(2, 2, 3), Categorical(3), latent=2, shape=(2,)).double()
    method = VAE(model, LinearEncoder(2, (2,))).double()
    nn.init.constant_(method.base_encoder.mean.bias, 100)
    found = latent_report(method, torch.tensor([[1, 2], [2, 0.0]]).double(), samples=2)
    assert found.nll > 1500
    assert found.perplexity == math.inf


def test_parts_of_examples_and_samples_give_the_same_bound():
    """Little memory splits the work; the bound is that of `bounds`."""
    world = LinearGaussian(latent=3)
    torch.manual_seed(0)
    method = VAE(world.model, LinearEncoder(3)).double()
    x = world.images(40)
    large = latent_report(method, x, samples=400)
    small = latent_report(method, x, samples=400, memory=20_000)
    assert large.nll == pytest.approx(small.nll, abs=0.2)
    assert large.kl == pytest.approx(small.kl)  # in closed form
    torch.manual_seed(0)
    plain = bounds(method, x, samples=400, generator=torch.Generator().manual_seed(0))
    assert large.nll == pytest.approx(-float(plain.iwae.mean()))


def test_reports_of_a_model_and_their_errors():
    x = np.random.default_rng(0).random((60, 1, 8, 8)).astype(np.float32)
    model = recmix.fit("rme", x, order=2, latent=3, epochs=1, vae_epochs=1, progress=False, device="cpu")
    found = model.latent_report(x[:30], samples=5)
    assert found.examples == 30
    assert found.latent == 3
    assert found == model.latent_report(x[:30], samples=5)  # the noise has a fixed seed
    assert model.refined(1).latent_report(x[:30], samples=5).kl != found.kl
    assert set(found.to_json()) >= {"nll", "kl", "mutual_information", "active_units", "perplexity"}
    with pytest.raises(ConfigError, match="at least 2 examples, got 1"):
        model.latent_report(x[:1])
    with pytest.raises(ConfigError, match="samples must be"):
        model.latent_report(x, samples=0)


def test_active_units_are_those_whose_mean_varies():
    world = LinearGaussian(latent=3)
    method = VAE(world.model, LinearEncoder(3)).double()
    with torch.no_grad():
        method.base_encoder.mean.weight[1] = 0
    x = world.images(200)
    variances = method.posterior(x).mean.var(0)
    assert latent_report(method, x, samples=1).active_units == int((variances > 0.01).sum())
    assert variances[1] < 0.01
