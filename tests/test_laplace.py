"""Gauss-Newton and the variational Laplace autoencoder: exact where theory says so, and never down."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from recmix.errors import ConfigError
from recmix.inference.gauss_newton import climb, damped_step, jacobian, normal_equations
from recmix.methods.laplace import VLAE, LaplaceComponent
from recmix.methods.recursive import RecursiveMixture
from recmix.methods.registry import make_component
from recmix.methods.vae import VAE
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Bernoulli
from recmix.model.likelihoods import Gaussian as GaussianLikelihood
from recmix.model.networks import make_decoder, make_encoder

SHAPE = (1, 8, 8)
LATENT = 3
LIKELIHOODS = [lambda: GaussianLikelihood(0.1), Bernoulli]


class Sine(nn.Module):
    """A decoder's worst habit: a joint with many modes."""

    def forward(self, x):
        return x.sin()


def latent_model(decoder, likelihood=None, dtype=torch.float64, latent=LATENT):
    centre = torch.rand(SHAPE, generator=torch.Generator().manual_seed(5))
    likelihood = likelihood or GaussianLikelihood(0.1)
    return LatentModel(decoder, likelihood, latent=latent, shape=SHAPE, centre=centre).to(dtype)


def dense(activation=None, seed=0, scale=1.0):
    torch.manual_seed(seed)
    layers = [nn.Linear(LATENT, 16), activation or nn.Tanh(), nn.Linear(16, 64), nn.Unflatten(1, SHAPE)]
    with torch.no_grad():
        layers[0].weight.mul_(scale)
        layers[2].weight.mul_(scale)
    return nn.Sequential(*layers)


def linear(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(LATENT, 64), nn.Unflatten(1, SHAPE))


def conv(latent=LATENT):
    torch.manual_seed(0)
    return make_decoder("conv", SHAPE, latent, hidden=16)


