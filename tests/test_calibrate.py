"""Widths fitted to held-out images: exact where the right one is known, and never test images'."""

import math

import pytest
import torch
from oracle import LinearGaussian
from test_cli import call
from test_fit import SMALL, images

import recmix
from recmix.errors import ConfigError
from recmix.evaluation.bounds import bounds
from recmix.evaluation.calibrate import WIDEST, calibrate
from recmix.methods.component import Component
from recmix.methods.method import Method
from recmix.posteriors import Gaussian, Mixture
from recmix.posteriors.flow import Reflected
from recmix.posteriors.full import FullGaussian


class Exact(Component):
    """The oracle's posterior, but so many times as wide: too wide, or too sure of what images say.

    With `lean`, as many times more so as e to `lean` for each nat that log p(x, mean) is above the mean.
    """

    kind = "exact"

    def __init__(self, oracle, width, lean=0.0, at=0.0):
        super().__init__(torch.nn.Identity(), oracle.model)
        self.oracle, self.width, self.lean, self.at = oracle, width, lean, at

    def forward(self, x, model):
        true = self.oracle.posterior(x)
        if self.width > 1:
            return FullGaussian(true.mean, self.width * true.scale_tril)
        precision = true.precision_matrix
        identity = torch.eye(precision.shape[-1], dtype=x.dtype)
        fit = model.log_joint(x, true.mean[None])[0] - self.at
        width = (self.width * (self.lean * fit).exp())[:, None, None]
        return FullGaussian.from_precision(true.mean, identity + (precision - identity) / width**2)


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
    assert found.tilt == 0
    method.widen = found.factor
    elbo, iwae = bounds(method, x, samples=3)
    torch.testing.assert_close(elbo, oracle.log_evidence(x))
    torch.testing.assert_close(iwae, oracle.log_evidence(x))


def test_the_tilt_of_a_posterior_that_is_too_sure_of_some_images_is_found():
    oracle = LinearGaussian()
    x = oracle.images(1000)
    with torch.no_grad():
        fit = oracle.model.log_joint(x, oracle.posterior(x).mean[None])[0]
    at, lean = float(fit.mean()), 0.2 / float(fit.std(correction=0))
    method = Fixed(oracle.model, [Exact(oracle, 0.5, lean, at)])  # surer of images that fit worse
    found = calibrate(method, x, samples=1)
    assert (found.factor, found.tilt, found.at) == (
        pytest.approx(2),
        pytest.approx(lean),
        pytest.approx(at),
    )
    evidence = oracle.log_evidence(x)
    assert found.after == pytest.approx(float(evidence.mean()))
    method.widen, method.widen_tilt, method.widen_at = found.factor, found.tilt, found.at
    torch.testing.assert_close(bounds(method, x, samples=3).elbo, evidence)


def test_no_factor_beyond_the_widest():
    oracle = LinearGaussian()
    method = Fixed(oracle.model, [Exact(oracle, 1e-3)])
    assert calibrate(method, oracle.images(10), samples=5).factor == pytest.approx(WIDEST)
    alone = calibrate(method, oracle.images(1), samples=5)  # one image has no spread to lean on
    assert (alone.tilt, alone.at) == (0, 0)


MEANS = torch.tensor([[0.5, -1.0], [2.0, 0.1]]).double()
LOWER = torch.tensor([[[1.0, 0.0], [0.4, 0.3]], [[0.1, 0.0], [0.0, 0.2]]]).double()


def _gaussian():
    return Gaussian(MEANS, torch.tensor([[0.3, -0.7], [-3.0, 0.0]]).double())


def _inverted():
    return FullGaussian.from_precision(MEANS, torch.linalg.inv(LOWER @ LOWER.mT))


def _full():
    return FullGaussian(MEANS, LOWER)


def _mixture():
    return Mixture([_gaussian(), _full()], torch.tensor([[0.3, 0.7], [0.5, 0.5]]).double().log())


def _joined():
    parts = Gaussian(torch.stack([MEANS, -MEANS]), torch.randn(2, 2, 2).double())
    return Mixture.of_gaussians(parts, torch.tensor([[0.2, 0.8], [0.9, 0.1]]).double().log())


def _parts(q):
    """Weights, means and covariances, as torch has them."""
    if isinstance(q, Mixture):
        return (
            q.weights.unbind(-1),
            [p.mean for p in q.components],
            [_parts(p)[2][0] for p in q.components],
        )
    found = q.as_distribution()
    covariance = found.covariance_matrix if isinstance(q, FullGaussian) else found.variance.diag_embed()
    return [torch.ones(2).double()], [q.mean], [covariance]


