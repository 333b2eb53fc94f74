"""Widths fitted to held-out images: exact where the right one is known, and never test images'."""

import math

import pytest
import torch
from oracle import LinearGaussian
from test_cli import call
from test_fit import SMALL, images

import recmix
from recmix.core import Component, Method
from recmix.errors import ConfigError
from recmix.evaluation.bounds import bounds
from recmix.evaluation.calibrate import WIDEST, calibrate
from recmix.posteriors import Gaussian, Mixture
from recmix.posteriors.flow import Reflected
from recmix.posteriors.full import FullGaussian


class Exact(Component):
    """The oracle's posterior, but so many times as wide."""

    kind = "exact"

    def __init__(self, oracle, width):
        super().__init__(torch.nn.Identity(), oracle.model)
        self.oracle, self.width = oracle, width

    def forward(self, x, model):
        true = self.oracle.posterior(x)
        return FullGaussian(true.mean, self.width * true.scale_tril)


class Fixed(Method):
    """One component that learns nothing."""


@pytest.mark.parametrize("octaves", [-2, -1, 0, 0.75])
def test_the_width_of_the_true_posterior_is_found(octaves):
    oracle = LinearGaussian()
    x = oracle.images(1000)
    method = Fixed(oracle.model, [Exact(oracle, 2.0**octaves)])
    found = calibrate(method, x, samples=1)
    assert found.factor == pytest.approx(2.0**-octaves)
    evidence = float(oracle.log_evidence(x).mean())
    assert found.after == pytest.approx(evidence)  # every sample of the true posterior says so
    assert found.before < evidence - 1e-3 or octaves == 0
    method.widen = found.factor
    elbo, iwae = bounds(method, x, samples=3)
    torch.testing.assert_close(elbo, oracle.log_evidence(x))
    torch.testing.assert_close(iwae, oracle.log_evidence(x))


def test_no_factor_beyond_the_widest():
    oracle = LinearGaussian()
    method = Fixed(oracle.model, [Exact(oracle, 1e-3)])
    assert calibrate(method, oracle.images(10), samples=5).factor == pytest.approx(WIDEST)


def _gaussian(f=1.0):
    return Gaussian(torch.tensor([[0.5, -1.0]]), torch.tensor([[0.3, -0.7]]) + 2 * math.log(f))


def _inverted(f=1.0):
    return FullGaussian.from_precision(torch.ones(1, 2), torch.tensor([[[2.0, 0.5], [0.5, 1.0]]]) / f**2)


def _full(f=1.0):
    return FullGaussian(torch.ones(1, 2), f * torch.tensor([[[1.0, 0.0], [0.4, 0.3]]]))


def _mixture(f=1.0):
    return Mixture([_gaussian(f), _full(f)], torch.tensor([[0.3, 0.7]]).log())


def _joined(f=1.0):
    parts = Gaussian(torch.ones(3, 1, 2), torch.zeros(3, 1, 2) + 2 * math.log(f))
    return Mixture.of_gaussians(parts, torch.tensor([[0.2, 0.3, 0.5]]).log())


@pytest.mark.parametrize("make", [_gaussian, _inverted, _full, _mixture, _joined])
def test_a_widened_posterior_is_that_with_larger_deviations(make):
    wide, expected = make().widened(1.7), make(1.7)
    z = torch.randn(9, 1, 2)
    torch.testing.assert_close(wide.log_prob(z), expected.log_prob(z))
    torch.testing.assert_close(wide.mean, make().mean)
    for q in (wide, expected):
        torch.manual_seed(3)
        samples, log_q = q.rsample_and_log_prob(5)
        torch.testing.assert_close(log_q, q.log_prob(samples))


def test_what_has_no_width_says_so():
    with pytest.raises(ConfigError, match="only Gaussians and mixtures of them can be calibrated"):
        Reflected.__new__(Reflected).widened(2.0)


@pytest.fixture(scope="module")
def model():
    return recmix.fit("vae", images(), **SMALL)


def test_a_trained_model_is_calibrated_without_training(model, tmp_path):
    held_out = images(40, seed=5)
    narrow = model.widened(0.25)
    better = narrow.calibrated(held_out, 20)
    assert better.spec.training.widen == better.method.widen > 0.25  # its own width is not the start
    assert better.log_likelihood(held_out, 20).mean() > narrow.log_likelihood(held_out, 20).mean() + 0.1
    assert narrow.method.widen == 0.25
    assert model.method.widen == 1
    wide = model.widened(1.5).refined(1)
    assert (wide.method.widen, wide.method.refine) == (1.5, 1)
    back = recmix.load(model.widened(1.5).save(tmp_path / "wide"))
    assert back.spec.training.widen == 1.5
    q = model.posterior(held_out)
    torch.testing.assert_close(back.posterior(held_out).stddev, 1.5 * q.stddev)
    torch.testing.assert_close(back.posterior(held_out).mean, q.mean)
    with pytest.raises(ConfigError, match="factor must be a positive number, got 0"):
        model.widened(0)


def test_the_command_calibrates_on_validation_images(tmp_path, capsys):
    run = tmp_path / "run"
    recmix.fit("vae", "digits", latent=2, epochs=2, out=run, progress=False)
    assert call("evaluate", run, "--samples", 5, "--calibrate") == 0
    assert "times as large, as validation images ask for" in capsys.readouterr().out
    scores = recmix.run.Run(run).scores()
    data = recmix.data.load("digits")
    expected = recmix.load(run).calibrated(data.x_val, 5).spec.training.widen
    assert scores["test/5/calibrated"]["widen"] == expected
    assert call("evaluate", run, "--samples", 5, "--calibrate", "--refine", 1) == 0
    assert recmix.run.Run(run).scores()["test/5/refine 1/calibrated"]["refine"] == 1
    assert call("evaluate", run, "--calibrate", "--gap") != 0
    assert "--calibrate is for IWAE bounds and --gap about the ELBO" in capsys.readouterr().err
    assert call("evaluate", run, "--calibrate", "--split", "val") != 0
    assert "--calibrate fits the width to the validation images" in capsys.readouterr().err
