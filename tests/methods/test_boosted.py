"""Boosted variational inference: the two entropies, the schedule of ν, and the counter t."""

import inspect
import math

import pytest
import torch

from recmix.errors import ConfigError
from recmix.methods.boosted import BoostedER1, BoostedER2
from recmix.methods.method_options import method_options
from recmix.methods.recursive import RecursiveMixture
from recmix.methods.registry import find_method
from recmix.methods.vae import VAE
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Gaussian as GaussianLikelihood
from recmix.model.networks import make_decoder, make_encoder
from recmix.posteriors import Gaussian

SHAPE = (1, 8, 8)
LATENT = 3
BOTH = pytest.mark.parametrize("kind", [BoostedER1, BoostedER2])


def make(kind, *, seed=0, dtype=torch.float64, **options):
    torch.manual_seed(seed)
    model = LatentModel(
        make_decoder("dense", SHAPE, LATENT, hidden=8),
        GaussianLikelihood(0.1),
        latent=LATENT,
        shape=SHAPE,
    )
    encoder = make_encoder("dense", SHAPE, LATENT, hidden=8, width=0.25)
    return kind(model, encoder, **options).to(dtype)


def noise(seed=0):
    return torch.Generator().manual_seed(seed)


def images(batch=6, seed=1):
    return torch.rand(batch, *SHAPE, generator=noise(seed), dtype=torch.float64)


def gaussian(batch, seed=0):
    g = noise(seed)
    mean, log_variance = torch.randn(2, LATENT, generator=g, dtype=torch.float64)
    return Gaussian(mean.expand(batch, -1), log_variance.expand(batch, -1))


def exact_entropy(q):
    return torch.distributions.Normal(q.mean, q.stddev).entropy().sum(-1)


def run(method, steps=1, *, rate=1e-3, x=None):
    optimizers, g = method.optimizers(rate), noise(5)
    x = images() if x is None else x
    for _ in range(steps):
        metrics = method.step(x, optimizers, generator=g)
    return metrics


@BOTH
def test_is_a_recursive_mixture_with_its_own_options(kind):
    assert find_method(kind.name) is kind
    assert issubclass(kind, RecursiveMixture)
    assert (kind.setting, kind.rate_factor, kind.starts_from) == ("order", 0.1, "vae")
    options = method_options(kind)
    assert list(options) == [
        "order",
        "eps_min",
        "eps_max",
        "jitter",
        "component",
        "component_setting",
        "literal",
        "clock",
    ]
    assert options["clock"].read("round") == "round"


def test_both_entropies_agree_in_expectation():
    one, two = make(BoostedER1), make(BoostedER2)
    q = gaussian(20_000)
    _, log_q = q.rsample_and_log_prob(1, generator=noise())
    sampled, exact = one.entropy(q, log_q)[0], two.entropy(q, log_q)
    assert torch.allclose(exact, exact[:1])
    assert abs(sampled.mean() - exact[0]) < 4 * sampled.std() / math.sqrt(20_000)
    assert sampled.std() > 0.5


def test_closed_form_is_the_entropy_of_a_gaussian():
    q = gaussian(2)
    exact = make(BoostedER2).entropy(q, torch.empty(0))
    assert torch.allclose(exact, exact_entropy(q))


def test_nu_falls_with_the_iteration():
    method = make(BoostedER1, order=2)
    for t in range(4):
        assert method.nu(1).item() == pytest.approx(1 / math.sqrt(t + 1))
        run(method)


def test_nu_falls_with_the_round():
    method = make(BoostedER1, order=4, clock="round")
    run(method, 2)
    seen = [method.nu(m).item() for m in (1, 2, 3)]
    assert seen == pytest.approx([1 / math.sqrt(m + 1) for m in (1, 2, 3)])


@BOTH
@pytest.mark.parametrize("t", [0, 8])
@pytest.mark.parametrize("literal", [False, True])
def test_reward_is_the_kl_plus_nu_times_the_entropy(kind, t, literal):
    method = make(kind, literal=literal)
    method.iteration.fill_(t)
    q = gaussian(4)
    _, log_q = q.rsample_and_log_prob(1, generator=noise())
    distance = torch.full((1, 4), 1e7, dtype=torch.float64)
    entropy = -log_q.mean() if kind is BoostedER1 else exact_entropy(q).mean()
    expected = entropy / math.sqrt(t + 1) + (0 if literal else 1e7)
    assert method.novelty(1, q, log_q, distance).item() == pytest.approx(expected.item(), rel=1e-12)


