"""What every method in the registry must hold, whoever wrote it."""

import copy
import math

import pytest
import torch
from oracle import SHAPE as ORACLE_SHAPE
from oracle import LinearGaussian
from torch import nn

import recmix
from recmix.evaluation.bounds import bounds_of
from recmix.methods.registry import COMPONENTS, METHODS, find_method
from recmix.methods.vae import VAE
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Bernoulli
from recmix.model.likelihoods import Gaussian as GaussianLikelihood
from recmix.model.networks import make_decoder, make_encoder
from recmix.training.options import method_options

find_method("vae")  # fills the registry
SHAPE, LATENT, BATCH = (1, 8, 8), 4, 6
ALL = sorted(METHODS)
MIXTURES = [name for name in ALL if "component_setting" in method_options(METHODS[name])]


def model(likelihood="gaussian"):
    chosen = GaussianLikelihood(0.1) if likelihood == "gaussian" else Bernoulli()
    return LatentModel(
        make_decoder("conv", SHAPE, LATENT), chosen, latent=LATENT, shape=SHAPE, centre=torch.rand(SHAPE)
    )


def make(name, likelihood="gaussian", **options):
    torch.manual_seed(1)
    return METHODS[name](model(likelihood), make_encoder("conv", SHAPE, LATENT), **options).double()


