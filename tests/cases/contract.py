"""What every method must do: checks that take a method class.

`CHECKS` holds them all. They name no method: what a method can do, it says by its class attributes, its
components' attributes and its posterior (`can_scale`, `describe`). To test a new method, call
`check_method(cls)`, or parametrise a test over `CHECKS`.
"""

import copy
import math
import tempfile
from pathlib import Path

import pytest
import torch
from cases.oracle import LinearEncoder, LinearGaussian
from torch import nn
from torch.distributions import Categorical, Independent, MixtureSameFamily, MultivariateNormal, Normal

import recmix
from recmix.errors import ConfigError
from recmix.evaluation.bounds import bounds_of
from recmix.inference import Inference
from recmix.methods.method import Method, Objective
from recmix.methods.method_options import method_options
from recmix.methods.registry import METHODS, find_component, find_method
from recmix.methods.training_checks import check_can_be_distilled
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Bernoulli
from recmix.model.likelihoods import Gaussian as GaussianLikelihood
from recmix.model.networks import make_decoder, make_encoder
from recmix.posteriors import Flow, FullGaussian, Gaussian

__all__ = [
    "ALL",
    "BATCH",
    "CHECKS",
    "LATENT",
    "MIXTURES",
    "SHAPE",
    "LinearEncoder",
    "check_method",
    "check_mixture_of",
    "distribution_of",
    "images",
    "make",
    "model",
    "seeded",
]

SHAPE, LATENT, BATCH = (1, 8, 8), 4, 6
ALL = sorted(METHODS)
MIXTURES = [name for name in ALL if "component_setting" in method_options(METHODS[name])]
CHECKS = {}
"""Functions of a method class, by name; each raises AssertionError if the method does not comply."""


def check(function):
    """Add a function to `CHECKS`."""
    CHECKS[function.__name__] = function
    return function


def check_method(cls):
    """Run all checks on a method class."""
    for function in CHECKS.values():
        function(cls)


def seeded(seed=0):
    """A random stream on the CPU."""
    return torch.Generator().manual_seed(seed)


def model(likelihood="gaussian"):
    """p(x, z) with a convolutional decoder and random weights."""
    chosen = GaussianLikelihood(0.1) if likelihood == "gaussian" else Bernoulli()
    return LatentModel(
        make_decoder("conv", SHAPE, LATENT), chosen, latent=LATENT, shape=SHAPE, centre=torch.rand(SHAPE)
    )


def make(method, likelihood="gaussian", *, seed=1, **options):
    """A method, given by name or class, in float64 on the CPU."""
    torch.manual_seed(seed)
    encoder = make_encoder("conv", SHAPE, LATENT)
    return find_method(method)(model(likelihood), encoder, **options).double()


def images(n=BATCH):
    """Random examples (n, *SHAPE) in float64."""
    return torch.rand(n, *SHAPE, dtype=torch.float64, generator=seeded(3))


def distribution_of(described):
    """The torch distribution that the tensors of `Posterior.describe` define."""
    means = described["means"]
    if "scale_tril" in described:
        parts = MultivariateNormal(means, scale_tril=described["scale_tril"])
    else:
        parts = Independent(Normal(means, (0.5 * described["log_variances"]).exp()), 1)
    if "log_weights" not in described:
        return parts
    return MixtureSameFamily(Categorical(logits=described["log_weights"]), parts)