@pytest.mark.parametrize("make", [_gaussian, _inverted, _full, _mixture, _joined])
@pytest.mark.parametrize("factor", [1.7, 0.6, torch.tensor([3.0, 0.5]).double()])
def test_a_widened_posterior_loses_precision_beyond_the_priors(make, factor):
    torch.manual_seed(0)
    q = make()
    wide = q.widened(factor)
    z = 0.5 * torch.randn(9, 2, 2).double()
    expected = []
    f = torch.as_tensor(factor, dtype=torch.double).expand(2)[:, None, None]
    for weight, mean, covariance in zip(*_parts(q), strict=True):
        precision, identity = torch.linalg.inv(covariance), torch.eye(2).double()
        less = torch.where(f > 1, identity + (precision - identity) / f**2, precision / f**2)
        normal = torch.distributions.MultivariateNormal(mean, precision_matrix=less)
        expected.append(normal.log_prob(z) + weight.log())
    torch.testing.assert_close(wide.log_prob(z), torch.stack(expected).logsumexp(0))
    torch.testing.assert_close(wide.mean, q.mean)
    samples, log_q = wide.rsample_and_log_prob(5)
    torch.testing.assert_close(log_q, wide.log_prob(samples))


@pytest.mark.parametrize("factor", [1.0, 2.0, torch.tensor([1.0, 3.0])])
@pytest.mark.parametrize("inverted", [False, True])
def test_a_sharp_dimension_takes_nothing_from_another_in_float32(factor, inverted):
    sharp = Gaussian(torch.zeros(2, 2), torch.tensor([[1e-4, 1.0], [1e-3, 0.5]]).log() * 2)
    scale = sharp.stddev.diag_embed()
    full = FullGaussian(sharp.mean, scale)
    if inverted:
        full = FullGaussian(sharp.mean, 1 / sharp.stddev.diag_embed().clamp(min=1e-30) * torch.eye(2))
        full._inverted = True
    expected = sharp.widened(factor).stddev
    got = full.widened(factor).covariance.diagonal(dim1=-2, dim2=-1).sqrt()
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=0)


def test_nothing_gets_wider_than_the_prior():
    q = Gaussian(torch.zeros(1, 3), torch.tensor([[-6.0, 0.0, -1.0]]))
    stddev = q.widened(100.0).stddev
    assert (stddev <= 1).all()
    torch.testing.assert_close(stddev, torch.ones(1, 3), atol=0.03, rtol=0)


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
    how = {"factor": 1.5, "tilt": 0.01, "at": 20.0}
    back = recmix.load(model.widened(**how).save(tmp_path / "wide"))
    training = back.spec.training
    assert (training.widen, training.widen_tilt, training.widen_at) == tuple(how.values())
    q = model.posterior(held_out)
    x = torch.from_numpy(held_out).float()
    with torch.no_grad():
        worse = 20.0 - model.method.model.log_joint(x, q.mean[None])[0]
    torch.testing.assert_close(
        back.posterior(held_out).stddev, q.widened(1.5 * (0.01 * worse).exp()).stddev
    )
    torch.testing.assert_close(back.posterior(held_out).mean, q.mean)
    assert model.widened(**how).widened(2.0).method.widen_tilt == 0
    with pytest.raises(ConfigError, match="factor must be a positive number, got 0"):
        model.widened(0)
    with pytest.raises(ConfigError, match="tilt must be a finite number, got nan"):
        model.widened(2, tilt=math.nan)


def test_the_command_calibrates_on_validation_images(tmp_path, capsys):
    run = tmp_path / "run"
    recmix.fit("vae", "digits", latent=2, epochs=2, out=run, progress=False)
    assert call("evaluate", run, "--samples", 5, "--calibrate") == 0
    assert "times as wide" in (said := capsys.readouterr().out)
    assert "as validation images ask for" in said
    scores = recmix.runs.folder.Run(run).scores()
    data = recmix.data.load("digits")
    expected = recmix.load(run).calibrated(data.x_val, 5).spec.training
    for name in ("widen", "widen_tilt", "widen_at"):
        assert scores["test/5/calibrated"][name] == getattr(expected, name)
    assert call("evaluate", run, "--samples", 5, "--calibrate", "--refine", 1) == 0
    assert recmix.runs.folder.Run(run).scores()["test/5/refine 1/calibrated"]["refine"] == 1
    assert call("evaluate", run, "--calibrate", "--gap") != 0
    assert "--calibrate is for IWAE bounds and --gap about the ELBO" in capsys.readouterr().err
    assert call("evaluate", run, "--calibrate", "--split", "val") != 0
    assert "--calibrate fits the width to the validation images" in capsys.readouterr().err
