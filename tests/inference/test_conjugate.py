"""Gauss-Newton steps without matrices: exact where theory says so; log p(x, z) never falls."""

import math

import pytest
import torch
from cases.likelihoods import CASES
from cases.oracle import LinearGaussian
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributions import Independent, MultivariateNormal, Normal
from torch.utils._python_dispatch import TorchDispatchMode

from recmix.errors import ConfigError
from recmix.inference.conjugate import PROBES, SMALL, _probes, conjugate
from recmix.inference.gauss_newton import ascend, normal_equations
from recmix.inference.refinement import refine
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Bernoulli
from recmix.model.likelihoods import Gaussian as GaussianLikelihood
from recmix.model.priors import GaussianMixturePrior, OwnPrior
from recmix.posteriors import Gaussian, Mixture

SHAPE, LATENT = (1, 8, 8), 3


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def images(count=5, seed=0, shape=SHAPE):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, *shape, generator=generator, dtype=torch.float64)


def dense(seed=0, scale=1.0, latent=LATENT):
    torch.manual_seed(seed)
    layers = [nn.Linear(latent, 16), nn.Tanh(), nn.Linear(16, 64), nn.Unflatten(1, SHAPE)]
    with torch.no_grad():
        layers[0].weight.mul_(scale)
        layers[2].weight.mul_(scale)
    return nn.Sequential(*layers)


def latent_model(decoder, likelihood=None, latent=LATENT, prior=None):
    likelihood = likelihood or GaussianLikelihood(0.1)
    return LatentModel(decoder, likelihood, latent=latent, shape=SHAPE, prior=prior).double()


@pytest.mark.parametrize("latent", [1, 3, 12])
def test_one_step_is_exact_for_the_linear_gaussian_model(latent):
    world = LinearGaussian(latent=latent)
    x = world.images()
    q = conjugate(world.model, x, normal(5, latent), steps=1, iterations=latent + 2)
    exact = world.posterior(x)
    assert type(q) is Gaussian
    torch.testing.assert_close(q.mean, exact.mean, rtol=1e-8, atol=1e-8)
    diagonal = exact.precision_matrix.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(q.variance, 1 / diagonal)  # exact: fewer dimensions than probes


def test_many_dimensions_of_the_linear_gaussian_model():
    """The mode is exact; the diagonal of the precision has the expected error of an estimate."""
    world = LinearGaussian(latent=100, shape=(1, 10, 12))
    x = world.images(3)
    q = conjugate(world.model, x, normal(3, 100), steps=2, iterations=100)
    exact = world.posterior(x)
    torch.testing.assert_close(q.mean, exact.mean, rtol=1e-6, atol=1e-6)
    precision = exact.precision_matrix[0]
    diagonal = precision.diagonal()
    others = (precision.square().sum(-1) - diagonal.square()).sqrt()
    error = (1 / q.variance[0] - diagonal) / (others / PROBES**0.5)
    assert 0.7 < error.square().mean().sqrt() < 1.3
    assert error.mean().abs() < 0.4
    assert (q.variance <= 1).all()


def test_variance_is_exact_for_a_diagonal_curvature():
    world = LinearGaussian(latent=120, shape=(1, 10, 12))
    scale = torch.linspace(0.1, 3, 120, dtype=torch.float64)
    with torch.no_grad():
        world.model.decoder.linear.weight.copy_(scale.diag())
    q = conjugate(world.model, world.images(2), normal(2, 120), steps=0)
    torch.testing.assert_close(q.variance, (1 / (1 + scale**2 / 0.3)).expand(2, 120))


@pytest.mark.parametrize("latent", [1, 3, PROBES, 1000])
def test_probes_are_constant_and_orthogonal(latent):
    state = torch.get_rng_state()
    _probes.cache_clear()
    first = _probes(latent, torch.float64, torch.device("cpu"))
    _probes.cache_clear()
    assert torch.equal(first, _probes(latent, torch.float64, torch.device("cpu")))
    assert torch.equal(torch.get_rng_state(), state)
    assert (first.abs() == 1).all()
    assert first.shape == (PROBES, latent)
    products = first.T @ first / PROBES
    expected = torch.eye(latent, dtype=torch.float64)
    if latent <= PROBES:
        torch.testing.assert_close(products, expected)
    else:
        assert (products - expected).square().mean() < 1.1 / PROBES


