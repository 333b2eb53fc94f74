"""Kernels of the refinement 'learned' compared with float64: on a GPU, or under Triton's interpreter."""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

from recmix.accelerate import quasi_newton
from recmix.inference.learned import Iterate, Pair, advance, direction
from recmix.model.curvature_network import CurvatureNetwork, scaled_triangle
from recmix.posteriors import FullGaussian

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
TRITON = importlib.util.find_spec("triton") is not None
needs_kernels = pytest.mark.skipif(
    not (TRITON and (DEVICE == "cuda" or INTERPRETED)),
    reason="no CUDA device; this test runs in another process, under Triton's interpreter",
)
BATCH = 6
sizes = pytest.mark.parametrize("latent", [1, 3, 20, 50])


@pytest.mark.skipif(not TRITON, reason="Triton is not installed")
@pytest.mark.skipif(DEVICE == "cuda" or INTERPRETED, reason="the kernels run in this process")
def test_under_the_interpreter():
    # The interpreter must be enabled before Triton is loaded.
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", __file__]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.fixture(autouse=True)
def without_gradients():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def rand(*shape):
    return torch.randn(shape, device=DEVICE)


def triangular(latent):
    return torch.eye(latent, device=DEVICE) + 0.3 * rand(BATCH, latent, latent).tril(-1)


def close(got, expected):
    assert got.dtype == torch.float32
    assert got.shape == expected.shape
    torch.testing.assert_close(got.double(), expected, rtol=2e-4, atol=2e-5)


def double(values):
    return type(values)(*(value.double() for value in values))


@needs_kernels
@sizes
def test_triangle(latent):
    network = CurvatureNetwork(latent, 0).to(DEVICE)
    typical, out = triangular(latent)[0], 0.5 * rand(BATCH, network.head.out_features)
    got = quasi_newton.triangle_kernel(out, typical, network.places)
    close(got, scaled_triangle.plain(out.double(), typical.double(), network.places))


@needs_kernels
@sizes
@pytest.mark.parametrize("pairs", [0, 1, 2])
def test_direction(latent, pairs):
    factor, gradient = triangular(latent), rand(BATCH, latent)
    known = []
    for _ in range(pairs):  # one example has no pair, one a pair that turns the direction around
        step, change = rand(BATCH, latent), rand(BATCH, latent)
        inverse = 1 / (step * change).sum(-1, keepdim=True)
        step[0], change[0], inverse[0] = 0, 0, 0
        known.append(Pair(step, change, inverse))
    got = quasi_newton.direction_kernel(FullGaussian(gradient, factor), gradient, known)
    exact = FullGaussian(gradient.double(), factor.double())
    expected = direction.plain(exact, gradient.double(), [double(pair) for pair in known])
    torch.testing.assert_close(got.double(), expected, rtol=1e-3, atol=1e-4 * expected.abs().max())


@needs_kernels
@sizes
@pytest.mark.filterwarnings("ignore:invalid value encountered")  # the interpreter computes with numpy
def test_advance(latent):
    at = Iterate(rand(BATCH, latent), rand(BATCH), rand(BATCH, latent), rand(BATCH).abs())
    step, there = rand(BATCH, latent), rand(BATCH, latent)
    there[2:4] = at.gradient[2:4] - 0.5 * step[2:4]  # positive curvature along the step
    reached = at.value + torch.tensor([1.0, -1.0, 1.0, -1.0, torch.nan, torch.inf], device=DEVICE)
    there[5] = torch.inf
    got = quasi_newton.advance_kernel(at, step, reached, there)
    expected = advance.plain(double(at), step.double(), reached.double(), there.double())
    for mine, right in zip(got, expected, strict=True):
        for value, wanted in zip(mine, right, strict=True):
            close(value, wanted)


@needs_kernels
def test_kernels_replace_the_plain_functions():
    factor, gradient = triangular(3), rand(BATCH, 3)
    q = FullGaussian(gradient, factor)
    assert torch.equal(direction(q, gradient, []), quasi_newton.direction_kernel(q, gradient, []))
    with torch.enable_grad():  # the kernels have no derivative
        free = gradient.clone().requires_grad_()
        assert direction(q, free, []).requires_grad
