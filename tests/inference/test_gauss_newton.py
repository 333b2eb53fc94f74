"""Gauss-Newton steps: exact where theory says so, and log p(x, z) never falls."""

import copy
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from recmix.inference.gauss_newton import (
    ascend,
    damped_step,
    decoder_jacobian,
    normal_equations,
    traceable,
)
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Bernoulli, find_likelihood
from recmix.model.likelihoods import Gaussian as GaussianLikelihood
from recmix.model.networks import make_decoder

SHAPE = (1, 8, 8)
LATENT = 3
LIKELIHOODS = [lambda: GaussianLikelihood(0.1), Bernoulli]
each_likelihood = pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=["gaussian", "bernoulli"])


class Sine(nn.Module):
    """Gives log p(x, z) many modes."""

    def forward(self, x):
        return x.sin()


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, z):
        return self.function(z)


def latent_model(decoder, likelihood=None, dtype=torch.float64):
    centre = torch.rand(SHAPE, generator=torch.Generator().manual_seed(5))
    likelihood = likelihood or GaussianLikelihood(0.1)
    return LatentModel(decoder, likelihood, latent=LATENT, shape=SHAPE, centre=centre).to(dtype)


def dense(activation=None, seed=0, scale=1.0):
    torch.manual_seed(seed)
    layers = [nn.Linear(LATENT, 16), activation or nn.Tanh(), nn.Linear(16, 64), nn.Unflatten(1, SHAPE)]
    with torch.no_grad():
        layers[0].weight.mul_(scale)
        layers[2].weight.mul_(scale)
    return nn.Sequential(*layers)


def linear():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(LATENT, 64), nn.Unflatten(1, SHAPE))


def conv():
    torch.manual_seed(0)
    return make_decoder("conv", SHAPE, LATENT, hidden=16)


