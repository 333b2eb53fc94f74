"""Boosted variational inference: the two entropies, the schedule of ν, the counter."""

import inspect
import math

import pytest
import torch

from recmix.errors import ConfigError
from recmix.methods.boosted import BoostedER1, BoostedER2
from recmix.methods.recursive import RecursiveMixture
from recmix.methods.registry import find_method
from recmix.methods.vae import VAE
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Gaussian as GaussianLikelihood
from recmix.model.networks import make_decoder, make_encoder
from recmix.posteriors import Gaussian
from recmix.training.options import method_options

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


def run(method, steps=1, *, rate=1e-3, x=None):
    optimizers, g = method.optimizers(rate), noise(5)
    x = images() if x is None else x
    for _ in range(steps):
        metrics = method.step(x, optimizers, generator=g)
    return metrics


@BOTH
def test_they_are_recursive_mixtures_with_their_own_options(kind):
    assert find_method(kind.name) is kind
    assert issubclass(kind, RecursiveMixture)
    assert (kind.setting, kind.rate_factor, kind.second_stage) == ("order", 0.1, True)
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
    assert all(option.help for option in options.values())
    assert options["clock"].read("round") == "round"


def test_the_two_entropies_agree_in_expectation():
    one, two = make(BoostedER1), make(BoostedER2)
    q = gaussian(20_000)
    _, log_q = q.rsample_and_log_prob(1, generator=noise())
    sampled, exact = one.entropy(q, log_q)[0], two.entropy(q, log_q)
    assert torch.allclose(exact, exact[:1])
    assert abs(sampled.mean() - exact[0]) < 4 * sampled.std() / math.sqrt(20_000)
    assert sampled.std() > 0.5


def test_the_closed_form_is_the_entropy_of_a_gaussian():
    q = gaussian(2)
    exact = make(BoostedER2).entropy(q, torch.empty(0))
    assert torch.allclose(exact, q.as_distribution().entropy())


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
def test_a_component_earns_the_whole_kl_and_nu_times_its_entropy(kind, t, literal):
    method = make(kind, literal=literal)
    method.iteration.fill_(t)
    q = gaussian(4)
    _, log_q = q.rsample_and_log_prob(1, generator=noise())
    distance = torch.full((1, 4), 1e7, dtype=torch.float64)
    entropy = -log_q.mean() if kind is BoostedER1 else q.as_distribution().entropy().mean()
    expected = entropy / math.sqrt(t + 1) + (0 if literal else 1e7)
    assert method.novelty(1, q, log_q, distance).item() == pytest.approx(expected.item(), rel=1e-12)


@BOTH
def test_the_kl_has_no_bound_unless_the_paper_is_taken_literally(kind):
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


def test_for_gaussians_one_step_is_the_same_with_either_entropy():
    # The reparameterised -log q differs from the closed form only by a constant in the parameters.
    one, two = make(BoostedER1, order=3), make(BoostedER2, order=3)
    run(one, 2)
    run(two, 2)
    theirs = two.state_dict()
    assert all(torch.allclose(v, theirs[k]) for k, v in one.state_dict().items())


def test_entropy_widens_the_new_components():
    x, widths = images(32), []
    for t in (0, 10**12):  # ν = 1 at first, and next to nothing
        method = make(BoostedER2, order=2, literal=True)
        method.iteration.fill_(t)
        run(method, 30, x=x)
        widths.append(method.component(1, x).log_variance.mean())
    assert widths[0] > widths[1] + 0.01


@BOTH
def test_the_counter_is_saved_and_goes_on(kind):
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
def test_the_counter_goes_on_only_from_the_same_method(kind):
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
def test_order_one_works_and_has_no_novelty(kind):
    method = make(kind, order=1)
    metrics = run(method, 2)
    assert set(metrics) == {"loss", "elbo"}
    assert method.iteration.item() == 2
    assert method.posterior(images()).weights.shape == (6, 1)


@BOTH
def test_metrics_are_finite_scalars_on_the_device(kind):
    metrics = run(make(kind, order=3), 2)
    assert {"loss", "elbo", "kl", "first_weight"} <= set(metrics)
    assert all(v.shape == () and v.isfinite() and not v.requires_grad for v in metrics.values())


@BOTH
def test_a_step_that_has_run_away_says_so_in_its_metrics(kind):
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


def test_only_gaussians_have_the_closed_form():
    with pytest.raises(ConfigError, match=r"closed-form entropy \(gaussian\).*bvi-er1"):
        make(BoostedER2, component="iaf")


@BOTH
@pytest.mark.parametrize("clock", ["iteration", "round"])
def test_a_step_never_reads_a_value(kind, clock):
    # On the meta device tensors have no values: whatever would wait for a device fails here.
    method = make(kind, order=3, clock=clock).to("meta")
    optimizers = {
        name: torch.optim.SGD([p for group in found.param_groups for p in group["params"]], lr=0.1)
        for name, found in method.optimizers(1e-3).items()
    }
    metrics = method.step(torch.empty(4, *SHAPE, device="meta", dtype=torch.float64), optimizers)
    assert all(value.is_meta for value in metrics.values())