@pytest.mark.parametrize("prior", [None, "mixture"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_log_joint_never_falls(name, prior):
    torch.manual_seed(3)
    case = CASES[name]
    model = case.model(prior=None if prior is None else GaussianMixturePrior(2, 3))
    x, start = case.examples(model), 2 * normal(3, 2, seed=4)
    with torch.no_grad():
        first = before = model.log_joint(x, start[None])[0]
        for steps in (1, 2, 4):
            q = conjugate(model, x, start, steps=steps, iterations=2)
            reached = model.log_joint(x, q.mean[None])[0]
            assert (reached >= before - 1e-9 * before.abs()).all()
            before = reached
    assert (before > first).all()
    assert q.variance.isfinite().all()
    assert (q.variance > 0).all()
    if prior is None:
        assert (q.variance <= 1).all()


@settings(deadline=None, max_examples=15, derandomize=True)
@given(st.integers(0, 10_000), st.sampled_from([0.3, 1.0, 4.0]), st.booleans(), st.integers(1, 6))
def test_log_joint_never_falls_for_any_decoder(seed, scale, binary, iterations):
    likelihood = Bernoulli() if binary else GaussianLikelihood(1e-3)
    model = latent_model(dense(seed, scale), likelihood)
    x, start = images(6, seed), 3 * normal(6, LATENT, seed=seed)
    with torch.no_grad():
        before = model.log_joint(x, start[None])[0]
        for steps in (1, 3, 6):
            q = conjugate(model, x, start, steps=steps, iterations=iterations)
            reached = model.log_joint(x, q.mean[None])[0]
            assert (reached >= before - 1e-9 * before.abs()).all()
            before = reached


@pytest.mark.parametrize("likelihood", [GaussianLikelihood(0.1), Bernoulli()], ids=["real", "binary"])
def test_equals_gauss_newton(likelihood):
    model, x, start = latent_model(dense(), likelihood), images(), normal(5, LATENT)
    q = conjugate(model, x, start, steps=15, iterations=LATENT + 2)
    mode, at = ascend(model, x, start, steps=30)
    torch.testing.assert_close(q.mean, mode, rtol=1e-5, atol=1e-5)
    diagonal = at.precision.detach().diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(q.variance, 1 / diagonal, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["categorical", "multinomial", "logistic-mixture", "own"])
def test_variance_uses_the_fisher_information(name):
    """Also where it is not diagonal, and where it is estimated from samples."""
    case = CASES[name]
    model, start = case.model(), normal(3, 2)
    x = case.examples(model)
    diagonal = normal_equations(model, x, start).precision.detach().diagonal(dim1=-2, dim2=-1)
    q = conjugate(model, x, start, steps=0)
    torch.testing.assert_close(q.variance, 1 / diagonal)


def independent(latent):
    scale = torch.linspace(0.5, 2, latent, dtype=torch.float64)
    return Independent(Normal(normal(latent, seed=9), scale), 1)


def correlated(latent):
    root = 0.3 * normal(latent, latent, seed=8) / latent**0.5 + torch.eye(latent, dtype=torch.float64)
    return MultivariateNormal(normal(latent, seed=9), precision_matrix=root @ root.T)


OTHER_PRIORS = [(4, independent, 1e-6), (4, correlated, 1e-6)]
OTHER_PRIORS += [(SMALL + 6, independent, 1e-6), (SMALL + 6, correlated, 0.1)]  # a diagonal curvature


@pytest.mark.parametrize(("latent", "make", "share"), OTHER_PRIORS)
def test_mode_under_another_prior(latent, make, share):
    """The gradient vanishes, slowly if the curvature of the prior is approximated by its diagonal."""
    model = LinearGaussian(latent=latent).model
    model.prior = OwnPrior(make(latent))
    x, start = images(2, shape=(1, 2, 3)), normal(2, latent)
    q = conjugate(model, x, start, steps=6, iterations=latent)
    before, after = (normal_equations(model, x, z).gradient.norm(dim=-1) for z in (start, q.mean))
    assert (after < share * before).all()


@pytest.mark.parametrize("latent", [4, SMALL + 6], ids=["matrix", "diagonal"])
def test_variance_of_an_example_without_information_is_that_of_the_prior(latent):
    model, prior = LinearGaussian(latent=latent).model, independent(latent)
    model.prior = OwnPrior(prior)
    model.decoder.linear.weight.data.zero_()
    q = conjugate(model, images(2, shape=(1, 2, 3)), normal(2, latent), steps=2, iterations=latent)
    torch.testing.assert_close(q.variance, prior.variance.expand(2, latent))
    torch.testing.assert_close(q.mean, prior.mean.expand(2, latent), rtol=1e-4, atol=1e-4)


class OldSine(torch.autograd.Function):
    """A function without a rule for forward-mode differentiation."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x.cos()


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, z):
        return self.function(z)


def test_decoder_without_forward_mode():
    plain, other = dense(), dense()
    plain[1], other[1] = Function(torch.sin), Function(OldSine.apply)
    x, start = images(), normal(5, LATENT)
    with pytest.raises(RuntimeError):
        torch.func.jvp(other.double(), (start,), (start,))
    known, found = (
        conjugate(latent_model(decoder), x, start, steps=3, iterations=4) for decoder in (plain, other)
    )
    torch.testing.assert_close(found.mean, known.mean)
    torch.testing.assert_close(found.variance, known.variance)


class Attention(nn.Module):
    """Attention between the 16 parts of a vector (N, 64)."""

    def forward(self, h):
        parts = h.view(len(h), 1, 16, 4)
        return nn.functional.scaled_dot_product_attention(parts, parts, parts).flatten(1)


def test_decoder_with_attention():
    torch.manual_seed(0)
    decoder = nn.Sequential(
        nn.Linear(LATENT, 64), Attention(), nn.Linear(64, 64), nn.Unflatten(1, SHAPE)
    )
    model, x, start = latent_model(decoder), images(), normal(5, LATENT)
    q = conjugate(model, x, start, steps=3)
    assert (model.log_joint(x, q.mean[None]) > model.log_joint(x, start[None])).all()


def test_results_do_not_depend_on_chunks(monkeypatch):
    model, x, start = latent_model(dense()), images(7), normal(7, LATENT)
    whole = conjugate(model, x, start, steps=3)
    monkeypatch.setattr("recmix.inference.conjugate.VALUES", 2 * math.prod(SHAPE))  # two examples
    parts = conjugate(model, x, start, steps=3)
    torch.testing.assert_close(parts.mean, whole.mean)
    torch.testing.assert_close(parts.variance, whole.variance)


def test_results_carry_no_gradient_in_any_mode():
    model, x, start = latent_model(dense()), images(), normal(5, LATENT).requires_grad_()
    plain = conjugate(model, x, start, steps=2)
    with torch.no_grad():
        without = conjugate(model, x, start, steps=2)
    with torch.inference_mode():
        inference = conjugate(model, x.clone(), start.clone(), steps=2)
    for q in (plain, without, inference):
        assert not q.mean.requires_grad
        assert not q.variance.requires_grad
        assert torch.equal(q.mean, plain.mean)
    assert all(p.grad is None for p in model.parameters())


def test_example_at_its_mode_stays():
    world = LinearGaussian()
    x = world.images()
    mode = world.posterior(x).mean
    start = torch.stack([mode[0], *normal(4, 3)])
    q = conjugate(world.model, x, start, steps=3, iterations=8)
    torch.testing.assert_close(q.mean, mode)
    zero = torch.zeros(2, 3, dtype=torch.float64)  # the gradient is exactly 0 here
    world.model.decoder.linear.weight.data.zero_()
    assert torch.equal(conjugate(world.model, x[:2], zero, steps=2).mean, zero)


def test_step_without_a_finite_joint_is_refused():
    def cliff(z):
        image = torch.sqrt(1 - z[:, :1].square()) + 0.5 * z[:, 1:2]  # NaN for |z_0| > 1
        return image[:, :, None, None].expand(-1, 1, 8, 8) + 0 * z.sum(-1)[:, None, None, None]

    model = latent_model(Function(cliff), GaussianLikelihood(1e-4))
    x = torch.full((3, *SHAPE), 3.0, dtype=torch.float64)
    start = torch.tensor([[0.999, 0.0, 0.0], [0.2, 0.0, 0.0], [2.0, 0.0, 0.0]], dtype=torch.float64)
    q = conjugate(model, x, start, steps=4)
    before, after = (model.log_joint(x, z[None])[0] for z in (start, q.mean))
    assert q.mean.isfinite().all()
    assert q.variance.isfinite().all()
    assert (after >= before)[:2].all()
    assert torch.equal(q.mean[2], start[2])  # log p(x, z) is not a number at the start


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


def conv_decoder():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Unflatten(1, (4, 32, 32)),
        nn.Conv2d(4, 8, 3, padding=1),
        nn.SiLU(),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(8, 3, 3, padding=1),
    )


@pytest.mark.parametrize("prior", [None, "mixture"])
def test_large_latent_makes_no_square_matrix(prior):
    latent, batch = 4 * 32 * 32, 2
    density = None if prior is None else GaussianMixturePrior(latent, 2)
    model = LatentModel(
        conv_decoder(), GaussianLikelihood(0.1), latent=latent, shape=(3, 64, 64), prior=density
    )
    x, start = images(batch, shape=(3, 64, 64)).float(), torch.zeros(batch, latent)
    with Largest() as largest:
        q = conjugate(model, x, start, steps=2, iterations=4)
    before, after = (model.log_joint(x, z[None]) for z in (start, q.mean))
    assert (after > before + 100).all()
    assert largest.size <= 4 * batch * 3 * 64 * 64  # a layer of 8 channels is the largest
    assert largest.size < latent**2 / 100


def test_memory_is_limited_by_chunks():
    """One pass has at most 2**23 decoder output values."""
    big = (3, 1024, 1024)
    seen = []

    def wide(z):
        seen.append(len(z))
        return z.sum(-1)[:, None, None, None].expand(-1, *big)

    model = LatentModel(Function(wide), GaussianLikelihood(0.1), latent=2, shape=big)
    x = torch.zeros(1).expand(5, *big)
    conjugate(model, x, torch.zeros(5, 2), steps=0)
    assert max(seen) == 2**23 // (3 * 2**20)


def test_errors_say_what_is_wrong():
    model, x, start = latent_model(dense()), images(), normal(5, LATENT)
    for wrong in ({"steps": -1}, {"steps": 1, "iterations": 0}):
        with pytest.raises(ConfigError, match="expected a whole number of at least"):
            conjugate(model, x, start, **wrong)
    model.decoder.insert(2, nn.BatchNorm1d(16))
    with pytest.raises(ConfigError, match="batch normalisation"):
        conjugate(model, x, start, steps=1)


def test_components_of_a_mixture_are_refined_separately():
    world = LinearGaussian(4)
    x = world.images(3)
    parts = [Gaussian(normal(3, 4, seed=s), torch.zeros(3, 4, dtype=torch.float64)) for s in (1, 2)]
    weights = torch.tensor([0.3, 0.7], dtype=torch.float64).log().expand(3, 2)
    q = refine(world.model, x, Mixture(parts, weights), steps=1, how="conjugate")
    for part, found in zip(parts, q.components, strict=True):
        alone = refine(world.model, x, part, steps=1, how="conjugate")
        torch.testing.assert_close(found.mean, alone.mean)
        torch.testing.assert_close(found.variance, alone.variance)
