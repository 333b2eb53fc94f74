"""Distillation: encoders, and nothing else, are fitted to samples of the refined posterior."""

import copy
import math
from functools import cache

import pytest
import torch
from cases.contract import ALL, MIXTURES, images, make
from cases.oracle import LinearEncoder, LinearGaussian
from cases.runs import same_run
from cases.training import SMALL
from cases.training import images as squares
from torch import nn
from torch.distributions import MultivariateNormal, kl_divergence

import recmix
from recmix.errors import ConfigError
from recmix.inference import Inference
from recmix.inference.refinement import refine
from recmix.methods.method import TEACHER_SAMPLES, Objective
from recmix.methods.registry import METHODS
from recmix.posteriors import Gaussian

DISTILLABLE = [name for name in ALL if name != "vlae"]


def objective(share, steps=2):
    """Distillation from a posterior that is refined by this many steps."""
    return Objective(distil=share, teacher=Inference(refine=steps))


@cache
def distilled(name, share, *, steps=250, latent=2, **options):
    """Posteriors of the linear-Gaussian model: that of a distilled method, and the true one."""
    world = LinearGaussian(latent=latent, variance=0.2)
    torch.manual_seed(4)
    method = METHODS[name](copy.deepcopy(world.model), LinearEncoder(latent), **options).double()
    method.model.requires_grad_(False)
    x, generator = world.images(64), torch.Generator().manual_seed(0)
    optimizers = method.optimizers(1.0)
    for number in range(steps):
        for optimizer in optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = 0.03 * (1 - number / steps) + 1e-5
        method.step(x, optimizers, objective=objective(share, 1), generator=generator)
    with torch.no_grad():
        return method.posterior(x), world.posterior(x)


def test_distillation_alone_gives_the_moments_of_the_true_posterior():
    """-E log q is smallest where a diagonal Gaussian has the mean and the variances of its teacher."""
    q, true = distilled("vae", 1.0)
    torch.testing.assert_close(q.mean, true.mean, atol=0.04, rtol=0)
    torch.testing.assert_close(q.log_variance.exp(), true.variance, atol=0, rtol=0.05)
    narrow = 1 / true.precision_matrix.diagonal(dim1=-2, dim2=-1)  # the optimum of the ELBO alone
    assert (narrow < 0.85 * true.variance).any(-1).all()


def test_larger_share_is_nearer_to_the_true_posterior():
    found = []
    for share in (0.0, 0.5, 1.0):
        q, true = distilled("vae", share)
        full = MultivariateNormal(q.mean, scale_tril=torch.diag_embed(q.stddev))
        found.append(float(kl_divergence(true, full).mean()))
    assert found[0] > found[1] > found[2]
    precision = true.precision_matrix[0]
    # No diagonal Gaussian has a smaller KL.
    best = 0.5 * (true.variance[0].log().sum() + torch.logdet(precision))
    assert found[2] == pytest.approx(float(best), abs=0.01)


@pytest.mark.parametrize("name", ["full", "hf"])
def test_family_with_the_true_posterior_finds_it(name):
    q, true = distilled(name, 1.0)
    full = MultivariateNormal(q.mean, scale_tril=q.scale_tril)
    assert float(kl_divergence(true, full).mean()) < 0.01


@pytest.mark.parametrize("name", ["rme", "me"])
def test_mixtures_are_distilled(name):
    """Components refine to the true posterior. In rme each is fitted to it, in me all together."""
    q, true = distilled(name, 1.0, order=2, steps=400)
    if name == "rme":
        for part in q.components:
            torch.testing.assert_close(part.mean, true.mean, atol=0.05, rtol=0)
            torch.testing.assert_close(part.log_variance.exp(), true.variance, atol=0, rtol=0.05)
    z = true.rsample((500,))
    gap = (true.log_prob(z) - q.log_prob(z)).mean()
    precision = true.precision_matrix[0]
    diagonal = 0.5 * (true.variance[0].log().sum() + torch.logdet(precision))
    assert gap < diagonal + (0.02 if name == "rme" else -0.02)


