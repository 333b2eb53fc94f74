"""Residual corrections: they start at the encoder, use the residual, and improve the posterior."""

import pytest
import torch
from cases.residual import SHAPE, latent_model, x
from cases.training import images
from torch import nn

import recmix
from recmix.errors import ConfigError
from recmix.inference import Inference
from recmix.methods.method import TEACHER_SAMPLES, infer
from recmix.methods.recursive import RecursiveMixture
from recmix.methods.registry import METHODS
from recmix.methods.residual import Corrector, ResidualComponent, ResidualVAE, corrected
from recmix.methods.vae import VAE
from recmix.model.networks import make_encoder
from recmix.posteriors import Gaussian


def residual_vae(likelihood="gaussian", **options):
    model = latent_model(likelihood)
    return ResidualVAE(model, make_encoder("conv", SHAPE, 3), **options).double()


def with_random_heads(method):
    """Correctors start at zero; give them random last layers."""
    torch.manual_seed(1)
    for module in method.modules():
        if isinstance(module, Corrector):
            nn.init.normal_(module.head.weight, std=0.1)
    return method


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
@pytest.mark.parametrize("shared", [True, False])
def test_starts_at_the_encoder(likelihood, shared):
    method = residual_vae(likelihood, shared=shared)
    plain = VAE(method.model, method.base_encoder)
    torch.testing.assert_close(method.posterior(x()).mean, plain.posterior(x()).mean)
    assert len(method.components[0].correctors) == (1 if shared else 3)


def test_correction_depends_on_the_residual():
    method = with_random_heads(residual_vae(corrections=2))
    part = method.components[0]
    iterates = part.iterates(x(), method.model)
    assert len(iterates) == 3
    first = corrected(method.model, part.correctors[0], x(), iterates[0])
    torch.testing.assert_close(first, iterates[1])
    # Another decoder leaves another residual, so the same encoder and corrector give another mean.
    before = method.posterior(x()).mean
    with torch.no_grad():
        for p in method.model.decoder.parameters():
            p.mul_(1.5)
    assert (method.posterior(x()).mean - before).abs().max() > 1e-3


def test_correction_is_added_and_reads_the_residual_in_units_of_the_noise():
    model, parameters = latent_model("gaussian").double(), torch.randn(len(x()), 6).double()
    seen = []

    class Fixed:
        whitened = False

        def __call__(self, example, residual, before, gradient):
            seen.extend((example, residual, before, gradient))
            return torch.full_like(before, 0.25)

    torch.testing.assert_close(corrected(model, Fixed(), x(), parameters), parameters + 0.25)
    decoded = model.decoder(parameters[:, :3])
    residual = (model.observed(x()) - decoded) / model.likelihood.variance.sqrt()
    for found, known in zip(seen, (model.standardised(x()), residual, parameters), strict=False):
        torch.testing.assert_close(found, known)
    assert seen[3] is None


def test_each_iterate_maximises_its_own_elbo_and_the_decoder_the_last():
    method = with_random_heads(residual_vae(corrections=2, shared=False))
    part, model = method.components[0], method.model
    loss = method.loss(x(), generator=torch.Generator().manual_seed(0))
    inputs = [*part.encoder.parameters(), *part.correctors.parameters(), *model.decoder.parameters()]
    got = torch.autograd.grad(loss, inputs)
    # The same noise, and the sum of the ELBOs written out.
    generator = torch.Generator().manual_seed(0)
    iterates = part.iterates(x(), model, detach=True)
    last = torch.randn((1, 5, 3), generator=generator, dtype=torch.float64)
    early = torch.randn((1, 2, 5, 3), generator=generator, dtype=torch.float64)[0]
    elbos = []
    for parameters, noise in zip(iterates, [*early, last[0]], strict=True):
        q = Gaussian.from_parameters(parameters)
        z = q.mean + q.stddev * noise
        elbos.append((model.log_conditional(x(), z[None]) - q.kl_to_prior(z, z)).mean())
    assert loss.item() == pytest.approx(-elbos[-1].item())
    own = len(inputs) - len(list(model.decoder.parameters()))
    wanted = torch.autograd.grad(-sum(elbos), inputs[:own], retain_graph=True)
    wanted += torch.autograd.grad(-elbos[-1], inputs[own:])
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_distillation_fits_every_iterate_to_the_refined_posterior():
    method = with_random_heads(residual_vae(corrections=2))
    teacher = Inference(refine=1, checks=0)
    found = method.distillation(x(), teacher, torch.Generator().manual_seed(0))
    iterates = method.components[0].iterates(x(), method.model, detach=True)
    with torch.no_grad():
        best = teacher(method.model, x(), Gaussian.from_parameters(iterates[-1]))
        z, _ = best.rsample_and_log_prob(TEACHER_SAMPLES, generator=torch.Generator().manual_seed(0))
    expected = -sum(Gaussian.from_parameters(one).log_prob(z).mean() for one in iterates)
    torch.testing.assert_close(found, expected)


def test_corrections_improve_an_encoder_without_information():
    data = recmix.data.from_arrays(images(300, size=12), seed=0)
    start = recmix.fit(
        "vae", data, latent=2, epochs=3, learning_rate=1e-3, progress=False, dtype="float64"
    )
    with torch.no_grad():
        for p in start.method.base_encoder.parameters():
            p.zero_()  # the same posterior for every example
    better = recmix.fit(
        "residual",
        data,
        init=start,
        corrections=2,
        train="encoder",
        epochs=8,
        learning_rate=1e-3,
        batch_size=32,
        validation_samples=1,  # the ELBO: IWAE hides what the zeroed encoder lost
        dtype="float64",
        progress=False,
    )
    assert better.elbo(data.x_val).mean() > start.elbo(data.x_val).mean() + 2
    for name, value in start.latent_model.state_dict().items():
        assert torch.equal(value, better.latent_model.state_dict()[name])  # the decoder is not trained


