"""Gaps: on the linear-Gaussian model every one of them has a closed form."""

import json
import math

import pytest
import torch
from cases.commands import call
from cases.contract import ALL, make
from cases.oracle import SHAPE, LinearGaussian
from cases.training import SMALL, images
from torch import nn
from torch.distributions import MultivariateNormal, kl_divergence

import recmix
from recmix.errors import ConfigError, NonFiniteError
from recmix.evaluation import optimum
from recmix.evaluation.annealing import annealed
from recmix.evaluation.bounds import bounds_of
from recmix.evaluation.decompose import decompose
from recmix.evaluation.gap import QUANTITIES, Gap
from recmix.evaluation.optimum import balanced_noise, maximise_elbo, modes, starts_of
from recmix.inference import Inference
from recmix.methods.method import Method
from recmix.methods.vae import VAE
from recmix.model.latent import decode_bytes
from recmix.posteriors import FullGaussian, Gaussian, Mixture
from recmix.runs.files import read_json


@pytest.fixture
def quick(monkeypatch):
    """Few optimisation steps, for tests that do not need the optimum."""
    for name in ("DIAGONAL_STEPS", "FULL_STEPS"):
        monkeypatch.setattr(optimum, name, 4)
    monkeypatch.setattr(optimum, "CHECK_EVERY", 2)


class Known(Method):
    """A method whose posterior is a given function of x."""

    def __init__(self, model, posterior):
        super().__init__(model, [])
        self.function = posterior

    def posterior(self, x):
        return self.function(x)


@pytest.fixture(scope="module")
def world():
    return LinearGaussian()


@pytest.fixture(scope="module")
def x(world):
    torch.manual_seed(5)
    return world.images(24)


def wrong(world, shift=0.3, log_scale=0.5):
    """A diagonal Gaussian whose mean and log-variance are wrong by a known amount."""

    def posterior(x):
        truth = world.posterior(x)
        best = -truth.precision_matrix.diagonal(dim1=-2, dim2=-1).log()
        return Gaussian(truth.loc + shift, best + log_scale)

    return posterior


def kl_to_truth(world, x, q):
    covariance = torch.diag_embed(q.log_variance.exp())
    return kl_divergence(MultivariateNormal(q.mean, covariance), world.posterior(x))


def test_every_gap_equals_its_closed_form(world, x):
    found = decompose(Known(world.model, wrong(world)), x, samples=1000, check=6)
    q, best = wrong(world)(x), wrong(world, 0.0, 0.0)(x)
    torch.testing.assert_close(found.log_evidence, world.log_evidence(x), rtol=0, atol=1e-9)
    torch.testing.assert_close(found.full, world.log_evidence(x), rtol=0, atol=1e-9)
    torch.testing.assert_close(found.annealed, world.log_evidence(x)[found.checked], rtol=0, atol=1e-9)
    assert found.check()["agrees"]
    # The ELBOs are estimated from 100 samples each.
    expected = {
        "approximation": kl_to_truth(world, x, best),
        "amortisation": kl_to_truth(world, x, q) - kl_to_truth(world, x, best),
        "total": kl_to_truth(world, x, q),
    }
    for key, value in expected.items():
        difference = getattr(found, key) - value
        error = difference.std() / math.sqrt(len(x))
        assert difference.mean().abs() < 4 * error
        shown = found.summary()["test"][key]
        assert shown["mean"] == pytest.approx(getattr(found, key).mean().item())
        assert shown["se"] == pytest.approx(getattr(found, key).std().item() / math.sqrt(len(x)))
    assert found.family == "diagonal"
    assert found.exact


def test_refined_posterior_of_a_linear_model_has_no_gap(world, x):
    method = Known(world.model, wrong(world))
    found = decompose(method, x[:4], Inference(refine=1), samples=10, check=0)
    assert (found.family, found.exact) == ("full", True)
    torch.testing.assert_close(found.total, torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-9)
    assert "Nothing is worth doing" in found.advice


