"""Refined posteriors: exact for linear models, never worse than their start, usable in training."""

import pytest
import torch
from cases.oracle import LinearGaussian
from cases.training import images
from torch import nn

import recmix
from recmix.errors import ConfigError
from recmix.evaluation import bounds
from recmix.inference import Inference
from recmix.inference.gauss_newton import ascend
from recmix.inference.refinement import laplace, refine
from recmix.inference.restarts import restart_scales
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import LIKELIHOODS
from recmix.model.networks import make_decoder
from recmix.posteriors import FullGaussian, Gaussian, Mixture

REUSE = Inference().reuse


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_one_step_is_exact_for_a_linear_gaussian_model():
    oracle = LinearGaussian()
    x = oracle.images()
    q = Gaussian(normal(5, 3), torch.zeros(5, 3, dtype=torch.float64))
    better = refine(oracle.model, x, q, steps=1)
    true = oracle.posterior(x)
    torch.testing.assert_close(better.mean, true.mean)
    torch.testing.assert_close(better.covariance_matrix, true.covariance_matrix)
    z, log_q = better.rsample_and_log_prob(4)
    evidence = oracle.log_evidence(x).expand(4, -1)
    torch.testing.assert_close(oracle.model.log_joint(x, z) - log_q, evidence)  # for every sample


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_log_joint_never_falls_for_any_component(likelihood, steps):
    torch.manual_seed(0)
    decoder = make_decoder("conv", (1, 12, 12), 3)
    for p in decoder.parameters():
        p.data *= 3
    model = LatentModel(decoder, LIKELIHOODS[likelihood](), latent=3, shape=(1, 12, 12)).double()
    x = torch.rand(4, 1, 12, 12, dtype=torch.float64)
    parts = [Gaussian(normal(4, 3, seed=k), torch.zeros(4, 3).double()) for k in range(3)]
    q = Mixture(parts, normal(4, 3, seed=9).log_softmax(-1))
    better = refine(model, x, q, steps=steps)
    assert torch.equal(better.weights, q.weights)
    for before, after in zip(q.components, better.components, strict=True):
        joint = [model.log_joint(x, part.mean[None]) for part in (before, after)]
        assert (joint[1] >= joint[0]).all()
        alone = laplace(model, x, before.mean, steps=steps, reuse=REUSE)
        torch.testing.assert_close(after.mean, alone.mean)
        torch.testing.assert_close(after.covariance_matrix, alone.covariance_matrix)


@pytest.mark.parametrize("name", ["vae", "rme", "me"])
def test_trained_model_is_refined_without_training(name, tmp_path):
    data = recmix.data.from_arrays(images(120, size=12), seed=0)
    model = recmix.fit(name, data, latent=3, epochs=2, vae_epochs=3, learning_rate=1e-3, progress=False)
    better = model.refined(4)
    assert better.method is model.method  # the same weights
    assert model.inference.refine == 0
    elbo, refined_elbo = model.elbo(data.x_val).mean(), better.elbo(data.x_val).mean()
    assert refined_elbo > elbo + 1
    q = better.posterior(data.x_val[:5])
    assert all(isinstance(part, FullGaussian) for part in q.components)
    back = recmix.load(better.save(tmp_path / "r"))
    torch.testing.assert_close(back.elbo(data.x_val), better.elbo(data.x_val))
    assert back.refined(0).elbo(data.x_val).mean().item() == pytest.approx(elbo.item(), rel=1e-5)


@pytest.mark.parametrize("name", ["vae", "rme", "me", "hf"])
@pytest.mark.parametrize("objective", ["elbo", "iwae"])
def test_training_on_the_refined_posterior_raises_its_bound(name, objective):
    data = recmix.data.from_arrays(images(200, size=12), seed=0)
    start = recmix.fit("vae", data, latent=3, epochs=3, learning_rate=1e-3, progress=False)
    made = recmix.fit(
        name,
        data,
        init=start,
        epochs=4,
        learning_rate=1e-3,
        fresh_rate=1.0,
        refine=2,
        objective=objective,
        batch_size=32,
        progress=False,
        **({"order": 2} if name in ("rme", "me") else {}),
    )
    assert made.inference == Inference(refine=2)
    x = torch.from_numpy(data.x_val[:]).to(made.device)
    before, after = (bounds(m.method, x, made.inference, samples=50).iwae.mean() for m in (start, made))
    assert after > before + 1


def test_refinement_in_training_does_not_change_the_encoder_update():
    data = recmix.data.from_arrays(images(64, size=12), seed=0)
    options = {"latent": 3, "epochs": 1, "batch_size": 64, "dtype": "float64", "patience": 0}
    plain, other = (recmix.fit("vae", data, refine=n, progress=False, **options) for n in (0, 2))
    a, b = (dict(m.method.base_encoder.named_parameters()) for m in (plain, other))
    for name, value in a.items():
        torch.testing.assert_close(value, b[name])
    decoders = [next(m.latent_model.decoder.parameters()) for m in (plain, other)]
    assert not torch.equal(*decoders)


