"""Estimates decode no more latent vectors at a time than they may, and their parts have known values."""

import inspect
import math

import pytest
import torch
from cases.oracle import LinearGaussian
from torch.distributions import MultivariateNormal

from recmix.evaluation import annealing, optimum
from recmix.evaluation.gap import _mean
from recmix.evaluation.score import score
from recmix.posteriors import FullGaussian
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


@pytest.mark.parametrize(
    ("at_once", "expected"), [(1, [1] * 5), (4, [1] * 5), (9, [2, 2, 1]), (99, [5])]
)
def test_chains_of_annealing_run_in_parts(world, monkeypatch, at_once, expected):
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
    assert runs == [(4, True), *((chains, False) for chains in expected)]
    torch.testing.assert_close(found.log, world.log_evidence(x))


def test_entropy_of_a_gaussian(world):
    q = best(world, world.images(4))
    known = MultivariateNormal(q.mean, scale_tril=q.scale_tril).entropy()
    torch.testing.assert_close(optimum._entropy(q.scale_tril), known)


def test_mean_and_standard_error():
    assert _mean(torch.tensor([1.0, 3.0])) == {"mean": 2.0, "se": pytest.approx(1.0)}
    assert math.isnan(_mean(torch.tensor([1.0]))["se"])


def test_reports_read_the_number_of_samples_that_scores_use():
    defaults = [inspect.signature(made).parameters["samples"].default for made in (score, summarise)]
    assert defaults == [100, 100]
