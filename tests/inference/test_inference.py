"""`Inference`: what it does, its text form, and how a method uses it."""

import pytest
import torch
from cases.contract import images, make
from cases.oracle import LinearGaussian
from hypothesis import given, settings
from hypothesis import strategies as st

from recmix.errors import ConfigError
from recmix.inference import Inference
from recmix.inference.improve import LARGEST_SCALE, calibrate
from recmix.inference.refinement import refine
from recmix.methods.method import infer, infer_no_grad
from recmix.posteriors import Gaussian


def start(count=5):
    oracle = LinearGaussian()
    x = oracle.images(count)
    mean = torch.randn(count, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return oracle.model, x, Gaussian(mean, torch.full_like(mean, -2.0))


def test_default_does_nothing():
    model, x, q = start()
    assert Inference()(model, x, q) is q
    assert Inference().key == ""
    assert not Inference().calibrated


def test_refinement_comes_before_calibration():
    model, x, q = start()
    expected = refine(model, x, q, steps=1, reuse=0).scaled(0.5)
    found = Inference(refine=1, reuse=0, scale=0.5)(model, x, q)
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.covariance_matrix, expected.covariance_matrix)


def test_either_option_calibrates():
    assert not Inference().calibrated
    assert Inference(scale=1.5).calibrated
    assert Inference(slope=0.1).calibrated
    assert "scale=1.5" in Inference(scale=1.5).key


def test_slope_scales_examples_that_fit_worse():
    model, x, q = start(40)
    inference = Inference(scale=0.9, slope=0.01, reference=-20.0)
    with torch.no_grad():
        fit = model.log_joint(x, q.mean[None])[0]
        found = inference(model, x, q)
    factor = (0.9 * (0.01 * (-20.0 - fit)).exp()).clamp(1 / LARGEST_SCALE, LARGEST_SCALE)
    assert (factor > 1).any()
    assert (factor < 1).any()
    torch.testing.assert_close(found.stddev, q.scaled(factor).stddev)
    torch.testing.assert_close(calibrate(inference, model, x, q).stddev, found.stddev)


def test_uncalibrated_keeps_the_refinement():
    inference = Inference(refine=2, restarts=3, scale=2.0, slope=0.1, reference=5.0)
    assert inference.calibrated
    assert inference.uncalibrated == Inference(refine=2, restarts=3)


@pytest.mark.parametrize("how", ["variational", "conjugate"])
def test_key_names_restarts_that_residual_corrections_use(how):
    """The refinement itself has no restarts, but its start has."""
    one, three = (Inference(refine=2, how=how, restarts=n) for n in (1, 3))
    assert "restarts" not in one.key  # the key of stored scores
    assert three.key == f"{one.key},restarts=3"
    assert Inference.from_key(three.key) == three
    method = make("residual")
    for p in method.components[0].encoder.parameters():
        p.data.mul_(3)  # far from 0, so that starting points differ
    means = [infer_no_grad(method, images(), inference).mean for inference in (one, three)]
    assert not torch.equal(*means)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    refine=st.integers(0, 8),
    reuse=st.integers(0, 4),
    restarts=st.integers(1, 9),
    scale=st.floats(1e-3, 1e3),
    slope=st.floats(-2, 2),
    reference=st.floats(-1e4, 1e4),
)
def test_key_names_the_whole_inference(**options):
    inference = Inference(**options)
    same = Inference.from_key(inference.key)
    assert same.key == inference.key
    assert same.refine == inference.refine
    assert same.restarts == inference.restarts
    if inference.refine:
        assert same.reuse == inference.reuse
    if inference.calibrated:
        assert (same.scale, same.slope, same.reference) == (
            inference.scale,
            inference.slope,
            inference.reference,
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"refine": -1}, "refine must be at least 0 and at most 1000, got -1"),
        ({"refine": 1.5}, "refine must be a whole number, got 1.5"),
        ({"restarts": 10}, "restarts must be at least 1 and at most 9, got 10"),
        ({"scale": 0.0}, "scale must be above 0, got 0.0"),
        ({"slope": float("nan")}, "slope must be finite, got nan"),
        ({"how": "newton"}, "unknown value of how 'newton'.*gauss-newton"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        Inference(**options)


def test_wrong_key_is_refused():
    with pytest.raises(ConfigError, match="'steps=2' is not an option"):
        Inference.from_key("gauss-newton,steps=2")


def test_infer_encodes_refines_and_calibrates():
    method, x = make("vae"), images()
    used = Inference(refine=1, scale=0.8)
    expected = used(method.model, x, method.posterior(x))
    found = infer(method, x, used)
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.covariance_matrix, expected.covariance_matrix)
    assert found.mean.requires_grad
    plain = infer_no_grad(method, x, used)
    torch.testing.assert_close(plain.mean, expected.mean.detach())
    assert not plain.mean.requires_grad