@BOTH
def test_kl_has_no_bound_and_is_left_out_if_literal(kind):
    for literal, slope in ((False, 1.0), (True, None)):
        distance = torch.full((1, 4), 1e4, dtype=torch.float64, requires_grad=True)
        q = gaussian(4)
        _, log_q = q.rsample_and_log_prob(1, generator=noise())
        reward = make(kind, literal=literal).novelty(1, q, log_q, distance)
        if slope is None:
            assert not reward.requires_grad
        else:
            (gradient,) = torch.autograd.grad(reward.sum(), distance)
            assert gradient.sum() == pytest.approx(slope)


def test_steps_are_the_same_with_both_entropies_for_gaussians():
    # The reparameterised -log q differs from the closed form only by a constant in the parameters.
    one, two = make(BoostedER1, order=3), make(BoostedER2, order=3)
    run(one, 2)
    run(two, 2)
    theirs = two.state_dict()
    assert all(torch.allclose(v, theirs[k]) for k, v in one.state_dict().items())


def test_entropy_reward_widens_new_components():
    x, widths = images(32), []
    for t in (0, 10**12):  # ν = 1, and ν = 1e-6
        method = make(BoostedER2, order=2, literal=True)
        method.iteration.fill_(t)
        run(method, 30, x=x)
        widths.append(method.component(1, x).log_variance.mean())
    assert widths[0] > widths[1] + 0.01


@BOTH
def test_counter_is_saved_and_continues(kind):
    method = make(kind, order=2)
    run(method, 3)
    state = method.state_dict()
    assert state["iteration"].item() == 3
    assert state["iteration"].dtype == torch.int64
    other = make(kind, order=2, seed=3)
    other.load_state_dict(state)
    run(other)
    assert other.iteration.item() == 4


@BOTH
def test_counter_continues_only_from_the_same_method(kind):
    old, new = make(kind, order=2), make(kind, order=2, seed=2)
    run(old, 3)
    new.start_from(old)
    assert new.iteration.item() == 3
    assert torch.equal(new.component(1, images()).mean, old.component(1, images()).mean)
    grown = make(kind, order=3)
    run(grown, 2)
    grown.start_from(old)
    assert grown.iteration.item() == 0
    new.start_from(make(VAE, seed=4))
    assert new.iteration.item() == 0


@BOTH
def test_order_one_has_no_reward(kind):
    method = make(kind, order=1)
    metrics = run(method, 2)
    assert set(metrics) == {"loss", "elbo"}
    assert method.iteration.item() == 2
    assert method.posterior(images()).weights.shape == (6, 1)


@BOTH
def test_metrics_are_finite_scalars(kind):
    metrics = run(make(kind, order=3), 2)
    assert {"loss", "elbo", "kl", "first_weight"} <= set(metrics)
    assert all(v.shape == () and v.isfinite() and not v.requires_grad for v in metrics.values())


@BOTH
def test_diverged_step_has_a_loss_that_is_not_finite(kind):
    method = make(kind, order=2)
    with torch.no_grad():
        for p in method.components[1].parameters():
            p.fill_(1e200)
    assert not run(method)["loss"].isfinite()


@BOTH
def test_options_out_of_range_are_errors(kind):
    with pytest.raises(ConfigError, match="1 to 16"):
        make(kind, order=0)
    with pytest.raises(ConfigError, match="Valid: iteration, round"):
        make(kind, clock="epoch")
    assert "bound" not in inspect.signature(kind).parameters


def test_component_without_closed_form_entropy_is_refused():
    with pytest.raises(ConfigError, match=r"closed-form entropy, and 'iaf' has none.*bvi-er1"):
        make(BoostedER2, component="iaf")
    make(BoostedER1, component="iaf")
    make(BoostedER2, component="full")


@BOTH
def test_step_by_rounds_never_reads_a_value(kind):
    """On the meta device tensors have no values, so a step that waits for the device fails."""
    method = make(kind, order=3, clock="round").to("meta")
    metrics = method.step(images().to("meta"), method.optimizers(1e-3))
    assert all(value.is_meta for value in metrics.values())
