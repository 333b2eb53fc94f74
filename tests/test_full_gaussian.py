"""The full Gaussian: its density, its two parametrisations, and the encoder that gives it."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from recmix.methods.full_gaussian import FullComponent, FullGaussianVAE
from recmix.methods.registry import make_component
from recmix.methods.vae import VAE
from recmix.model.latent import LatentModel, standard_normal
from recmix.model.likelihoods import Bernoulli
from recmix.model.networks import make_decoder, make_encoder, reset
from recmix.posteriors.full import FullGaussian, cholesky
from recmix.posteriors.gaussian import Gaussian

SHAPE = (1, 8, 8)


def covariance(batch, latent, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(batch, latent, latent, generator=generator, dtype=dtype)
    return root @ root.mT / latent + 0.3 * torch.eye(latent, dtype=dtype)


def gaussian(batch=5, latent=3, seed=0, *, inverted=False):
    mean = torch.randn(batch, latent, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    spread = covariance(batch, latent, seed)
    if inverted:
        return FullGaussian.from_precision(mean, torch.linalg.inv(spread)), mean, spread
    return FullGaussian(mean, torch.linalg.cholesky(spread)), mean, spread


def latent_model(latent=4, dtype=torch.float32):
    torch.manual_seed(0)
    decoder = make_decoder("dense", SHAPE, latent, hidden=16)
    return LatentModel(decoder, Bernoulli(), latent=latent, shape=SHAPE).to(dtype)


@pytest.mark.parametrize("inverted", [False, True])
def test_density_is_the_multivariate_normal(inverted):
    q, mean, spread = gaussian(inverted=inverted)
    torch.manual_seed(1)
    z = torch.randn(7, 5, 3, dtype=torch.float64)
    known = torch.distributions.MultivariateNormal(mean, covariance_matrix=spread)
    torch.testing.assert_close(q.log_prob(z), known.log_prob(z))
    torch.testing.assert_close(q.covariance, spread)
    torch.testing.assert_close(q.as_distribution().log_prob(z), known.log_prob(z))
    assert q.as_distribution().event_shape == (3,)


@pytest.mark.parametrize("inverted", [False, True])
def test_samples_carry_their_own_density(inverted):
    q, _, _ = gaussian(inverted=inverted)
    z, log_q = q.rsample_and_log_prob(6, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(log_q, q.log_prob(z))


def test_samples_have_the_mean_and_covariance():
    q, mean, spread = gaussian(batch=2)
    z, _ = q.rsample_and_log_prob(40_000, generator=torch.Generator().manual_seed(2))
    error = z.mean(0) - mean
    limit = 5 * (spread.diagonal(dim1=-2, dim2=-1) / 40_000).sqrt()
    assert (error.abs() < limit).all()
    seen = torch.einsum("sbi,sbj->bij", z - mean, z - mean) / 40_000
    torch.testing.assert_close(seen, spread, rtol=0, atol=0.05)


def test_precision_and_scale_give_the_same_samples():
    (a, _, _), (b, _, _) = gaussian(), gaussian(inverted=True)
    z_a, _ = a.rsample_and_log_prob(4, generator=torch.Generator().manual_seed(3))
    z_b, _ = b.rsample_and_log_prob(4, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(z_a, z_b)
    torch.testing.assert_close(a.scale_tril, b.scale_tril)


@pytest.mark.parametrize("inverted", [False, True])
def test_kl_to_prior_is_exact(inverted):
    q, mean, spread = gaussian(inverted=inverted)
    prior = torch.distributions.MultivariateNormal(torch.zeros_like(mean), torch.eye(3).double())
    known = torch.distributions.kl_divergence(
        torch.distributions.MultivariateNormal(mean, covariance_matrix=spread), prior
    )
    z, log_q = q.rsample_and_log_prob(50_000, generator=torch.Generator().manual_seed(4))
    kl = q.kl_to_prior(z, log_q)
    assert kl.shape == (1, 5)
    torch.testing.assert_close(kl[0], known)
    estimates = log_q - standard_normal(z)
    error = estimates.std(0) / math.sqrt(len(z))
    assert ((estimates.mean(0) - known).abs() < 5 * error).all()


def test_diagonal_scale_equals_the_diagonal_gaussian():
    torch.manual_seed(0)
    mean, log_variance = torch.randn(2, 4, 3, dtype=torch.float64)
    diagonal = Gaussian(mean, log_variance)
    full = FullGaussian(mean, torch.diag_embed(diagonal.stddev))
    z = torch.randn(5, 4, 3, dtype=torch.float64)
    torch.testing.assert_close(full.log_prob(z), diagonal.log_prob(z))
    torch.testing.assert_close(full.kl_to_prior(z, z), diagonal.kl_to_prior(z, z))


@pytest.mark.parametrize("inverted", [False, True])
def test_gradients_equal_finite_differences(inverted):
    _, mean, spread = gaussian(batch=2)
    matrix = torch.linalg.inv(spread) if inverted else torch.linalg.cholesky(spread)

    def outputs(mean, matrix):
        # The lower triangle is what counts: a symmetric precision is rebuilt from it.
        if inverted:
            q = FullGaussian.from_precision(mean, matrix.tril() + matrix.tril(-1).mT)
        else:
            q = FullGaussian(mean, matrix.tril())
        z, log_q = q.rsample_and_log_prob(2, generator=torch.Generator().manual_seed(0))
        return z, log_q, q.kl_to_prior(z, log_q)

    torch.autograd.gradcheck(outputs, (mean.requires_grad_(), matrix.requires_grad_()))


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 8), st.integers(0, 5), st.integers(0, 1000))
def test_cholesky_of_ill_conditioned_precisions_is_finite_in_float32(latent, power, seed):
    """Condition numbers up to 1e10: rounded to float32 most are not positive definite."""
    generator = torch.Generator().manual_seed(seed)
    slope = torch.randn(3, 2, latent, generator=generator) * 10.0**power
    precision = slope.mT @ slope + torch.eye(latent)
    factor = cholesky(precision)
    assert factor.isfinite().all()
    assert (factor.diagonal(dim1=-2, dim2=-1) > 0).all()
    q = FullGaussian.from_precision(torch.zeros(3, latent), precision)
    z, log_q = q.rsample_and_log_prob(2, generator=generator)
    assert z.isfinite().all()
    assert log_q.isfinite().all()


def test_cholesky_replaces_an_indefinite_matrix_by_its_diagonal_with_finite_gradient():
    matrix = torch.tensor([[[1.0, 2.0], [2.0, 1.0]], [[4.0, 0.0], [0.0, 9.0]]], requires_grad=True)
    factor = cholesky(matrix)
    torch.testing.assert_close(factor[0], torch.eye(2), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(factor[1], torch.diag(torch.tensor([2.0, 3.0])), rtol=1e-4, atol=1e-6)
    factor.sum().backward()
    assert matrix.grad.isfinite().all()


def test_component_starts_at_the_encoder():
    model = latent_model()
    encoder = make_encoder("dense", SHAPE, 4, hidden=16)
    component = FullComponent(encoder, model)
    x = torch.rand(3, *SHAPE)
    base, q = Gaussian.from_parameters(encoder(x)), component(x, model)
    torch.testing.assert_close(q.mean, base.mean, rtol=0, atol=0)
    torch.testing.assert_close(q.scale_tril, torch.diag_embed(base.stddev), rtol=0, atol=0)


def test_component_learns_what_stands_below_the_diagonal():
    model = latent_model()
    component = FullComponent(make_encoder("dense", SHAPE, 4, hidden=16), model)
    x = torch.rand(3, *SHAPE)
    z, log_q = component(x, model).rsample_and_log_prob(1)
    (model.log_joint(x, z) - log_q).sum().backward()
    assert component.below.weight.grad.abs().sum() > 0
    nn.init.normal_(component.below.weight, std=0.1)
    scale = component(x, model).scale_tril
    assert torch.equal(scale, scale.tril())
    assert (scale.diagonal(dim1=-2, dim2=-1) > 0).all()
    assert (scale.tril(-1).abs().sum((1, 2)) > 0).all()
    reset(component)  # drawing anew brings the diagonal Gaussian back
    assert component(x, model).scale_tril.tril(-1).abs().sum() == 0


def test_one_latent_dimension_and_an_encoder_without_features():
    model = latent_model(latent=1)
    x = torch.rand(3, *SHAPE)
    q = FullComponent(make_encoder("dense", SHAPE, 1, hidden=16), model)(x, model)
    assert q.scale_tril.shape == (3, 1, 1)
    own = nn.Sequential(nn.Flatten(), nn.Linear(64, 8))
    q = FullComponent(own, latent_model())(x, model)
    assert q.scale_tril.shape == (3, 4, 4)


def test_component_is_registered_and_takes_bfloat16_images():
    model = latent_model()
    component = make_component("full", make_encoder("dense", SHAPE, 4, hidden=16), model)
    x = torch.rand(3, *SHAPE).bfloat16()
    assert component(x, model).mean.dtype == torch.float32


def test_method_starts_from_a_vae_and_improves_on_it():
    model = latent_model()
    vae = VAE(model, make_encoder("dense", SHAPE, 4, hidden=16))
    method = FullGaussianVAE(latent_model(), make_encoder("dense", SHAPE, 4, hidden=16))
    method.start_from(vae)
    x = torch.bernoulli(torch.full((16, *SHAPE), 0.3))
    torch.testing.assert_close(method.posterior(x).mean, vae.posterior(x).mean)
    optimizers = method.optimizers(1e-2)
    generator = torch.Generator().manual_seed(0)
    losses = [method.step(x, optimizers, generator=generator)["loss"].item() for _ in range(60)]
    assert sum(losses[-10:]) < sum(losses[:10])
