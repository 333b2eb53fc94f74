"""Calibration of the likelihood's noise."""

import math
from dataclasses import replace

import pytest
import torch
from cases.oracle import LinearEncoder, LinearGaussian
from torch import nn

from recmix.errors import ConfigError
from recmix.evaluation.bounds import bounds
from recmix.evaluation.calibrate import calibrate
from recmix.evaluation.decompose import decompose
from recmix.inference import Inference
from recmix.methods.vae import VAE
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Poisson
from recmix.runs.scores import ScoreKey


def drawn(oracle, count):
    """Examples of the model itself."""
    noise = torch.randn(count, *oracle.shape, dtype=torch.float64)
    with torch.no_grad():
        mean = oracle.model.decode(torch.randn(count, oracle.latent, dtype=torch.float64))
        return mean + oracle.model.likelihood.variance.sqrt() * noise


@pytest.mark.parametrize("octaves", [-1, 0, 1.5])
def test_a_wrong_variance_is_corrected(octaves):
    oracle = LinearGaussian(variance=0.3)
    x = drawn(oracle, 1000)
    evidence = float(oracle.log_evidence(x).mean())
    nn.init.constant_(oracle.model.likelihood.log_variance, math.log(0.3 * 2.0**octaves))
    method = VAE(oracle.model, LinearEncoder(3).double()).eval()
    found = calibrate(method, x, Inference(refine=1), samples=10, noise=True)
    assert found.inference.noise == pytest.approx(2.0**-octaves, rel=0.2)
    assert found.after == pytest.approx(evidence, abs=0.05)
    assert found.before <= found.after
    _, iwae = bounds(method, x, found.inference, samples=10)
    assert float(iwae.mean()) == pytest.approx(evidence, abs=0.05)


def test_the_gap_is_measured_under_the_same_noise():
    oracle = LinearGaussian(variance=0.3)
    x = oracle.images(8)
    expected = oracle.log_evidence(x)
    nn.init.constant_(oracle.model.likelihood.log_variance, math.log(0.6))
    method = VAE(oracle.model, LinearEncoder(3).double()).eval()
    gap = decompose(method, x, Inference(refine=1, noise=0.5), samples=200, check=2)
    torch.testing.assert_close(gap.log_evidence, expected, atol=1e-3, rtol=0)
    torch.testing.assert_close(gap.elbo, expected, atol=1e-3, rtol=0)


def test_without_noise_the_model_is_left_alone():
    oracle = LinearGaussian()
    method = VAE(oracle.model, LinearEncoder(3).double()).eval()
    assert calibrate(method, oracle.images(100), samples=5).inference.noise == 1


def test_a_likelihood_without_noise_is_refused():
    decoder = nn.Linear(2, 4)
    model = LatentModel(decoder, Poisson(), latent=2, shape=(4,))
    method = VAE(model, nn.Linear(4, 4)).eval()
    with pytest.raises(ConfigError, match="poisson likelihood has no noise"):
        calibrate(method, torch.ones(5, 4), samples=2, noise=True)


def test_noise_is_part_of_the_name_of_a_score():
    one = Inference(refine=2, scale=1.5)
    two = replace(one, noise=0.5)
    assert one.key != two.key
    assert Inference.from_key(two.key) == two
    keys = [ScoreKey("test", 100, one, calibrated=True, noise=noise) for noise in (False, True)]
    assert str(keys[0]) != str(keys[1])
    assert [ScoreKey.parse(str(key)) for key in keys] == keys
    assert ScoreKey.parse(str(ScoreKey("test", 100, two))).inference == two
    assert Inference(noise=0.5).key
    assert two.uncalibrated.noise == 1
