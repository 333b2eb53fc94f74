"""The importance weighted method on a model with known evidence, and its two gradients."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal

from recmix.errors import ConfigError
from recmix.methods.importance_weighted import ImportanceWeighted, _doubly_log_weights
from recmix.methods.registry import find_method
from recmix.methods.vae import VAE
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Bernoulli
from recmix.model.likelihoods import Gaussian as GaussianLikelihood
from recmix.model.networks import make_decoder, make_encoder
from recmix.objectives import iwae, log_mean_exp
from recmix.posteriors import Gaussian

SHAPE = (1, 8, 8)
LATENT = 3
LINEAR = (1, 2, 3)
COPIES = 20_000


def make(kind=ImportanceWeighted, *, seed=0, likelihood=None, dtype=torch.float64, **options):
    torch.manual_seed(seed)
    model = LatentModel(
        make_decoder("dense", SHAPE, LATENT, hidden=8),
        likelihood or GaussianLikelihood(0.1),
        latent=LATENT,
        shape=SHAPE,
    )
    encoder = make_encoder("dense", SHAPE, LATENT, hidden=8, width=0.25)
    return kind(model, encoder, **options).to(dtype)


def noise(seed=0):
    return torch.Generator().manual_seed(seed)


def images(batch=6, seed=1):
    return torch.rand(batch, *SHAPE, generator=noise(seed), dtype=torch.float64)


def linear_model(variance=0.5):
    """p(x | z) = N(W z + b, σ² I) with orthogonal columns: the posterior is a diagonal Gaussian."""
    torch.manual_seed(0)
    linear = nn.Linear(2, 6).double()
    with torch.no_grad():
        columns, _ = torch.linalg.qr(torch.randn(6, 2).double())
        linear.weight.copy_(columns * torch.tensor([1.5, 0.7]).double())
    decoder = nn.Sequential(linear, nn.Unflatten(1, LINEAR))
    model = LatentModel(decoder, GaussianLikelihood(variance), latent=2, shape=LINEAR).double()
    return model, linear.weight.detach(), linear.bias.detach(), model.likelihood.variance.detach()


def exact(x, weight, bias, variance):
    """The posterior's mean and log-variance, (B, 2) each, and log p(x), (B,)."""
    precision = 1 + (weight.square().sum(0)) / variance
    flat = x.flatten(1) - bias
    mean = flat @ weight / variance / precision
    covariance = weight @ weight.t() + variance * torch.eye(6).double()
    evidence = MultivariateNormal(torch.zeros(6).double(), covariance).log_prob(flat)
    return mean, (-precision.log()).expand_as(mean), evidence


def copies_of_one(shift=0.0):
    """The linear model, one example many times, and leaves for q near its exact posterior."""
    model, *parts = linear_model()
    x = torch.rand(1, *LINEAR, generator=noise(2), dtype=torch.float64).expand(COPIES, *LINEAR)
    mean, log_variance, _ = exact(x, *parts)
    leaves = [(mean + shift).clone(), (log_variance + shift).clone()]
    return model, x, [leaf.requires_grad_() for leaf in leaves]


def gradients(model, x, leaves, samples, *, doubly, seed=0):
    """One gradient of the bound per copy, (COPIES, 4): in q's mean, then its log-variance."""
    q = Gaussian(*leaves)
    if doubly:
        bound = log_mean_exp(_doubly_log_weights(model, x, q, samples, noise(seed)))
    else:
        bound = iwae(model, x, q, samples, generator=noise(seed))
    return torch.cat(torch.autograd.grad(bound.sum(), leaves), -1)


def test_registered_and_trained_from_random_weights():
    assert find_method("iwae") is ImportanceWeighted
    assert ImportanceWeighted.starts_from is None
    assert ImportanceWeighted.setting == "samples"


@pytest.mark.parametrize("samples", [0, -3])
def test_fewer_than_one_sample_is_refused(samples):
    with pytest.raises(ConfigError, match="at least 1"):
        make(samples=samples)


@pytest.mark.parametrize("doubly", [False, True])
def test_one_sample_is_the_elbo(doubly):
    method, x = make(samples=1, doubly=doubly), images()
    loss = method.loss(x, generator=noise())
    q = method.posterior(x)
    z, log_q = q.rsample_and_log_prob(1, generator=noise())
    assert torch.allclose(loss, -(method.model.log_joint(x, z) - log_q).mean())


def test_one_sample_has_the_expected_loss_of_the_vae():
    vae, method = make(VAE), make(samples=1)
    method.start_from(vae)
    x = images(1).expand(4000, *SHAPE)
    with torch.no_grad():
        bound = iwae(method.model, x, method.posterior(x), 1, generator=noise())
        expected = -vae.loss(x, generator=noise())
    # Both have the same noise and differ by the sampled KL, so this standard error is an upper limit.
    assert abs(bound.mean() - expected) < 4 * bound.std() / math.sqrt(4000)


@pytest.mark.parametrize("samples", [1, 2, 7])
def test_bound_is_the_evidence_with_the_exact_posterior(samples):
    model, *parts = linear_model()
    x = torch.rand(5, *LINEAR, generator=noise(), dtype=torch.float64)
    mean, log_variance, evidence = exact(x, *parts)
    bound = iwae(model, x, Gaussian(mean, log_variance), samples, generator=noise())
    assert bound.shape == (5,)
    assert torch.allclose(bound, evidence, rtol=1e-12)


