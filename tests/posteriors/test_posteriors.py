"""Gaussians and mixtures: extreme parameters, mixing weights, and how components are sampled."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recmix.errors import ConfigError
from recmix.posteriors import FullGaussian, Gaussian, LowRankGaussian, Mixture, recursive_log_weights

B, D = 4, 3


def gaussian(seed=0, batch=B, latent=D):
    generator = torch.Generator().manual_seed(seed)
    mean, log_variance = torch.randn(2, batch, latent, generator=generator, dtype=torch.float64)
    return Gaussian(mean, log_variance)


def mixture(order=3, seed=0, **sizes):
    parts = [gaussian(seed * 100 + k, **sizes) for k in range(order)]
    batch = sizes.get("batch", B)
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(batch, order, generator=generator, dtype=torch.float64)
    return Mixture(parts, logits.log_softmax(-1))


def test_extreme_parameters_stay_finite():
    q = Gaussian(torch.tensor([[1e6, -1e6]]), torch.tensor([[1e4, -1e4]]))
    z, log_q = q.rsample_and_log_prob(5, generator=torch.Generator().manual_seed(0))
    assert z.isfinite().all()
    assert log_q.isfinite().all()
    assert q.kl_to_prior(z, log_q).isfinite().all()
    assert q.entropy().isfinite().all()


def test_from_parameters_splits_means_and_log_variances():
    parameters = torch.randn(B, 2 * D, generator=torch.Generator().manual_seed(0))
    q = Gaussian.from_parameters(parameters)
    assert torch.equal(q.mean, parameters[:, :D])
    assert torch.equal(q.log_variance, parameters[:, D:])
    assert torch.equal(q.mode, q.mean)


@given(seed=st.integers(0, 1000), order=st.integers(1, 6))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_mixture_weights_sum_to_one_and_order_of_components_does_not_matter(seed, order):
    q = mixture(order, seed)
    torch.testing.assert_close(q.weights.sum(-1), torch.ones(B, dtype=torch.float64))
    reversed_order = Mixture(q.components[::-1], q.log_weights.flip(-1))
    z, _ = q.rsample_and_log_prob(4, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(q.log_prob(z), reversed_order.log_prob(z))


def test_one_component_is_the_plain_gaussian():
    q = gaussian()
    single = Mixture([q], torch.zeros(B, 1, dtype=torch.float64))
    z, log_q = single.rsample_and_log_prob(4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(log_q, q.log_prob(z))
    torch.testing.assert_close(single.mean, q.mean)
    torch.testing.assert_close(single.variance, q.variance)


def test_variance_of_narrow_components_is_exact():
    means = 3 * torch.randn(1, B, D, generator=torch.Generator().manual_seed(0))
    means = means + torch.tensor([-1e-4, 0.0, 1e-4])[:, None, None]
    parts = [Gaussian(mean, torch.full((B, D), 1e-7).log()) for mean in means]
    q = Mixture(parts, torch.zeros(B, 3))
    expected = 1e-7 + means.double().var(0, correction=0)
    torch.testing.assert_close(q.variance.double(), expected, rtol=1e-3, atol=0)
    assert q.stddev.isfinite().all()


def test_stack_gives_the_same_mixture():
    q = mixture()
    means = torch.stack([part.mean for part in q.components])
    log_variances = torch.stack([part.log_variance for part in q.components])
    same = Mixture.from_stack(Gaussian(means, log_variances), q.log_weights)
    one, two = (p.rsample_and_log_prob(5, generator=torch.Generator().manual_seed(1)) for p in (q, same))
    assert torch.equal(one[0], two[0])
    assert torch.equal(one[1], two[1])
    for mine, theirs in zip(q.components, same.components, strict=True):
        assert torch.equal(mine.mean, theirs.mean)
        assert torch.equal(mine.log_variance, theirs.log_variance)


def test_large_batches_are_scored_one_component_at_a_time(monkeypatch):
    q = mixture()
    z, log_q = q.rsample_and_log_prob(50, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr("recmix.posteriors.mixture.SMALL", 10)
    torch.testing.assert_close(q.log_prob(z), log_q)


def test_a_batch_is_split_into_consecutive_examples():
    """Of each kind of Gaussian, with the densities of its own examples."""
    q = gaussian(batch=6)
    factor = torch.diag_embed(q.stddev) + 0.1 * torch.ones(D, D).double().tril(-1)
    thin = 0.1 * torch.ones(6, D, 1).double() * torch.arange(1, 7).view(6, 1, 1)
    z = torch.randn(2, 6, D, generator=torch.Generator().manual_seed(1)).double()
    kinds = (q, FullGaussian(q.mean, factor), LowRankGaussian(q.mean, q.stddev.log(), thin, thin))
    for whole in kinds:
        parts = whole.split(3)
        assert [part.mean.shape for part in parts] == [(2, D)] * 3
        found = torch.cat([part.log_prob(z[:, 2 * i : 2 * i + 2]) for i, part in enumerate(parts)], 1)
        torch.testing.assert_close(found, whole.log_prob(z))


def test_mixture_needs_one_weight_per_component():
    with pytest.raises(ConfigError, match="2 components needs as many weights"):
        Mixture([gaussian(), gaussian()], torch.zeros(B, 3))


@given(seed=st.integers(0, 1000), order=st.integers(2, 8))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_recursive_weights_equal_the_recursion_written_out(seed, order):
    generator = torch.Generator().manual_seed(seed)
    eps = 0.9 * torch.rand(B, order - 1, generator=generator, dtype=torch.float64) + 0.05
    alpha = torch.ones(B, 1, dtype=torch.float64)
    for m in range(order - 1):
        alpha = torch.cat([alpha * (1 - eps[:, m : m + 1]), eps[:, m : m + 1]], -1)
    torch.testing.assert_close(recursive_log_weights(eps.log(), torch.log1p(-eps)).exp(), alpha)
    torch.testing.assert_close(alpha.sum(-1), torch.ones(B, dtype=torch.float64))


@pytest.mark.parametrize("kind", [Gaussian, FullGaussian])
def test_components_are_chosen_by_their_weights(kind):
    shape = (1, 1) if kind is Gaussian else (1, 1, 1)
    fill = torch.zeros if kind is Gaussian else torch.ones  # log-variance 0, or scale 1
    q = Mixture(
        [kind(torch.full((1, 1), 100.0 * k).double(), fill(shape).double()) for k in range(3)],
        torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64).log(),
    )
    n = 20000
    z, _ = q.rsample_and_log_prob(n, generator=torch.Generator().manual_seed(0))
    share = torch.stack([((z - 100 * k).abs() < 50).double().mean() for k in range(3)])
    torch.testing.assert_close(share, q.weights[0], atol=4 * (0.25 / n) ** 0.5, rtol=0)


def test_one_sample_of_every_component():
    q = mixture()
    z = q.component_samples(generator=torch.Generator().manual_seed(2))
    generator = torch.Generator().manual_seed(2)
    expected = [part.rsample_and_log_prob(1, generator=generator)[0] for part in q.components]
    assert z.shape == (3, B, D)
    assert torch.equal(z, torch.cat(expected))
