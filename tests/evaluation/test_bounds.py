"""ELBO and IWAE on the linear-Gaussian model, where log p(x) is known."""

import pytest
import torch
from cases.contract import images, make
from cases.oracle import LinearGaussian

from recmix.errors import DataError
from recmix.evaluation.bounds import bounds, bounds_of
from recmix.posteriors import FullGaussian, Gaussian


def test_every_bound_is_the_evidence_with_the_true_posterior():
    world = LinearGaussian()
    x = world.images()
    true = world.posterior(x)
    q = FullGaussian(true.loc, true.scale_tril)
    got = bounds_of(world.model, x, q, samples=3, generator=None, at_once=7)
    torch.testing.assert_close(got.elbo, world.log_evidence(x), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(got.iwae, world.log_evidence(x), rtol=1e-10, atol=1e-10)


def wrong_posterior(world, x):
    truth = world.posterior(x)
    return Gaussian(truth.loc + 0.3, truth.variance.log() + 0.5)


def test_elbo_plus_kl_is_the_evidence():
    world = LinearGaussian()
    x = world.images(3)
    q = wrong_posterior(world, x)
    n = 200_000
    z, log_q = q.rsample_and_log_prob(n, generator=torch.Generator().manual_seed(0))
    log_w = world.model.log_joint(x, z).detach() - log_q
    kl = torch.distributions.kl_divergence(
        torch.distributions.MultivariateNormal(q.mean, torch.diag_embed(q.log_variance.exp())),
        world.posterior(x),
    )
    error = log_w.std(0) / n**0.5
    assert ((log_w.mean(0) + kl - world.log_evidence(x)).abs() < 4 * error).all()


def test_iwae_converges_to_the_evidence():
    world = LinearGaussian()
    x = world.images(3)
    gaps = []
    for samples in (1, 10, 1000, 100_000):
        got = bounds_of(
            world.model,
            x,
            wrong_posterior(world, x),
            samples=samples,
            generator=torch.Generator().manual_seed(samples),
            at_once=10_000,
        )
        gaps.append((world.log_evidence(x) - got.iwae).abs().max().item())
    assert gaps[-1] < 0.02
    assert gaps[-1] < gaps[1] < gaps[0] + 0.5


def test_bounds_do_not_depend_on_how_they_are_chunked():
    world = LinearGaussian()
    x = world.images(4)
    big, small = (
        bounds_of(
            world.model,
            x,
            wrong_posterior(world, x),
            samples=20_000,
            generator=torch.Generator().manual_seed(at_once),
            at_once=at_once,
        )
        for at_once in (1_000_000, 250)
    )
    torch.testing.assert_close(big.iwae, small.iwae, atol=0.1, rtol=0)
    torch.testing.assert_close(big.elbo, small.elbo, atol=0.1, rtol=0)


def test_an_empty_batch_is_an_error():
    with pytest.raises(DataError, match="at least one example"):
        bounds(make("vae"), images()[:0])
