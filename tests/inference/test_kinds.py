"""Every kind of refinement: exact for linear models, never worse than its start, usable everywhere."""

import math

import pytest
import torch
from cases.likelihoods import CASES
from cases.oracle import LinearGaussian
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from recmix.errors import ConfigError
from recmix.inference import Inference
from recmix.inference.gauss_newton import make_log_joint, normal_equations
from recmix.inference.inference import REFINEMENT
from recmix.inference.learned import gaussian_at, learned
from recmix.inference.refinement import HOW, laplace
from recmix.inference.safeguard import _elbo_before, common_noise, elbo_at_noise, never_worse
from recmix.inference.variational import variational
from recmix.model.curvature_network import CurvatureNetwork
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Gaussian as GaussianLikelihood
from recmix.posteriors import Flow, FullGaussian, Gaussian, LowRankGaussian, Mixture
from recmix.posteriors.choice import Choice
from recmix.posteriors.flow import Reflections

KINDS = sorted(HOW)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_curvature(model, rank=0, exact_at=None):
    """The model with a curvature network; its constant part is the exact curvature at a point."""
    model.curvature = CurvatureNetwork(model.latent, rank).double()
    if exact_at is not None:
        x, z = exact_at
        precision = normal_equations(model, x, z).precision.detach()
        typical = FullGaussian.from_precision(z, precision).scale_tril[0]
        model.curvature.start_at(torch.zeros(model.latent), torch.ones(model.latent), typical)
    return model


def start_of(model, x, seed=3, width=0.3):
    shape = (len(x), model.latent)
    return Gaussian(normal(*shape, seed=seed), torch.full(shape, 2 * math.log(width)).double())


def elbo(model, x, q, samples=4000):
    z, log_q = q.rsample_and_log_prob(samples, generator=torch.Generator().manual_seed(9))
    return (model.log_joint(x, z) - log_q).mean(0)


def test_the_options_say_which_kinds_there_are():
    assert set(REFINEMENT) == set(HOW)


@pytest.mark.parametrize("how", KINDS)
def test_each_kind_is_exact_for_a_linear_gaussian_model(how):
    oracle = LinearGaussian()
    x = oracle.images()
    q = start_of(oracle.model, x)
    model = with_curvature(oracle.model, exact_at=(x, q.mean))
    better = Inference(how=how, refine=3)(model, x, q)
    true = oracle.posterior(x)
    torch.testing.assert_close(better.mean, true.mean, atol=1e-6, rtol=1e-6)
    if how == "conjugate":  # the best diagonal Gaussian
        expected = 1 / true.precision_matrix.diagonal(dim1=-2, dim2=-1)
        torch.testing.assert_close(better.variance, expected, atol=1e-6, rtol=1e-6)
    else:
        torch.testing.assert_close(better.covariance_matrix, true.covariance_matrix)


class Bump(nn.Module):
    """A decoder that is not a chain of known layers, so that its calls can be counted."""

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.layer = nn.Linear(3, 64)

    def forward(self, z):
        self.calls += 1
        return self.layer(z).tanh().view(-1, 1, 8, 8)


@pytest.mark.parametrize(
    ("how", "steps", "reuse", "passes"),
    [
        ("variational", 1, 0, 1 + 4),  # the points of the start with Jacobian, and four lengths
        ("variational", 2, 1, 2 * (1 + 4 + 1 + 2)),  # also a gradient and two lengths
        ("learned", 1, 0, 1 + 1),  # a gradient at the start, and two lengths at once
    ],
)
def test_values_that_are_known_are_not_decoded_again(how, steps, reuse, passes):
    torch.manual_seed(0)
    decoder = Bump()
    model = LatentModel(decoder, GaussianLikelihood(0.1), latent=3, shape=(1, 8, 8)).double()
    model = with_curvature(model)
    x = torch.rand(5, 1, 8, 8, dtype=torch.float64)
    q = start_of(model, x)
    with torch.no_grad():
        Inference(how=how, refine=steps, reuse=reuse, checks=0)(model, x, q)
    assert decoder.calls == passes


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("name", sorted(CASES))
def test_never_worse(name, how):
    case = CASES[name]
    model = with_curvature(case.model())
    x = case.examples(model, 6)
    for seed, width in ((0, 0.1), (1, 1.0)):
        q = start_of(model, x, seed, width)
        better = Inference(how=how, refine=2, checks=32)(model, x, q)
        with torch.no_grad():
            before, after = elbo(model, x, q), elbo(model, x, better)
        assert (after >= before - 0.15 - 0.02 * before.abs()).all(), (before, after)
        assert after.mean() > before.mean() - 0.05


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), scale=st.floats(0.1, 6.0), how=st.sampled_from(KINDS))
def test_never_worse_for_random_decoders(seed, scale, how):
    case = CASES["categorical"]
    model = with_curvature(case.model(seed=seed % 1000))
    with torch.no_grad():
        for p in model.decoder.parameters():
            p.mul_(scale)
    x = case.examples(model, 4)
    q = start_of(model, x, seed)
    noise = common_noise(8, q.mean)
    raw = Inference(how=how, refine=2, checks=0)(model, x, q)
    kept = never_worse(model, x, q, raw, 8)
    joint = make_log_joint(model, x, q.mean.dtype)
    before, after, found = (elbo_at_noise(joint, one, noise) for one in (q, raw, kept))
    improved = after >= _elbo_before(joint, q, raw, noise)
    torch.testing.assert_close(found, torch.where(improved, after, before))
    assert found.isfinite().all()


