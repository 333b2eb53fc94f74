"""Likelihoods against sums over all values, and draws whose value is almost certain."""

import pytest
import torch

from recmix.model.likelihoods.counts import ZeroInflatedNegativeBinomial
from recmix.model.likelihoods.eight_bit import LogisticMixture


@pytest.mark.parametrize(
    ("log_mean", "logit", "theta"), [(0.7, -0.4, 1.5), (-0.5, 1.0, 0.6), (1.5, 0.2, 3.0)]
)
def test_fisher_of_zero_inflated_counts_is_the_sum_over_all_counts(log_mean, logit, theta):
    likelihood = ZeroInflatedNegativeBinomial((1,), theta).double()
    counts = torch.arange(400.0).double()[:, None]
    decoded = torch.tensor([[log_mean, logit]]).double().expand(400, 2)
    probability = likelihood.log_prob(counts, decoded[None])[0].exp()
    torch.testing.assert_close(probability.sum(), torch.ones(()).double())
    score = likelihood.residual(counts, decoded)
    expected = torch.einsum("n,ni,nj->ij", probability, score, score)
    found = likelihood.fisher(counts[:1], decoded[:1], torch.eye(2).double()[None])[0]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)
    precision = likelihood.precision(counts[:1], decoded[:1])[0]
    torch.testing.assert_close(precision, expected.diagonal(), rtol=1e-6, atol=1e-9)


def test_draws_of_colours_follow_the_channels_before():
    """With narrow components a draw is the mean of the component that has all the weight."""
    likelihood, slopes = LogisticMixture((3, 1, 1), 2).double(), torch.tensor([0.5, -0.8, 0.6])
    means = torch.tensor([[0.3, -0.9], [-0.2, 0.9], [0.1, -0.9]])  # (C, M)
    rest = torch.stack([means, torch.full((3, 2), -20.0), slopes.atanh()[:, None].expand(3, 2)])
    decoded = torch.cat([torch.tensor([30.0, -30.0]), rest.flatten()]).double().view(1, 20, 1, 1)
    red = 0.3
    green = -0.2 + 0.5 * red
    blue = 0.1 - 0.8 * red + 0.6 * green
    expected = (torch.tensor([red, green, blue]).double() + 1) / 2
    torch.testing.assert_close(likelihood.mean(decoded).flatten(), expected)
    draws = likelihood.sample(decoded.expand(200, -1, -1, -1), torch.Generator().manual_seed(0))
    torch.testing.assert_close(draws.mean(0).flatten(), expected, rtol=0, atol=1e-3)
    torch.testing.assert_close((draws * 255).round() / 255, draws)


def test_noise_of_logistic_mixtures_can_be_changed():
    assert LogisticMixture((1, 2, 2)).tempered(2.0).noise == 2.0
