"""Estimates decode no more latent vectors at a time than they may, and their parts have known values."""

import inspect
import math

import pytest
import torch
from cases.oracle import LinearGaussian
from torch import nn

from recmix.evaluation import annealing, optimum
from recmix.evaluation.gap import _mean
from recmix.evaluation.score import score
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Gaussian
from recmix.posteriors import FullGaussian, Mixture
from recmix.posteriors import Gaussian as Normal
from recmix.reports.statistics import summarise


@pytest.fixture
def world():
    return LinearGaussian()


def best(world, x):
    truth = world.posterior(x)
    return FullGaussian(truth.loc, truth.scale_tril)


@pytest.mark.parametrize(("at_once", "largest"), [(1, 4), (7, 4), (8, 8), (1000, 256)])
def test_the_best_gaussian_is_found_with_few_latent_vectors_at_a_time(
    world, monkeypatch, at_once, largest
):
    """The fixed noise has 64 vectors and that of a step has 32, for each of 4 examples."""
    monkeypatch.setattr(optimum, "FULL_STEPS", 2)
    x, sizes = world.images(4), []
    world.model.decoder.register_forward_hook(lambda module, args, output: sizes.append(len(args[0])))
    generator = torch.Generator().manual_seed(0)
    optimum.maximise_elbo(
        world.model, x, [best(world, x)], diagonal=False, generator=generator, at_once=at_once
    )
    assert max(sizes) == largest
    assert sum(sizes) == 4 * (64 + 2 * 32)


def test_starts_are_the_mean_those_of_several_components_and_zero(world):
    one = Normal(torch.ones(4, 3), torch.zeros(4, 3))
    two = Normal(torch.full((4, 3), 3.0), torch.zeros(4, 3))
    both = Mixture([one, two], torch.full((4, 2), 0.5).log())
    assert optimum.starts_of(one)[:, 0, 0].tolist() == [1.0, 0.0]
    assert optimum.starts_of(both)[:, 0, 0].tolist() == [2.0, 1.0, 3.0, 0.0]


def test_the_mean_moves_in_units_of_the_first_gaussian(world, monkeypatch):
    """The first step of Adam changes each coordinate by its rate."""
    monkeypatch.setattr(optimum, "FULL_STEPS", 1)
    monkeypatch.setattr(optimum, "CHECK_EVERY", 1)
    x = world.images(4)
    truth = best(world, x)
    poor = FullGaussian(truth.mean + 9, 2 * truth.scale_tril)
    good = FullGaussian(truth.mean + 3 * truth.scale_tril.sum(-1), 0.5 * truth.scale_tril)
    found = optimum.maximise_elbo(
        world.model, x, [poor, good], diagonal=False, generator=torch.Generator(), at_once=999
    )
    moved = torch.linalg.solve_triangular(
        poor.scale_tril, (found.mean - good.mean)[..., None], upper=False
    ).squeeze(-1)
    torch.testing.assert_close(moved, torch.full_like(moved, -optimum.RATE))


class BadGradient(torch.autograd.Function):
    """The sum of squares of points (S, B, 1), (S, B), with gradients that are not finite."""

    @staticmethod
    def forward(ctx, z):
        return z.square().sum(-1)

    @staticmethod
    def backward(ctx, gradient):
        bad = torch.tensor([[math.nan], [math.inf], [-math.inf]], dtype=gradient.dtype)
        return bad.expand(len(gradient), -1, -1)


def test_gradients_that_are_not_finite_move_nothing(monkeypatch):
    """Any other mean would have a higher ELBO here, and would be kept."""
    monkeypatch.setattr(LatentModel, "log_joint", lambda model, x, z: BadGradient.apply(z))
    model = LatentModel(nn.Identity(), Gaussian(1.0), latent=1, shape=(1,)).double()
    start = FullGaussian(model.centre.new_zeros(3, 1), torch.ones(3, 1, 1, dtype=torch.float64))
    generator = torch.Generator().manual_seed(0)
    found = optimum.maximise_elbo(
        model, start.mean, [start], diagonal=True, generator=generator, at_once=9
    )
    torch.testing.assert_close(found.mean, start.mean, rtol=0, atol=0)
    torch.testing.assert_close(found.scale_tril, start.scale_tril, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("at_once", "first", "expected"),
    [(1, 1, [1] * 5), (4, 1, [1] * 5), (9, 2, [2, 2, 1]), (99, 4, [5])],
)
def test_chains_of_annealing_run_in_parts(world, monkeypatch, at_once, first, expected):
    runs, real = [], annealing._run_chains

    def run_chains(model, x, q, chains, *rest, adapt):
        runs.append((chains, adapt))
        return real(model, x, q, chains, *rest, adapt=adapt)

    monkeypatch.setattr(annealing, "_run_chains", run_chains)
    x = world.images(4)
    generator = torch.Generator().manual_seed(0)
    found = annealing.annealed(
        world.model, x, best(world, x), chains=5, temperatures=3, generator=generator, at_once=at_once
    )
    assert runs == [(first, True), *((chains, False) for chains in expected)]
    torch.testing.assert_close(found, world.log_evidence(x))


def test_mean_and_standard_error():
    assert _mean(torch.tensor([1.0, 3.0])) == {"mean": 2.0, "se": pytest.approx(1.0)}
    assert math.isnan(_mean(torch.tensor([1.0]))["se"])


def test_reports_read_the_number_of_samples_that_scores_use():
    defaults = [inspect.signature(made).parameters["samples"].default for made in (score, summarise)]
    assert defaults == [100, 100]
