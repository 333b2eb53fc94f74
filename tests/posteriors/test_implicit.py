"""Implicit reparameterisation of mixtures of Gaussians, diagonal and full.

The gradient of one sample is compared with a finite difference of the inverse distribution function. The
gradient of an expectation is compared with finite differences of a numerical integral.
"""

import math

import pytest
import torch
from torch.distributions import MultivariateNormal

from recmix.posteriors import FullGaussian, Gaussian, Mixture, Reflected
from recmix.posteriors.flow import Reflections, unit

K = 2
FORMS = ["diagonal", "stack", "full", "precision"]
each_form = pytest.mark.parametrize("form", FORMS)


def sizes(form, latent):
    """Number of values of all means, all covariances and all weights."""
    below = 0 if form in ("diagonal", "stack") else latent * (latent - 1) // 2
    return K * latent, K * (latent + below), K


def parameters(form, latent, seed=0):
    """Random values θ: the means, then the covariances, then the logits of the weights."""
    generator = torch.Generator().manual_seed(seed)
    return 0.6 * torch.randn(sum(sizes(form, latent)), generator=generator, dtype=torch.float64)


def covariances(theta, form, latent):
    """(K, D, D); the Cholesky factor has a diagonal exp(a), and b below it."""
    _, count, _ = sizes(form, latent)
    values = theta[K * latent :][:count].view(K, -1)
    factor = torch.diag_embed(values[:, :latent].exp())
    if form in ("full", "precision"):
        rows, columns = torch.tril_indices(latent, latent, -1)
        below = torch.zeros_like(factor)
        below[:, rows, columns] = values[:, latent:]
        factor = factor + below
    return factor @ factor.mT


def build(theta, form, latent):
    """The mixture with parameters θ, for one example."""
    means = theta[: K * latent].view(K, 1, latent)
    spread = covariances(theta, form, latent)[:, None]
    log_weights = theta[-K:].log_softmax(-1)[None]
    if form == "diagonal":
        parts = [Gaussian(means[k], spread[k].diagonal(dim1=-2, dim2=-1).log()) for k in range(K)]
    elif form == "stack":
        whole = Gaussian(means, spread.diagonal(dim1=-2, dim2=-1).log())
        return Mixture.from_stack(whole, log_weights)
    elif form == "full":
        parts = [FullGaussian(means[k], torch.linalg.cholesky(spread[k])) for k in range(K)]
    else:
        parts = [FullGaussian.from_precision(means[k], torch.linalg.inv(spread[k])) for k in range(K)]
    return Mixture(parts, log_weights)


def conditional_cdf(theta, form, latent, z, d):
    """F(z_d | z_<d) of the mixture for one point z (D,), from the formulas for conditional Gaussians."""
    means = theta[: K * latent].view(K, latent)
    spread, log_weights = covariances(theta, form, latent), theta[-K:].log_softmax(-1)
    shares, values = [], []
    for k in range(K):
        centre, width, score = means[k, d], spread[k, d, d], log_weights[k]
        if d:
            inside, across = spread[k, :d, :d], spread[k, d, :d]
            centre = centre + across @ torch.linalg.solve(inside, z[:d] - means[k, :d])
            width = width - across @ torch.linalg.solve(inside, across)
            score = score + MultivariateNormal(means[k, :d], inside).log_prob(z[:d])
        shares.append(score)
        values.append(torch.special.ndtr((z[d] - centre) / width.sqrt()))
    return (torch.stack(shares).softmax(0) * torch.stack(values)).sum()


def distribution_functions(theta, form, latent, z):
    """F(z_d | z_<d) for all d, (D,)."""
    return torch.stack([conditional_cdf(theta, form, latent, z, d) for d in range(latent)])


def solve(theta, form, latent, levels, near):
    """The point z (D,) with F(z_d | z_<d) = levels_d, by Newton's method from a point next to it."""
    z = near

    def excess(z):
        return distribution_functions(theta, form, latent, z) - levels

    for _ in range(3):
        z = z - torch.linalg.solve(torch.autograd.functional.jacobian(excess, z), excess(z))
    torch.testing.assert_close(excess(z), torch.zeros_like(z), rtol=0, atol=1e-14)
    return z


@each_form
@pytest.mark.parametrize("latent", [1, 3])
@pytest.mark.parametrize("seed", [0, 1])
def test_one_sample_moves_as_the_inverse_distribution_function(form, latent, seed):
    theta = parameters(form, latent, seed)
    leaf = theta.clone().requires_grad_()
    generator = torch.Generator().manual_seed(3 + seed)
    drawn, _ = build(leaf, form, latent).rsample_and_log_prob(1, generator=generator)
    jacobian = torch.stack(
        [torch.autograd.grad(value, leaf, retain_graph=True)[0] for value in drawn[0, 0]]
    )
    z, step = drawn[0, 0].detach(), 1e-5
    levels = distribution_functions(theta, form, latent, z)
    for i in range(len(theta)):
        ends = []
        for sign in (1, -1):
            moved = theta.clone()
            moved[i] += sign * step
            ends.append(solve(moved, form, latent, levels, z))
        numeric = (ends[0] - ends[1]) / (2 * step)
        torch.testing.assert_close(jacobian[:, i], numeric, rtol=1e-5, atol=1e-7)


