"""Refined posteriors: exact where theory says so, never below where they began, usable in training."""

import itertools

import pytest
import torch
from oracle import LinearGaussian
from test_fit import images
from torch import nn

import recmix
from recmix.errors import ConfigError
from recmix.evaluation import bounds
from recmix.inference.gauss_newton import climb
from recmix.inference.refinement import laplace, refined, scales
from recmix.model.likelihoods import make_likelihood
from recmix.model.networks import make_decoder
from recmix.posteriors import Gaussian, Mixture
from recmix.posteriors.full import FullGaussian
from recmix.runs.options import REUSE


def test_one_step_is_exact_where_everything_is_linear():
    oracle = LinearGaussian()
    x = oracle.images()
    q = Gaussian(torch.randn(5, 3, dtype=torch.float64), torch.zeros(5, 3, dtype=torch.float64))
    better = refined(oracle.model, x, q, steps=1)
    true = oracle.posterior(x)
    torch.testing.assert_close(better.mean, true.mean)
    torch.testing.assert_close(better.covariance, true.covariance_matrix)
    z, log_q = better.rsample_and_log_prob(4)
    evidence = oracle.log_evidence(x).expand(4, -1)
    torch.testing.assert_close(oracle.model.log_joint(x, z) - log_q, evidence)  # for every sample


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_the_joint_never_falls_for_any_component(likelihood, steps):
    torch.manual_seed(0)
    decoder = make_decoder("conv", (1, 12, 12), 3)
    for p in decoder.parameters():
        p.data *= 3
    model = recmix.model.latent.LatentModel(
        decoder, make_likelihood(likelihood), latent=3, shape=(1, 12, 12)
    ).double()
    x = torch.rand(4, 1, 12, 12, dtype=torch.float64)
    parts = [
        Gaussian(torch.randn(4, 3, dtype=torch.float64), torch.zeros(4, 3).double()) for _ in range(3)
    ]
    q = Mixture(parts, torch.randn(4, 3, dtype=torch.float64).log_softmax(-1))
    better = refined(model, x, q, steps=steps)
    assert torch.equal(better.weights, q.weights)
    for before, after in zip(q.components, better.components, strict=True):
        joint = [model.log_joint(x, part.mean[None]) for part in (before, after)]
        assert (joint[1] >= joint[0]).all()
        alone = laplace(model, x, before.mean, steps=steps, reuse=REUSE)
        torch.testing.assert_close(after.mean, alone.mean)
        torch.testing.assert_close(after.covariance, alone.covariance)


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
def test_a_curvature_that_serves_again_leads_further(likelihood):
    torch.manual_seed(1)
    decoder = make_decoder("conv", (1, 12, 12), 4)
    for p in decoder.parameters():
        p.data *= 2
    model = recmix.model.latent.LatentModel(
        decoder, make_likelihood(likelihood), latent=4, shape=(1, 12, 12)
    ).double()
    x = model.decode(torch.randn(40, 4).double()).detach().clamp(0, 1)
    start = torch.randn(40, 4).double()
    joints = []
    for reuse in range(4):
        z, at = climb(model, x, start, steps=1, reuse=reuse)
        torch.testing.assert_close(at.log_joint, model.log_joint(x, z[None])[0])
        joints.append(at.log_joint.detach())
    for before, after in itertools.pairwise(joints):
        assert (after >= before).all()  # for every example
        assert after.mean() > before.mean()


@pytest.mark.parametrize("name", ["vae", "rme", "me"])
def test_a_trained_run_is_refined_without_training(name, tmp_path):
    data = recmix.data.from_arrays(images(120, size=12), seed=0)
    model = recmix.fit(name, data, latent=3, epochs=2, vae_epochs=3, learning_rate=1e-3, progress=False)
    better = model.refined(4)
    assert better.model is model.model  # the same weights
    elbo, refined_elbo = model.elbo(data.x_val).mean(), better.elbo(data.x_val).mean()
    assert refined_elbo > elbo + 1
    q = better.posterior(data.x_val[:5])
    kind = q.components[0] if isinstance(q, Mixture) else q
    assert isinstance(kind, FullGaussian)
    back = recmix.load(better.save(tmp_path / "r"))
    torch.testing.assert_close(back.elbo(data.x_val), better.elbo(data.x_val))
    assert back.refined(0).elbo(data.x_val).mean() == pytest.approx(float(elbo), abs=1e-3)


