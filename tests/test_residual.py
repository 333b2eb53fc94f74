"""Residual recursion: it starts where the encoder is, sees what is unexplained, and gains by it."""

import pytest
import torch
from test_fit import images
from torch import nn

import recmix
from recmix.errors import ConfigError
from recmix.methods.recursive import RecursiveMixture
from recmix.methods.registry import METHODS
from recmix.methods.residual import Corrector, ResidualComponent, corrected
from recmix.methods.vae import VAE
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import make_likelihood
from recmix.model.networks import make_decoder, make_encoder

SHAPE = (1, 12, 12)


def latent_model(likelihood="gaussian"):
    torch.manual_seed(0)
    return LatentModel(
        make_decoder("conv", SHAPE, 3), make_likelihood(likelihood), latent=3, shape=SHAPE
    )


def chain(likelihood="gaussian", **options):
    model = latent_model(likelihood)
    return VAE(model, make_encoder("conv", SHAPE, 3), component="residual", **options).double()


def stir(method):
    for module in method.modules():
        if isinstance(module, Corrector):
            nn.init.normal_(module.head.weight, std=0.1)
    return method


def x(n=5):
    return torch.rand(n, *SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
@pytest.mark.parametrize("shared", [True, False])
def test_it_starts_as_the_encoder(likelihood, shared):
    method = chain(likelihood, shared=shared)
    plain = VAE(method.model, method.base_encoder)
    torch.testing.assert_close(method.posterior(x()).mean, plain.posterior(x()).mean)
    assert len(method.components[0].correctors) == (1 if shared else 3)


def test_it_sees_the_residual_and_each_image_by_itself():
    method = stir(chain(corrections=2))
    part = method.components[0]
    links = part.chain(x(), method.model)
    assert len(links) == 3
    first = corrected(method.model, part.correctors[0], x(), links[0])
    torch.testing.assert_close(first, links[1])
    alone = torch.cat([method.posterior(one[None]).mean for one in x()])
    torch.testing.assert_close(method.posterior(x()).mean, alone)
    # Another decoder leaves another residual, and the same encoder and corrector give another answer.
    before = method.posterior(x()).mean
    with torch.no_grad():
        for p in method.model.decoder.parameters():
            p.mul_(1.5)
    assert (method.posterior(x()).mean - before).abs().max() > 1e-3


def test_every_link_climbs_its_own_bound_and_the_decoder_that_of_the_last():
    method = stir(chain(corrections=2, shared=False))
    part, model = method.components[0], method.model
    loss = method.loss(x(), generator=torch.Generator().manual_seed(0))
    inputs = [*part.encoder.parameters(), *part.correctors.parameters(), *model.decoder.parameters()]
    got = torch.autograd.grad(loss, inputs)
    # The same noise, and the sum of the bounds written out.
    generator = torch.Generator().manual_seed(0)
    links = part.chain(x(), model, apart=True)
    qs = [recmix.posteriors.Gaussian.from_parameters(link) for link in links]
    last = torch.randn((1, 5, 3), generator=generator, dtype=torch.float64)
    early = torch.randn((1, 2, 5, 3), generator=generator, dtype=torch.float64)[0]
    elbos = []
    for q, noise in zip(qs, [*early, last[0]], strict=True):
        z = q.mean + q.stddev * noise
        elbos.append((model.log_conditional(x(), z[None]) - q.kl_to_prior(z, z)).mean())
    assert loss.item() == pytest.approx(-elbos[-1].item())
    own = len(inputs) - len(list(model.decoder.parameters()))
    wanted = torch.autograd.grad(-sum(elbos), inputs[:own], retain_graph=True)
    wanted += torch.autograd.grad(-elbos[-1], inputs[own:])
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_corrections_find_what_an_encoder_that_knows_nothing_does_not():
    """An encoder that is stuck far off, and a corrector that only sees what is unexplained."""
    torch.manual_seed(0)
    data = recmix.data.from_arrays(images(300, size=12), seed=0)
    start = recmix.fit(
        "vae", data, latent=2, epochs=3, learning_rate=1e-3, progress=False, dtype="float64"
    )
    with torch.no_grad():
        for p in start.method.base_encoder.parameters():
            p.zero_()  # it knows nothing
    better = recmix.fit(
        "vae",
        data,
        init=start,
        component="residual",
        corrections=2,
        moves="encoder",
        epochs=8,
        learning_rate=1e-3,
        batch_size=32,
        dtype="float64",
        progress=False,
    )
    assert better.elbo(data.x_val).mean() > start.elbo(data.x_val).mean() + 5
    for name, value in start.model.state_dict().items():
        assert torch.equal(value, better.model.state_dict()[name])  # the decoder stood still


def test_the_recursion_keeps_what_it_corrects():
    model = latent_model()
    method = stir(RecursiveMixture(model, make_encoder("conv", SHAPE, 3), order=3, component="residual"))
    method = method.double()
    q = method.posterior(x())
    links = [q.components[0]]
    assert len(q.components) == 3
    for m in (1, 2):
        parameters = torch.cat([links[-1].mean, links[-1].log_variance], -1)
        moved = corrected(model, method.components[m].encoder, x(), parameters)
        torch.testing.assert_close(q.components[m].mean, moved.chunk(2, -1)[0])
        links.append(q.components[m])
    torch.testing.assert_close(method.component(2, x()).mean, q.components[2].mean)
    z, log_q = q.rsample_and_log_prob(2)
    torch.testing.assert_close(q.log_prob(z), log_q)


def test_a_recursion_of_corrections_trains_grows_and_is_loaded(tmp_path):
    data = recmix.data.from_arrays(images(150, size=12), seed=0)
    start = recmix.fit("vae", data, latent=2, epochs=2, learning_rate=1e-3, progress=False)
    told = {"component": "residual", "learning_rate": 1e-3, "progress": False, "bound": 1.0}
    two = recmix.fit("rme", data, init=start, order=2, epochs=3, out=tmp_path / "two", **told)
    back = recmix.load(tmp_path / "two")
    torch.testing.assert_close(back.elbo(data.x_val), two.elbo(data.x_val))
    three = METHODS["rme"](two.model, two.method.base_encoder, order=3, component="residual")
    three.start_from(two.method)
    grown = three.component(1, torch.from_numpy(data.x_val[:4]))
    kept = two.method.component(1, torch.from_numpy(data.x_val[:4]))
    torch.testing.assert_close(grown.mean, kept.mean)


def test_wrong_numbers_are_refused():
    with pytest.raises(ConfigError, match="1 to 8; got 0"):
        ResidualComponent(nn.Identity(), latent_model(), corrections=0)
    with pytest.raises(ConfigError, match="component must be one of"):
        recmix.fit("vae", images(20), component="flow")


def _evidence(model, images, parameters):
    """Laplace's estimate of log p(x), but for a constant."""
    mean, log_variance = parameters.chunk(2, dim=-1)
    return model.log_joint(images, mean[None])[0] + 0.5 * log_variance.sum(-1)


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
@pytest.mark.parametrize("shared", [True, False])
@torch.no_grad()
def test_the_best_link_of_chains_from_several_starts_is_used(likelihood, shared):
    method = stir(chain(likelihood, shared=shared))
    part, model = method.components[0], method.model
    for p in [*list(part.encoder.parameters())[-2:], *part.correctors[-1].head.parameters()]:
        p.mul_(30)  # far from 0, so that starts and links differ
    mean, log_variance = part.encoder(model.centred(x())).chunk(2, dim=-1)
    links = []
    for scale in (1.0, 0.8, 1.2):  # one chain after another, as they are defined
        now = torch.cat([scale * mean, log_variance], -1)
        links.append(now)
        for t in range(3):
            now = corrected(model, part.correctors[0 if shared else t], x(), now)
            links.append(now)
    told = torch.stack([_evidence(model, x(), link) for link in links])  # (links, B)
    assert (told.argmax(0) != 3).any()  # not always the last of the first chain
    expected = torch.stack(links)[told.argmax(0), torch.arange(5)]
    method.starts = 3
    q = method.infer(x())
    torch.testing.assert_close(torch.cat([q.mean, q.log_variance], -1), expected)
    torch.testing.assert_close(method.posterior(x()).mean, links[3].chunk(2, dim=-1)[0])  # as it trains
    method.refine = 2  # and steps may go on from there
    before, after = (model.log_joint(x(), p.mean[None]) for p in (q, method.infer(x())))
    assert (after > before).all()


@torch.no_grad()
def test_a_link_that_is_not_a_number_is_never_the_best():
    method = chain()
    nn.init.constant_(method.components[0].correctors[0].head.bias, torch.nan)
    method.starts = 2
    assert method.infer(x()).mean.isfinite().all()


def test_starts_change_how_a_chain_is_used_and_not_how_it_is_trained(tmp_path):
    how = {"component": "residual", "corrections": 2, "latent": 2, "epochs": 2, "progress": False}
    runs = [
        recmix.fit("vae", images(60), starts=n, out=tmp_path / str(n), learning_rate=1e-3, **how)
        for n in (1, 3)
    ]
    assert runs[0].history == runs[1].history
    for key, value in runs[0].method.state_dict().items():
        torch.testing.assert_close(value, runs[1].method.state_dict()[key], atol=0, rtol=0)
    held_out = images(30, seed=3)
    assert not torch.equal(runs[0].posterior(held_out).mean, runs[1].posterior(held_out).mean)
    back = recmix.load(tmp_path / "1").refined(0, starts=3)
    torch.testing.assert_close(back.posterior(held_out).mean, runs[1].posterior(held_out).mean)
    assert (recmix.load(tmp_path / "3").method.starts, back.method.climbs()["starts"]) == (3, 3)


def test_only_a_chain_of_corrections_begins_from_several_points():
    model = latent_model()
    for name, make in METHODS.items():
        assert not make(model, make_encoder("conv", SHAPE, 3)).several, name
    assert chain().several
    plain = VAE(model, make_encoder("conv", SHAPE, 3))
    plain.starts = 4
    assert plain.climbs() == {"refine": 0, "reuse": 0, "starts": 1}
