"""The full Gaussian: its two forms, its gradients, and Cholesky factors of difficult matrices."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import MultivariateNormal

from recmix.posteriors import FullGaussian, Gaussian
from recmix.posteriors.full import cholesky

both_forms = pytest.mark.parametrize("inverted", [False, True], ids=["scale", "precision"])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def covariance(batch, latent, seed=0, dtype=torch.float64):
    root = torch.randn(batch, latent, latent, generator=seeded(seed), dtype=dtype)
    return root @ root.mT / latent + 0.3 * torch.eye(latent, dtype=dtype)


def gaussian(batch=5, latent=3, seed=0, *, inverted=False):
    """The posterior, its mean and its covariance."""
    mean = torch.randn(batch, latent, generator=seeded(seed), dtype=torch.float64)
    spread = covariance(batch, latent, seed)
    if inverted:
        return FullGaussian.from_precision(mean, torch.linalg.inv(spread)), mean, spread
    return FullGaussian(mean, torch.linalg.cholesky(spread)), mean, spread


@both_forms
def test_density_is_the_multivariate_normal(inverted):
    q, mean, spread = gaussian(inverted=inverted)
    z = torch.randn(7, 5, 3, generator=seeded(1), dtype=torch.float64)
    known = MultivariateNormal(mean, covariance_matrix=spread)
    torch.testing.assert_close(q.log_prob(z), known.log_prob(z))
    torch.testing.assert_close(q.covariance_matrix, spread)
    torch.testing.assert_close(q.variance, known.variance)
    assert torch.equal(q.mode, mean)
    whitened = torch.linalg.solve_triangular(q.scale_tril, (z - mean)[..., None], upper=False)
    torch.testing.assert_close(q.whiten(z), whitened.squeeze(-1))


@both_forms
@pytest.mark.parametrize("shape", [(5, 3), (7, 5, 3), (2, 7, 5, 3)])
def test_products_with_the_factor_and_its_inverse(inverted, shape):
    q, mean, spread = gaussian(inverted=inverted)
    lower = torch.linalg.cholesky(spread)
    v = torch.randn(shape, generator=seeded(1), dtype=torch.float64)
    torch.testing.assert_close(q.multiply(v), (lower @ v[..., None]).squeeze(-1))
    torch.testing.assert_close(q.multiply_transposed(v), (lower.mT @ v[..., None]).squeeze(-1))
    torch.testing.assert_close(q.whiten(mean + q.multiply(v)), v)
    torch.testing.assert_close(q.precision_factor, torch.linalg.inv(lower))


@both_forms
def test_samples_have_the_mean_and_covariance(inverted):
    q, mean, spread = gaussian(batch=2, inverted=inverted)
    z, _ = q.rsample_and_log_prob(40_000, generator=seeded(2))
    limit = 5 * (spread.diagonal(dim1=-2, dim2=-1) / 40_000).sqrt()
    assert ((z.mean(0) - mean).abs() < limit).all()
    seen = torch.einsum("sbi,sbj->bij", z - mean, z - mean) / 40_000
    torch.testing.assert_close(seen, spread, rtol=0, atol=0.05)


def test_both_forms_give_the_same_samples():
    (a, _, _), (b, _, _) = gaussian(), gaussian(inverted=True)
    z_a, z_b = (q.rsample_and_log_prob(4, generator=seeded(3))[0] for q in (a, b))
    torch.testing.assert_close(z_a, z_b)
    torch.testing.assert_close(a.scale_tril, b.scale_tril)


@both_forms
def test_split_divides_the_batch(inverted):
    q, mean, spread = gaussian(batch=6, inverted=inverted)
    parts = q.split(3)
    assert [part.batch_shape for part in parts] == [(2,)] * 3
    torch.testing.assert_close(torch.cat([part.mean for part in parts]), mean)
    torch.testing.assert_close(torch.cat([part.covariance_matrix for part in parts]), spread)


def test_diagonal_scale_equals_the_diagonal_gaussian():
    mean, log_variance = torch.randn(2, 4, 3, generator=seeded(), dtype=torch.float64)
    diagonal = Gaussian(mean, log_variance)
    full = FullGaussian(mean, torch.diag_embed(diagonal.stddev))
    z = torch.randn(5, 4, 3, generator=seeded(1), dtype=torch.float64)
    torch.testing.assert_close(full.log_prob(z), diagonal.log_prob(z))
    torch.testing.assert_close(full.kl_to_prior(z, z), diagonal.kl_to_prior(z, z))
    torch.testing.assert_close(full.entropy(), diagonal.entropy())


@both_forms
def test_gradients_equal_finite_differences(inverted):
    _, mean, spread = gaussian(batch=2)
    matrix = torch.linalg.inv(spread) if inverted else torch.linalg.cholesky(spread)

    def outputs(mean, matrix):
        # Only the lower triangle is used: a symmetric precision is rebuilt from it.
        if inverted:
            q = FullGaussian.from_precision(mean, matrix.tril() + matrix.tril(-1).mT)
        else:
            q = FullGaussian(mean, matrix.tril())
        z, log_q = q.rsample_and_log_prob(2, generator=seeded())
        return z, log_q, q.kl_to_prior(z, log_q), q.entropy(), q.variance

    torch.autograd.gradcheck(outputs, (mean.requires_grad_(), matrix.requires_grad_()))


@settings(deadline=None, max_examples=25, derandomize=True)
@given(st.integers(1, 8), st.integers(0, 5), st.integers(0, 1000))
def test_cholesky_of_ill_conditioned_precisions_is_finite_in_float32(latent, power, seed):
    """Condition numbers up to 1e10: rounded to float32 most are not positive definite."""
    generator = seeded(seed)
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