def gradients_of_a_step(method, share, steps=1):
    """The change by one step of plain gradient descent with rate 1: gradients, by name."""
    before = {k: v.detach().clone() for k, v in method.named_parameters()}
    optimizers = {"all": torch.optim.SGD(method.parameters(), lr=1.0)}
    generator = torch.Generator().manual_seed(0)
    method.step(images(), optimizers, objective=objective(share, steps), generator=generator)
    return {k: before[k] - v.detach() for k, v in method.named_parameters()}


@pytest.mark.parametrize("name", ["vae", "full", "hf", "iaf", "sa", "iwae", "me"])
def test_encoders_descend_both_losses_and_the_decoder_only_its_own(name):
    shares = (0.0, 1.0, 0.3)
    plain, alone, both = (gradients_of_a_step(make(name), share, steps=2) for share in shares)
    method = make(name)
    generator = torch.Generator().manual_seed(0)
    method.loss(images(), generator=generator)  # uses the noise that the step uses first
    own = [(k, p) for k, p in method.named_parameters() if not k.startswith("model.")]
    gradients = torch.autograd.grad(
        method.distillation(images(), Inference(refine=2), generator),
        [p for _, p in own],
        allow_unused=True,
    )
    for (key, p), gradient in zip(own, gradients, strict=True):
        wanted = torch.zeros_like(p) if gradient is None else gradient
        torch.testing.assert_close(alone[key], wanted, rtol=1e-7, atol=1e-9, msg=key)
        torch.testing.assert_close(
            both[key], 0.7 * plain[key] + 0.3 * wanted, rtol=1e-7, atol=1e-9, msg=key
        )
    for key in [k for k in plain if k.startswith("model.")]:
        assert torch.equal(plain[key], alone[key]), key
        assert torch.equal(plain[key], both[key]), key


def test_distillation_with_refinement_in_training():
    """The decoder learns from the refined posterior, for any share of distillation."""
    found = []
    for share in (0.0, 0.5):
        method = make("vae")
        before = copy.deepcopy(method.state_dict())
        trained = Objective(inference=Inference(refine=1), distil=share)
        generator = torch.Generator().manual_seed(0)
        method.step(images(), method.optimizers(1e-3), objective=trained, generator=generator)
        found.append({k: v - before[k] for k, v in method.state_dict().items()})
    assert all(not torch.equal(found[0][k], found[1][k]) for k in found[0] if "encoder" in k)
    assert any(v.abs().max() > 0 for k, v in found[1].items() if k.startswith("model.decoder"))


@pytest.mark.parametrize("name", DISTILLABLE)
def test_share_zero_changes_nothing(name):
    states = []
    for given in ({}, {"objective": objective(0.0, 4)}):
        method = make(name)
        optimizers = method.optimizers(1e-3)
        for seed in range(2):
            method.step(images(), optimizers, generator=torch.Generator().manual_seed(seed), **given)
        states.append(method.state_dict())
    for key, value in states[0].items():
        assert torch.equal(value, states[1][key]), key


@pytest.mark.parametrize("name", DISTILLABLE)
def test_every_encoder_is_distilled(name):
    """Distillation alone changes all encoders, in float32, and does not read a value on the host."""
    method = make(name).float()
    before = copy.deepcopy(method.state_dict())
    optimizers = method.optimizers(1e-3)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        metrics = method.step(
            images().float(), optimizers, objective=objective(1.0), generator=generator
        )
    assert all(v.isfinite() for v in metrics.values())
    for key, value in method.state_dict().items():
        if "encoder" in key and "_extra_state" not in key:
            assert value.isfinite().all()
            assert not torch.equal(value, before[key]), key
    there = make(name).to("meta")
    there.step(images().to("meta"), there.optimizers(1e-3), objective=objective(0.5))


