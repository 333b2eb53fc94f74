"""Calibration: exact where the right scale is known; it never uses test examples."""

import pytest
import torch
from cases.commands import call
from cases.contract import make
from cases.oracle import LinearGaussian
from cases.training import SMALL, images

import recmix
from recmix.errors import ConfigError
from recmix.evaluation.bounds import bounds
from recmix.evaluation.calibrate import calibrate
from recmix.inference import Inference
from recmix.inference.improve import LARGEST_SCALE, example_scales
from recmix.methods.component import Component
from recmix.methods.method import Method
from recmix.posteriors import FullGaussian
from recmix.runs.folder import Run
from recmix.runs.scores import ScoreKey


class Scaled(Component):
    """The true posterior of the linear-Gaussian model with a wrong scale.

    With a `slope`, the scale of an example also grows by e^slope for each nat that log p(x, mean) lies
    above the reference.
    """

    kind = "scaled"

    def __init__(self, oracle, scale, slope=0.0, reference=0.0):
        super().__init__(torch.nn.Identity(), oracle.model)
        self.oracle, self.scale, self.slope, self.reference = oracle, scale, slope, reference

    def forward(self, x, model):
        true = self.oracle.posterior(x)
        if self.scale > 1:
            return FullGaussian(true.mean, self.scale * true.scale_tril)
        precision = true.precision_matrix
        identity = torch.eye(precision.shape[-1], dtype=x.dtype)
        fit = model.log_joint(x, true.mean[None])[0] - self.reference
        scale = (self.scale * (self.slope * fit).exp())[:, None, None]
        return FullGaussian.from_precision(true.mean, identity + (precision - identity) / scale**2)


class Fixed(Method):
    """One component without parameters."""


@pytest.mark.parametrize("octaves", [-2, -1, 0, 0.75])
def test_scale_of_the_true_posterior_is_found(octaves):
    oracle = LinearGaussian()
    x = oracle.images(1000)
    method = Fixed(oracle.model, [Scaled(oracle, 2.0**octaves)])
    found = calibrate(method, x, samples=1)
    assert found.inference.scale == pytest.approx(2.0**-octaves)
    evidence = float(oracle.log_evidence(x).mean())
    assert found.after == pytest.approx(evidence)  # every sample of the true posterior gives log p(x)
    assert found.before < evidence - 1e-3 or octaves == 0
    assert found.inference.slope == 0
    elbo, iwae = bounds(method, x, found.inference, samples=3)
    torch.testing.assert_close(elbo, oracle.log_evidence(x))
    torch.testing.assert_close(iwae, oracle.log_evidence(x))


def test_slope_of_a_posterior_that_is_overconfident_for_bad_fits_is_found():
    oracle = LinearGaussian()
    x = oracle.images(1000)
    with torch.no_grad():
        fit = oracle.model.log_joint(x, oracle.posterior(x).mean[None])[0]
    reference, slope = float(fit.mean()), 0.2 / float(fit.std(correction=0))
    method = Fixed(oracle.model, [Scaled(oracle, 0.5, slope, reference)])
    found = calibrate(method, x, samples=1)
    assert found.inference.scale == pytest.approx(2)
    assert found.inference.slope == pytest.approx(slope)
    assert found.inference.reference == pytest.approx(reference)
    evidence = oracle.log_evidence(x)
    assert found.after == pytest.approx(float(evidence.mean()))
    torch.testing.assert_close(bounds(method, x, found.inference, samples=3).elbo, evidence)


def test_scale_is_limited():
    oracle = LinearGaussian()
    method = Fixed(oracle.model, [Scaled(oracle, 1e-3)])
    found = calibrate(method, oracle.images(10), samples=5)
    assert found.inference.scale == pytest.approx(LARGEST_SCALE)
    alone = calibrate(method, oracle.images(1), samples=5)  # one example has no spread, so no slope
    assert (alone.inference.slope, alone.inference.reference) == (0, 0)


def test_calibration_keeps_the_refinement_and_replaces_the_scale():
    oracle = LinearGaussian()
    x = oracle.images(200)
    method = Fixed(oracle.model, [Scaled(oracle, 0.25)])
    before = Inference(refine=1, restarts=2, scale=3.0, slope=0.1, reference=1.0)
    found = calibrate(method, x, before, samples=1)
    assert found.inference == Inference(refine=1, restarts=2)  # refined, it is the true posterior
    assert found.after == pytest.approx(float(oracle.log_evidence(x).mean()))


def test_same_seed_gives_the_same_calibration():
    method = make("vae")
    x = torch.rand(30, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    one, same, other = (calibrate(method, x, samples=20, seed=s) for s in (0, 0, 1))
    assert one == same
    assert one.before != other.before


def test_posterior_that_cannot_be_scaled_is_refused():
    for name in ("hf", "iaf"):
        with pytest.raises(ConfigError, match="only Gaussians and mixtures of Gaussians"):
            calibrate(make(name), torch.zeros(2, 1, 8, 8, dtype=torch.float64), samples=2)


@pytest.fixture(scope="module")
def model():
    return recmix.fit("vae", images(), **SMALL)


def test_trained_model_is_calibrated_without_training(model):
    held_out = images(40, seed=5)
    narrow = model.using(scale=0.25)
    better = narrow.calibrated(held_out, 20)
    assert better.inference.scale > 0.25  # its own scale is not the start
    assert better.log_likelihood(held_out, 20).mean() > narrow.log_likelihood(held_out, 20).mean() + 0.1
    assert narrow.inference.scale == 0.25
    assert model.inference.scale == 1
    assert better.method is model.method
    with pytest.warns(UserWarning, match="its calibration is removed"):
        assert model.using(scale=1.5).refined(1).inference == Inference(refine=1)


def test_calibration_is_saved(model, tmp_path):
    held_out = images(40, seed=5)
    options = {"scale": 1.5, "slope": 0.01, "reference": 20.0}
    back = recmix.load(model.using(**options).save(tmp_path / "scaled"), device="cpu")
    assert back.inference == Inference(**options)
    q = model.posterior(held_out)
    x = torch.from_numpy(held_out)
    with torch.no_grad():
        shortfall = 20.0 - model.latent_model.log_joint(x, q.mean[None])[0]
    expected = q.scaled(example_scales(1.5, 0.01, shortfall))
    torch.testing.assert_close(back.posterior(held_out).stddev, expected.stddev)
    torch.testing.assert_close(back.posterior(held_out).mean, q.mean)


def test_command_calibrates_on_validation_examples(tmp_path, capsys):
    folder = tmp_path / "run"
    recmix.fit("vae", "digits", latent=2, epochs=2, out=folder, progress=False, device="cpu")
    given = ("evaluate", folder, "--samples", 5, "--device", "cpu")
    assert call(*given, "--calibrate") == 0
    assert "calibrated on validation data: scale" in capsys.readouterr().out
    data = recmix.data.load("digits")
    expected = recmix.load(folder, device="cpu").calibrated(data.x_val, 5).inference
    scores = Run(folder).scores()
    assert scores["test/5/calibrated"]["inference"] == expected.to_json()
    assert call(*given, "--calibrate", "--refine", 1) == 0
    key = str(ScoreKey("test", 5, Inference(refine=1), True))
    assert Run(folder).scores()[key]["inference"]["refine"] == 1
    assert call(*given, "--calibrate", "--gap") != 0
    assert "--calibrate improves IWAE bounds and --gap is about the ELBO" in capsys.readouterr().err
    assert call(*given, "--calibrate", "--split", "val") != 0
    assert "--calibrate uses the validation data" in capsys.readouterr().err