# --- batch normalisation -----------------------------------------------------------------------


class Affine(nn.Module):
    """What batch normalisation computes in evaluation mode, written out."""

    def __init__(self, norm):
        super().__init__()
        shape = (1, -1) + (1,) * (2 if isinstance(norm, nn.BatchNorm2d) else 0)
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()
        self.scale = scale.detach().view(shape)
        self.shift = (norm.bias - norm.running_mean * scale).detach().view(shape)

    def forward(self, x):
        return self.scale * x + self.shift


def normalised_decoder():
    """A decoder with batch normalisation whose running statistics are not 0 and 1."""
    torch.manual_seed(0)
    decoder = nn.Sequential(
        nn.Linear(2, 32),
        nn.BatchNorm1d(32),
        nn.Tanh(),
        nn.Unflatten(1, (2, 4, 4)),
        nn.BatchNorm2d(2),
        nn.ConvTranspose2d(2, 1, 4, stride=2, padding=1),
    ).double()
    for part in decoder:
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.uniform_(part.weight, 0.5, 2)
            nn.init.normal_(part.bias)
    for _ in range(20):
        decoder(3 * torch.randn(64, 2).double())
    return decoder


def test_batch_normalisation_in_eval_mode_is_an_affine_map():
    decoder = normalised_decoder().eval()
    written_out = nn.Sequential(
        *(Affine(m) if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d) else m for m in decoder)
    )
    x = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0)).double()
    found = []
    for network in (decoder, written_out):
        likelihood = LIKELIHOODS["gaussian"](variance=0.05)
        model = LatentModel(network, likelihood, latent=2, shape=(1, 8, 8)).double().eval()
        parts = [Gaussian(normal(5, 2, seed=k), torch.zeros(5, 2).double()) for k in range(2)]
        for q in (parts[0], Mixture(parts, normal(5, 2, seed=4).log_softmax(-1))):
            better = Inference(refine=2)(model, x, q)
            found.append([t for part in better.components for t in (part.mean, part.covariance_matrix)])
            start, end = (model.log_joint(x, p.components[0].mean[None]) for p in (q, better))
            assert (end > start).all()
    for one, two in zip(found[:2], found[2:], strict=True):
        for a, b in zip(one, two, strict=True):
            torch.testing.assert_close(a, b)
    assert all(p.grad is None for p in decoder.parameters())


def test_batch_normalisation_in_training_mode_is_refused():
    decoder = normalised_decoder()
    model = LatentModel(decoder, LIKELIHOODS["gaussian"](), latent=2, shape=(1, 8, 8)).double()
    q = Gaussian(torch.zeros(3, 2).double(), torch.zeros(3, 2).double())
    x = torch.zeros(3, 1, 8, 8).double()
    before = {name: value.clone() for name, value in decoder.state_dict().items()}
    with pytest.raises(ConfigError, match=r"training mode.*Call model\.eval\(\).*GroupNorm"):
        Inference(refine=1)(model, x, q)
    for name, value in decoder.state_dict().items():
        assert torch.equal(value, before[name])
    model.eval()
    assert isinstance(Inference(refine=1)(model, x, q), FullGaussian)
    decoder[1].running_mean = decoder[1].running_var = None  # it uses the batch in both modes
    with pytest.raises(ConfigError, match="GroupNorm"):
        Inference(refine=1)(model, x, q)


def test_negative_number_of_steps_is_refused():
    with pytest.raises(ConfigError, match="refine must be at least 0 and at most 1000, got -1"):
        recmix.fit("vae", images(20), refine=-1)


def test_refinement_works_in_inference_mode():
    data = recmix.data.from_arrays(images(60, size=12), seed=0)
    model = recmix.fit("vae", data, latent=3, epochs=1, progress=False).refined(2)
    plain = model.posterior(data.x_val[:5])
    with torch.inference_mode():
        q = model.posterior(data.x_val[:5])
    torch.testing.assert_close(q.mean, plain.mean, rtol=1e-4, atol=1e-5)


# --- restarts ----------------------------------------------------------------------------------


def two_modes(examples=60):
    """A model of two dimensions whose posteriors have a second, lower mode; its examples and their z."""

    class Bent(nn.Module):
        def forward(self, z):
            angle = 2.5 * z[:, :1]
            shown = torch.cat([angle.sin(), 0.3 * z[:, :1], (2 * angle).sin(), z[:, 1:]], 1)
            return shown.view(-1, 1, 2, 2)

    likelihood = LIKELIHOODS["gaussian"](variance=0.05)
    model = LatentModel(Bent(), likelihood, latent=2, shape=(1, 2, 2)).double()
    z = normal(examples, 2, seed=3)
    with torch.no_grad():
        return model, model.decode(z[None])[0], z