@pytest.mark.parametrize("name", ["vae", "rme", "me", "hf"])
@pytest.mark.parametrize("objective", ["elbo", "iwae"])
def test_training_against_the_refined_posterior_raises_its_bound(name, objective):
    data = recmix.data.from_arrays(images(200, size=12), seed=0)
    start = recmix.fit("vae", data, latent=3, epochs=3, learning_rate=1e-3, progress=False)
    told = {"order": 2} if name in ("rme", "me") else {}
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
        **told,
    )
    assert made.method.refine == 2
    before = bounds(start.refined(2).method, torch.from_numpy(data.x_val[:]), samples=50)
    after = bounds(made.method, torch.from_numpy(data.x_val[:]), samples=50)
    assert after.iwae.mean() > before.iwae.mean() + 1


def test_encoders_learn_as_they_would_without():
    data = recmix.data.from_arrays(images(64, size=12), seed=0)
    kept = {
        "latent": 3,
        "epochs": 1,
        "batch_size": 64,
        "dtype": "float64",
        "progress": False,
        "patience": 0,
    }
    plain, other = (recmix.fit("vae", data, refine=n, **kept) for n in (0, 2))
    a, b = (dict(m.method.base_encoder.named_parameters()) for m in (plain, other))
    for name, value in a.items():
        torch.testing.assert_close(value, b[name])
    assert not torch.equal(
        next(plain.model.decoder.parameters()), next(other.model.decoder.parameters())
    )


def test_what_cannot_be_refined_is_refused():
    decoder = nn.Sequential(nn.Linear(2, 64), nn.BatchNorm1d(64), nn.Unflatten(1, (1, 8, 8)))
    model = recmix.model.latent.LatentModel(
        decoder, make_likelihood("gaussian"), latent=2, shape=(1, 8, 8)
    )
    q = Gaussian(torch.zeros(3, 2), torch.zeros(3, 2))
    with pytest.raises(ConfigError, match="GroupNorm"):
        refined(model, torch.rand(3, 1, 8, 8), q, steps=1)
    with pytest.raises(ConfigError, match="refine must not be negative"):
        recmix.fit("vae", images(20), refine=-1)


def test_it_works_in_inference_mode():
    data = recmix.data.from_arrays(images(60, size=12), seed=0)
    model = recmix.fit("vae", data, latent=3, epochs=1, progress=False).refined(2)
    plain = model.posterior(data.x_val[:5])
    with torch.inference_mode():
        q = model.posterior(data.x_val[:5])
    torch.testing.assert_close(q.mean, plain.mean, rtol=1e-4, atol=1e-5)


def _two_hills(examples=60):
    """A model of two dimensions whose posteriors have a second, lower hill, and images of it."""
    torch.manual_seed(3)

    class Bent(nn.Module):
        def forward(self, z):
            angle = 2.5 * z[:, :1]
            shown = torch.cat([angle.sin(), 0.3 * z[:, :1], (2 * angle).sin(), z[:, 1:]], 1)
            return shown.view(-1, 1, 2, 2)

    model = recmix.model.latent.LatentModel(
        Bent(), make_likelihood("gaussian", variance=0.05), latent=2, shape=(1, 2, 2)
    ).double()
    z = torch.randn(examples, 2, dtype=torch.float64)
    return model, model.decode(z[None])[0].detach(), z


def test_the_first_of_several_starts_is_the_mean_and_none_is_worse():
    model, x, z = _two_hills()
    start = z + 0.6 * torch.randn_like(z)
    once = laplace(model, x, start, steps=3)
    before = _evidence(model, x, once)
    for starts in (2, 3, 5):
        several = laplace(model, x, start, steps=3, starts=starts)
        now = _evidence(model, x, several)
        assert (now >= before - 1e-9).all()  # the more starts the better, for every image
        before = now
    assert (now > _evidence(model, x, once) + 1).any()
    alone = torch.stack([_evidence(model, x, laplace(model, x, f * start, steps=3)) for f in scales(5)])
    torch.testing.assert_close(now, alone.max(0).values)


def _evidence(model, x, q):
    """Laplace's estimate of log p(x) but for a constant."""
    return model.log_joint(x, q.mean[None])[0] + 0.5 * q.covariance.logdet()