def images(n=BATCH):
    return torch.rand(n, *SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


each_method = pytest.mark.parametrize("name", ALL)


@each_method
@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
def test_shapes_and_densities(name, likelihood):
    method = make(name, likelihood)
    with torch.no_grad():
        q = method.posterior(images())
        z, log_q = q.rsample_and_log_prob(3, generator=torch.Generator().manual_seed(0))
        assert z.shape == (3, BATCH, LATENT)
        assert log_q.shape == (3, BATCH)
        assert q.mean.shape == (BATCH, LATENT)
        assert q.weights.shape[0] == BATCH
        torch.testing.assert_close(q.weights.sum(-1), torch.ones(BATCH, dtype=torch.float64))
        torch.testing.assert_close(q.log_prob(z), log_q, rtol=1e-6, atol=1e-6)
        kl = q.kl_to_prior(z, log_q)
        assert kl.shape[-1] == BATCH


@each_method
def test_samples_move_with_the_generator_alone(name):
    method = make(name)
    with torch.no_grad():
        draws = [
            method.posterior(images()).rsample_and_log_prob(
                2, generator=torch.Generator().manual_seed(seed)
            )[0]
            for seed in (5, 5, 6)
        ]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


@each_method
@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_finite_at_extreme_inputs(name, value, scale):
    """Blank images, and an encoder that answers with enormous numbers."""
    method = make(name).float()
    with torch.no_grad():
        for p in method.base_encoder.parameters():
            p.mul_(scale ** (1 / 4))
        x = torch.full((2, *SHAPE), value)
        z, log_q = method.posterior(x).rsample_and_log_prob(4)
        assert z.isfinite().all()
        assert log_q.isfinite().all()
        assert method.model.log_joint(x, z).isfinite().all()


@each_method
def test_a_step_moves_every_parameter_and_leaves_none_behind(name):
    method = make(name)
    before = {k: v.clone() for k, v in method.named_parameters()}
    stranger = nn.Parameter(torch.ones(3))
    optimizers = method.optimizers(1e-2)
    for seed in range(3):  # what starts at zero may need a step before its neighbours move
        metrics = method.step(images(), optimizers, generator=torch.Generator().manual_seed(seed))
    for key, value in method.named_parameters():
        assert not torch.equal(value, before[key]), f"{key} did not move"
    owned = [id(p) for o in optimizers.values() for g in o.param_groups for p in g["params"]]
    assert sorted(owned) == sorted(id(p) for p in method.parameters())
    assert stranger.grad is None
    assert {"loss", "elbo"} <= set(metrics)
    assert all(v.ndim == 0 and not v.requires_grad for v in metrics.values())


@each_method
def test_steps_raise_the_bound(name):
    method = make(name)
    x = images(32).round()
    generator = torch.Generator().manual_seed(0)

    def bound():
        with torch.no_grad():
            q = method.posterior(x)
        return bounds_of(method.model, x, q, 50, torch.Generator().manual_seed(9), 10_000).elbo.mean()

    first = bound()
    optimizers = method.optimizers(2e-3 * method.rate_factor)
    for _ in range(40):
        method.step(x, optimizers, generator=generator)
    assert bound() > first + method.rate_factor


@each_method
def test_the_decoder_may_follow_the_iwae_bound(name):
    """The posterior's own parameters move as before; the decoder moves otherwise."""
    plain, other = make(name), make(name)
    other.decoder_samples = 7
    for method in (plain, other):
        method.step(images(), method.optimizers(1e-3), generator=torch.Generator().manual_seed(0))
    shared = {key for key, _ in plain.named_parameters() if key.startswith("model.")}
    for (key, a), b in zip(plain.named_parameters(), other.parameters(), strict=True):
        if key not in shared:
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    assert any(
        not torch.allclose(a, b, atol=1e-6)
        for a, b in zip(plain.model.parameters(), other.model.parameters(), strict=True)
    )


@each_method
def test_a_step_never_waits_for_the_device(name):
    """On the meta device there are no values: whoever looks at one fails."""
    method = make(name).to("meta")
    method.step(images().to("meta"), method.optimizers(1e-3))


@each_method
def test_answers_under_no_grad_and_leaves_nothing_behind(name):
    method = make(name).float()
    for dtype in (torch.float32, torch.bfloat16):
        with torch.no_grad():
            q = method.posterior(
                images().to(dtype).float() if dtype == torch.float32 else images().to(dtype)
            )
            z, log_q = q.rsample_and_log_prob(2)
        assert z.dtype == torch.float32
        assert not z.requires_grad
        assert not log_q.requires_grad
    assert all(p.grad is None for p in method.parameters())


@each_method
def test_an_examples_posterior_does_not_depend_on_its_neighbours(name):
    method = make(name)
    x = images()
    with torch.no_grad():
        together, alone = method.posterior(x).mean[2:3], method.posterior(x[2:3]).mean
    torch.testing.assert_close(together, alone, rtol=1e-8, atol=1e-8)


@each_method
def test_starts_from_a_vae(name):
    torch.manual_seed(2)
    vae = VAE(model(), make_encoder("conv", SHAPE, LATENT)).double()
    method = make(name)
    method.start_from(vae)
    for ours, theirs in zip(method.model.parameters(), vae.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    for ours, theirs in zip(
        method.base_encoder.parameters(), vae.base_encoder.parameters(), strict=True
    ):
        assert torch.equal(ours, theirs)
    again = make(name)
    for p in method.parameters():
        p.data.add_(0.01)
    again.start_from(method)
    for ours, theirs in zip(again.parameters(), method.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@each_method
def test_save_and_load(name, tmp_path):
    data = recmix.data.from_arrays(images(40).float().numpy())
    start = recmix.fit("vae", data, latent=LATENT, epochs=1, progress=False)
    made = recmix.fit(name, data, init=start, epochs=1, progress=False)
    made.save(tmp_path / "run")
    again = recmix.load(tmp_path / "run")
    x = data.x_val[:3]
    torch.testing.assert_close(again.elbo(x, 5), made.elbo(x, 5), rtol=0, atol=0)
    assert again.spec.setting == METHODS[name].setting


@each_method
def test_speaks_for_itself(name):
    cls = METHODS[name]
    assert cls.title
    assert cls.reference
    assert "Reference" in (cls.__doc__ or "")
    options = method_options(cls)
    assert cls.setting is None or cls.setting in options
    assert all(option.help for option in options.values())


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("component", sorted(COMPONENTS))
def test_a_mixture_of_any_component(name, component):
    if name == "bvi-er2" and component != "gaussian":
        pytest.skip("its entropy has a closed form for Gaussians only")
    method = make(name, order=2, component=component)
    optimizers = method.optimizers(1e-3)
    for seed in range(2):
        metrics = method.step(images(), optimizers, generator=torch.Generator().manual_seed(seed))
    assert metrics["loss"].isfinite()
    with torch.no_grad():
        q = method.posterior(images())
        z, log_q = q.rsample_and_log_prob(5)
    assert log_q.isfinite().all()
    parts = torch.stack([c.log_prob(z) for c in q.components]) + q.log_weights.t()[:, None]
    torch.testing.assert_close(log_q, parts.logsumexp(0), rtol=1e-6, atol=1e-6)
    if component in ("gaussian", "full", "laplace"):
        plain = q.as_distribution()
        assert plain.event_shape == (LATENT,)
        torch.testing.assert_close(plain.log_prob(z), log_q, rtol=1e-6, atol=1e-6)


class LinearEncoder(nn.Module):
    """The exact posterior mean is linear in x and its covariance constant."""

    def __init__(self, latent):
        super().__init__()
        self.mean = nn.Linear(math.prod(ORACLE_SHAPE), latent)
        self.log_variance = nn.Parameter(torch.zeros(latent))

    def reset_parameters(self):
        self.mean.reset_parameters()
        self.log_variance.data.normal_(0, 0.3)

    def forward(self, x):
        mean = self.mean(x.flatten(1))
        return torch.cat([mean, self.log_variance.expand_as(mean)], -1)


FULL = {"full", "hf", "iaf", "vlae"}
"""Methods whose family holds the true posterior of the linear-Gaussian model."""


@each_method
def test_best_reachable_bound_on_the_oracle(name):
    """With the decoder fixed, training the posterior reaches what its family can reach, and no more.

    The best diagonal Gaussian has the true mean and the true precision's diagonal; families with
    correlations hold the true posterior, so that their ELBO is the evidence. Mixtures lie between.
    """
    world = LinearGaussian(latent=2, variance=0.2)
    torch.manual_seed(4)
    options = {"order": 2} if name in MIXTURES else {}
    options |= {"bound": 0.1} if name == "rme" else {}  # with 500 a component may leave the posterior
    options |= {"literal": True} if name.startswith("bvi") else {}  # the same, without any bound
    options |= {"flows": 2, "hidden": 32} if name == "iaf" else {}
    options |= {"step_size": 0.05} if name == "sa" else {}
    options |= {"samples": 1} if name == "iwae" else {}
    method = METHODS[name](copy.deepcopy(world.model), LinearEncoder(2), **options).double()
    optimizers = method.optimizers(1.0)
    held = {id(p) for p in method.model.parameters()}
    x = world.images(64)
    generator = torch.Generator().manual_seed(0)
    steps = 500
    for number in range(steps):
        for optimizer in optimizers.values():
            for group in optimizer.param_groups:
                frozen = any(id(p) in held for p in group["params"])
                group["lr"] = 0.0 if frozen else 0.03 * (1 - number / steps) + 1e-5
        method.step(x, optimizers, generator=generator)
    with torch.no_grad():
        q = method.posterior(x)
        z, log_q = q.rsample_and_log_prob(4000, generator=generator)
        log_w = method.model.log_joint(x, z) - log_q
    elbo, error = log_w.mean(), log_w.mean(1).std() / math.sqrt(log_w.shape[0])
    evidence = world.log_evidence(x).mean()
    precision = world.posterior(x).precision_matrix[0]
    diagonal = evidence - 0.5 * (precision.diagonal().log().sum() - torch.logdet(precision))
    assert evidence - diagonal > 0.02  # the model tells the families apart
    assert elbo < evidence + 4 * error + 1e-9
    if name in FULL:
        assert elbo > evidence - 0.02
    else:
        assert elbo > diagonal - 0.03
        if name not in MIXTURES:
            assert elbo < diagonal + 4 * error + 1e-9
