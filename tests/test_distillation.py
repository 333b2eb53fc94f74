"""Distillation: samples of the refined posterior teach the encoders, and nothing else."""

import copy
import math

import pytest
import torch
from oracle import LinearGaussian
from test_contract import ALL, MIXTURES, LinearEncoder, images, make
from test_fit import SMALL
from test_fit import images as squares
from torch import nn
from torch.distributions import kl_divergence

import recmix
from recmix.errors import ConfigError
from recmix.inference.refinement import refined
from recmix.methods.method import LESSONS
from recmix.methods.registry import METHODS
from recmix.methods.residual import ResidualComponent
from recmix.methods.vae import VAE
from recmix.posteriors import Gaussian
from recmix.posteriors.full import FullGaussian

TEACHABLE = [name for name in ALL if name != "vlae"]


def taught(name, share, *, steps=400, latent=2, **options):
    """Posteriors of the linear-Gaussian model: that of a method which is taught, the true one."""
    world = LinearGaussian(latent=latent, variance=0.2)
    torch.manual_seed(4)
    method = METHODS[name](copy.deepcopy(world.model), LinearEncoder(latent), **options).double()
    method.model.requires_grad_(False)
    method.distil, method.distil_steps = share, 1
    x, generator = world.images(64), torch.Generator().manual_seed(0)
    optimizers = method.optimizers(1.0)
    for number in range(steps):
        for optimizer in optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = 0.03 * (1 - number / steps) + 1e-5
        method.step(x, optimizers, generator=generator)
    with torch.no_grad():
        return method.posterior(x), world.posterior(x)


def test_alone_it_leads_to_the_moments_of_the_true_posterior():
    """-E log q is least where a diagonal Gaussian has the mean and the variances of what it is to be."""
    q, true = taught("vae", 1.0)
    torch.testing.assert_close(q.mean, true.mean, atol=0.04, rtol=0)
    torch.testing.assert_close(q.log_variance.exp(), true.variance, atol=0, rtol=0.05)
    narrow = 1 / true.precision_matrix.diagonal(dim1=-2, dim2=-1)  # where the ELBO alone would lead
    assert (narrow < 0.85 * true.variance).any(-1).all()


def test_the_more_of_it_the_nearer_is_the_true_posterior():
    found = []
    for share in (0.0, 0.5, 1.0):
        q, true = taught("vae", share)
        full = FullGaussian(q.mean, torch.diag_embed(q.stddev)).as_distribution()
        found.append(float(kl_divergence(true, full).mean()))
    assert found[0] > found[1] > found[2]
    precision = true.precision_matrix[0]
    best = 0.5 * (true.variance[0].log().sum() + torch.logdet(precision))  # no diagonal one has less
    assert found[2] == pytest.approx(float(best), abs=0.01)


@pytest.mark.parametrize("name", ["full", "hf"])
def test_a_family_that_holds_the_true_posterior_finds_it(name):
    q, true = taught(name, 1.0)
    assert float(kl_divergence(true, q.as_distribution()).mean()) < 0.01


@pytest.mark.parametrize("name", ["rme", "me"])
def test_mixtures_learn_it(name):
    """Components refine to the true posterior. Each learns it by itself in rme, all together in me."""
    q, true = taught(name, 1.0, order=2)
    if name == "rme":
        for part in q.components:
            torch.testing.assert_close(part.mean, true.mean, atol=0.05, rtol=0)
            torch.testing.assert_close(part.log_variance.exp(), true.variance, atol=0, rtol=0.05)
    z = true.rsample((500,))
    gap = (true.log_prob(z) - q.log_prob(z)).mean()
    precision = true.precision_matrix[0]
    diagonal = 0.5 * (true.variance[0].log().sum() + torch.logdet(precision))
    assert gap < diagonal + (0.02 if name == "rme" else -0.02)


def move(method, share, steps=1):
    """One step of plain gradient descent at rate 1, as gradients by name."""
    method.distil, method.distil_steps = share, steps
    before = {k: v.detach().clone() for k, v in method.named_parameters()}
    optimizers = {"all": torch.optim.SGD(method.parameters(), lr=1.0)}
    method.step(images(), optimizers, generator=torch.Generator().manual_seed(0))
    return {k: before[k] - v.detach() for k, v in method.named_parameters()}