@pytest.mark.parametrize("diagonal", [True, False])
def test_best_gaussian_of_a_linear_model_is_exact(world, x, diagonal):
    """Starting at the Laplace approximation, and far away."""
    truth = world.posterior(x)
    best_mode, _ = modes(world.model, x, starts_of(wrong(world)(x)))
    torch.testing.assert_close(best_mode.mean, truth.loc)
    torch.testing.assert_close(best_mode.scale_tril, truth.scale_tril)
    generator = torch.Generator().manual_seed(0)
    got = maximise_elbo(
        world.model, x, [best_mode], diagonal=diagonal, generator=generator, at_once=10_000
    )
    best = truth.scale_tril
    if diagonal:
        best = torch.diag_embed(truth.precision_matrix.diagonal(dim1=-2, dim2=-1).rsqrt())
    torch.testing.assert_close(got.mean, truth.loc, rtol=0, atol=1e-8)
    torch.testing.assert_close(got.scale_tril, best, rtol=0, atol=1e-8)
    far = FullGaussian(truth.loc + 0.5, 1.5 * truth.scale_tril)
    near = maximise_elbo(world.model, x, [far], diagonal=diagonal, generator=generator, at_once=400)
    closer = MultivariateNormal(near.mean, scale_tril=near.scale_tril)
    target = MultivariateNormal(truth.loc, scale_tril=best)
    before = kl_divergence(MultivariateNormal(far.mean, scale_tril=far.scale_tril), target)
    assert (kl_divergence(closer, target) < 0.02 * before).all()


def test_best_gaussian_is_no_worse_than_its_starts(world, x):
    """A start that is the optimum is kept, at any place in the list."""
    truth = world.posterior(x)
    best = FullGaussian(truth.loc, truth.scale_tril)
    poor = FullGaussian(truth.loc + 3, 0.01 * truth.scale_tril)
    generator = torch.Generator().manual_seed(0)
    got = maximise_elbo(
        world.model, x, [poor, best], diagonal=False, generator=generator, at_once=10_000
    )
    torch.testing.assert_close(got.mean, best.mean, rtol=0, atol=1e-8)


def test_balanced_noise_has_exact_moments():
    noise = balanced_noise(7, 5, torch.zeros((), dtype=torch.float64), torch.Generator().manual_seed(0))
    torch.testing.assert_close(noise.mean(0), torch.zeros(5, dtype=torch.float64))
    torch.testing.assert_close(noise.T @ noise / 14, torch.eye(5, dtype=torch.float64))


def test_annealing_is_unbiased(world, x):
    """From a wrong Gaussian, exp of the estimate has the expected value p(x)."""
    truth = world.posterior(x)
    q = FullGaussian(truth.loc + 0.1, 1.2 * truth.scale_tril)
    given = {"chains": 8, "temperatures": 10, "generator": torch.Generator().manual_seed(3)}
    estimates = torch.stack([annealed(world.model, x, q, at_once=1000, **given) for _ in range(12)])
    ratio = (estimates - world.log_evidence(x)).exp()  # (12, B)
    score = (ratio.mean(0) - 1) / (ratio.std(0) / math.sqrt(12))
    assert 0.5 < score.square().mean() < 2
    assert score.mean().abs() < 4 / math.sqrt(len(x))


def test_annealing_corrects_a_gaussian_that_is_far_off(world, x):
    truth = world.posterior(x)
    q = FullGaussian(truth.loc + 2.5 * truth.stddev, truth.scale_tril)

    def path():
        given = {"chains": 64, "temperatures": 40, "generator": torch.Generator().manual_seed(3)}
        return annealed(world.model, x, q, at_once=1000, **given)

    plain = bounds_of(world.model, x, q, 64, torch.Generator().manual_seed(3), 1000).iwae
    off = [(got - world.log_evidence(x)).abs().mean() for got in (plain, path())]
    assert off[1] < 0.2 * off[0]
    assert torch.equal(path(), path())


def test_both_modes_are_counted():
    """A decoder that depends on |z|: the posterior has two modes, a Gaussian covers one."""

    class Even(nn.Module):
        def forward(self, z):
            return (3 * z.abs()).repeat(1, 6).view(-1, *SHAPE)

    model = LinearGaussian(latent=1).model
    model.decoder = Even()
    x = model.centre + 3 * torch.ones(4, *SHAPE, dtype=torch.float64)
    z = torch.linspace(-8, 8, 200_001, dtype=torch.float64)
    joint = model.log_joint(x[:1], z[:, None, None]).squeeze(1)
    exact = torch.logsumexp(joint, 0) + math.log(z[1] - z[0])

    def both(x):
        ones = torch.ones(len(x), 1, dtype=torch.float64)
        parts = [Gaussian(sign * ones, -3 * ones) for sign in (-1, 1)]
        return Mixture(parts, torch.log(0.5 * ones.expand(-1, 2)))

    found = decompose(Known(model, both), x, samples=4000, check=0)
    torch.testing.assert_close(found.log_evidence, exact.expand(4), rtol=0, atol=0.1)
    assert (found.approximation > 0.5).all()  # log 2 of it for the mode that a Gaussian misses
    assert not found.exact
    assert found.check() is None