@pytest.mark.parametrize("name", [name for name in MIXTURES if name != "bvi-er2"])
@pytest.mark.parametrize("component", ["residual", "full", "iaf", "sa"])
def test_mixtures_of_other_components_are_distilled(name, component):
    method = make(name, order=2, component=component)
    before = copy.deepcopy(method.state_dict())
    optimizers = method.optimizers(1e-3)
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        metrics = method.step(images(), optimizers, objective=objective(0.5), generator=generator)
    assert metrics["loss"].isfinite()
    changed = [k for k, v in method.state_dict().items() if not torch.equal(v, before[k])]
    assert any(key.startswith("components.1.") for key in changed)


def test_all_iterates_of_residual_are_fitted_to_the_refined_last_one():
    method = make("residual", corrections=2)
    part = method.components[0]
    with torch.no_grad():  # correctors start at zero, where all iterates are equal
        for p in part.parameters():
            p.add_(0.02 * torch.randn_like(p))
    x = images()
    value = method.distillation(x, Inference(refine=2), torch.Generator().manual_seed(1))
    iterates = [Gaussian.from_parameters(found) for found in part.iterates(x, method.model)]
    with torch.no_grad():
        q = refine(method.model, x, iterates[-1], steps=2)
        z, _ = q.rsample_and_log_prob(TEACHER_SAMPLES, generator=torch.Generator().manual_seed(1))
    parts = [-q.log_prob(z).mean() for q in iterates]
    torch.testing.assert_close(value, sum(parts))
    encoder = list(part.encoder.parameters())
    wanted = torch.autograd.grad(parts[0], encoder, retain_graph=True)  # of its own iterate only
    for a, b in zip(torch.autograd.grad(value, encoder), wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_training_brings_encoders_nearer_to_their_refined_posterior():
    """On validation images, with a fixed decoder."""
    data = recmix.data.from_arrays(squares(400, size=12), seed=0)
    given = {"epochs": 10, "learning_rate": 1e-3, "batch_size": 32, "patience": 0, "progress": False}
    start = recmix.fit("vae", data, latent=3, **given)
    made = recmix.fit("vae", data, init=start, train="encoder", distil=1.0, keep_weights="last", **given)
    for key, value in start.latent_model.state_dict().items():
        assert torch.equal(value, made.latent_model.state_dict()[key]), key
    z, _ = start.refined(4).posterior(data.x_val).rsample_and_log_prob(200)
    gain = (made.posterior(data.x_val).log_prob(z) - start.posterior(data.x_val).log_prob(z)).mean(0)
    assert gain.mean() > 3 * gain.std() / math.sqrt(len(gain))


def test_resume_gives_same_bits(tmp_path):
    given = SMALL | {"distil": 0.5, "distil_steps": 1, "weight_average": 0.5}
    recmix.fit("vae", squares(), out=tmp_path / "whole", **given)
    recmix.fit("vae", squares(), out=tmp_path / "run", **(given | {"epochs": 1}))
    recmix.fit("vae", squares(), out=tmp_path / "run", resume=True, **given)
    same_run(tmp_path / "run", tmp_path / "whole")


def test_components_without_gradient_are_refused(tmp_path):
    given = SMALL | {"distil": 0.5}
    with pytest.raises(ConfigError, match=r"laplace component gives its encoder no gradient: use vae"):
        recmix.fit("vlae", squares(), out=tmp_path / "run", **given)
    with pytest.raises(ConfigError, match="laplace component"):
        recmix.fit("rme", squares(), order=2, component="laplace", out=tmp_path / "run", **given)
    decoder = nn.Sequential(nn.Linear(2, 64), nn.BatchNorm1d(64), nn.Unflatten(1, (1, 8, 8)))
    with pytest.raises(ConfigError, match="GroupNorm"):
        recmix.fit("vae", squares(), decoder=decoder, out=tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(ConfigError, match="distil must be at least 0 and at most 1, got"):
            recmix.fit("vae", squares(), distil=share)
    with pytest.raises(ConfigError, match="distil_steps must be at least 1, got 0"):
        recmix.fit("vae", squares(), distil=0.5, distil_steps=0)
