"""Gauss-Newton steps reach a mode that undamped steps overshoot."""

import pytest
import torch
from torch import nn

from recmix.inference import Inference
from recmix.inference.gauss_newton import ascend, damped_step, normal_equations
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Gaussian
from recmix.posteriors import Gaussian as GaussianPosterior


class Arctan(nn.Module):
    """Where |z| is above 1.4, an undamped step towards arctan z = 0 ends further from 0."""

    def forward(self, z):
        return z.atan()


@pytest.fixture
def model():
    return LatentModel(Arctan(), Gaussian(1e-6), latent=1, shape=(1,)).double()


STARTS = torch.tensor([[-4.0], [-2.0], [2.0], [3.0]], dtype=torch.float64)
X = torch.zeros_like(STARTS)


def test_the_undamped_step_overshoots(model):
    here = normal_equations(model, X, STARTS)
    step = damped_step(here.gradient, here.precision, torch.zeros(len(X), dtype=torch.float64))
    assert ((STARTS + step).abs() > STARTS.abs()).all()
    assert (normal_equations(model, X, STARTS + step).log_joint < here.log_joint).all()


def test_damped_steps_reach_the_mode(model):
    z, at = ascend(model, X, STARTS, steps=25)
    torch.testing.assert_close(z, X, atol=1e-3, rtol=0)
    assert (at.log_joint > normal_equations(model, X, STARTS).log_joint).all()


def test_every_step_makes_progress_once_the_damping_has_grown(model):
    reached = [ascend(model, X, STARTS, steps=steps)[1].log_joint for steps in (0, 5, 10, 15)]
    for before, after in zip(reached, reached[1:], strict=False):
        assert (after >= before).all()
    assert (reached[-1] > reached[0] + 1).all()


def test_refinement_of_a_far_posterior_reaches_the_mode(model):
    q = GaussianPosterior(STARTS, torch.full_like(STARTS, 0.1))
    found = Inference(refine=25, reuse=0, checks=0)(model, X, q)
    torch.testing.assert_close(found.mean, X, atol=1e-3, rtol=0)