@pytest.mark.parametrize("name", ["vae", "full", "hf", "iaf", "sa", "iwae", "me"])
def test_encoders_move_down_both_and_the_decoder_as_before(name):
    plain, alone, both = (move(make(name), share, steps=2) for share in (0.0, 1.0, 0.3))
    method = make(name)
    method.distil_steps = 2
    generator = torch.Generator().manual_seed(0)
    method.loss(images(), generator=generator)  # draws what the step draws before
    own = [(k, p) for k, p in method.named_parameters() if not k.startswith("model.")]
    gradients = torch.autograd.grad(
        method.distillation(images(), generator), [p for _, p in own], allow_unused=True
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


def test_refinement_in_training_goes_with_it():
    """The decoder then learns from the refined posterior, whatever teaches the encoder."""
    found = []
    for share in (0.0, 0.5):
        method = make("vae")
        method.refine, method.distil = 1, share
        before = copy.deepcopy(method.state_dict())
        method.step(images(), method.optimizers(1e-3), generator=torch.Generator().manual_seed(0))
        found.append({k: v - before[k] for k, v in method.state_dict().items()})
    assert all(not torch.equal(found[0][k], found[1][k]) for k in found[0] if "encoder" in k)
    assert any(v.abs().max() > 0 for k, v in found[1].items() if k.startswith("model.decoder"))


@pytest.mark.parametrize("name", TEACHABLE)
def test_nothing_of_it_changes_nothing(name):
    states = []
    for steps in (1, 4):
        method = make(name)
        method.distil, method.distil_steps = 0.0, steps
        optimizers = method.optimizers(1e-3)
        for seed in range(2):
            method.step(images(), optimizers, generator=torch.Generator().manual_seed(seed))
        states.append(method.state_dict())
    for key, value in states[0].items():
        assert torch.equal(value, states[1][key]), key


@pytest.mark.parametrize("name", TEACHABLE)
def test_every_encoder_is_taught(name):
    """With nothing else to move down they move, in float32; and nobody looks at a value."""
    method = make(name).float()
    method.distil = 1.0
    before = copy.deepcopy(method.state_dict())
    optimizers = method.optimizers(1e-3)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        metrics = method.step(images().float(), optimizers, generator=generator)
    assert all(v.isfinite() for v in metrics.values())
    for key, value in method.state_dict().items():
        if "encoder" in key and "_extra_state" not in key:
            assert value.isfinite().all()
            assert not torch.equal(value, before[key]), key
    there = make(name).to("meta")
    there.distil = 0.5
    there.step(images().to("meta"), there.optimizers(1e-3))


@pytest.mark.parametrize("name", [name for name in MIXTURES if name != "bvi-er2"])
@pytest.mark.parametrize("component", ["residual", "full", "iaf", "sa"])
def test_mixtures_of_other_components(name, component):
    method = make(name, order=2, component=component)
    method.distil = 0.5
    before = copy.deepcopy(method.state_dict())
    optimizers = method.optimizers(1e-3)
    for seed in range(2):
        metrics = method.step(images(), optimizers, generator=torch.Generator().manual_seed(seed))
    assert metrics["loss"].isfinite()
    changed = [k for k, v in method.state_dict().items() if not torch.equal(v, before[k])]
    assert any(key.startswith("components.1.") for key in changed)


def test_all_links_of_a_chain_are_taught_by_what_the_last_refines_to():
    method = make("vae", component="residual", corrections=2)
    assert isinstance(method, VAE)
    chain = method.components[0]
    assert isinstance(chain, ResidualComponent)
    with torch.no_grad():  # correctors start at zero, where all links are alike
        for p in chain.parameters():
            p.add_(0.02 * torch.randn_like(p))
    x = images()
    value = method.distillation(x, torch.Generator().manual_seed(1))
    links = [Gaussian.from_parameters(part) for part in chain.chain(x, method.model)]
    with torch.no_grad():
        q = refined(method.model, x, links[-1], steps=2)
        z, _ = q.rsample_and_log_prob(LESSONS, generator=torch.Generator().manual_seed(1))
    parts = [-link.log_prob(z).mean() for link in links]
    torch.testing.assert_close(value, sum(parts))
    encoder = list(chain.encoder.parameters())
    wanted = torch.autograd.grad(parts[0], encoder, retain_graph=True)  # its own link, no other
    for a, b in zip(torch.autograd.grad(value, encoder), wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_a_training_with_it_brings_encoders_nearer_to_what_they_refine_to():
    """On images that they have not seen, with the decoder as it was."""
    data = recmix.data.from_arrays(squares(400, size=12), seed=0)
    told = {"epochs": 10, "learning_rate": 1e-3, "batch_size": 32, "patience": 0, "progress": False}
    start = recmix.fit("vae", data, latent=3, **told)
    made = recmix.fit("vae", data, init=start, moves="encoder", distil=1.0, keep="last", **told)
    for key, value in start.model.state_dict().items():
        assert torch.equal(value, made.model.state_dict()[key]), key
    z, _ = start.refined(4).posterior(data.x_val).rsample_and_log_prob(200)
    gain = (made.posterior(data.x_val).log_prob(z) - start.posterior(data.x_val).log_prob(z)).mean(0)
    assert gain.mean() > 3 * gain.std() / math.sqrt(len(gain))


def test_the_same_training_resumes_to_the_same_bits(tmp_path):
    from test_run import same_run

    told = SMALL | {"distil": 0.5, "distil_steps": 1, "average": 0.5}
    recmix.fit("vae", squares(), out=tmp_path / "whole", **told)
    recmix.fit("vae", squares(), out=tmp_path / "run", **(told | {"epochs": 1}))
    recmix.fit("vae", squares(), out=tmp_path / "run", resume=True, **told)
    same_run(tmp_path / "run", tmp_path / "whole")


def test_what_cannot_be_taught_is_refused(tmp_path):
    told = SMALL | {"distil": 0.5}
    with pytest.raises(ConfigError, match=r"laplace component gives its encoder no gradient: use vae"):
        recmix.fit("vlae", squares(), out=tmp_path / "run", **told)
    with pytest.raises(ConfigError, match="laplace component"):
        recmix.fit("rme", squares(), order=2, component="laplace", out=tmp_path / "run", **told)
    decoder = nn.Sequential(nn.Linear(2, 64), nn.BatchNorm1d(64), nn.Unflatten(1, (1, 8, 8)))
    with pytest.raises(ConfigError, match="GroupNorm"):
        recmix.fit("vae", squares(), decoder=decoder, out=tmp_path / "run", **told)
    assert not (tmp_path / "run").exists()
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(ConfigError, match=r"distil is a share .* 0 to 1; got"):
            recmix.fit("vae", squares(), distil=share)
    with pytest.raises(ConfigError, match="distil_steps must be positive"):
        recmix.fit("vae", squares(), distil=0.5, distil_steps=0)