@pytest.mark.parametrize("name", ["residual", "rme"])
def test_the_gap_knows_residual_corrections(name, quick):
    options = {"order": 2, "component": "residual"} if name == "rme" else {}
    found = decompose(make(name, **options).eval(), torch.rand(3, 1, 8, 8).double(), samples=20, check=0)
    assert found.used == ("residual corrections",)


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
@pytest.mark.parametrize("name", ALL)
def test_every_method_has_gaps(name, likelihood, quick):
    method = make(name, likelihood).eval()
    x = torch.rand(3, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    found = decompose(method, x, samples=200, check=2)
    torch.testing.assert_close(found.approximation + found.amortisation, found.total)
    noise = 4 * found.summary()["test"]["total"]["se"] + 0.2
    assert found.full.mean() <= found.log_evidence.mean() + noise
    assert found.diagonal.mean() <= found.full.mean() + 0.2
    if found.exact:
        assert found.amortisation.mean() > -noise
    with torch.no_grad():
        q = method.posterior(x)
    gaussian = q.can_scale  # Gaussians, and mixtures of them
    assert found.family == ("full" if gaussian and "scale_tril" in q.describe() else "diagonal")
    assert found.exact == (gaussian and len(q.components) == 1)
    assert torch.equal(found.checked, torch.tensor([0, 2]))
    assert not any(p.grad is not None for p in method.parameters())
    assert found.advice.endswith(".")


def test_same_seed_gives_the_same_gap_for_any_chunks(world, x, quick):
    method = Known(world.model, wrong(world))
    one, two, other = (decompose(method, x[:6], samples=50, check=2, seed=s) for s in (1, 1, 2))
    assert one.to_json() == two.to_json()
    assert one.to_json() != other.to_json()
    small = decompose(method, x[:6], samples=50, check=2, seed=1, memory=40 * decode_bytes(world.model))
    torch.testing.assert_close(small.log_evidence, one.log_evidence, rtol=0, atol=1e-8)


def test_gap_of_a_trained_model(quick):
    model = recmix.fit("rme", images(), order=2, vae_epochs=1, **SMALL)
    seen = []
    found = model.gap(images(6, seed=2), train=images(5), samples=50, check=2, report=seen.append)
    assert seen[-1] == 11
    assert seen == sorted(seen)
    assert found.train is not None
    assert set(found.summary()) == {"test", "train", "difference"}
    assert set(found.summary()["difference"]) == set(QUANTITIES)
    text = str(found)
    assert all(words in text for words in QUANTITIES.values())
    assert found.advice in text
    assert "at most" in text  # the family of mixtures contains the diagonal Gaussians
    assert json.loads(json.dumps(found.to_json()))["family"] == "diagonal"
    for given in ({"samples": 1}, {"samples": 2.5}, {"check": -1}):
        with pytest.raises(ConfigError, match="whole number"):
            model.gap(images(2), **given)


def test_model_that_is_not_finite_is_named(world, x, quick):
    def broken(x):
        q = wrong(world)(x)
        return Gaussian(q.mean * torch.nan, q.log_variance)

    with pytest.raises(NonFiniteError, match="24 of 24 test examples"):
        decompose(Known(world.model, broken), x, samples=2, check=0)
    with pytest.raises(ConfigError, match="no examples"):
        decompose(Known(world.model, wrong(world)), x[:0])


def made(elbo, diagonal, full, evidence=100.0, spread=0.1, name="test", train=None, **more):
    """Gaps with these means."""
    noise = spread * torch.linspace(-1, 1, 50)
    return Gap(
        **{"name": name, "family": "diagonal", "exact": True, "train": train} | more,
        elbo=elbo + noise,
        diagonal=diagonal + noise,
        full=full + noise,
        log_evidence=evidence + noise,
        checked=torch.arange(10),
        annealed=evidence + noise[:10],
    )


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (
            made(99.5, 99.7, 99.9),
            "Nothing is worth doing: 0.50 nats are lost in total, and a loss below 1 nat",
        ),
        (made(90.0, 92.0, 99.0), "a full covariance gains 7.0 nats"),
        (made(90.0, 92.0, 93.0), "a mixture or a flow may do better"),
        (
            made(90.0, 85.0, 92.0, family="full"),
            "8.0 of 10.0 nats are lost because no full Gaussian fits better",
        ),
        (made(95.0, 90.0, 94.0, exact=False), "up to 5.0 of 5.0 nats"),
        (made(80.0, 98.0, 99.0, exact=False), "at least 18.0 of 20.0 nats"),
        (made(80.0, 98.0, 99.0), "Measure training examples too (gap(x, train=...))"),
        (made(80.0, 98.0, 99.0, train=made(96.0, 98.0, 99.0, name="train")), "does not generalise"),
        (made(80.0, 98.0, 99.0, train=made(85.0, 98.0, 99.0, name="train")), "Use a wider encoder"),
    ],
)
def test_advice_follows_its_rules(found, says):
    assert says in found.advice
    assert found.advice.endswith(".")
    assert found.advice.count(". ") <= 1  # at most two sentences


