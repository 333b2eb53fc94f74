"""Every posterior is a torch Distribution: shapes, densities, moments, entropy, KL and expand."""

import math

import pytest
import torch
from cases.contract import distribution_of
from torch.distributions import (
    AffineTransform,
    Distribution,
    Independent,
    Laplace,
    MultivariateNormal,
    Normal,
    TransformedDistribution,
    kl_divergence,
)

from recmix.errors import ConfigError
from recmix.model.latent import standard_normal
from recmix.posteriors import Flow, FullGaussian, Gaussian, Mixture, Posterior, Reflected
from recmix.posteriors.flow import Reflections, Transform, unit

B, D, K = 4, 3, 3
SAMPLES = 40_000


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def gaussian(seed=0):
    mean, log_variance = normal(2, B, D, seed=seed)
    return Gaussian(mean.requires_grad_(), (0.5 * log_variance).requires_grad_())


def covariance(seed):
    root = normal(B, D, D, seed=seed + 1000)
    return root @ root.mT / D + 0.3 * torch.eye(D, dtype=torch.float64)


def full(seed=0):
    scale_tril = torch.linalg.cholesky(covariance(seed))
    return FullGaussian(normal(B, D, seed=seed).requires_grad_(), scale_tril.requires_grad_())


def from_precision(seed=0):
    precision = torch.linalg.inv(covariance(seed))
    precision = 0.5 * (precision + precision.mT)
    return FullGaussian.from_precision(
        normal(B, D, seed=seed).requires_grad_(), precision.requires_grad_()
    )


def reflected(seed=0):
    units = [unit(normal(B, D, seed=seed + 10 + t)) for t in range(2)]
    return Reflected(gaussian(seed), Reflections(units))


class Bend(Transform):
    """z_d <- z_d + ½ z_{d-1}² for d = 1, …, D - 1: not affine, volume 1."""

    def forward(self, z):
        bent = torch.cat([z[..., :1], z[..., 1:] + 0.5 * z[..., :-1].square()], -1)
        return bent, torch.zeros_like(z[..., 0])

    def inverse(self, z):
        found = [z[..., 0]]
        for d in range(1, z.shape[-1]):
            found.append(z[..., d] - 0.5 * found[-1].square())
        return torch.stack(found, -1), torch.zeros_like(z[..., 0])


class Stretch(Transform):
    """z <- e^s z with one s for each example and dimension."""

    def __init__(self, log_scale):
        self.log_scale = log_scale

    def forward(self, z):
        return self.log_scale.exp() * z, self.log_scale.sum(-1).expand(z.shape[:-1])

    def inverse(self, z):
        return (-self.log_scale).exp() * z, self.log_scale.sum(-1).expand(z.shape[:-1])


def flow(seed=0):
    stretch = Stretch(0.3 * normal(B, D, seed=seed + 30))
    return Flow(gaussian(seed), [Bend(), stretch, Reflections([unit(normal(B, D, seed=seed + 20))])])


def log_weights(seed=0):
    return normal(B, K, seed=seed + 50).requires_grad_().log_softmax(-1)


def mixture_of(part):
    return lambda seed=0: Mixture([part(100 * seed + 7 * k) for k in range(K)], log_weights(seed))


def stacked(seed=0):
    parts = [gaussian(100 * seed + 7 * k) for k in range(K)]
    stack = Gaussian(torch.stack([q.mean for q in parts]), torch.stack([q.log_variance for q in parts]))
    return Mixture.from_stack(stack, log_weights(seed))


SINGLE = {
    "gaussian": gaussian,
    "full": full,
    "full from precision": from_precision,
    "flow": flow,
    "reflected": reflected,
}
POSTERIORS = SINGLE | {f"mixture of {name}": mixture_of(part) for name, part in SINGLE.items()}
POSTERIORS["mixture of mixed kinds"] = lambda seed=0: Mixture(
    [gaussian(seed), full(seed + 7), reflected(seed + 14)], log_weights(seed)
)
POSTERIORS["stacked mixture"] = stacked
CLOSED_FORM = ["gaussian", "full", "full from precision", "reflected"]
"""Posteriors whose entropy and KL have a closed form."""
NO_CLOSED_FORM = [name for name in POSTERIORS if name not in CLOSED_FORM]
MOMENTS = [name for name in POSTERIORS if "flow" not in name]
"""Posteriors whose mean and variance are known."""
GAUSSIANS = ["gaussian", "full", "full from precision"]
EXPANDABLE = [*GAUSSIANS, *(f"mixture of {name}" for name in GAUSSIANS), "stacked mixture"]
REPARAMETERISED = [*SINGLE, *EXPANDABLE[3:]]
"""Posteriors whose samples carry the whole gradient."""