def laplace_evidence(model, x, q):
    """Laplace's estimate of log p(x), up to a constant."""
    return model.log_joint(x, q.mean[None])[0] + 0.5 * q.covariance_matrix.logdet()


def test_restarts_include_the_mean_and_never_give_less_evidence():
    model, x, z = two_modes()
    start = z + 0.6 * normal(*z.shape, seed=4)
    once = laplace(model, x, start, steps=3)
    before = laplace_evidence(model, x, once)
    for restarts in (2, 3, 5):
        now = laplace_evidence(model, x, laplace(model, x, start, steps=3, restarts=restarts))
        assert (now >= before - 1e-9).all()  # for every example
        before = now
    assert (now > laplace_evidence(model, x, once) + 1).any()
    alone = [laplace(model, x, f * start, steps=3) for f in restart_scales(5)]
    best = torch.stack([laplace_evidence(model, x, q) for q in alone]).max(0).values
    torch.testing.assert_close(now, best)


def test_restarts_of_a_mixture_are_those_of_each_component():
    model, x, z = two_modes(20)
    parts = [Gaussian(z + normal(*z.shape, seed=k), torch.zeros_like(z)) for k in range(2)]
    q = Mixture(parts, normal(20, 2, seed=5).log_softmax(-1))
    better = refine(model, x, q, steps=2, restarts=3)
    assert torch.equal(better.weights, q.weights)
    for before, after in zip(parts, better.components, strict=True):
        alone = laplace(model, x, before.mean, steps=2, reuse=REUSE, restarts=3)
        torch.testing.assert_close(after.mean, alone.mean)
        torch.testing.assert_close(after.covariance_matrix, alone.covariance_matrix)


def test_decoder_gradient_is_that_of_the_best_restart():
    oracle = LinearGaussian()
    x, start = oracle.images(), normal(5, 3)

    def gradients(restarts):
        oracle.model.zero_grad()
        q = laplace(oracle.model, x, start, steps=1, restarts=restarts)
        z, log_q = q.rsample_and_log_prob(2, generator=torch.Generator().manual_seed(0))
        (oracle.model.log_joint(x, z) - log_q).sum().backward()
        return [p.grad.clone() for p in oracle.model.parameters() if p.grad is not None]

    for one, many in zip(gradients(1), gradients(3), strict=True):  # linear: all restarts agree
        torch.testing.assert_close(one, many)


def test_restart_that_is_not_a_number_is_never_selected(monkeypatch):
    model, x, z = two_modes(6)
    plain = laplace(model, x, z, steps=1)

    def with_bad_scores(model, x, start, **options):
        ends, at = ascend(model, x, start, **options)
        if len(start) > 6:  # all three restarts together
            bad = torch.tensor([0.0, torch.inf, torch.nan]).double().repeat_interleave(6)
            at = at._replace(log_joint=at.log_joint + bad)
        return ends, at

    monkeypatch.setattr("recmix.inference.refinement.ascend", with_bad_scores)
    torch.testing.assert_close(laplace(model, x, z, steps=1, restarts=3).mean, plain.mean)


def test_restarts_are_an_option_of_training_and_of_use(tmp_path):
    data = recmix.data.from_arrays(images(120, size=12), seed=0)
    options = {"latent": 3, "epochs": 2, "learning_rate": 1e-3, "dtype": "float64", "progress": False}
    model = recmix.fit("vae", data, restarts=2, refine=1, **options)
    assert model.inference == Inference(refine=1, restarts=2)
    x = torch.from_numpy(data.x_val[:]).to(model.device, torch.float64)
    with torch.no_grad():
        expected = refine(model.latent_model, x, model.method.posterior(x), steps=1, restarts=2)
    torch.testing.assert_close(model.refined(1, checks=0).posterior(x).mean, expected.mean)
    other = model.refined(2, restarts=4, reuse=0)
    assert other.inference == Inference(refine=2, restarts=4, reuse=0)
    assert other.refined(1).inference.restarts == 4  # options that are not given stay
    back = recmix.load(other.save(tmp_path / "r"))
    assert back.inference == other.inference
    torch.testing.assert_close(back.elbo(data.x_val), other.elbo(data.x_val))
    for wrong in (0, 10):
        with pytest.raises(ConfigError, match=f"restarts must be at least 1 and at most 9, got {wrong}"):
            model.refined(2, restarts=wrong)


def test_inference_options_may_change_on_resume_if_training_did_not_use_them(tmp_path):
    data = recmix.data.from_arrays(images(60, size=12), seed=0)
    options = {"latent": 2, "epochs": 1, "learning_rate": 1e-3, "progress": False}
    recmix.fit("vae", data, out=tmp_path / "run", **options)
    recmix.fit("vae", data, out=tmp_path / "run", restarts=3, reuse=0, resume=True, **options)
    with pytest.raises(recmix.errors.RunError, match="label|restarts|refine"):
        recmix.fit("vae", data, out=tmp_path / "run", refine=1, restarts=3, resume=True, **options)
