"""The Gaussian of low rank equals the multivariate normal with the same dense covariance."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Independent, MultivariateNormal, Normal, kl_divergence
from torch.utils._python_dispatch import TorchDispatchMode

from recmix.posteriors import FullGaussian, Gaussian, LowRankGaussian, Mixture


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def low_rank(batch=4, latent=6, rank=2, seed=0, size=0.4):
    return LowRankGaussian(
        normal(batch, latent, seed=seed),
        0.5 * normal(batch, latent, seed=seed + 1) - 0.5,
        size * normal(batch, latent, rank, seed=seed + 2),
        size * normal(batch, latent, rank, seed=seed + 3),
    )


def factor(q):
    """The dense matrix L."""
    identity = torch.eye(q.mean.shape[-1], dtype=q.mean.dtype)
    return q.log_scale.exp()[..., None] * (identity + q.left @ q.right.mT)


def dense(q):
    """The same density with the dense covariance."""
    return MultivariateNormal(q.mean, factor(q) @ factor(q).mT)


def standard(latent):
    zero = torch.zeros(latent, dtype=torch.float64)
    return MultivariateNormal(zero, torch.eye(latent, dtype=torch.float64))


@settings(deadline=None, max_examples=30, derandomize=True)
@given(st.integers(1, 7), st.integers(1, 9), st.integers(0, 1000), st.sampled_from([0.0, 0.1, 1.0]))
def test_equals_the_multivariate_normal(latent, rank, seed, size):
    q = low_rank(3, latent, rank, seed, size)
    known, z = dense(q), normal(5, 3, latent, seed=seed + 9)
    close = {"rtol": 1e-6, "atol": 1e-6}
    torch.testing.assert_close(q.log_prob(z), known.log_prob(z), **close)
    torch.testing.assert_close(q.entropy(), known.entropy(), **close)
    torch.testing.assert_close(q.variance, known.variance)
    torch.testing.assert_close(q.stddev, known.stddev)
    kl = kl_divergence(known, standard(latent))
    torch.testing.assert_close(q.kl_to_prior(z, z), kl[None], **close)
    plain = Independent(Normal(torch.zeros(latent, dtype=torch.float64), 1.0), 1)
    torch.testing.assert_close(kl_divergence(q, plain), kl, **close)
    assert torch.equal(q.mode, q.mean)


def test_products_with_the_factor():
    q, v = low_rank(), normal(2, 5, 4, 6, seed=9)
    torch.testing.assert_close(q.multiply(v), (factor(q) @ v[..., None])[..., 0])
    torch.testing.assert_close(q.multiply_transposed(v), (factor(q).mT @ v[..., None])[..., 0])
    torch.testing.assert_close(q.whiten(q.mean + q.multiply(v)), v)


@pytest.mark.parametrize("batch", [4, 1])
def test_samples_from_noise(batch):
    q, noise = low_rank(), normal(5, batch, 6, seed=9)
    z, log_q = q.from_noise(noise)
    wide = noise.expand(5, 4, 6)
    torch.testing.assert_close(z, q.mean + (factor(q) @ wide[..., None])[..., 0])
    torch.testing.assert_close(log_q, dense(q).log_prob(z))


def test_samples_come_from_the_generator():
    q = low_rank()
    z, log_q = q.rsample_and_log_prob(5, generator=seeded(3))
    expected, density = q.from_noise(normal(5, 4, 6, seed=3))
    assert torch.equal(z, expected)
    assert torch.equal(log_q, density)
    assert q.sample((2, 3)).shape == (2, 3, 4, 6)


def test_rank_zero_is_the_diagonal_gaussian():
    q = low_rank(size=0.0)
    diagonal, z = Gaussian(q.mean, 2 * q.log_scale), normal(3, 4, 6, seed=9)
    torch.testing.assert_close(q.log_prob(z), diagonal.log_prob(z))
    torch.testing.assert_close(q.variance, diagonal.variance)
    torch.testing.assert_close(q.kl_to_prior(z, z), diagonal.kl_to_prior(z, z))


def test_gradients_equal_finite_differences():
    q = low_rank(2, 3, 2)
    tensors = [t.requires_grad_() for t in (q.mean, q.log_scale, q.left, q.right)]
    noise, value = normal(2, 2, 3, seed=9), normal(2, 2, 3, seed=10)

    def outputs(*tensors):
        q = LowRankGaussian(*tensors)
        z, log_q = q.from_noise(noise)
        return z, log_q, q.log_prob(value), q.kl_to_prior(z, log_q), q.entropy(), q.variance

    torch.autograd.gradcheck(outputs, tensors)


FACTORS = [1.0, 0.6, 1.7, 30.0, torch.tensor([3.0, 0.5, 1.0, 1.2], dtype=torch.float64)]


@pytest.mark.parametrize("f", FACTORS, ids=["same", "less", "more", "far", "each"])
@pytest.mark.parametrize(("rank", "size"), [(1, 0.4), (2, 0.4), (5, 0.4), (2, 0.0)])
def test_scaling_divides_the_precision_beyond_the_prior(f, rank, size):
    q = low_rank(rank=rank, size=size)
    scaled, full = q.scaled(f), FullGaussian(q.mean, dense(q).scale_tril).scaled(f)
    z = normal(5, 4, 6, seed=9)
    assert q.can_scale
    torch.testing.assert_close(scaled.mean, q.mean)
    torch.testing.assert_close(dense(scaled).covariance_matrix, full.covariance_matrix)
    torch.testing.assert_close(scaled.log_prob(z), full.log_prob(z))


def test_scaling_makes_no_direction_wider_than_the_prior():
    q = low_rank().scaled(0.2)
    assert (torch.linalg.eigvalsh(dense(q).covariance_matrix) < 1).all()
    wide = q.scaled(50.0)
    assert (torch.linalg.eigvalsh(dense(wide).covariance_matrix) < 1).all()
    assert (wide.variance > q.variance).all()


def test_narrow_dimension_does_not_disturb_others_in_float32():
    sharp = Gaussian(torch.zeros(2, 2), torch.tensor([[1e-4, 1.0], [1e-3, 0.5]]).log() * 2)
    zero = torch.zeros(2, 2, 1)
    found = LowRankGaussian(sharp.mean, 0.5 * sharp.log_variance, zero, zero).scaled(2.0)
    assert found.variance.dtype == torch.float32
    torch.testing.assert_close(found.stddev, sharp.scaled(2.0).stddev, rtol=1e-4, atol=0)


def test_split_divides_the_batch():
    q, z = low_rank(6), normal(5, 6, 6, seed=9)
    parts = q.split(3)
    assert [part.batch_shape for part in parts] == [(2,)] * 3
    densities = [part.log_prob(some) for part, some in zip(parts, z.split(2, 1), strict=True)]
    torch.testing.assert_close(torch.cat(densities, 1), q.log_prob(z))


def test_expand_repeats_the_density():
    q = low_rank()
    wide = q.expand((2, 4))
    assert (wide.batch_shape, wide.event_shape) == ((2, 4), (6,))
    z, log_q = wide.rsample_and_log_prob(5, generator=seeded())
    assert z.shape == (5, 2, 4, 6)
    torch.testing.assert_close(log_q, torch.stack([q.log_prob(z[:, i]) for i in range(2)], 1))
    torch.testing.assert_close(wide.log_prob(z), log_q)
    torch.testing.assert_close(wide.variance, q.variance.expand(2, 4, 6))
    torch.testing.assert_close(wide.entropy(), q.entropy().expand(2, 4))


def test_copy_has_its_own_tensors():
    q, z = low_rank(), normal(3, 4, 6, seed=9)
    before, copied = q.log_prob(z), q.copy()
    for tensor in q.describe().values():
        tensor.add_(1)
    assert type(copied) is LowRankGaussian
    assert torch.equal(copied.log_prob(z), before)


def test_described_tensors_define_the_density():
    q, z = low_rank(), normal(3, 4, 6, seed=9)
    described = q.describe()
    assert list(described) == ["means", "log_scales", "left", "right"]
    assert torch.equal(LowRankGaussian(*described.values()).log_prob(z), q.log_prob(z))


@pytest.mark.parametrize("other", [low_rank(rank=1, seed=20), Gaussian(normal(4, 6), normal(4, 6))])
def test_parts_of_another_gaussian_define_the_same_density(other):
    q, z = low_rank(rank=3), normal(3, 4, 6, seed=9)
    parts = q.parts_of(other)
    assert [part.shape for part in parts] == [t.shape for t in q.describe().values()]
    torch.testing.assert_close(q.from_parts(*parts).log_prob(z), other.log_prob(z))


def test_components_of_a_mixture():
    parts = [low_rank(seed=0), low_rank(seed=10)]
    log_weights = normal(4, 2, seed=5).log_softmax(-1)
    q, z = Mixture(parts, log_weights), normal(3, 4, 6, seed=9)
    known = torch.stack([dense(p).log_prob(z) + log_weights[:, k] for k, p in enumerate(parts)])
    torch.testing.assert_close(q.log_prob(z), known.logsumexp(0))
    assert q.describe()["left"].shape == (4, 2, 6, 2)


class Largest(TorchDispatchMode):
    """Records the size of the largest tensor that an operation makes."""

    def __init__(self):
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for part in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(part, torch.Tensor):
                self.size = max(self.size, part.numel())
        return made


def test_no_square_matrix_is_made():
    batch, latent, rank, samples = 2, 500, 3, 2
    q, largest = low_rank(batch, latent, rank, size=0.02), Largest()
    with largest:
        z, log_q = q.rsample_and_log_prob(samples)
        q.log_prob(z)
        q.kl_to_prior(z, log_q)
        q.entropy()
        q.multiply_transposed(z)
        assert q.scaled(2.0).variance.isfinite().all()
    assert largest.size <= batch * latent * max(2 * rank, samples)