def plane():
    """Points (N, 1, 2) on a grid that holds the whole mixture, and the area of each."""
    side = torch.linspace(-15, 15, 401, dtype=torch.float64)
    return torch.cartesian_prod(side, side)[:, None], (side[1] - side[0]) ** 2


@each_form
def test_gradient_of_an_expectation_equals_that_of_a_numerical_integral(form):
    """With respect to means, covariances and weights, for a function that is not a polynomial."""
    latent, theta = 2, parameters(form, 2, seed=2)
    grid, area = plane()

    def value(z):
        return (z[..., 0] * 0.8).sin() + (1.5 + z[..., 0]).tanh() * z[..., 1].square()

    def integral(theta):
        return (build(theta, form, latent).log_prob(grid).exp() * value(grid)).sum() * area

    step, expected = 1e-5, torch.empty_like(theta)
    assert abs((build(theta, form, latent).log_prob(grid).exp().sum() * area).item() - 1) < 1e-9
    for i in range(len(theta)):
        moved = step * torch.nn.functional.one_hot(torch.tensor(i), len(theta))
        expected[i] = (integral(theta + moved) - integral(theta - moved)) / (2 * step)

    leaf, estimates = theta.clone().requires_grad_(), []
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        z, _ = build(leaf, form, latent).rsample_and_log_prob(2000, generator=generator)
        estimates.append(torch.autograd.grad(value(z).mean(), leaf)[0])
    found = torch.stack(estimates)
    error = found.std(0) / math.sqrt(len(found))
    assert ((found.mean(0) - expected).abs() < 4.5 * error).all()
    for part in expected.split(sizes(form, latent)):  # the errors are small enough to see a mistake
        assert part.abs().max() > 15 * error.max()


@each_form
def test_gradient_of_log_density_at_samples_has_mean_zero(form):
    """E[d/dθ log q(z)] = 0, with the path of z left out; and E log q has the entropy's gradient."""
    theta = parameters(form, 2, seed=4)
    leaf = theta.clone().requires_grad_()
    score, whole = [], []
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        q = build(leaf, form, 2)
        z, log_q = q.rsample_and_log_prob(1000, generator=generator)
        score.append(torch.autograd.grad(q.log_prob(z.detach()).mean(), leaf, retain_graph=True)[0])
        whole.append(torch.autograd.grad(log_q.mean(), leaf)[0])
    grid, area = plane()
    log_p = build(leaf, form, 2).log_prob(grid)
    negative_entropy = (log_p.exp() * log_p).sum() * area
    (expected,) = torch.autograd.grad(negative_entropy, leaf)
    for gradients, want in ((score, torch.zeros_like(theta)), (whole, expected)):
        found = torch.stack(gradients)
        error = found.std(0) / math.sqrt(len(found))
        assert ((found.mean(0) - want).abs() < 4.5 * error + 1e-9).all()


def test_without_gradients_nothing_is_differentiated():
    theta = parameters("full", 2).requires_grad_()
    with torch.no_grad():
        z, log_q = build(theta, "full", 2).rsample_and_log_prob(3)
    assert not z.requires_grad
    assert not log_q.requires_grad


def test_value_of_a_sample_does_not_depend_on_gradients():
    for form in FORMS:
        theta = parameters(form, 3)
        with_graph, plain = (
            build(leaf, form, 3).rsample_and_log_prob(5, generator=torch.Generator().manual_seed(0))
            for leaf in (theta.clone().requires_grad_(), theta)
        )
        torch.testing.assert_close(with_graph[0].detach(), plain[0], rtol=0, atol=1e-14)
        assert with_graph[0].requires_grad
        assert not plain[0].requires_grad


def test_only_the_weights_need_gradients():
    """Fixed components: the weights still receive the gradient of samples."""
    theta = parameters("full", 2)
    fixed = build(theta, "full", 2)
    logits = theta[-K:].clone().requires_grad_()
    q = Mixture(fixed.components, logits.log_softmax(-1)[None])
    z, _ = q.rsample_and_log_prob(4, generator=torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad(z.sum(), logits)
    assert gradient.abs().sum() > 0


def test_other_components_carry_the_gradient_of_the_drawn_component_only():
    theta = parameters("diagonal", 2)
    means = theta[:4].view(K, 1, 2).clone().requires_grad_()
    logits = theta[-K:].clone().requires_grad_()
    mirror = Reflections([unit(torch.ones(1, 2, dtype=torch.float64))])
    parts = [Reflected(Gaussian(means[k], torch.zeros_like(means[k])), mirror) for k in range(K)]
    q = Mixture(parts, logits.log_softmax(-1)[None])
    assert not q.has_rsample
    z, log_q = q.rsample_and_log_prob(50, generator=torch.Generator().manual_seed(0))
    moved, weights = torch.autograd.grad(z.sum(), [means, logits], retain_graph=True, allow_unused=True)
    assert weights is None
    torch.testing.assert_close(moved.sum(), torch.tensor(-100.0).double())  # H (1, 1) = -(1, 1)
    assert torch.autograd.grad(log_q.sum(), logits)[0].abs().sum() > 0


@each_form
def test_samples_far_in_the_tails_have_finite_gradients(form):
    theta = parameters(form, 3)
    theta[:3] -= 40
    theta[3:6] += 40  # components far apart
    leaf = theta.float().requires_grad_()
    z, log_q = build(leaf, form, 3).rsample_and_log_prob(200, generator=torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad((z.sum(-1) + log_q).mean(), leaf)
    assert gradient.isfinite().all()