def test_a_worse_result_is_replaced_by_the_start_of_its_example():
    oracle = LinearGaussian()
    x = oracle.images(4)
    true = oracle.posterior(x)
    q = Gaussian(true.mean.clone(), true.variance.log())
    bad = true.mean.clone()
    bad[1] += 50.0
    bad[2] = math.nan
    kept = never_worse(oracle.model, x, q, FullGaussian(bad, true.scale_tril), 1)
    torch.testing.assert_close(kept.mean, true.mean)
    assert isinstance(kept, FullGaussian)
    torch.testing.assert_close(kept.variance[1], q.variance[1])
    torch.testing.assert_close(kept.covariance_matrix[0], true.covariance_matrix[0])


def test_the_exact_posterior_is_never_given_up_for_a_lucky_draw():
    oracle = LinearGaussian()
    x = oracle.images(50)
    true = oracle.posterior(x)
    exact = FullGaussian(true.mean, true.scale_tril)
    near = Gaussian(true.mean + 0.02 * normal(*true.mean.shape), true.variance.log())
    kept = never_worse(oracle.model, x, near, exact, 1)
    assert torch.equal(kept.mean, exact.mean)


def test_mixtures_and_flows_are_checked_too():
    oracle = LinearGaussian()
    x = oracle.images(5)
    parts = [start_of(oracle.model, x, seed) for seed in range(3)]
    q = Mixture(parts, torch.zeros(5, 3).double().log_softmax(-1))
    better = Inference(refine=1)(oracle.model, x, q)
    assert isinstance(better, Mixture)
    flow = Flow(parts[0], [Reflections([torch.eye(3).double()[0]])])
    for how in KINDS:
        model = with_curvature(oracle.model, exact_at=(x, parts[0].mean))
        found = Inference(how=how, refine=2)(model, x, flow)
        assert isinstance(found, Choice)
        assert elbo(oracle.model, x, found).mean() > elbo(oracle.model, x, flow).mean()
        assert found.log_prob(found.sample((2,))).shape == (2, 5)


@pytest.mark.parametrize("how", KINDS)
def test_the_result_does_not_depend_on_the_batch(how):
    case = CASES["gaussian"]
    model = with_curvature(case.model())
    x = case.examples(model, 5)
    q = start_of(model, x)
    whole = Inference(how=how, refine=2)(model, x, q)
    one = Gaussian(q.mean[2:3], q.log_variance[2:3])
    alone = Inference(how=how, refine=2)(model, x[2:3], one)
    torch.testing.assert_close(whole.mean[2:3], alone.mean)


def test_learned_steps_never_lower_the_log_joint_with_any_network():
    torch.manual_seed(0)
    model = with_curvature(CASES["gaussian"].model())
    nn.init.normal_(model.curvature.head.weight, std=0.5)
    x = CASES["gaussian"].examples(model, 8)
    start = normal(8, 2)
    values = [
        model.log_joint(x, learned(model, x, start, steps=k).mean[None])[0].detach() for k in range(6)
    ]
    assert all((after >= before).all() for before, after in zip(values, values[1:], strict=False))
    assert (values[-1] > values[0]).any()


def test_quasi_newton_steps_correct_a_wrong_curvature():
    """Gradients seen so far make up for a covariance that is wrong by a factor in each dimension."""
    oracle = LinearGaussian()
    x = oracle.images(6)
    model = with_curvature(oracle.model, exact_at=(x, normal(6, 3)))
    wrong = torch.diag(torch.tensor([0.3, 1.0, 2.0])).double()
    model.curvature.typical.copy_(wrong @ model.curvature.typical)
    found = learned(model, x, normal(6, 3), steps=14)
    torch.testing.assert_close(found.mean, oracle.posterior(x).mean, atol=1e-3, rtol=0)


def test_learned_restarts_keep_the_best_end():
    case = CASES["gaussian"]
    model = with_curvature(case.model(), exact_at=(case.examples(case.model(), 1), normal(1, 2)))
    x = case.examples(model, 6)
    start = 2 * normal(6, 2)
    one, many = (learned(model, x, start, steps=3, restarts=k) for k in (1, 5))
    score = [model.log_joint(x, q.mean[None])[0] + q.entropy() for q in (one, many)]
    assert (score[1] >= score[0] - 1e-9).all()


