"""How the damping follows from the success of the step before, and the noise of the safeguard."""

import pytest
import torch
from cases.oracle import LinearGaussian

from recmix.inference import Inference
from recmix.inference import conjugate as module
from recmix.inference.gauss_newton import (
    DAMPINGS,
    LARGEST,
    LogJoint,
    NormalEquations,
    is_traceable,
    traceable,
)
from recmix.inference.learned import SHRINK, Iterate, advance
from recmix.inference.safeguard import common_noise


def double(values):
    return torch.tensor(values, dtype=torch.float64)


def test_gauss_newton_lowers_the_damping_after_success_and_raises_it_after_failure():
    world = LinearGaussian(latent=1)
    joint = LogJoint(world.model, world.images(4), torch.float64)
    level = double([2.0, 2.0, 2.0, 1e11])
    z, step = torch.zeros(4, 1).double(), torch.arange(20.0).double().view(5, 4, 1)
    here = NormalEquations(torch.zeros(4).double(), z, z[..., None])
    reached = torch.full((5, 4), -1.0).double()
    reached[2, 0] = reached[1, 1] = 1.0  # the third and the second candidate are best
    tried = joint.dampings(level)
    torch.testing.assert_close(tried, double([[m * v for v in level] for m in (0, 1, 10, 100, 1000)]))
    moved, after = joint.choose(reached, here, z, step, tried, level, 0.5)
    torch.testing.assert_close(moved[:, 0], double([step[2, 0], step[1, 1], 0.0, 0.0]))
    largest = 10 * DAMPINGS[-1] * 2.0
    torch.testing.assert_close(after, double([0.1 * 20.0, 0.5, largest, LARGEST]))


def test_conjugate_gradients_change_their_damping_by_the_length_of_the_last_step(monkeypatch):
    """Full steps lower it, or end it below 0.01; shorter steps raise it, and failures raise it more."""
    world = LinearGaussian(latent=2)
    lengths, seen = iter([0.5, 0.0, 0.2, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]), []

    def direction(joint, z, push, level, iterations):
        seen.append(level.item())
        return torch.zeros_like(z), torch.zeros_like(z[:, 0])

    monkeypatch.setattr(module, "_direction", direction)
    monkeypatch.setattr(
        module, "_best_length", lambda joint, z, *_: torch.full_like(z[:, :1], next(lengths))
    )
    start = torch.zeros(1, 2).double()
    module.conjugate(world.model, world.images(1), start, steps=12, iterations=1)
    expected = [0.0, 0.1, 10.0, 100.0, 10.0, 1.0, 0.1, 0.01, 0.001, 0.0, 0.1, 10.0]
    assert seen == pytest.approx(expected)


@pytest.mark.parametrize("latent", [1, 3, 40])
def test_noise_of_the_safeguard_has_the_length_of_typical_noise(latent):
    noise = common_noise(3, torch.zeros(2, latent).double())
    assert noise.shape == (6, 1, latent)
    torch.testing.assert_close(noise.norm(dim=-1), torch.full((6, 1), latent**0.5).double())
    torch.testing.assert_close(noise.sum(0), torch.zeros(1, latent).double())


def test_settings_are_given_by_name():
    with pytest.raises(TypeError):
        Inference(4)


def test_settings_without_effect_are_not_part_of_the_key():
    assert Inference(restarts=3).key == "restarts=3"
    assert Inference(restarts=1, how="conjugate", checks=9, reference=4.0).key == ""
    assert Inference(noise=2.0).key == "noise=2.0"


def test_quasi_newton_pairs_need_a_positive_finite_curvature():
    """The second curvature is negative, the third is not a number, and the last value is lower."""
    gradient, after = double([[3.0], [1.0], [1.0], [3.0]]), double([[1.0], [2.0], [float("nan")], [2.0]])
    at = Iterate(torch.zeros(4, 1).double(), torch.zeros(4).double(), gradient, double([0.5] * 4))
    step = torch.ones(4, 1).double()
    reached = double([1.0, 1.0, float("nan"), -1.0])
    following, pair = advance(at, step, reached, after)
    torch.testing.assert_close(pair.step[:, 0], double([1.0, 0.0, 0.0, 1.0]))
    torch.testing.assert_close(pair.change[:, 0], double([2.0, 0.0, 0.0, 1.0]))
    torch.testing.assert_close(pair.inverse[:, 0], double([0.5, 0.0, 0.0, 1.0]))
    torch.testing.assert_close(following.z[:, 0], double([1.0, 1.0, 0.0, 0.0]))
    torch.testing.assert_close(following.value, double([1.0, 1.0, 0.0, 0.0]))
    torch.testing.assert_close(following.gradient[:, 0], double([1.0, 2.0, 1.0, 3.0]))
    torch.testing.assert_close(following.length, double([1.0, 1.0, 0.5 * SHRINK, 0.5 * SHRINK]))


def test_forward_mode_is_left_only_for_a_tracer():
    assert not is_traceable()
    with traceable(), traceable():
        assert is_traceable()
    assert not is_traceable()