every = pytest.mark.parametrize("name", POSTERIORS)


@every
def test_is_a_distribution_for_a_batch(name):
    q = POSTERIORS[name]()
    assert isinstance(q, Distribution)
    assert isinstance(q, Posterior)
    assert (q.batch_shape, q.event_shape) == ((B,), (D,))
    assert q.has_rsample == (name in REPARAMETERISED)
    assert q.support.check(q.sample()).all()
    assert repr(q) == f"{type(q).__name__}(batch_shape=(4,), D=3)"


@pytest.mark.filterwarnings("ignore:samples of this mixture carry no gradient")
@every
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), torch.Size([2, 3]), (0,)])
def test_sample_shapes_and_gradients(name, shape):
    q = POSTERIORS[name]()
    torch.manual_seed(0)
    plain, reparameterised = q.sample(shape), q.rsample(shape)
    assert plain.shape == reparameterised.shape == (*shape, B, D)
    assert plain.dtype == torch.float64
    assert not plain.requires_grad
    assert reparameterised.requires_grad
    assert q.log_prob(plain).shape == (*shape, B)
    torch.manual_seed(3)
    first = q.sample(shape)
    torch.manual_seed(3)
    assert torch.equal(first, q.rsample(shape).detach())


@every
def test_samples_come_from_the_generator(name):
    q = POSTERIORS[name]()
    state = torch.get_rng_state()
    first, same, other = (q.rsample_and_log_prob(3, generator=seeded(s))[0] for s in (5, 5, 6))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


@every
def test_log_prob_broadcasts_over_leading_axes(name):
    q = POSTERIORS[name]()
    z = normal(2, 5, B, D, seed=9)
    whole = q.log_prob(z)
    assert whole.shape == (2, 5, B)
    assert q.log_prob(z[0]).shape == (5, B)
    assert q.log_prob(z[0, 0]).shape == (B,)
    for i in range(2):
        torch.testing.assert_close(whole[i], q.log_prob(z[i]), rtol=1e-12, atol=1e-12)
        for j in range(5):
            torch.testing.assert_close(whole[i, j], q.log_prob(z[i, j]), rtol=1e-12, atol=1e-12)


@every
def test_samples_have_the_density_of_log_prob(name):
    q = POSTERIORS[name]()
    z, log_q = q.rsample_and_log_prob(7, generator=seeded(1))
    torch.testing.assert_close(log_q, q.log_prob(z), rtol=1e-11, atol=1e-11)