def test_learned_needs_a_network():
    model = CASES["gaussian"].model()
    with pytest.raises(ConfigError, match="curvature"):
        learned(model, CASES["gaussian"].examples(model, 2), normal(2, 2), steps=1)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_decoder_receives_the_gradient_of_the_mode(rank):
    """The derivative of z* with respect to the decoder is close to that of finite differences."""
    oracle = LinearGaussian()
    x = oracle.images(3)
    model = with_curvature(oracle.model, rank)
    if not rank:
        model = with_curvature(oracle.model, exact_at=(x, normal(3, 3)))
    q = learned(model, x, normal(3, 3), steps=12)
    assert isinstance(q, LowRankGaussian if rank else FullGaussian)
    if rank:  # a curvature that is not exact gives another factor of the derivative
        q.mean.sum().backward()
        assert oracle.model.decoder.linear.bias.grad.isfinite().all()
        return
    q.mean.sum().backward()
    found = oracle.model.decoder.linear.bias.grad.clone()
    step, expected = 1e-5, []
    for k in range(len(found)):
        ends = []
        for sign in (1, -1):
            with torch.no_grad():
                oracle.model.decoder.linear.bias[k] += sign * step
                ends.append(learned(model, x, normal(3, 3), steps=12).mean.sum())
                oracle.model.decoder.linear.bias[k] -= sign * step
        expected.append((ends[0] - ends[1]) / (2 * step))
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", ["categorical", "bernoulli", "poisson"])
def test_variational_refinement_beats_laplace_where_the_curvature_changes(name):
    case = CASES[name]
    model = case.model()
    x = case.examples(model, 8)
    q = start_of(model, x, width=0.7)
    with torch.no_grad():
        start = elbo(model, x, q)
        by_mode = elbo(model, x, laplace(model, x, q.mean, steps=8))
        found = elbo(model, x, variational(model, x, q, steps=8))
    assert found.mean() > start.mean()
    assert found.mean() >= by_mode.mean() - 0.02


def test_one_variational_step_is_exact_for_a_linear_model():
    world = LinearGaussian()
    x = world.images(4)
    truth = world.posterior(x)
    start = Gaussian(torch.full((4, 3), 2.0).double(), torch.zeros(4, 3).double())
    found = variational(world.model, x, start, steps=1)
    torch.testing.assert_close(found.mean, truth.loc)
    torch.testing.assert_close(found.scale_tril, truth.scale_tril)


def test_more_variational_steps_are_not_fitted_to_the_noise_of_the_steps():
    """A posterior of many dimensions and few noise vectors: the bound of other samples must rise."""
    torch.manual_seed(0)
    decoder = nn.Sequential(nn.Linear(8, 30), nn.Tanh(), nn.Linear(30, 20)).double()
    with torch.no_grad():
        for p in decoder.parameters():
            p.mul_(4)
    model = LatentModel(decoder, GaussianLikelihood(0.1), latent=8, shape=(20,)).double()
    z = torch.randn(60, 8, dtype=torch.float64)
    with torch.no_grad():
        x = decoder(z) + 0.1**0.5 * torch.randn(60, 20, dtype=torch.float64)
        q = Gaussian(z, torch.full_like(z, -3.0))
        found = {k: elbo(model, x, variational(model, x, q, steps=k, reuse=2)) for k in (2, 8)}
    gain = found[8] - found[2]
    assert gain.mean() > 2 * gain.std() / len(gain) ** 0.5


def test_the_network_starts_at_the_typical_covariance():
    network = CurvatureNetwork(3, 0).double()
    typical = torch.tril(normal(3, 3)).abs() + torch.eye(3)
    network.start_at(torch.zeros(3), torch.ones(3), torch.tril(typical))
    torch.testing.assert_close(network(normal(4, 3))[0][2], torch.tril(typical).double())
    low = CurvatureNetwork(5, 2).double()
    log_scale, left, right = low(normal(4, 5))
    assert (log_scale.shape, left.shape, right.shape) == ((4, 5), (4, 5, 2), (4, 5, 2))
    assert not left.any()
    assert right.any()
    with pytest.raises(ConfigError, match="curvature_rank"):
        CurvatureNetwork(3, 4)


def test_the_covariance_is_that_of_the_network():
    model = with_curvature(CASES["gaussian"].model())
    z = normal(3, 2)
    torch.testing.assert_close(gaussian_at(model, z).scale_tril, model.curvature(z)[0])


def test_variational_refinement_refuses_matrices_that_are_too_large():
    q = Gaussian(torch.zeros(1, 600), torch.zeros(1, 600))
    with pytest.raises(ConfigError, match="conjugate"):
        variational(CASES["gaussian"].model(), torch.zeros(1, 1), q, steps=1)