def images(count=5, seed=0):
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def points(count=5, seed=1, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(count, LATENT, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("make", [conv, dense, linear])
def test_jacobian_is_the_derivative(make):
    model, z = latent_model(make()), points()
    decoded, slope = decoder_jacobian(model.decoder, z, LATENT)
    torch.testing.assert_close(decoded, model.decoder(z))
    with traceable():  # by reverse mode alone
        same_decoded, same_slope = decoder_jacobian(model.decoder, z, LATENT)
    torch.testing.assert_close(same_decoded, decoded)
    torch.testing.assert_close(same_slope, slope)
    for row in range(len(z)):
        known = torch.autograd.functional.jacobian(lambda v: model.decoder(v[None]).flatten(), z[row])
        torch.testing.assert_close(slope[row], known)


@pytest.mark.parametrize("chunk", [1, 2])
def test_jacobian_does_not_depend_on_chunks(chunk):
    model, z = latent_model(conv()), points()
    found = decoder_jacobian(model.decoder, z, chunk)
    torch.testing.assert_close(found, decoder_jacobian(model.decoder, z, LATENT))


def test_jacobian_is_differentiable_in_the_decoder():
    model, z = latent_model(dense()), points(2)
    weight = model.decoder[0].weight.detach().clone().requires_grad_()

    def outputs(weight):
        def decoder(z):
            return torch.func.functional_call(model.decoder, {"0.weight": weight}, z)

        other = copy.copy(model)
        other.__dict__["_modules"] = {**model._modules, "decoder": Function(decoder)}
        return decoder_jacobian(other.decoder, z, LATENT)

    torch.autograd.gradcheck(outputs, (weight,))


@each_likelihood
def test_normal_equations_are_value_gradient_and_curvature(likelihood):
    """With a linear decoder the Gauss-Newton curvature is the Hessian."""
    model, x, z = latent_model(linear(), likelihood()), images(), points()
    at = normal_equations(model, x, z)

    def joint(v, row):
        return model.log_joint(x[row : row + 1], v[None, None]).squeeze()

    torch.testing.assert_close(at.log_joint, model.log_joint(x, z[None])[0])
    for row in range(len(z)):
        where = z[row].clone().requires_grad_()
        (slope,) = torch.autograd.grad(joint(where, row), where)
        torch.testing.assert_close(at.gradient[row], slope)
        hessian = torch.autograd.functional.hessian(lambda v, r=row: joint(v, r), z[row])
        torch.testing.assert_close(at.precision[row], -hessian)


def test_damped_step_solves_its_equations():
    model, x, z = latent_model(dense()), images(), points()
    at = normal_equations(model, x, z)
    damping = torch.linspace(0, 4, 5, dtype=torch.float64)
    step = damped_step(at.gradient, at.precision, damping)
    left = (at.precision @ step[..., None]).squeeze(-1) + damping[:, None] * step
    torch.testing.assert_close(left, at.gradient)


@each_likelihood
def test_gradient_is_zero_at_the_mode(likelihood):
    model, x = latent_model(dense(), likelihood()), images()
    first = normal_equations(model, x, points()).gradient.norm(dim=-1)
    _, at = ascend(model, x, points(), steps=30)
    assert (at.gradient.norm(dim=-1) < 1e-6 * first).all()
    assert (torch.linalg.eigvalsh(at.precision) >= 1 - 1e-9).all()


@settings(deadline=None, max_examples=20, derandomize=True)
@given(
    st.integers(0, 10_000),
    st.sampled_from([nn.ReLU, nn.Tanh, Sine]),
    st.sampled_from([0.3, 1.0, 4.0]),
    st.sampled_from([1e-3, 0.1]),
    st.booleans(),
    st.floats(1e-3, 1e3),
)
def test_log_joint_never_falls(seed, activation, scale, variance, binary, damping):
    """For any example, starting point, decoder and number of steps."""
    likelihood = Bernoulli() if binary else GaussianLikelihood(variance)
    model = latent_model(dense(activation(), seed, scale), likelihood)
    x, z = images(6, seed=seed), points(6, seed=seed, scale=3.0)
    with torch.no_grad():
        before = model.log_joint(x, z[None])[0]
        for steps in (1, 2, 4, 8):
            _, at = ascend(model, x, z, steps=steps, damping=damping)
            assert (at.log_joint >= before - 1e-9 * before.abs()).all()
            before = at.log_joint


def test_most_steps_raise_log_joint():
    model = latent_model(dense(Sine(), 0, 4.0))
    x, z = images(20), points(20)
    first = normal_equations(model, x, z).log_joint
    assert (ascend(model, x, z, steps=1)[1].log_joint > first + 1).float().mean() > 0.9


def test_mode_is_a_fixed_point():
    model, x = latent_model(linear()), images()
    mode, _ = ascend(model, x, points(), steps=2)
    same, _ = ascend(model, x, mode, steps=3)
    torch.testing.assert_close(same, mode, rtol=1e-9, atol=1e-12)


def test_step_without_a_finite_joint_is_refused():
    """An example whose steps all give NaN stays where it is; other examples are not disturbed."""

    def cliff(z):
        image = torch.sqrt(1 - z[:, :1].square()) + 0.5 * z[:, 1:2]  # NaN for |z_0| > 1
        return image[:, :, None, None].expand(-1, 1, 8, 8) + 0 * z.sum()

    model = latent_model(Function(cliff), GaussianLikelihood(1e-4))
    x = torch.full((2, *SHAPE), 3.0, dtype=torch.float64)
    start = torch.tensor([[0.999, 0.0, 0.0], [0.2, 0.0, 0.0]], dtype=torch.float64)
    before = normal_equations(model, x, start).log_joint
    z, at = ascend(model, x, start, steps=4)
    assert z.isfinite().all()
    assert (at.log_joint >= before).all()


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
def test_steps_that_reuse_the_curvature_raise_log_joint_further(likelihood):
    torch.manual_seed(1)
    decoder = make_decoder("conv", (1, 12, 12), 4)
    for p in decoder.parameters():
        p.data *= 2
    model = LatentModel(decoder, find_likelihood(likelihood)(), latent=4, shape=(1, 12, 12)).double()
    with torch.no_grad():
        x = model.decode(torch.randn(40, 4).double()).clamp(0, 1)
    start = torch.randn(40, 4).double()
    joints = []
    for reuse in range(4):
        z, at = ascend(model, x, start, steps=1, reuse=reuse)
        torch.testing.assert_close(at.log_joint, model.log_joint(x, z[None])[0])
        joints.append(at.log_joint.detach())
    for before, after in itertools.pairwise(joints):
        assert (after >= before).all()  # for every example
        assert after.mean() > before.mean()