def test_bound_rises_with_samples_towards_the_evidence():
    model, x, leaves = copies_of_one(shift=0.7)
    _, _, evidence = exact(x[:1], *linear_model()[1:])
    means, errors = [], []
    with torch.no_grad():
        for samples in (1, 2, 5, 20):
            bound = iwae(model, x, Gaussian(*leaves), samples, generator=noise(samples))
            means.append(bound.mean())
            errors.append(bound.std() / math.sqrt(COPIES))
    for k in range(3):
        assert means[k + 1] - means[k] > 4 * (errors[k].square() + errors[k + 1].square()).sqrt()
    assert means[-1] < evidence[0] + 4 * errors[-1]
    assert means[-1] > evidence[0] - 0.1


@pytest.mark.parametrize("samples", [1, 5])
@pytest.mark.parametrize("likelihood", [Bernoulli, GaussianLikelihood])
def test_doubly_reparameterised_decoder_gradient_is_the_plain_one(samples, likelihood):
    x, found = images(), []
    for doubly in (False, True):
        method = make(samples=samples, doubly=doubly, likelihood=likelihood())
        loss = method.loss(x, generator=noise())
        loss.backward()
        found.append(
            (
                loss.detach(),
                torch.cat([p.grad.flatten() for p in method.model.parameters()]),
                torch.cat([p.grad.flatten() for p in method.components.parameters()]),
            )
        )
    (plain, plain_decoder, plain_encoder), (loss, decoder, encoder) = found
    assert torch.allclose(loss, plain)
    assert torch.allclose(decoder, plain_decoder, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(encoder, plain_encoder, rtol=1e-3)


def test_doubly_reparameterised_gradient_is_its_definition():
    model, x, leaves = copies_of_one(shift=0.5)
    x, leaves = x[:4], [leaf[:4].detach().requires_grad_() for leaf in leaves]
    found = gradients(model, x, leaves, 3, doubly=True)
    q = Gaussian(*leaves)
    z, log_q = q.rsample_and_log_prob(3, generator=noise())
    share = (model.log_joint(x, z) - log_q).softmax(0).detach()
    still = Gaussian(*(leaf.detach() for leaf in leaves))
    surrogate = (share.square() * (model.log_joint(x, z) - still.log_prob(z))).sum()
    expected = torch.cat(torch.autograd.grad(surrogate, leaves), -1)
    assert torch.allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("samples", [1, 2, 5])
def test_both_encoder_gradients_have_the_same_expectation(samples):
    model, x, leaves = copies_of_one(shift=0.5)
    plain = gradients(model, x, leaves, samples, doubly=False)
    doubly = gradients(model, x, leaves, samples, doubly=True, seed=1)
    error = ((plain.var(0) + doubly.var(0)) / COPIES).sqrt()
    assert ((plain.mean(0) - doubly.mean(0)).abs() < 4 * error).all()
    if samples > 1:  # the test has power: a path weighted once instead of twice is detected
        q = Gaussian(*leaves)
        z, _ = q.rsample_and_log_prob(samples, generator=noise(1))
        still = Gaussian(*(leaf.detach() for leaf in leaves))
        once = log_mean_exp(model.log_joint(x, z) - still.log_prob(z)).sum()
        biased = torch.cat(torch.autograd.grad(once, leaves), -1)
        assert ((plain.mean(0) - biased.mean(0)).abs() > 10 * error).any()


def test_doubly_reparameterised_gradient_has_less_variance_near_the_optimum():
    model, x, leaves = copies_of_one(shift=0.05)
    plain = gradients(model, x, leaves, 5, doubly=False)
    doubly = gradients(model, x, leaves, 5, doubly=True)
    assert (doubly.var(0) < 0.1 * plain.var(0)).all()
    model, x, leaves = copies_of_one()
    assert gradients(model, x, leaves, 5, doubly=True).abs().max() < 1e-12
    assert (gradients(model, x, leaves, 5, doubly=False).var(0) > 1e-3).all()


@pytest.mark.parametrize("doubly", [False, True])
def test_step_raises_the_bound_and_reports_both_bounds(doubly):
    method, x = make(samples=4, doubly=doubly), images(32)
    optimizers, g = method.optimizers(3e-3), noise()
    before = method.loss(x, generator=noise(7)).item()
    for _ in range(60):
        metrics = method.step(x, optimizers, generator=g)
    assert method.loss(x, generator=noise(7)).item() < before - 1
    assert set(metrics) == {"loss", "iwae", "elbo"}
    assert metrics["iwae"] == -metrics["loss"]
    assert metrics["elbo"] < metrics["iwae"]
    assert all(v.shape == () and not v.requires_grad for v in metrics.values())


def test_doubly_reparameterised_loss_without_gradients():
    method = make(doubly=True)
    with torch.no_grad():
        assert method.loss(images(), generator=noise()).isfinite()


def test_doubly_reparameterised_step_never_reads_a_value():
    """On the meta device tensors have no values, so a step that waits for the device fails."""
    method = make(doubly=True).to("meta")
    metrics = method.step(images().to("meta"), method.optimizers(1e-3))
    assert all(value.is_meta for value in metrics.values())