def test_starts_of_a_mixture_are_those_of_each_component():
    model, x, z = _two_hills(20)
    parts = [Gaussian(z + torch.randn_like(z), torch.zeros_like(z)) for _ in range(2)]
    q = Mixture(parts, torch.randn(20, 2, dtype=torch.float64).log_softmax(-1))
    better = refined(model, x, q, steps=2, starts=3)
    assert torch.equal(better.weights, q.weights)
    for before, after in zip(parts, better.components, strict=True):
        alone = laplace(model, x, before.mean, steps=2, reuse=REUSE, starts=3)
        torch.testing.assert_close(after.mean, alone.mean)
        torch.testing.assert_close(after.covariance, alone.covariance)


def test_a_decoder_learns_from_the_best_of_several_starts():
    oracle = LinearGaussian()
    x = oracle.images()
    start = torch.randn(5, 3, dtype=torch.float64)

    def gradients(starts):
        oracle.model.zero_grad()
        q = laplace(oracle.model, x, start, steps=1, starts=starts)
        z, log_q = q.rsample_and_log_prob(2, generator=torch.Generator().manual_seed(0))
        (oracle.model.log_joint(x, z) - log_q).sum().backward()
        return [p.grad.clone() for p in oracle.model.parameters() if p.grad is not None]

    for one, many in zip(gradients(1), gradients(3), strict=True):  # linear: every climb ends alike
        torch.testing.assert_close(one, many)


def test_starts_are_an_option_of_a_run_and_of_its_use(tmp_path):
    data = recmix.data.from_arrays(images(120, size=12), seed=0)
    model = recmix.fit(
        "vae", data, latent=3, epochs=2, learning_rate=1e-3, starts=2, refine=1, progress=False
    )
    assert model.method.starts == 2
    x = torch.from_numpy(data.x_val[:]).float()
    several = refined(model.model, x, model.method.posterior(x), steps=1, starts=2)
    torch.testing.assert_close(model.posterior(x).mean, several.mean)
    far = Gaussian(10 * torch.randn(len(x), 3), torch.zeros(len(x), 3))  # a climb that does not arrive
    model.method.distil_steps = 1
    taught = refined(model.model, x, far, steps=1, starts=2)
    assert not torch.allclose(taught.mean, refined(model.model, x, far, steps=1).mean)
    torch.testing.assert_close(model.method.teacher(x, far).mean, taught.mean)
    other = model.refined(2, starts=4, reuse=0)
    assert (other.method.refine, other.method.starts, other.method.reuse) == (2, 4, 0)
    assert other.refined(1).method.starts == 4  # what is not said stays
    back = recmix.load(other.save(tmp_path / "r"))
    assert (back.method.starts, back.method.reuse) == (4, 0)
    torch.testing.assert_close(back.elbo(data.x_val), other.elbo(data.x_val))
    for wrong in (0, 10):
        with pytest.raises(ConfigError, match="1 to 9"):
            model.refined(2, starts=wrong)


def test_an_end_that_is_no_number_never_counts(monkeypatch):
    model, x, z = _two_hills(6)
    plain = laplace(model, x, z, steps=1)

    def spoilt(model, x, start, **how):
        ends, at = climb(model, x, start, **how)
        if len(start) > 6:  # the second and the third of three starts
            bad = torch.tensor([0.0, torch.inf, torch.nan]).double().repeat_interleave(6)
            at = at._replace(log_joint=at.log_joint + bad)
        return ends, at

    monkeypatch.setattr("recmix.inference.refinement.climb", spoilt)
    torch.testing.assert_close(laplace(model, x, z, steps=1, starts=3).mean, plain.mean)


def test_a_finished_run_takes_other_climbs_where_it_trained_without_any(tmp_path):
    data = recmix.data.from_arrays(images(60, size=12), seed=0)
    asked = {"latent": 2, "epochs": 1, "learning_rate": 1e-3, "progress": False, "out": tmp_path / "run"}
    recmix.fit("vae", data, **asked)
    recmix.fit("vae", data, **asked, starts=3, reuse=0, resume=True)
    with pytest.raises(recmix.errors.RunError, match="starts|refine"):
        recmix.fit("vae", data, **asked, refine=1, starts=3, resume=True)
