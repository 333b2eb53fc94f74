"""One of two posteriors for each example: `choose` gives what the chosen one gives."""

import pytest
import torch

from recmix.posteriors import FullGaussian, Gaussian, Mixture, Reflected
from recmix.posteriors.choice import Choice, choose
from recmix.posteriors.flow import Reflections
from recmix.posteriors.low_rank import LowRankGaussian

WHICH = torch.tensor([True, False, True, False])


def normal(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double()


def gaussian(seed):
    return Gaussian(normal(4, 2, seed=seed), normal(4, 2, seed=seed + 1))


def full(seed, *, inverted=False):
    root = normal(4, 2, 2, seed=seed)
    covariance = root @ root.mT + 0.3 * torch.eye(2).double()
    if inverted:
        return FullGaussian.from_precision(normal(4, 2, seed=seed + 1), covariance)
    return FullGaussian(normal(4, 2, seed=seed + 1), torch.linalg.cholesky(covariance))


def low_rank(seed):
    parts = [0.3 * normal(4, 2, 1, seed=seed + step) for step in (2, 3)]
    return LowRankGaussian(normal(4, 2, seed=seed), 0.2 * normal(4, 2, seed=seed + 1), *parts)


def reflected(seed):
    return Reflected(gaussian(seed), Reflections([torch.tensor([0.6, 0.8], dtype=torch.float64)]))


def mixture(seed, *parts):
    return Mixture(list(parts), normal(4, len(parts), seed=seed).log_softmax(-1))


PAIRS = {
    "gaussians": (gaussian(0), gaussian(5), Gaussian),
    "full": (full(0), full(5), FullGaussian),
    "full, precision first": (full(0, inverted=True), full(5), FullGaussian),
    "full, precision second": (full(0), full(5, inverted=True), FullGaussian),
    "full and diagonal": (full(0, inverted=True), gaussian(5), FullGaussian),
    "diagonal and full": (gaussian(0), full(5), FullGaussian),
    "low rank and diagonal": (low_rank(0), gaussian(5), LowRankGaussian),
    "low ranks": (low_rank(0), low_rank(5).scaled(1.5), LowRankGaussian),
    "low ranks, larger first": (low_rank(0).scaled(1.5), low_rank(5), LowRankGaussian),
    "mixtures": (mixture(9, gaussian(0), full(1)), mixture(8, gaussian(5), gaussian(6)), Mixture),
    "other sizes": (mixture(9, gaussian(0), full(1)), mixture(8, gaussian(5)), Choice),
    "mixtures of others": (mixture(9, reflected(0)), mixture(8, gaussian(5)), Choice),
    "full and low rank": (full(0), low_rank(5), Choice),
    "others": (reflected(0), gaussian(5), Choice),
}


@pytest.mark.parametrize("name", PAIRS)
def test_each_example_has_the_posterior_that_is_chosen_for_it(name):
    first, second, kind = PAIRS[name]
    q = choose(WHICH, first, second)
    assert type(q) is kind
    z = normal(5, 4, 2, seed=20)
    expected = torch.where(WHICH, first.log_prob(z), second.log_prob(z))
    torch.testing.assert_close(q.log_prob(z), expected)
    for moment in ("mean", "variance"):
        expected = torch.where(WHICH[:, None], getattr(first, moment), getattr(second, moment))
        torch.testing.assert_close(getattr(q, moment), expected)
    samples, log_q = q.rsample_and_log_prob(3, generator=torch.Generator().manual_seed(0))
    assert samples.shape == (3, 4, 2)
    torch.testing.assert_close(log_q, q.log_prob(samples))


def test_entropy_and_scaled_of_a_choice_are_those_of_the_chosen():
    first, second = full(0), low_rank(5)
    q = choose(WHICH, first, second)
    torch.testing.assert_close(q.entropy(), torch.where(WHICH, first.entropy(), second.entropy()))
    z = normal(5, 4, 2, seed=20)
    expected = torch.where(WHICH, first.scaled(0.5).log_prob(z), second.scaled(0.5).log_prob(z))
    assert q.can_scale
    torch.testing.assert_close(q.scaled(0.5).log_prob(z), expected)
    assert not choose(WHICH, first, reflected(5)).can_scale
    assert not choose(WHICH, reflected(5), first).can_scale