def images(count=5, dtype=torch.float64, seed=0):
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def points(count=5, dtype=torch.float64, seed=1, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(count, LATENT, generator=generator, dtype=dtype)


def vlae(model, **options):
    torch.manual_seed(3)
    encoder = make_encoder("dense", SHAPE, model.latent, hidden=16)
    return VLAE(model, encoder, **options).to(model.centre.dtype)


@pytest.mark.parametrize("make", [conv, dense, linear])
def test_jacobian_is_the_derivative(make):
    model, z = latent_model(make()), points()
    decoded, slope = jacobian(model, z)
    torch.testing.assert_close(decoded, model.decoder(z))
    for row in range(len(z)):
        known = torch.autograd.functional.jacobian(lambda v: model.decoder(v[None]).flatten(), z[row])
        torch.testing.assert_close(slope[row], known)


@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_chunks_of_tangents_change_nothing(chunk):
    model, z = latent_model(conv()), points()
    torch.testing.assert_close(jacobian(model, z, chunk=chunk)[1], jacobian(model, z)[1])
    with pytest.raises(ConfigError, match="at least 1"):
        jacobian(model, z, chunk=0)


def test_jacobian_is_differentiable_in_the_decoder():
    model, z = latent_model(dense()), points(2)
    weight = model.decoder[0].weight.detach().clone().requires_grad_()

    def outputs(weight):
        def decoder(z):
            return torch.func.functional_call(model.decoder, {"0.weight": weight}, z)

        other = copy.copy(model)
        other.__dict__["_modules"] = {**model._modules, "decoder": _Wrapped(decoder)}
        return jacobian(other, z)

    torch.autograd.gradcheck(outputs, (weight,))


class _Wrapped(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, z):
        return self.function(z)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_normal_equations_are_value_gradient_and_curvature(likelihood):
    """With a linear decoder the Gauss-Newton curvature is the Hessian itself."""
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


def test_one_step_on_a_linear_gaussian_model_is_exact():
    """The posterior is the true one, and its ELBO is log p(x), whatever the sample."""
    model, x = latent_model(linear()), images()
    method = vlae(model, steps=1)
    weight, bias = model.decoder[0].weight, model.decoder[0].bias
    noise = model.likelihood.variance
    flat = model.centred(x).flatten(1) - bias
    precision = weight.T @ weight / noise + torch.eye(LATENT).double()
    mean = torch.linalg.solve(precision, weight.T @ flat.T / noise).T
    marginal = torch.distributions.MultivariateNormal(
        bias, weight @ weight.T + noise * torch.eye(64).double()
    )

    q = method.posterior(x)
    torch.testing.assert_close(q.mean, mean)
    torch.testing.assert_close(q.covariance, torch.linalg.inv(precision).expand(5, LATENT, LATENT))
    z, log_q = q.rsample_and_log_prob(3)
    log_p = marginal.log_prob(model.centred(x).flatten(1)).expand(3, 5)
    torch.testing.assert_close(model.log_joint(x, z) - log_q, log_p)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_the_gradient_vanishes_at_the_mode(likelihood):
    model, x = latent_model(dense(), likelihood()), images()
    first = normal_equations(model, x, points()).gradient.norm(dim=-1)
    _, at = climb(model, x, points(), steps=30)
    assert (at.gradient.norm(dim=-1) < 1e-6 * first).all()
    assert (torch.linalg.eigvalsh(at.precision) >= 1 - 1e-9).all()


@settings(deadline=None, max_examples=20)
@given(
    st.integers(0, 10_000),
    st.sampled_from([nn.ReLU, nn.Tanh, Sine]),
    st.sampled_from([0.3, 1.0, 4.0]),
    st.sampled_from([1e-3, 0.1]),
    st.booleans(),
    st.floats(1e-3, 1e3),
)
def test_the_joint_never_falls(seed, activation, scale, variance, binary, damping):
    """For no example, from anywhere, whatever the decoder, and never with more steps."""
    likelihood = Bernoulli() if binary else GaussianLikelihood(variance)
    model = latent_model(dense(activation(), seed, scale), likelihood)
    x, z = images(6, seed=seed), points(6, seed=seed, scale=3.0)
    with torch.no_grad():
        before = model.log_joint(x, z[None])[0]
        for steps in (1, 2, 4, 8):
            _, at = climb(model, x, z, steps=steps, damping=damping)
            assert (at.log_joint >= before - 1e-9 * before.abs()).all()
            before = at.log_joint


def test_most_steps_rise():
    model = latent_model(dense(Sine(), 0, 4.0))
    x, z = images(20), points(20)
    first = normal_equations(model, x, z).log_joint
    assert (climb(model, x, z, steps=1)[1].log_joint > first + 1).float().mean() > 0.9


def test_a_mode_is_a_fixed_point():
    model, x = latent_model(linear()), images()
    mode, _ = climb(model, x, points(), steps=2)
    again, _ = climb(model, x, mode, steps=3)
    torch.testing.assert_close(again, mode, rtol=1e-9, atol=1e-12)


def test_a_point_without_a_finite_joint_nearby_stays_where_it_is():
    """A Gauss-Newton step whose joint is not a number is refused, and nothing else is disturbed."""

    class Cliff(nn.Module):
        def forward(self, z):
            image = torch.sqrt(1 - z[:, :1].square()) + 0.5 * z[:, 1:2]  # not a number beyond |z_0| = 1
            return image[:, :, None, None].expand(-1, 1, 8, 8) + 0 * z.sum()

    model = latent_model(Cliff(), GaussianLikelihood(1e-4))
    x = torch.full((2, *SHAPE), 3.0, dtype=torch.float64)
    start = torch.tensor([[0.999, 0.0, 0.0], [0.2, 0.0, 0.0]], dtype=torch.float64)
    before = normal_equations(model, x, start).log_joint
    z, at = climb(model, x, start, steps=4)
    assert z.isfinite().all()
    assert (at.log_joint >= before).all()


def test_an_example_does_not_depend_on_its_batch():
    method, x = vlae(latent_model(conv()), steps=3), images()
    together = method.posterior(x)
    for row in range(len(x)):
        alone = method.posterior(x[row : row + 1])
        torch.testing.assert_close(alone.mean[0], together.mean[row], rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(alone.covariance[0], together.covariance[row], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_posterior_without_gradients(likelihood, dtype):
    method = vlae(latent_model(conv(), likelihood(), dtype))
    x = images(4, torch.float32).bfloat16()
    state = torch.get_rng_state()
    with torch.no_grad():
        without = method.posterior(x)
    with_graph = method.posterior(x)
    assert torch.equal(torch.get_rng_state(), state)
    assert without.mean.dtype == dtype
    assert not without.mean.requires_grad
    assert with_graph.mean.requires_grad
    torch.testing.assert_close(with_graph.mean, without.mean)
    torch.testing.assert_close(with_graph.covariance, without.covariance)
    assert all(p.grad is None for p in method.parameters())
    assert method.loss(x).isfinite()
    with torch.no_grad():
        assert method.loss(x).isfinite()


def directional(method, direction, loss, size=1e-6):
    """The derivative of a loss along a direction in the model's parameters, by central differences."""
    ends = []
    for sign in (1, -1):
        moved = copy.deepcopy(method)
        with torch.no_grad():
            for p, d in zip(moved.model.parameters(), direction, strict=True):
                p.add_(sign * size * d)
            ends.append(loss(moved).item())
    return (ends[0] - ends[1]) / (2 * size)


def found(method, direction, loss):
    grads = torch.autograd.grad(loss(method), list(method.model.parameters()))
    return sum((g * d).sum().item() for g, d in zip(grads, direction, strict=True))


def test_gradient_of_the_decoder_is_the_total_derivative():
    """Linear and Gaussian: through the likelihood, the mode and the covariance, and nothing else."""
    method, x = vlae(latent_model(linear()), steps=1), images(4)
    torch.manual_seed(4)
    direction = [torch.randn_like(p) for p in method.model.parameters()]

    def loss(method):
        return method.loss(x, generator=torch.Generator().manual_seed(6))

    assert found(method, direction, loss) == pytest.approx(
        directional(method, direction, loss), rel=1e-6
    )


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_the_mode_moves_as_the_decoder_does(likelihood):
    """The implicit function theorem at a converged mode of a decoder that is not linear.

    Gauss-Newton's H stands for the Hessian, so the two agree as far as the residual is small.
    """
    model = latent_model(dense(), likelihood())
    method = vlae(model, steps=25)
    with torch.no_grad():
        x = model.decode(points(4))  # images that the decoder can explain
    direction = [torch.randn_like(p) for p in model.parameters()]

    def loss(method):
        return method.posterior(x).mean.square().sum()

    expected = directional(method, direction, loss)
    assert found(method, direction, loss) == pytest.approx(expected, rel=0.15)


def test_the_encoder_is_trained_on_its_own_elbo():
    """Its gradient is the VAE's, for the same noise, and the decoder gets nothing from it."""
    method, x = vlae(latent_model(conv())), images(4)
    generator = torch.Generator().manual_seed(8)
    method.loss(x, generator=generator).backward()
    mine = [p.grad.clone() for p in method.base_encoder.parameters()]
    method.zero_grad()

    generator.manual_seed(8)
    torch.randn(1, 4, LATENT, generator=generator, dtype=torch.float64)  # the refined sample's noise
    vae = VAE(method.model, method.base_encoder)
    vae.loss(x, generator=generator).backward()
    for a, p in zip(mine, method.base_encoder.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad)


def test_training_on_digits_raises_the_validation_elbo():
    datasets = pytest.importorskip("sklearn.datasets")
    x = torch.tensor(datasets.load_digits().images, dtype=torch.float32)[:, None] / 16
    train, held_out = x[:800], x[1200:1400]
    torch.manual_seed(0)
    decoder, encoder = (
        make_decoder("conv", SHAPE, 4, hidden=32),
        make_encoder("conv", SHAPE, 4, hidden=32),
    )
    likelihood = GaussianLikelihood(float(train.var()))
    model = LatentModel(decoder, likelihood, latent=4, shape=SHAPE, centre=train.mean(0))
    method = VLAE(model, encoder, steps=2)

    @torch.no_grad()
    def validation():
        scores = []
        for q in (method.posterior(held_out), VAE(model, encoder).posterior(held_out)):
            z, log_q = q.rsample_and_log_prob(10, generator=torch.Generator().manual_seed(1))
            scores.append((model.log_joint(held_out, z) - log_q).mean().item())
        return scores

    optimizers, generator = method.optimizers(3e-3, variance_rate=5.0), torch.Generator().manual_seed(2)
    scores = [validation()]
    for _epoch in range(3):
        for batch in train.split(100):
            method.step(batch, optimizers, generator=generator)
        scores.append(validation())
    refined, encoders = (torch.tensor(column) for column in zip(*scores, strict=True))
    assert (refined.diff() > 0).all(), refined
    assert encoders[-1] > encoders[0], encoders
    assert (refined >= encoders).all()


def test_as_a_component_of_a_mixture():
    """It can be mixed; its encoder stays as it was, for the mode does not depend on it."""
    model = latent_model(conv(), dtype=torch.float32)
    encoder = make_encoder("dense", SHAPE, LATENT, hidden=16)
    mixture = RecursiveMixture(model, encoder, order=2, component="laplace", component_setting=1)
    before = copy.deepcopy(mixture.components[1].encoder.state_dict())
    metrics = mixture.step(images(4, torch.float32), mixture.optimizers(1e-3))
    assert all(value.isfinite() for value in metrics.values())
    after = mixture.components[1].encoder.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before)


def test_component_is_registered():
    model = latent_model(linear())
    made = make_component("laplace", make_encoder("dense", SHAPE, LATENT, hidden=16), model, 4)
    assert isinstance(made, LaplaceComponent)
    assert made.steps == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "at least 1"),
        ({"damping": 0.0}, "positive"),
        ({"damping": float("nan")}, "positive"),
    ],
)
def test_options_out_of_range_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        vlae(latent_model(linear()), **options)


def test_batch_normalisation_is_refused_with_advice():
    decoder = nn.Sequential(nn.Linear(LATENT, 64), nn.BatchNorm1d(64), nn.Unflatten(1, SHAPE))
    with pytest.raises(ConfigError, match="GroupNorm"):
        vlae(latent_model(decoder))