@every
def test_described_tensors_define_the_density(name):
    q = POSTERIORS[name]()
    described = q.describe()
    if described is None:
        assert "flow" in name or "mixed" in name
        return
    z = normal(5, B, D, seed=9)
    plain = distribution_of(described)
    torch.testing.assert_close(plain.log_prob(z), q.log_prob(z), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(plain.mean, q.mean)
    torch.testing.assert_close(plain.variance, q.variance)


@every
def test_density_integrates_to_one(name):
    """∫ q(z) dz = E_p[q(z) / p(z)] for a wide proposal p."""
    q = POSTERIORS[name]()
    wide = Independent(Normal(torch.zeros(D, dtype=torch.float64), 2.5), 1)
    with torch.no_grad():
        torch.manual_seed(0)
        z = wide.sample((400_000, 1))
        ratio = (q.log_prob(z.expand(-1, B, -1)) - wide.log_prob(z)).exp()
    error = ratio.std(0) / math.sqrt(len(ratio))
    assert (error < 0.05).all()
    assert ((ratio.mean(0) - 1).abs() < 5 * error).all()


@pytest.mark.parametrize("name", MOMENTS)
def test_mean_and_variance_are_those_of_samples(name):
    with torch.no_grad():
        q = POSTERIORS[name]()
        z, _ = q.rsample_and_log_prob(SAMPLES, generator=seeded(2))
        squares = (z - q.mean).square()
        for values, expected in ((z, q.mean), (squares, q.variance)):
            error = values.std(0) / math.sqrt(SAMPLES)
            assert ((values.mean(0) - expected).abs() < 5 * error).all()
        torch.testing.assert_close(q.stddev.square(), q.variance)


def test_mean_of_a_flow_is_the_image_of_the_base_mean():
    q = flow()
    expected, _ = q.forward(q.base.mean[None])
    torch.testing.assert_close(q.mean, expected[0])
    for made in (q, mixture_of(flow)()):
        with pytest.raises(NotImplementedError):
            _ = made.variance


@pytest.mark.parametrize("name", CLOSED_FORM)
def test_entropy_is_exact(name):
    q = POSTERIORS[name]()
    torch.testing.assert_close(q.entropy(), distribution_of(q.describe()).entropy())
    _, log_q = q.rsample_and_log_prob(SAMPLES, generator=seeded(2))
    error = log_q.std(0) / math.sqrt(SAMPLES)
    assert ((-log_q.mean(0) - q.entropy()).abs() < 5 * error).all()


PRIORS = {
    "standard": lambda: Independent(Normal(torch.zeros(D, dtype=torch.float64), 1.0), 1),
    "batch": lambda: Independent(
        Normal(torch.zeros(B, D, dtype=torch.float64), torch.ones(B, D, dtype=torch.float64)), 1
    ),
    "other": lambda: Independent(Normal(normal(D, seed=1), 0.5 + normal(D, seed=2).square()), 1),
}


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("name", CLOSED_FORM)
def test_kl_divergence_is_exact(name, prior):
    q, p = POSTERIORS[name](), PRIORS[prior]()
    found = kl_divergence(q, p)
    assert found.shape == (B,)
    plain = q.describe()
    scale = plain["scale_tril"] if "scale_tril" in plain else q.stddev.diag_embed()
    base = MultivariateNormal(p.base_dist.loc, scale_tril=p.base_dist.scale.diag_embed())
    torch.testing.assert_close(found, kl_divergence(MultivariateNormal(q.mean, scale_tril=scale), base))
    z, log_q = q.rsample_and_log_prob(SAMPLES, generator=seeded(2))
    ratio = log_q - p.log_prob(z)
    error = ratio.std(0) / math.sqrt(SAMPLES)
    assert ((ratio.mean(0) - found).abs() < 5 * error).all()
    if prior != "other":
        own = q.kl_to_prior(z, log_q)
        assert own.shape == (1, B)
        torch.testing.assert_close(own[0], found)


@pytest.mark.parametrize("name", NO_CLOSED_FORM)
def test_no_closed_form_is_not_implemented(name):
    q = POSTERIORS[name]()
    with pytest.raises(NotImplementedError, match="has no closed form: estimate it by -log_q"):
        q.entropy()
    with pytest.raises(NotImplementedError):
        kl_divergence(q, PRIORS["standard"]())
    z, log_q = q.rsample_and_log_prob(3, generator=seeded(1))
    torch.testing.assert_close(q.kl_to_prior(z, log_q), log_q - standard_normal(z))


def test_kl_to_another_family_is_not_implemented():
    q = gaussian()
    zero = torch.zeros(B, D, dtype=torch.float64)
    with pytest.raises(NotImplementedError, match="Gaussian"):
        kl_divergence(q, Independent(Laplace(zero, 1.0), 1))
    with pytest.raises(NotImplementedError, match="Gaussian"):
        kl_divergence(q, Independent(Normal(zero, 1.0), 2))


@pytest.mark.parametrize("name", CLOSED_FORM)
def test_kl_to_a_multivariate_normal(name):
    q = POSTERIORS[name]()
    noise = torch.randn(D, D, generator=seeded(3), dtype=torch.float64)
    p = MultivariateNormal(noise[0], noise @ noise.mT + torch.eye(D, dtype=torch.float64))
    units = q.from_noise(torch.eye(D, dtype=torch.float64)[:, None].expand(D, B, D))[0] - q.mean
    covariance = torch.einsum("ibd,ibe->bde", units, units)
    expected = kl_divergence(MultivariateNormal(q.mean, covariance), p)
    torch.testing.assert_close(kl_divergence(q, p), expected)


def test_parameters_are_broadcast():
    mean, prior = torch.zeros(3, 4), Independent(Normal(torch.zeros(4), torch.ones(4)), 1)
    for log_variance in (torch.zeros(1), torch.zeros(4), torch.zeros(3, 1)):
        q = Gaussian(mean, log_variance)
        torch.testing.assert_close(kl_divergence(q, prior), torch.zeros(3))
        assert q.entropy().shape == (3,)
        assert q.variance.shape == (3, 4)
        assert Mixture([q, q], torch.zeros(3, 2)).mean.shape == (3, 4)
    full = FullGaussian(mean, torch.eye(4))
    assert full.entropy().shape == (3,)
    assert full.variance.shape == (3, 4)


def test_the_weights_of_a_mixture_are_normalised():
    part = Gaussian(torch.zeros(3, 4), torch.zeros(3, 4))
    q, z = Mixture([part, part], torch.zeros(3, 2)), torch.ones(3, 4)
    torch.testing.assert_close(q.weights.sum(-1), torch.ones(3))
    torch.testing.assert_close(q.log_prob(z), part.log_prob(z))


def test_samples_without_the_gradient_of_the_weights_give_a_warning():
    q = POSTERIORS["mixture of mixed kinds"]()
    with pytest.warns(UserWarning, match="no gradient of its weights"):
        q.rsample()
    q.sample()  # without gradients there is nothing to say


def test_wrong_components_are_refused():
    part = Gaussian(torch.zeros(3, 4), torch.zeros(3, 4))
    with pytest.raises(ConfigError, match="at least one component"):
        Mixture([], torch.zeros(3, 0))
    with pytest.raises(ConfigError, match="a posterior of recmix"):
        Mixture([part, Independent(Normal(torch.zeros(3, 4), 1.0), 1)], torch.zeros(3, 2))


@pytest.mark.parametrize("name", EXPANDABLE)
def test_expand_repeats_the_density(name):
    q = POSTERIORS[name]()
    torch.manual_seed(0)
    wide = q.expand((2, B))
    assert type(wide) is type(q)
    assert (wide.batch_shape, wide.event_shape) == ((2, B), (D,))
    assert wide.mean.shape == wide.variance.shape == (2, B, D)
    z = wide.rsample((5,))
    assert z.shape == (5, 2, B, D)
    assert not torch.equal(z[:, 0], z[:, 1])  # independent samples
    expected = torch.stack([q.log_prob(z[:, 0]), q.log_prob(z[:, 1])], 1)
    torch.testing.assert_close(wide.log_prob(z), expected)
    drawn, log_q = wide.rsample_and_log_prob(5)
    torch.testing.assert_close(log_q, wide.log_prob(drawn))
    if name in CLOSED_FORM:
        torch.testing.assert_close(wide.entropy(), q.entropy().expand(2, B))
        expected = kl_divergence(q, PRIORS["standard"]()).expand(2, B)
        torch.testing.assert_close(kl_divergence(wide, PRIORS["standard"]()), expected)


@pytest.mark.parametrize("name", [name for name in POSTERIORS if name not in EXPANDABLE])
def test_expand_is_not_implemented_for_flows(name):
    with pytest.raises(NotImplementedError, match="cannot be expanded"):
        POSTERIORS[name]().expand((2, B))


@pytest.mark.filterwarnings("ignore:samples of this mixture carry no gradient")
@every
def test_usable_as_the_base_of_a_transformed_distribution(name):
    q = POSTERIORS[name]()
    torch.manual_seed(0)
    shifted = TransformedDistribution(q, [AffineTransform(1.0, 2.0, event_dim=1)], validate_args=False)
    z = shifted.rsample((5,))
    assert z.shape == (5, B, D)
    expected = q.log_prob((z - 1) / 2) - D * math.log(2)
    torch.testing.assert_close(shifted.log_prob(z), expected, rtol=1e-10, atol=1e-10)


@every
def test_copy_has_its_own_tensors(name):
    q = POSTERIORS[name]()
    z = normal(3, B, D, seed=9)
    before = q.log_prob(z)
    copied = q.copy()
    assert type(copied) is type(q)
    assert torch.equal(copied.log_prob(z), before)
    with torch.no_grad():
        for part in q.components:
            getattr(part, "base", part)._mean.add_(1)
    assert not torch.allclose(q.log_prob(z), before)
    assert torch.equal(copied.log_prob(z), before)
