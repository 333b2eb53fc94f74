"""The variational Laplace autoencoder: exact for linear models, and what its gradients are."""

import copy

import pytest
import torch
from torch import nn

from recmix.errors import ConfigError
from recmix.methods.laplace import VLAE, LaplaceComponent
from recmix.methods.recursive import RecursiveMixture
from recmix.methods.vae import VAE
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Bernoulli
from recmix.model.likelihoods import Gaussian as GaussianLikelihood
from recmix.model.networks import make_decoder, make_encoder

SHAPE = (1, 8, 8)
LATENT = 3
LIKELIHOODS = [lambda: GaussianLikelihood(0.1), Bernoulli]


def latent_model(decoder, likelihood=None, dtype=torch.float64):
    centre = torch.rand(SHAPE, generator=torch.Generator().manual_seed(5))
    likelihood = likelihood or GaussianLikelihood(0.1)
    return LatentModel(decoder, likelihood, latent=LATENT, shape=SHAPE, centre=centre).to(dtype)


def dense():
    torch.manual_seed(0)
    layers = [nn.Linear(LATENT, 16), nn.Tanh(), nn.Linear(16, 64), nn.Unflatten(1, SHAPE)]
    return nn.Sequential(*layers)


def linear():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(LATENT, 64), nn.Unflatten(1, SHAPE))


def conv():
    torch.manual_seed(0)
    return make_decoder("conv", SHAPE, LATENT, hidden=16)


def images(count=5, dtype=torch.float64):
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(0), dtype=dtype)


def vlae(model, **options):
    torch.manual_seed(3)
    encoder = make_encoder("dense", SHAPE, model.latent, hidden=16)
    return VLAE(model, encoder, **options).to(model.centre.dtype)


def test_one_step_on_a_linear_gaussian_model_is_exact():
    """The posterior is the true one, and its ELBO is log p(x) for every sample."""
    model, x = latent_model(linear()), images()
    method = vlae(model, steps=1)
    weight, bias = model.decoder[0].weight, model.decoder[0].bias
    noise = model.likelihood.variance
    flat = model.observed(x).flatten(1) - bias
    precision = weight.T @ weight / noise + torch.eye(LATENT).double()
    mean = torch.linalg.solve(precision, weight.T @ flat.T / noise).T
    marginal = torch.distributions.MultivariateNormal(
        bias, weight @ weight.T + noise * torch.eye(64).double()
    )

    q = method.posterior(x)
    torch.testing.assert_close(q.mean, mean)
    expected = torch.linalg.inv(precision).expand(5, LATENT, LATENT)
    torch.testing.assert_close(q.covariance_matrix, expected)
    z, log_q = q.rsample_and_log_prob(3)
    log_p = marginal.log_prob(model.observed(x).flatten(1)).expand(3, 5)
    torch.testing.assert_close(model.log_joint(x, z) - log_q, log_p)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=["gaussian", "bernoulli"])
def test_bfloat16_examples_and_any_dtype(likelihood, dtype):
    method = vlae(latent_model(conv(), likelihood(), dtype))
    x = images(4, torch.float32).bfloat16()
    assert method.posterior(x).mean.dtype == dtype
    assert method.loss(x).isfinite()
    with torch.no_grad():
        assert method.loss(x).isfinite()


def numeric_derivative(method, direction, loss, size=1e-6):
    """The derivative of a loss along a direction in the model's parameters, by central differences."""
    ends = []
    for sign in (1, -1):
        moved = copy.deepcopy(method)
        with torch.no_grad():
            for p, d in zip(moved.model.parameters(), direction, strict=True):
                p.add_(sign * size * d)
            ends.append(loss(moved).item())
    return (ends[0] - ends[1]) / (2 * size)


def derivative(method, direction, loss):
    grads = torch.autograd.grad(loss(method), list(method.model.parameters()))
    return sum((g * d).sum().item() for g, d in zip(grads, direction, strict=True))


def test_decoder_gradient_is_the_total_derivative_for_a_linear_model():
    """Through the likelihood, the mode and the covariance."""
    method, x = vlae(latent_model(linear()), steps=1), images(4)
    torch.manual_seed(4)
    direction = [torch.randn_like(p) for p in method.model.parameters()]

    def loss(method):
        return method.loss(x, generator=torch.Generator().manual_seed(6))

    expected = numeric_derivative(method, direction, loss)
    assert derivative(method, direction, loss) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=["gaussian", "bernoulli"])
def test_mode_moves_with_the_decoder(likelihood):
    """The implicit function theorem at a mode of a nonlinear decoder.

    The Gauss-Newton H replaces the Hessian, so the two agree as far as the residual is small.
    """
    model = latent_model(dense(), likelihood())
    method = vlae(model, steps=25)
    torch.manual_seed(1)
    with torch.no_grad():
        x = model.decode(torch.randn(4, LATENT).double())  # examples that the decoder can explain
    direction = [torch.randn_like(p) for p in model.parameters()]

    def loss(method):
        return method.posterior(x).mean.square().sum()

    expected = numeric_derivative(method, direction, loss)
    assert derivative(method, direction, loss) == pytest.approx(expected, rel=0.15)


def test_encoder_is_trained_on_its_own_elbo():
    """Its gradient is the VAE's for the same noise, and the decoder receives nothing from it."""
    method, x = vlae(latent_model(conv())), images(4)
    generator = torch.Generator().manual_seed(8)
    method.loss(x, generator=generator).backward()
    mine = [p.grad.clone() for p in method.base_encoder.parameters()]
    decoder = [p.grad.clone() for p in method.model.parameters()]
    method.zero_grad()

    generator.manual_seed(8)
    torch.randn(1, 4, LATENT, generator=generator, dtype=torch.float64)  # the refined sample's noise
    VAE(method.model, method.base_encoder).loss(x, generator=generator).backward()
    for a, p in zip(mine, method.base_encoder.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad)

    method.zero_grad()
    generator.manual_seed(8)
    method.base_encoder.requires_grad_(False)
    method.loss(x, generator=generator).backward()
    for a, p in zip(decoder, method.model.parameters(), strict=True):
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


def test_encoder_does_not_change_as_component_of_a_mixture():
    """The mode does not depend on the encoder, so the encoder receives no gradient."""
    model = latent_model(conv())
    encoder = make_encoder("dense", SHAPE, LATENT, hidden=16)
    mixture = RecursiveMixture(model, encoder, order=2, component="laplace", component_setting=1)
    mixture = mixture.double()
    before = copy.deepcopy(mixture.components[1].encoder.state_dict())
    metrics = mixture.step(images(4), mixture.optimizers(1e-3))
    assert all(value.isfinite() for value in metrics.values())
    after = mixture.components[1].encoder.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before)
    assert all(isinstance(part, LaplaceComponent) and part.steps == 1 for part in mixture.components)


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


def test_batch_normalisation_in_training_mode_is_refused():
    decoder = nn.Sequential(nn.Linear(LATENT, 64), nn.BatchNorm1d(64), nn.Unflatten(1, SHAPE))
    model = latent_model(decoder)
    with pytest.raises(ConfigError, match=r"Call model\.eval\(\).*GroupNorm"):
        vlae(model)
    model.eval()
    method = vlae(model)
    assert method.posterior(images()).mean.isfinite().all()
    method.train()
    with pytest.raises(ConfigError, match=r"Call model\.eval\(\).*GroupNorm"):
        method.posterior(images())