def test_components_of_a_recursive_mixture_correct_one_another():
    model = latent_model()
    method = RecursiveMixture(model, make_encoder("conv", SHAPE, 3), order=3, component="residual")
    method = with_random_heads(method).double()
    q = method.posterior(x())
    assert len(q.components) == 3
    for m in (1, 2):
        before = q.components[m - 1]
        parameters = torch.cat([before.mean, before.log_variance], -1)
        expected = corrected(model, method.components[m].encoder, x(), parameters)
        torch.testing.assert_close(q.components[m].mean, expected.chunk(2, -1)[0])
    torch.testing.assert_close(method.component(2, x()).mean, q.components[2].mean)


def test_recursive_mixture_of_corrections_trains_grows_and_loads(tmp_path):
    data = recmix.data.from_arrays(images(150, size=12), seed=0)
    start = recmix.fit("vae", data, latent=2, epochs=2, learning_rate=1e-3, progress=False)
    options = {"component": "residual", "learning_rate": 1e-3, "progress": False, "bound": 1.0}
    two = recmix.fit("rme", data, init=start, order=2, epochs=3, out=tmp_path / "two", **options)
    back = recmix.load(tmp_path / "two")
    torch.testing.assert_close(back.elbo(data.x_val), two.elbo(data.x_val))
    three = METHODS["rme"](two.latent_model, two.method.base_encoder, order=3, component="residual")
    three.to(two.device).start_from(two.method)
    held_out = torch.from_numpy(data.x_val[:4]).to(two.device)
    grown, kept = (method.component(1, held_out) for method in (three, two.method))
    torch.testing.assert_close(grown.mean, kept.mean)


def test_wrong_numbers_are_refused():
    for corrections in (0, 9):
        with pytest.raises(ConfigError, match=f"must be 1 to 8, got {corrections}"):
            ResidualComponent(nn.Identity(), latent_model(), corrections=corrections)
    with pytest.raises(ConfigError, match="leave component_setting out, got 2"):
        RecursiveMixture(
            latent_model(),
            make_encoder("conv", SHAPE, 3),
            order=2,
            component="residual",
            component_setting=2,
        )


def laplace_evidence(model, examples, parameters):
    """Laplace's estimate of log p(x), up to a constant."""
    mean, log_variance = parameters.chunk(2, dim=-1)
    return model.log_joint(examples, mean[None])[0] + 0.5 * log_variance.sum(-1)


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
@pytest.mark.parametrize("shared", [True, False])
@torch.no_grad()
def test_restarts_select_the_best_iterate_of_all_sequences(likelihood, shared):
    method = with_random_heads(residual_vae(likelihood, shared=shared))
    part, model = method.components[0], method.model
    for p in [*list(part.encoder.parameters())[-2:], *part.correctors[-1].head.parameters()]:
        p.mul_(30)  # far from 0, so that starting points and iterates differ
    mean, log_variance = part.encoder(model.observed(x())).chunk(2, dim=-1)
    iterates = []
    for scale in (1.0, 0.8, 1.2):  # one sequence after another
        now = torch.cat([scale * mean, log_variance], -1)
        iterates.append(now)
        for t in range(3):
            now = corrected(model, part.correctors[0 if shared else t], x(), now)
            iterates.append(now)
    scores = torch.stack([laplace_evidence(model, x(), one) for one in iterates])  # (iterates, B)
    assert (scores.argmax(0) != 3).any()  # not always the last one of the first sequence
    expected = torch.stack(iterates)[scores.argmax(0), torch.arange(5)]
    q = infer(method, x(), Inference(restarts=3))
    torch.testing.assert_close(torch.cat([q.mean, q.log_variance], -1), expected)
    torch.testing.assert_close(method.posterior(x()).mean, iterates[3].chunk(2, dim=-1)[0])
    refined = infer(method, x(), Inference(restarts=3, refine=2))  # steps continue from there
    before, after = (model.log_joint(x(), p.mean[None]) for p in (q, refined))
    assert (after > before).all()


@torch.no_grad()
def test_iterate_that_is_not_a_number_is_never_selected():
    method = residual_vae()
    nn.init.constant_(method.components[0].correctors[0].head.bias, torch.nan)
    assert infer(method, x(), Inference(restarts=2)).mean.isfinite().all()


def test_restarts_change_the_use_of_a_model_and_not_its_training(tmp_path):
    options = {"corrections": 2, "latent": 2, "epochs": 2, "vae_epochs": 2, "learning_rate": 1e-3}
    runs = [
        recmix.fit(
            "residual",
            images(60),
            restarts=n,
            out=tmp_path / str(n),
            device="cpu",
            progress=False,
            **options,
        )
        for n in (1, 3)
    ]
    assert runs[0].history == runs[1].history
    for key, value in runs[0].method.state_dict().items():
        torch.testing.assert_close(value, runs[1].method.state_dict()[key], atol=0, rtol=0)
    held_out = images(30, seed=3)
    assert not torch.equal(runs[0].posterior(held_out).mean, runs[1].posterior(held_out).mean)
    back = recmix.load(tmp_path / "1", device="cpu").refined(0, restarts=3)
    torch.testing.assert_close(back.posterior(held_out).mean, runs[1].posterior(held_out).mean)
    assert recmix.load(tmp_path / "3").inference.restarts == back.inference.restarts == 3
