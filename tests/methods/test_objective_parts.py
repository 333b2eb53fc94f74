"""`elbo_parts` and `weighted_elbo` against closed forms of the linear-Gaussian model."""

import pytest
import torch
from cases.oracle import LinearGaussian

from recmix.errors import ConfigError
from recmix.objectives import elbo, elbo_parts, kl_by_dimension, weighted_elbo
from recmix.posteriors import FullGaussian, Gaussian, Mixture


def seeded():
    return torch.Generator().manual_seed(0)


def gaussian(world, x, shift=0.2):
    true = world.posterior(x)
    return Gaussian(true.loc + shift, true.variance.log() + shift)


def mixture(world, x):
    weights = torch.tensor([[0.2, 0.8], [0.5, 0.5], [0.9, 0.1]]).double()
    return Mixture([gaussian(world, x), gaussian(world, x, -0.4)], weights.log())


@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize("make", [gaussian, mixture])
def test_the_parts_differ_by_the_elbo(make, samples):
    world = LinearGaussian()
    x = world.images(3)
    q = make(world, x)
    found, kl = elbo_parts(world.model, x, q, samples, generator=seeded())
    assert found.shape == kl.shape == (3,)
    torch.testing.assert_close(found - kl, elbo(world.model, x, q, samples, generator=seeded()))


def test_parts_of_a_gaussian_are_the_likelihood_and_the_closed_form_kl():
    world = LinearGaussian()
    x = world.images(3)
    q = gaussian(world, x)
    found, kl = elbo_parts(world.model, x, q, 4, generator=seeded())
    z, _ = q.rsample_and_log_prob(4, generator=seeded())
    torch.testing.assert_close(found, world.model.log_conditional(x, z).mean(0))
    expected = 0.5 * (q.variance + q.mean**2 - 1 - q.variance.log())
    torch.testing.assert_close(kl, expected.sum(-1))
    torch.testing.assert_close(kl_by_dimension(world.model, q), expected)


def test_parts_of_a_mixture_weigh_the_samples_of_each_component():
    world = LinearGaussian()
    x = world.images(3)
    q = mixture(world, x)
    found, kl = elbo_parts(world.model, x, q, 2, generator=seeded())
    noise = seeded()
    likelihood = divergence = 0.0
    for weight, part in zip(q.weights.t(), q.components, strict=True):
        z, _ = part.rsample_and_log_prob(2, generator=noise)
        prior = torch.distributions.Normal(0.0, 1.0).log_prob(z).sum(-1)
        likelihood = likelihood + weight * world.model.log_conditional(x, z).mean(0)
        divergence = divergence + weight * (q.log_prob(z) - prior).mean(0)
    torch.testing.assert_close(found, likelihood)
    torch.testing.assert_close(kl, divergence)


@pytest.mark.parametrize("free_bits", [0.0, 0.3])
def test_weighted_elbo_weighs_the_kl_and_spares_free_bits(free_bits):
    world = LinearGaussian()
    x = world.images(3)
    q = gaussian(world, x)
    found, kl = elbo_parts(world.model, x, q, generator=seeded())
    by_dimension = (0.5 * (q.variance + q.mean**2 - 1 - q.variance.log())).mean(0)
    assert by_dimension.min() < 0.3 < by_dimension.max()
    charged = by_dimension.clamp(min=free_bits).sum()
    objective, bound = weighted_elbo(
        world.model, x, q, kl_weight=0.6, free_bits=free_bits, generator=seeded()
    )
    torch.testing.assert_close(objective, found.mean() - 0.6 * charged)
    torch.testing.assert_close(bound, (found - kl).mean().detach())
    assert not bound.requires_grad
    assert objective.requires_grad


def test_free_bits_are_refused_without_a_kl_by_dimension():
    world = LinearGaussian()
    x = world.images(3)
    true = world.posterior(x)
    with pytest.raises(ConfigError, match="free_bits"):
        weighted_elbo(world.model, x, FullGaussian(true.loc, true.scale_tril), free_bits=0.5)


def test_weighted_elbo_is_the_elbo_by_default():
    world = LinearGaussian()
    x = world.images(3)
    truth = world.posterior(x)
    for q in (gaussian(world, x), FullGaussian(truth.loc, truth.scale_tril)):
        objective, bound = weighted_elbo(world.model, x, q, generator=seeded())
        torch.testing.assert_close(objective.detach(), bound)
