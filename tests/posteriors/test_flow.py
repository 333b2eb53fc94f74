"""Householder reflections: orthogonal at any length, and a full covariance of known form."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import MultivariateNormal

from recmix.errors import ConfigError
from recmix.posteriors import Gaussian, Reflected
from recmix.posteriors.flow import Reflections, check_flows, unit

S, B, D = 3, 5, 4


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def matrices(q):
    """The orthogonal matrix H of each example, (B, D, D)."""
    batch, latent = q.base.mean.shape
    axes = torch.eye(latent, dtype=q.base.mean.dtype)[:, None].expand(latent, batch, latent)
    return q.forward(axes)[0].permute(1, 2, 0)


def reflected(count):
    mean, log_variance = torch.randn(2, B, D, generator=seeded(1), dtype=torch.float64)
    vectors = torch.randn(count, B, D, generator=seeded(2), dtype=torch.float64)
    return Reflected(Gaussian(mean, log_variance), Reflections([unit(v) for v in vectors]))


@pytest.mark.parametrize("count", [1, 2, 8])
def test_density_is_that_of_the_explicit_covariance(count):
    q = reflected(count)
    h = matrices(q)
    covariance = h @ torch.diag_embed(q.base.variance) @ h.mT
    explicit = MultivariateNormal((h @ q.base.mean[..., None]).squeeze(-1), covariance)
    z, log_q = q.rsample_and_log_prob(S, generator=seeded(3))
    torch.testing.assert_close(log_q, explicit.log_prob(z), rtol=0, atol=1e-9)
    torch.testing.assert_close(q.mean, explicit.mean)
    torch.testing.assert_close(q.scale_tril @ q.scale_tril.mT, covariance)
    assert torch.equal(q.scale_tril, q.scale_tril.tril())
    assert (q.scale_tril.diagonal(dim1=-2, dim2=-1) > 0).all()
    off = covariance[:, ~torch.eye(D, dtype=torch.bool)]
    assert off.abs().max() > 0.1


@settings(max_examples=40, deadline=None, derandomize=True)
@given(exponent=st.integers(-37, 37), seed=st.integers(0, 1000), latent=st.integers(2, 50))
def test_reflections_are_orthogonal_at_any_length(exponent, seed, latent):
    v = torch.randn(3, latent, generator=seeded(seed)) * 10.0**exponent
    u = unit(v)
    torch.testing.assert_close(u.double().norm(dim=-1), torch.ones(3).double(), rtol=0, atol=3e-7)
    base = Gaussian(torch.zeros(3, latent), torch.zeros(3, latent))
    h = matrices(Reflected(base, Reflections([u])))
    torch.testing.assert_close(h @ h.mT, torch.eye(latent).expand_as(h), rtol=0, atol=1e-6)


def test_zero_vector_reflects_nothing():
    v = torch.zeros(3, D, requires_grad=True)
    z = torch.randn(S, 3, D, generator=seeded(1))
    image, _ = Reflections([unit(v)]).forward(z)
    assert torch.equal(image, z)
    (slope,) = torch.autograd.grad(image.sum(), [v])
    assert slope.isfinite().all()


def test_bad_numbers_of_flows_and_dimensions_are_refused():
    check_flows("hf", 1, 2)
    with pytest.raises(ConfigError, match=r"flows=0: expected 1 or more"):
        check_flows("hf", 0, 2)
    with pytest.raises(ConfigError, match="latent=1: expected a latent dimension of 2 or more"):
        check_flows("hf", 1, 1)