@pytest.mark.parametrize(
    ("used", "says", "silent"),
    [
        ((), "Use refinement (model.refined(2)), residual corrections or augmented", "more"),
        (("refinement",), "Use more refinement steps, residual corrections or", "--refine"),
        (("residual corrections",), "Use refinement (model.refined(2)) or augmented", "corrections"),
    ],
)
def test_advice_does_not_name_what_is_used(used, says, silent):
    train = made(98, 99, 99.5, name="train")
    found = made(80, 99, 99.5, train=train, used=used)
    assert says in found.advice
    assert silent not in found.advice


@pytest.mark.parametrize(
    ("laplace", "variational", "says", "command"),
    [
        (96.0, 97.0, "refinement (model.refined(2), 16.0 nats)", "(--refine 2, 16.0 nats)"),
        (
            85.0,
            97.0,
            '(model.refined(2, how="variational"), 17.0 nats)',
            "(--refine 2 --how variational",
        ),
        (
            81.0,
            79.0,
            "(model.tuned(x_val, milliseconds=2); two steps gain little here)",
            "(recmix tune; two",
        ),
    ],
)
def test_advice_names_the_refinement_that_pays(laplace, variational, says, command):
    elbo = made(80.0, 98.0, 99.0).elbo
    refined = {"gauss-newton": elbo + laplace - 80, "variational": elbo + variational - 80}
    found = made(80.0, 98.0, 99.0, refined=refined)
    assert says in found.advice
    assert command in found.advice_for("--refine 2", "")


def test_refinement_is_measured_for_the_advice(world, x, quick):
    found = decompose(Known(world.model, wrong(world)), x, samples=20, check=0)
    for values in found.refined.values():  # exact for a linear model
        torch.testing.assert_close(values, world.log_evidence(x), rtol=0, atol=1e-6)
    again = decompose(Known(world.model, wrong(world)), x, Inference(refine=1), samples=20, check=0)
    assert not again.refined


def test_failed_check_of_the_evidence_is_reported():
    good = made(80.0, 98.0, 99.0)
    noise = 0.1 * torch.linspace(-1, 1, 10)
    shifted = {f: getattr(good, f) for f in good.__dataclass_fields__}
    bad = Gap(**shifted | {"annealed": good.log_evidence[:10] + 1 + noise})
    assert good.check()["agrees"]
    assert not bad.check()["agrees"]
    assert "DISAGREE" in str(bad)
    assert "DISAGREE" not in str(good)
    wide = Gap(**shifted | {"annealed": good.log_evidence[:10] + 1 + 100 * noise})
    assert wide.check()["agrees"]  # one nat within an error of two


@pytest.mark.parametrize("latent", [1, 40])
def test_small_and_large_latent_spaces(latent):
    world = LinearGaussian(latent=latent)
    x = world.images(3)
    found = decompose(VAE(world.model, encoder(latent)).double(), x, samples=100, check=2)
    torch.testing.assert_close(found.full, world.log_evidence(x), rtol=0, atol=1e-7)


def encoder(latent):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(SHAPE), 2 * latent))


def test_command(tmp_path, capsys, quick):
    run = tmp_path / "vae"
    train = ("train", "--data", "digits", "--method", "vae", "--latent", "2", "--epochs", "1")
    assert call(*train, "--device", "cpu", "--out", run) == 0
    capsys.readouterr()
    assert call("evaluate", run, "--gap", "--examples", "4", "--samples", "20", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    stored = read_json(run / "gap.json")
    assert printed == stored
    assert "model." not in stored["advice"]  # the command line advises commands
    assert stored["samples"] == 20
    assert stored["inference"] == Inference().to_json()
    assert len(stored["images"]["test"]["elbo"]) == len(stored["images"]["train"]["elbo"]) == 4
    assert call("evaluate", run, "--gap", "--examples", "3", "--split", "train", "--samples", "20") == 0
    shown = capsys.readouterr().out
    assert "amortisation gap" in shown
    assert "train, 3 examples\n" in shown.replace("  ", "").replace(" \n", "\n")
    assert stored["advice"] not in shown  # another split gives another result
    assert json.loads((run / "gap.json").read_text())["summary"].keys() == {"train"}
    assert call("evaluate", run, "--gap", "--examples", "0") == 2
    assert call("evaluate", run, "--examples", "5") == 2
    assert "--gap" in capsys.readouterr().err