def perturb(method, size=0.05):
    """Add noise to all parameters, so that nothing is at its special start."""
    generator = seeded(11)
    with torch.no_grad():
        for p in method.parameters():
            p.add_(size * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return method


@check
def shapes_and_densities(cls):
    """Samples and densities have their shapes, and log_prob agrees with rsample_and_log_prob."""
    for likelihood in ("gaussian", "bernoulli"):
        method = perturb(make(cls, likelihood))
        with torch.no_grad():
            q = method.posterior(images())
            z, log_q = q.rsample_and_log_prob(3, generator=seeded())
        assert (q.batch_shape, q.event_shape) == ((BATCH,), (LATENT,))
        assert z.shape == (3, BATCH, LATENT)
        assert log_q.shape == (3, BATCH)
        assert q.mean.shape == (BATCH, LATENT)
        assert q.weights.shape == (BATCH, len(q.components))
        torch.testing.assert_close(q.weights.sum(-1), torch.ones(BATCH, dtype=torch.float64))
        torch.testing.assert_close(q.log_prob(z), log_q, rtol=1e-6, atol=1e-6)
        assert q.kl_to_prior(z, log_q).shape[-1] == BATCH
        assert q.sample((2,)).shape == (2, BATCH, LATENT)


@check
def samples_depend_on_the_generator_only(cls):
    """The same seed gives the same samples, another seed gives others."""
    method = make(cls)
    with torch.no_grad():
        first, same, other = (
            method.posterior(images()).rsample_and_log_prob(2, generator=seeded(seed))[0]
            for seed in (5, 5, 6)
        )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


@check
def posterior_is_a_function_of_x(cls):
    """It is the same with and without gradients and in both modes, and draws no random numbers."""
    method = perturb(make(cls))
    x = images()
    z = torch.randn(3, BATCH, LATENT, generator=seeded(), dtype=torch.float64)
    state = torch.get_rng_state()
    with_graph = method.posterior(x)
    with torch.no_grad():
        without = method.posterior(x)
        evaluated = method.eval().posterior(x)
    assert torch.equal(torch.get_rng_state(), state)
    assert with_graph.rsample_and_log_prob(1)[0].requires_grad
    for q in (with_graph, evaluated):
        torch.testing.assert_close(q.mean.detach(), without.mean)
        torch.testing.assert_close(q.log_prob(z).detach(), without.log_prob(z))
    assert all(p.grad is None for p in method.parameters())


@check
def no_grad_leaves_no_gradient(cls):
    """Under no_grad nothing requires gradients; a float32 model gives float32 for bfloat16 examples."""
    method = make(cls).float()
    for dtype in (torch.float32, torch.bfloat16):
        with torch.no_grad():
            z, log_q = method.posterior(images().to(dtype)).rsample_and_log_prob(2)
        assert z.dtype == log_q.dtype == torch.float32
        assert not z.requires_grad
        assert not log_q.requires_grad


@check
def finite_at_extreme_inputs(cls):
    """Blank examples, and an encoder with enormous outputs, give finite numbers in float32."""
    for value in (0.0, 1.0):
        for scale in (1.0, 300.0):
            method = make(cls).float()
            with torch.no_grad():
                for p in method.base_encoder.parameters():
                    p.mul_(scale ** (1 / 4))
                x = torch.full((2, *SHAPE), value)
                z, log_q = method.posterior(x).rsample_and_log_prob(4, generator=seeded())
                assert z.isfinite().all()
                assert log_q.isfinite().all()
                assert method.model.log_joint(x, z).isfinite().all()


@check
def examples_do_not_depend_on_each_other(cls):
    """The posterior of an example is the same in any batch."""
    method = perturb(make(cls))
    x = images()
    z = torch.randn(2, BATCH, LATENT, generator=seeded(), dtype=torch.float64)
    with torch.no_grad():
        together, alone = method.posterior(x), method.posterior(x[2:3])
    torch.testing.assert_close(together.mean[2:3], alone.mean, rtol=1e-8, atol=1e-8)
    densities = together.log_prob(z)[:, 2:3], alone.log_prob(z[:, 2:3])
    torch.testing.assert_close(*densities, rtol=1e-7, atol=1e-7)


@check
def a_step_trains_every_parameter(cls):
    """Each parameter belongs to one optimiser and changes; metrics are scalars without gradients."""
    method = make(cls)
    before = {k: v.clone() for k, v in method.named_parameters()}
    optimizers = method.optimizers(1e-2)
    for seed in range(3):  # layers below one that starts at zero move one step later
        metrics = method.step(images(), optimizers, generator=seeded(seed))
    for key, value in method.named_parameters():
        assert not torch.equal(value, before[key]), f"{key} did not change"
    owned = [id(p) for o in optimizers.values() for g in o.param_groups for p in g["params"]]
    assert sorted(owned) == sorted(id(p) for p in method.parameters())
    assert {"loss", "elbo"} <= set(metrics)
    assert all(v.ndim == 0 and not v.requires_grad for v in metrics.values())


@check
def a_step_never_reads_a_value(cls):
    """On the meta device tensors have no values, so a step that waits for the device fails."""
    method = make(cls).to("meta")
    metrics = method.step(images().to("meta"), method.optimizers(1e-3))
    assert all(value.is_meta for value in metrics.values())


@check
def steps_raise_the_bound(cls):
    """40 steps on one batch raise its ELBO."""
    method = make(cls)
    x = images(32).round()

    def bound():
        with torch.no_grad():
            q = method.posterior(x)
            return bounds_of(method.model, x, q, 50, seeded(9), 10_000).elbo.mean()

    first = bound()
    optimizers, generator = method.optimizers(2e-3 * method.rate_factor), seeded()
    for _ in range(40):
        method.step(x, optimizers, generator=generator)
    assert bound() > first + method.rate_factor


@check
def the_decoder_may_have_its_own_objective(cls):
    """With an IWAE or a refined objective only the decoder's update differs."""
    for objective in (Objective(iwae_samples=7), Objective(inference=Inference(refine=1))):
        plain, other = make(cls), make(cls)
        plain.step(images(), plain.optimizers(1e-3), generator=seeded())
        other.step(images(), other.optimizers(1e-3), objective=objective, generator=seeded())
        shared = {key for key, _ in plain.named_parameters() if key.startswith("model.")}
        for (key, a), b in zip(plain.named_parameters(), other.parameters(), strict=True):
            if key not in shared:
                torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
        assert any(
            not torch.allclose(a, b, atol=1e-6)
            for a, b in zip(plain.model.parameters(), other.model.parameters(), strict=True)
        )


@check
def distillation_changes_the_encoders_update(cls):
    """A component that cannot be distilled is refused."""
    plain, other = make(cls), make(cls)
    if not all(part.can_be_distilled for part in plain.components):
        with pytest.raises(ConfigError, match="distil"):
            check_can_be_distilled(plain)
        return
    check_can_be_distilled(plain)
    for method, share in ((plain, 0.0), (other, 1.0)):
        optimizers = {
            name: torch.optim.SGD([p for g in found.param_groups for p in g["params"]], lr=1e-6)
            for name, found in method.optimizers(1.0).items()
        }
        objective = Objective(distil=share, teacher=Inference(refine=1))
        method.step(images(), optimizers, objective=objective, generator=seeded())
    start = make(cls).base_encoder.parameters()
    pairs = zip(plain.base_encoder.parameters(), other.base_encoder.parameters(), start, strict=True)
    updates = [(a - first, b - first) for a, b, first in pairs]
    assert all(two.abs().sum() > 0 for _, two in updates)
    assert any(not torch.allclose(one, two, rtol=1e-3, atol=0) for one, two in updates)


@check
def starts_from_methods_of_the_first_stage(cls):
    """Encoder and decoder of a first-stage method are copied; all weights of one of the same kind."""
    assert cls.starts_from is None or cls.starts_from in METHODS
    for first in (m for m in METHODS.values() if m.starts_from is None):
        start, method = make(first, seed=2), make(cls)
        method.start_from(start)
        _same_parameters(method.model, start.model)
        _same_parameters(method.base_encoder, start.base_encoder)
    perturb(method)
    again = make(cls, seed=5)
    again.start_from(method)
    _same_parameters(again, method)


@check
def parameters_that_start_anew_have_their_own_rate(cls):
    """`inherited` names parameters outside the model; the others have the rate of fresh ones."""
    method = make(cls)
    shared = {id(p) for p in method.model.parameters()}
    inherited = {id(p) for p in method.inherited()}
    assert inherited
    assert not inherited & shared
    assert {id(p) for p in method.base_encoder.parameters()} <= inherited
    for optimizer in method.optimizers(1e-2, fresh_rate=10.0, variance_rate=3.0).values():
        for group in optimizer.param_groups:
            for p in group["params"]:
                rate = {True: 1e-2, False: 1e-1}[id(p) in inherited | shared]
                if any(p is own for own in method.model.likelihood.parameters()):
                    rate = 3e-2
                assert math.isclose(float(group["lr"]), rate)


@check
def save_and_load_give_the_same_model(cls):
    """A trained model gives the same ELBO after it is written and read."""
    data = recmix.data.from_arrays(images(40).float().numpy())
    first = {"vae_epochs": 1} if cls.starts_from else {}
    trained = recmix.fit(cls, data, latent=LATENT, epochs=1, progress=False, device="cpu", **first)
    with tempfile.TemporaryDirectory() as folder:
        again = recmix.load(trained.save(Path(folder) / "run"), device="cpu", method=cls)
    x = data.x_val[:3]
    torch.testing.assert_close(again.elbo(x, 5), trained.elbo(x, 5), rtol=0, atol=0)
    assert again.spec.method == cls.name
    assert again.spec.setting == cls.setting


@check
def describes_itself(cls):
    """Title, reference and a help text for every option; the setting is an option."""
    assert cls.title
    assert cls.reference
    assert cls.name
    assert "Reference" in (cls.__doc__ or "")
    options = method_options(cls)
    assert all(option.help for option in options.values())
    assert cls.setting is None or cls.setting in options
    for value in cls.tried:
        make(cls, **{cls.setting: value})
    assert make(cls, **{name: option.default for name, option in options.items()}).options.keys() == (
        options.keys()
    )


@check
def networks_are_parts_of_the_method(cls):
    """The networks that an engine may compile are submodules."""
    method = make(cls)
    parts = {id(part) for part in method.modules()}
    assert all(id(network) in parts for network in method.networks())


@check
def the_decoder_is_used_as_declared(cls):
    """Only methods that refine or look at reconstructions evaluate the decoder to form q(z | x)."""
    method = make(cls)
    calls = []
    method.model.decoder.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        method.posterior(images())
    assert bool(calls) == bool(method.feed_forward or method.steps_per_example)


@check
def grows_if_it_can(cls):
    """A larger mixture keeps the components of a smaller one."""
    if not cls.can_grow:
        return
    small, large = perturb(make(cls, order=2)), make(cls, order=4, seed=5)
    large.start_from(small)
    x = images()
    with torch.no_grad():
        for m in range(2):
            torch.testing.assert_close(large.component(m, x).mean, small.component(m, x).mean)
        assert large.posterior(x).weights.shape == (BATCH, 4)


@check
def restarts_if_it_can(cls):
    """`restarted` changes the posterior if the method says so, and only then."""
    assert cls.can_restart == (cls.restarted is not Method.restarted)
    method = perturb(make(cls))
    with torch.no_grad():
        for p in list(method.base_encoder.parameters())[-2:]:
            p.mul_(10)  # far from zero, so that starting points differ
        usual, restarted = method.posterior(images()).mean, method.restarted(images(), 3).mean
    assert torch.equal(usual, restarted) != cls.can_restart


@check
def components_have_an_entropy_if_they_say_so(cls):
    """`entropy` agrees with samples, or there is none."""
    method = perturb(make(cls))
    with torch.no_grad():
        for part, q in zip(method.components, method.posterior(images()).components, strict=True):
            if not part.closed_form_entropy:
                with pytest.raises(NotImplementedError):
                    q.entropy()
                continue
            _, log_q = q.rsample_and_log_prob(4000, generator=seeded())
            error = log_q.std(0) / math.sqrt(4000)
            assert ((-log_q.mean(0) - q.entropy()).abs() < 5 * error).all()


@check
def the_density_gives_the_encoder_a_gradient_if_it_says_so(cls):
    """log q at a fixed z carries gradients to the encoder, as distillation needs."""
    method = make(cls)
    z = torch.randn(2, BATCH, LATENT, generator=seeded(), dtype=torch.float64)
    q = method.posterior(images())
    parameters = list(method.base_encoder.parameters())
    found = torch.autograd.grad(q.log_prob(z).sum(), parameters, allow_unused=True)
    reached = any(g is not None and bool(g.abs().sum() > 0) for g in found)
    assert reached == method.components[0].can_be_distilled


@check
def scaled_if_it_can(cls):
    """A posterior with standard deviations to scale keeps its mean and changes its variance."""
    with torch.no_grad():
        q = perturb(make(cls)).posterior(images())
    if not q.can_scale:
        with pytest.raises(ConfigError, match="scale"):
            q.scaled(0.5)
        return
    narrow = q.scaled(0.5)
    torch.testing.assert_close(narrow.mean, q.mean)
    for before, after in zip(q.components, narrow.components, strict=True):
        torch.testing.assert_close(after.mean, before.mean)
        torch.testing.assert_close(after.variance, before.variance / 4)


@check
def described_by_its_tensors_if_it_can(cls):
    """The tensors of `describe` define the density."""
    with torch.no_grad():
        q = perturb(make(cls)).posterior(images())
    described = q.describe()
    if described is None:
        return
    assert all(len(value) == BATCH for value in described.values())
    z, log_q = q.rsample_and_log_prob(5, generator=seeded())
    plain = distribution_of(described)
    assert plain.event_shape == (LATENT,)
    torch.testing.assert_close(plain.log_prob(z), log_q, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(plain.mean, q.mean)


SMALL_OPTIONS = {
    "order": 2,
    "bound": 0.1,  # with 500 a component may leave the posterior
    "literal": True,  # the same without any bound
    "hidden": 32,
    "step_size": 0.05,
    "samples": 1,
    "width": 0.25,
}
"""Options for the linear-Gaussian model, where a method has them."""


@check
def reaches_the_best_bound_of_its_family(cls):
    """With the decoder fixed, training reaches what the family of posteriors can reach, and no more.

    The best diagonal Gaussian has the true mean and the diagonal of the true precision. Families with
    correlations hold the true posterior, so their best ELBO is log p(x). Mixtures lie between.
    """
    world = LinearGaussian(latent=2, variance=0.2, shape=SHAPE)
    weight = world.model.decoder.linear.weight
    with torch.no_grad():
        weight.mul_(0.2)
        weight[:, 1] += 0.7 * weight[:, 0]  # dimensions that depend on each other given x
    torch.manual_seed(4)
    options = {k: v for k, v in SMALL_OPTIONS.items() if k in method_options(cls)}
    method = cls(copy.deepcopy(world.model), LinearEncoder(2, SHAPE), **options).double()
    method.model.requires_grad_(False)
    optimizers = method.optimizers(1.0)
    x = world.images(64)
    generator, steps = seeded(), 300
    for number in range(steps):
        for optimizer in optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = 0.03 * (1 - number / steps) + 1e-5
        method.step(x, optimizers, generator=generator)
    _same_parameters(method.model, world.model)
    with torch.no_grad():
        q = method.posterior(x)
        z, log_q = q.rsample_and_log_prob(4000, generator=generator)
        log_w = method.model.log_joint(x, z) - log_q
    elbo, error = log_w.mean(), log_w.mean(1).std() / math.sqrt(log_w.shape[0])
    evidence = world.log_evidence(x).mean()
    precision = world.posterior(x).precision_matrix[0]
    diagonal = evidence - 0.5 * (precision.diagonal().log().sum() - torch.logdet(precision))
    assert evidence - diagonal > 0.1  # the model distinguishes the families
    assert elbo < evidence + 4 * error + 1e-9
    assert elbo > diagonal - 0.03
    if isinstance(q, FullGaussian | Flow):
        assert elbo > evidence - 0.02
    if isinstance(q, Gaussian):
        assert elbo < diagonal + 4 * error + 1e-9


def check_mixture_of(cls, component):
    """A mixture trains with components of any kind, or refuses those that it cannot train.

    Args:
        cls: a method with the option `component`.
        component: a kind of component.
    """
    kind = find_component(component)
    parts = kind.for_mixture(make_encoder("conv", SHAPE, LATENT), model(), 2)
    no_entropy = getattr(cls, "needs_entropy", False) and not kind.closed_form_entropy
    together = any(part.corrects for part in parts) and not cls.can_grow
    if no_entropy or together:
        with pytest.raises(ConfigError, match=component):
            make(cls, order=2, component=component)
        return
    method = make(cls, order=2, component=component)
    optimizers = method.optimizers(1e-3)
    for seed in range(2):
        metrics = method.step(images(), optimizers, generator=seeded(seed))
    assert metrics["loss"].isfinite()
    with torch.no_grad():
        q = method.posterior(images())
        z, log_q = q.rsample_and_log_prob(5, generator=seeded())
    assert log_q.isfinite().all()
    scores = torch.stack([part.log_prob(z) for part in q.components]) + q.log_weights.t()[:, None]
    torch.testing.assert_close(log_q, scores.logsumexp(0), rtol=1e-6, atol=1e-6)
    described = q.describe()
    assert (described is None) == (q.components[0].describe() is None)
    if described is not None:
        expected = distribution_of(described).log_prob(z)
        torch.testing.assert_close(log_q, expected, rtol=1e-6, atol=1e-6)


def _same_parameters(one: nn.Module, other: nn.Module):
    for ours, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)
