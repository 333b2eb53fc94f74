"""Gaussian and mixture posteriors against torch.distributions, and their properties."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recmix.errors import ConfigError
from recmix.posteriors import Gaussian, Mixture, recursive_log_weights

B, D = 4, 3


def gaussian(seed=0, batch=B, latent=D):
    generator = torch.Generator().manual_seed(seed)
    mean, log_variance = torch.randn(2, batch, latent, generator=generator, dtype=torch.float64)
    return Gaussian(mean, log_variance)


def mixture(order=3, seed=0, **sizes):
    parts = [gaussian(seed * 100 + k, **sizes) for k in range(order)]
    batch = sizes.get("batch", B)
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(batch, order, generator=generator, dtype=torch.float64)
    return Mixture(parts, logits.log_softmax(-1))


@pytest.mark.parametrize("q", [gaussian(), mixture()], ids=["gaussian", "mixture"])
def test_samples_and_densities_agree_with_torch(q):
    z, log_q = q.rsample_and_log_prob(7, generator=torch.Generator().manual_seed(1))
    assert z.shape == (7, B, D)
    assert log_q.shape == (7, B)
    torch.testing.assert_close(log_q, q.log_prob(z), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(log_q, q.as_distribution().log_prob(z), rtol=1e-12, atol=1e-12)
    assert q.as_distribution().event_shape == (D,)
    torch.testing.assert_close(q.as_distribution().mean, q.mean)


@pytest.mark.parametrize("q", [gaussian(), mixture()], ids=["gaussian", "mixture"])
def test_samples_follow_their_generator(q):
    draws = [q.rsample_and_log_prob(3, generator=torch.Generator().manual_seed(s))[0] for s in (5, 5, 6)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_gaussian_kl_to_prior_is_exact():
    q = gaussian()
    prior = torch.distributions.Independent(
        torch.distributions.Normal(torch.zeros(D, dtype=torch.float64), 1.0), 1
    )
    expected = torch.distributions.kl_divergence(q.as_distribution(), prior)
    torch.testing.assert_close(q.kl_to_prior(*q.rsample_and_log_prob())[0], expected)


def test_extreme_parameters_stay_finite():
    q = Gaussian(torch.tensor([[1e6, -1e6]]), torch.tensor([[1e4, -1e4]]))
    z, log_q = q.rsample_and_log_prob(5)
    assert z.isfinite().all()
    assert log_q.isfinite().all()
    assert q.kl_to_prior(z, log_q).isfinite().all()


@given(seed=st.integers(0, 1000), order=st.integers(1, 6))
@settings(max_examples=20, deadline=None)
def test_mixture_weights_sum_to_one_and_order_of_components_does_not_matter(seed, order):
    q = mixture(order, seed)
    torch.testing.assert_close(q.weights.sum(-1), torch.ones(B, dtype=torch.float64))
    turned = Mixture(q.components[::-1], q.log_weights.flip(-1))
    z, _ = q.rsample_and_log_prob(4)
    torch.testing.assert_close(q.log_prob(z), turned.log_prob(z))


def test_one_component_is_the_plain_gaussian():
    q = gaussian()
    single = Mixture([q], torch.zeros(B, 1, dtype=torch.float64))
    z, log_q = single.rsample_and_log_prob(4)
    torch.testing.assert_close(log_q, q.log_prob(z))
    torch.testing.assert_close(single.mean, q.mean)


def test_a_mixture_needs_a_weight_for_each_component():
    with pytest.raises(ConfigError, match="2 components needs as many weights"):
        Mixture([gaussian(), gaussian()], torch.zeros(B, 3))


@given(seed=st.integers(0, 1000), order=st.integers(2, 8))
@settings(max_examples=20, deadline=None)
def test_recursive_weights_are_the_recursion_written_out(seed, order):
    generator = torch.Generator().manual_seed(seed)
    eps = 0.9 * torch.rand(B, order - 1, generator=generator, dtype=torch.float64) + 0.05
    alpha = torch.ones(B, 1, dtype=torch.float64)
    for m in range(order - 1):
        alpha = torch.cat([alpha * (1 - eps[:, m : m + 1]), eps[:, m : m + 1]], -1)
    torch.testing.assert_close(recursive_log_weights(eps.log(), torch.log1p(-eps)).exp(), alpha)
    torch.testing.assert_close(alpha.sum(-1), torch.ones(B, dtype=torch.float64))


def test_ancestral_samples_come_from_components_by_their_weights():
    q = Mixture(
        [Gaussian(torch.full((1, 1), float(100 * k)), torch.zeros(1, 1)) for k in range(3)],
        torch.tensor([[0.2, 0.3, 0.5]]).log(),
    )
    n = 20000
    for stratified, tolerance in ((False, 4 * (0.25 / n) ** 0.5), (True, 1.5 / n)):
        z, _ = q.rsample_and_log_prob(n, stratified=stratified)
        share = torch.stack([((z - 100 * k).abs() < 50).double().mean() for k in range(3)])
        torch.testing.assert_close(share, torch.tensor([0.2, 0.3, 0.5]).double(), atol=tolerance, rtol=0)


def test_implicit_reparameterisation_matches_finite_differences_of_the_inverse_cdf():
    """In one dimension z = F⁻¹(u): move a parameter a little and solve for z again."""
    theta = torch.tensor([0.3, -0.7, 0.2, 0.4, -0.3], dtype=torch.float64)

    def build(t):
        return Mixture(
            [Gaussian(t[None, 0:1], t[None, 2:3]), Gaussian(t[None, 1:2], t[None, 3:4])],
            torch.stack([torch.zeros(()).double(), t[4]])[None].log_softmax(-1),
        )

    def cdf(t, z):
        q = build(t)
        return sum(
            w * torch.special.ndtr((z - c.mean) / c.stddev)
            for w, c in zip(q.weights[0], q.components, strict=True)
        )

    t = theta.clone().requires_grad_()
    z, _ = build(t).rsample_and_log_prob(1, generator=torch.Generator().manual_seed(3))
    (gradient,) = torch.autograd.grad(z.sum(), t)
    level = cdf(theta, z.detach())
    for i in range(5):
        moved, step = theta.clone(), 1e-5
        moved[i] += step
        low, high = z.detach() - 1, z.detach() + 1
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if cdf(moved, middle) < level else (low, middle)
        assert abs(((low - z.detach()) / step).item() - gradient[i].item()) < 1e-4


def test_implicit_reparameterisation_gives_the_gradient_of_an_expectation():
    """E_Q[f] of a quadratic is known, so its gradient in every parameter is too."""
    torch.manual_seed(0)
    means = torch.randn(2, 1, 2, dtype=torch.float64, requires_grad=True)
    log_variances = (0.3 * torch.randn(2, 1, 2, dtype=torch.float64)).requires_grad_()
    logits = torch.randn(1, 2, dtype=torch.float64, requires_grad=True)
    coupling = torch.tensor([[1.0, 0.7], [0.7, 2.0]], dtype=torch.float64)
    weights = logits.softmax(-1)[0]
    second = torch.einsum("kbi,kbj->kij", means, means) + torch.diag_embed(log_variances.exp())[:, 0]
    exact = (weights[:, None, None] * second * coupling).sum()
    expected = torch.autograd.grad(exact, [means, log_variances, logits])
    estimates = []
    for seed in range(40):
        q = Mixture([Gaussian(means[k], log_variances[k]) for k in range(2)], logits.log_softmax(-1))
        z, _ = q.rsample_and_log_prob(2000, generator=torch.Generator().manual_seed(seed))
        value = torch.einsum("sbi,ij,sbj->s", z, coupling, z).mean()
        estimates.append(torch.autograd.grad(value, [means, log_variances, logits]))
    for column, want in zip(zip(*estimates, strict=True), expected, strict=True):
        got = torch.stack(column)
        error = got.std(0) / len(got) ** 0.5
        assert ((got.mean(0) - want).abs() < 4.5 * error + 1e-6).all()
