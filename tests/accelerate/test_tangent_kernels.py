"""Gauss-Newton kernels compared with float64: on a GPU, or under Triton's interpreter."""

import copy
import importlib.util
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.func import jacfwd, vmap

from recmix.accelerate import newton_kernels, tangent_kernels
from recmix.accelerate.newton import KernelLogJoint
from recmix.accelerate.tangents import layer_chain
from recmix.inference import gauss_newton
from recmix.inference.gauss_newton import (
    DAMPINGS,
    LogJoint,
    NormalEquations,
    ascend,
    make_log_joint,
    normal_equations,
)
from recmix.model.latent import LatentModel, standard_normal
from recmix.model.likelihoods import LIKELIHOODS, Gaussian
from recmix.model.networks import make_decoder
from recmix.posteriors.full import cholesky

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
TRITON = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not TRITON, reason="Triton is not installed")
needs_kernels = pytest.mark.skipif(
    not (TRITON and (DEVICE == "cuda" or INTERPRETED)),
    reason="no CUDA device; this test runs in another process, under Triton's interpreter",
)
TF32 = 1e-5 if INTERPRETED else 2e-3  # the interpreter multiplies in float32


@pytest.fixture(autouse=True)
def exact(monkeypatch):
    """Values in float32 instead of TF32: an activation near zero then has the slope of float64.

    Under the interpreter tangents are in float32 too.
    """
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    if INTERPRETED:
        monkeypatch.setattr(tangent_kernels, "PRECISION", "tf32x3")


@needs_triton
@pytest.mark.skipif(DEVICE == "cuda" or INTERPRETED, reason="the kernels run in this process")
def test_under_the_interpreter():
    # The interpreter must be enabled before Triton is loaded.
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(
        run, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]


def close(got, expected, tolerance):
    assert got.dtype == torch.float32
    assert got.shape == expected.shape
    assert (got.double() - expected).abs().max() <= tolerance * expected.abs().max()


def latent_model(decoder, latent, shape, likelihood="gaussian"):
    centre = torch.rand(shape, generator=torch.Generator().manual_seed(5))
    made = LatentModel(decoder, LIKELIHOODS[likelihood](), latent=latent, shape=shape, centre=centre)
    return made.to(DEVICE)


def truth(decoder, z):
    """J (B, P, D) in float64."""
    exact = copy.deepcopy(decoder).double()
    return vmap(jacfwd(lambda v: exact(v[None])[0].flatten()))(z.double()).detach()


def pack(model):
    with torch.no_grad():
        return tangent_kernels.pack(
            layer_chain(model.decoder), torch.zeros(1, model.latent, device=DEVICE)
        )


def jacobian(model, z):
    """Output and Jacobian as Gauss-Newton steps compute them: by kernels where these apply."""
    problem = make_log_joint(model, torch.zeros(len(z), *model.shape, device=DEVICE), z.dtype)
    assert isinstance(problem, KernelLogJoint)
    return problem.linearise(z)


def agree(model, batch):
    z = torch.randn(batch, model.latent, device=DEVICE)
    with torch.no_grad():
        decoded, slope = jacobian(model, z)
        exact = copy.deepcopy(model.decoder).double()(z.double())
        close(decoded, exact, 1e-5)
        close(tangent_kernels.values(pack(model), z), exact, 1e-5)
    close(slope, truth(model.decoder, z), TF32)


@pytest.fixture
def ours(monkeypatch):
    """The Jacobians computed by kernels; the test fails if a kernel does not apply."""
    calls = []

    def push(*given):
        pushed = before(*given)
        assert pushed is not NotImplemented
        calls.append(pushed)
        return pushed

    before = tangent_kernels.push
    monkeypatch.setattr(tangent_kernels, "push", push)
    return calls


@needs_kernels
@pytest.mark.parametrize(
    ("kind", "shape", "latent", "batch"),
    [
        ("conv", (1, 28, 28), 3, 2),
        ("conv", (3, 12, 12), 2, 3),
        ("conv", (1, 12, 12), 20, 1),
        ("conv", (1, 8, 8), 1, 5),
        ("conv", (3, 13, 10), 2, 3),
        ("dense", (1, 8, 8), 3, 7),
        ("dense", (3, 8, 8), 1, 1),
    ],
)
def test_jacobians_of_decoders(kind, shape, latent, batch, ours):
    torch.manual_seed(0)
    agree(latent_model(make_decoder(kind, shape, latent, hidden=40), latent, shape), batch)
    assert len(ours) == 1


def first(*shape):
    size = shape[0] * shape[1] * shape[2]
    return [nn.Linear(3, size), nn.LeakyReLU(0.3), nn.Unflatten(1, shape)]


OWN = {
    "at once": ([*first(5, 3, 4), nn.ConvTranspose2d(5, 2, (3, 4), (1, 2), (0, 1))], (2, 5, 8)),
    "holes": ([*first(2, 3, 3), nn.ConvTranspose2d(2, 6, 2, 3, output_padding=1)], (6, 9, 9)),
    "activation last": ([*first(2, 2, 2), nn.ConvTranspose2d(2, 3, 4, 2, 1), nn.ReLU()], (3, 4, 4)),
    "fused": (
        [
            nn.Linear(3, 7),
            nn.ReLU(inplace=True),
            nn.Linear(7, 40),
            nn.Unflatten(1, (10, 2, 2)),
            nn.Identity(),
            nn.LeakyReLU(0.2, inplace=True),
            nn.ConvTranspose2d(10, 13, 5, (2, 1), (2, 1), bias=False),
            nn.ReLU(),
            nn.ConvTranspose2d(13, 1, (3, 2), (3, 1), (1, 0), (1, 0)),
        ],
        (1, 8, 5),
    ),
    "linear between": (
        [nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 20), nn.Linear(20, 12), nn.Unflatten(1, (3, 2, 2))],
        (3, 2, 2),
    ),
}


@needs_kernels
@pytest.mark.parametrize("name", OWN)
def test_jacobians_of_other_chains(name, ours):
    torch.manual_seed(1)
    layers, shape = OWN[name]
    agree(latent_model(nn.Sequential(*copy.deepcopy(layers)), 3, shape), 4)
    assert len(ours) == 1
    assert tangent_kernels._can_fuse(tangent_kernels.plan(layers)) == (name == "fused")


@needs_kernels
def test_weights_that_change_are_seen(ours, monkeypatch):
    torch.manual_seed(0)
    model = latent_model(make_decoder("conv", (1, 12, 12), 3, hidden=16), 3, (1, 12, 12))
    for change in (lambda p: p.data.mul_(1.5), lambda p: p.data.add_(0.1 * torch.randn_like(p))):
        agree(model, 2)
        for p in model.decoder.parameters():
            change(p)
    model.load_state_dict({k: -v for k, v in model.state_dict().items()})
    monkeypatch.setattr("recmix.accelerate.newton.tangent_chunk", lambda *_: 2)
    agree(model, 2)
    assert len(ours) == 3


@needs_kernels
def test_every_ascent_packs_the_weights_once(monkeypatch):
    packed = []

    def count(*given):
        packed.append(before(*given))
        return packed[-1]

    before = tangent_kernels.pack
    monkeypatch.setattr(tangent_kernels, "pack", count)
    torch.manual_seed(0)
    model = latent_model(make_decoder("dense", (1, 8, 8), 3, hidden=16), 3, (1, 8, 8))
    x, start = torch.rand(4, 1, 8, 8, device=DEVICE), torch.randn(4, 3, device=DEVICE)
    for _ in range(2):
        with torch.no_grad():
            mode = ascend(model, x, start, steps=2)[0]
        exact = ascend(copy.deepcopy(model).double(), x.double(), start.double(), steps=2)[0]
        close(mode, exact, 20 * TF32)
        for p in model.decoder.parameters():
            p.data.add_(0.1 * torch.randn_like(p))
    assert len(packed) == 2


@needs_kernels
@torch.no_grad()
@pytest.mark.parametrize("name", ["fused", "activation last", "linear between"])
def test_stored_values_have_their_sign_and_are_channels_last(name):
    torch.manual_seed(2)
    layers, shape = OWN[name]
    model = latent_model(nn.Sequential(*copy.deepcopy(layers)), 3, shape)
    at = z = torch.randn(4, 3, device=DEVICE)
    packed = pack(model)
    kept = list(tangent_kernels._values(packed, z, False))
    for i, step in enumerate(packed.steps):
        at = step.layer(at).view(-1, *step.shape)
        positive = at > 0
        if step.activation is not None:
            at = step.activation(at)
        if len(step.shape) == 3 and i < len(kept) - 1:
            expected, positive = at.movedim(1, -1).flatten(1), positive.movedim(1, -1)
        else:
            expected = at.flatten(1)
        torch.testing.assert_close(kept[i], expected)
        assert step.activation is None or torch.equal(kept[i] > 0, positive.flatten(1))


def low_bits(t):
    return t.view(torch.int32) & 0x1FFF


@needs_kernels
@torch.no_grad()
def test_factors_of_tf32_products_are_rounded_to_tf32(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(tangent_kernels, "PRECISION", "tf32")
    model = latent_model(make_decoder("conv", (1, 12, 12), 4, hidden=16), 4, (1, 12, 12))
    z = torch.randn(2, 4, device=DEVICE)
    made = {}
    before = tangent_kernels._run

    def run(packed, i, x, rows, at, fused):
        made[i, at is not None] = before(packed, i, x, rows, at, fused)
        return made[i, at is not None]

    monkeypatch.setattr(tangent_kernels, "_run", run)
    packed = pack(model)
    slope = tangent_kernels.push(packed, z, 4)[1]
    last = len(packed.steps) - 1
    assert packed.fuses
    for i in range(1, last - 1):  # the last but one forms sums of the last, which are not multiplied
        assert not low_bits(made[i, True]).any()
    assert not any(low_bits(w).any() for (_, rounded), w in packed._made.items() if rounded)
    assert low_bits(slope.contiguous()).any()
    assert low_bits(made[0, False]).any()  # values are float32, like torch's
    exact = truth(model.decoder, z)
    assert abs((slope * exact).sum() / exact.square().sum() - 1) < 3e-4
    close(slope, exact, 2e-3)

    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    got = tangent_kernels.push(pack(model), z, 4)[0]
    for i in range(1, last):
        assert not low_bits(made[i, False]).any()
    assert low_bits(made[last, False]).any()
    close(got, copy.deepcopy(model.decoder).double()(z.double()), 2e-3)
    close(tangent_kernels.values(pack(model), z), got.double(), 1e-4)


@needs_kernels
@torch.no_grad()
def test_rounding_is_to_nearest_and_keeps_nan():
    near = 1 + torch.tensor([0.4, 0.6, -0.4, 1.4]) * 2.0**-10
    kept = torch.tensor([torch.inf, -torch.inf, 0.0])
    weight = torch.cat([near, kept, torch.tensor([2**31 - 1], dtype=torch.int32).view(torch.float32)])
    layer = nn.Linear(8, 1).to(DEVICE)
    layer.weight.data = weight[None].to(DEVICE)
    step = tangent_kernels.LayerStep(layer, (1,))
    got = tangent_kernels.Packed([step, step]).weight(0, "tf32")[0].cpu()
    assert torch.equal(got[:4], 1 + torch.tensor([0.0, 1.0, -0.5, 1.0]) * 2.0**-10)
    assert torch.equal(got[4:7], kept)
    assert got[7].isnan()


@needs_kernels
def test_linear_layers_use_tf32_only_if_torch_does(monkeypatch):
    step = tangent_kernels.LayerStep(nn.Linear(2, 2), (2,))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert tangent_kernels._precision(step) == "tf32x3"
    monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace(allow_tf32=True))
    assert tangent_kernels._precision(step) == "tf32"


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4)],
        [nn.Linear(3, 4), nn.Linear(4, 4)],
        [nn.Linear(3, 4), nn.ReLU()],
        [nn.Linear(3, 4), nn.ReLU(), nn.ReLU(), nn.Linear(4, 4)],
        [nn.ReLU(), nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4)],
        [*first(4, 2, 2), nn.ConvTranspose2d(4, 4, 3, groups=2)],
        [*first(4, 2, 2), nn.ConvTranspose2d(4, 4, 3, dilation=2)],
        [*first(4, 1, 1), nn.ConvTranspose2d(4, 4, 2, padding=1)],
        [*first(4, 2, 2), nn.Conv2d(4, 4, 1)],
        [*first(4, 2, 2), nn.Flatten(), nn.Linear(16, 3)],
        [nn.Linear(3, 16), nn.ReLU(), nn.Unflatten(1, (4, -1, 2)), nn.ConvTranspose2d(4, 4, 3)],
        [nn.Linear(3, 4), nn.LeakyReLU(-0.1), nn.Linear(4, 4)],
        [nn.Linear(3, 4), nn.ReLU(), nn.Linear(5, 4)],
        [nn.Linear(3, 4), nn.ReLU(), nn.Unflatten(1, (4, 2, 2)), nn.ConvTranspose2d(4, 4, 3)],
        [*first(4, 2, 2), nn.ConvTranspose2d(5, 4, 3)],
    ],
)
def test_unknown_layers_are_left_to_torch(layers):
    assert tangent_kernels.plan(layers) is None
    if INTERPRETED:
        with torch.no_grad():
            assert tangent_kernels.pack(layers, torch.zeros(2, 3)) is None


def test_kernels_are_not_used_with_gradients_or_in_float64(monkeypatch):
    def refuse(*_):
        raise AssertionError

    for name in ("equations", "solve", "choose", "score"):
        monkeypatch.setattr(newton_kernels, name, refuse)
    for name in ("pack", "push", "values"):
        monkeypatch.setattr(tangent_kernels, name, refuse)
    model = latent_model(make_decoder("dense", (1, 8, 8), 3, hidden=8), 3, (1, 8, 8))
    x, z = torch.rand(2, 1, 8, 8, device=DEVICE), torch.randn(2, 3, device=DEVICE)
    assert normal_equations(model, x, z).precision.requires_grad
    with torch.no_grad(), gauss_newton.traceable():
        normal_equations(model, x, z)
    monkeypatch.setattr(newton_kernels, "factor", refuse)
    assert cholesky(matrices(2, 3).requires_grad_()).requires_grad
    model.double()
    with torch.no_grad():
        ascend(model, x, z.double(), steps=1)
        cholesky(matrices(2, 3).double())


@needs_kernels
def test_failed_kernel_is_replaced_with_one_warning(monkeypatch):
    def fail(*_):
        raise RuntimeError("no compiler\nand more")

    monkeypatch.setattr(newton_kernels, "_broken", set())
    monkeypatch.setattr(tangent_kernels, "_run", fail)
    model = latent_model(make_decoder("dense", (1, 8, 8), 3, hidden=8), 3, (1, 8, 8))
    z = torch.randn(2, 3, device=DEVICE)
    with torch.no_grad():
        with pytest.warns(UserWarning, match=r"Gauss-Newton's push cannot be used \(no compiler\)"):
            slope = jacobian(model, z)[1]
        close(slope, truth(model.decoder, z), 1e-5)
        jacobian(model, z)  # a second warning would be an error
        with pytest.warns(UserWarning, match="Gauss-Newton's values cannot be used"):
            mode = ascend(model, torch.rand(2, 1, 8, 8, device=DEVICE), z, steps=2)[0]
        assert mode.isfinite().all()


def matrices(batch, latent):
    torch.manual_seed(latent)
    half = torch.randn(batch, latent, latent + 3, device=DEVICE)
    return half @ half.mT + torch.eye(latent, device=DEVICE)


def ridged(matrix):
    """The matrix in float64, with the ridge that `cholesky` adds in float32."""
    ridge = 4 * torch.finfo(torch.float32).eps * matrix.diagonal(dim1=-2, dim2=-1).sum(-1).double()
    return matrix.double() + ridge[..., None, None] * torch.eye(matrix.shape[-1], device=DEVICE)


@needs_kernels
@torch.no_grad()
@pytest.mark.parametrize(
    ("batch", "latent", "pixels"), [(1, 1, 5), (3, 20, 70), (2, 50, 33), (2, 3, 300)]
)
def test_normal_equations(batch, latent, pixels):
    torch.manual_seed(0)
    slope = torch.randn(batch, latent, pixels, device=DEVICE)
    residual, z = torch.randn(batch, pixels, device=DEVICE), torch.randn(batch, latent, device=DEVICE)
    for layout in (slope.mT, slope.transpose(0, 1).contiguous().permute(1, 2, 0)):
        for weight in (torch.rand_like(residual), torch.tensor(3.0, device=DEVICE).expand_as(residual)):
            gradient, precision = newton_kernels.equations(layout, weight, residual, z)
            j = slope.double()
            close(gradient, (j @ residual.double()[..., None]).squeeze(-1) - z, 1e-5)
            identity = torch.eye(latent, device=DEVICE)
            close(precision, (j * weight.double()[:, None]) @ j.mT + identity, 1e-5)


@needs_kernels
@torch.no_grad()
@pytest.mark.parametrize(("programs", "parts"), [(1, 1), (6, 3), (1024, 4)])
def test_number_of_parts_depends_on_the_batch(programs, parts, monkeypatch):
    made = []
    launched = newton_kernels._equations
    monkeypatch.setattr(newton_kernels, "PROGRAMS", programs)

    class Recorded:
        def __getitem__(self, grid):
            made.append(grid)
            return launched[grid]

    monkeypatch.setattr(newton_kernels, "_equations", Recorded())
    slope = torch.randn(2, 3, 300, device=DEVICE)
    residual, z = torch.randn(2, 300, device=DEVICE), torch.randn(2, 3, device=DEVICE)
    gradient, _ = newton_kernels.equations(slope.mT, torch.ones_like(residual), residual, z)
    assert made == [(2, parts)]
    close(gradient, (slope.double() @ residual.double()[..., None]).squeeze(-1) - z, 1e-5)


@needs_kernels
@torch.no_grad()
@pytest.mark.parametrize("name", ["gaussian", "below the floor", "bernoulli"])
@pytest.mark.parametrize(("shape", "latent"), [((1, 3, 5), 1), ((3, 20, 20), 20)])
def test_log_joint_and_its_derivatives(name, shape, latent):
    torch.manual_seed(0)
    if name == "bernoulli":
        likelihood = LIKELIHOODS[name]()
    else:
        likelihood = LIKELIHOODS["gaussian"](variance=0.3, floor=0.5 if "floor" in name else 1e-6)
        likelihood.log_variance.data.fill_(-1.3)
    likelihood.to(DEVICE)
    image, z = torch.rand(3, *shape, device=DEVICE), torch.randn(2, 3, latent, device=DEVICE)
    decoded = 4 * torch.randn(2, 3, *shape, device=DEVICE)
    decoded[0, 0, 0, 0, :2] = torch.tensor([50.0, -50.0])
    joint, residual, weight = newton_kernels.score(likelihood, image, decoded, z, slopes=True)
    assert torch.equal(newton_kernels.score(likelihood, image, decoded, z, slopes=False)[0], joint)
    likelihood.double()
    double = (image.double(), decoded.double())
    close(joint, likelihood.log_prob(*double) + standard_normal(z.double()), 1e-6)
    close(residual, likelihood.residual(*double).flatten(2), 1e-6)
    close(weight, likelihood.precision(*double).flatten(2), 1e-6)
    likelihood.float()
    decoded[1, 2, 0, 0, 0] = torch.nan
    joint = newton_kernels.score(likelihood, image, decoded, z, slopes=False)[0]
    assert joint.isnan().nonzero().tolist() == [[1, 2]]


@torch.no_grad()
def test_other_likelihoods_are_left_to_torch():
    class Other(Gaussian):
        pass

    image, z = torch.zeros(2, 1, 2, 2), torch.zeros(1, 2, 3)
    assert newton_kernels.score(Other(), image, image[None], z, slopes=False) is NotImplemented
    assert newton_kernels.score(Gaussian(), image[:1], image[None], z, slopes=False) is NotImplemented


@needs_kernels
@torch.no_grad()
@pytest.mark.parametrize(("batch", "latent"), [(1, 1), (3, 7), (2, 20), (1, 50)])
def test_damped_steps_and_factors(batch, latent):
    matrix, gradient = matrices(batch, latent), torch.randn(batch, latent, device=DEVICE)
    damping = torch.tensor([[0.0], [2.0]], device=DEVICE).expand(2, batch)
    wide = (gradient.expand(2, -1, -1), matrix.expand(2, -1, -1, -1))
    damped = ridged(matrix + damping[..., None, None] * torch.eye(latent, device=DEVICE))
    exact = torch.linalg.solve(damped, gradient.double()[..., None]).squeeze(-1)
    tolerance = 3e-7 * torch.linalg.cond(damped).max().item()
    close(newton_kernels.solve(*wide, damping), exact, tolerance)
    for one in (matrix, matrix.flip(-2, -1)):
        close(newton_kernels.factor(one), torch.linalg.cholesky(ridged(one)), tolerance)
        assert torch.equal(cholesky(one), newton_kernels.factor(one))


@needs_kernels
@torch.no_grad()
def test_indefinite_matrix_is_replaced_by_its_diagonal():
    matrix, gradient = matrices(3, 4), torch.randn(1, 3, 4, device=DEVICE)
    matrix[1, 0, 1] = matrix[1, 1, 0] = 100.0
    alone = (gradient[0, 1] / matrix[1].diagonal()).double()
    close(
        newton_kernels.solve(gradient, matrix[None], torch.zeros(1, 3, device=DEVICE))[0, 1], alone, 1e-5
    )
    factors = newton_kernels.factor(matrix)
    close(factors, cholesky(matrix.double()), 1e-4)
    assert torch.equal(factors[1], torch.diag(factors[1].diagonal()))


@needs_kernels
@torch.no_grad()
@pytest.mark.parametrize("latent", [1, 5])
def test_choice_of_a_step(latent):
    torch.manual_seed(0)
    reached = torch.randn(len(DAMPINGS), 6, device=DEVICE)
    reached[1, 0], reached[2, 1], reached[:, 2], reached[0, 3] = 9, torch.inf, torch.nan, -torch.inf
    joint = torch.tensor([0.0, 0, 0, 0, 5, -5], device=DEVICE)
    z, step = torch.randn(6, latent, device=DEVICE), torch.randn(5, 6, latent, device=DEVICE)
    level = torch.tensor([1.0, 2, 1e12, 0.1, 3, 1], device=DEVICE)
    tried = newton_kernels.candidate_dampings(level, DAMPINGS)
    given = (reached, joint, z, step, tried, level)
    ours = newton_kernels.choose(*given, beyond=1e4, limits=(0.1, 1e12))
    reached, joint, z64, step, tried, level = (t.double() for t in given)
    here = NormalEquations(joint, z64, torch.empty(0))
    theirs = LogJoint.choose(None, reached, here, z64, step, tried, level, 0.1)
    for a, b in zip(ours, theirs, strict=True):
        close(a, b, 1e-6)
    assert (ours[0] != z).any(1).tolist() == [True, True, False, True, False, True]


@needs_kernels
@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
def test_ascent_agrees_with_float64(likelihood, ours):
    torch.manual_seed(0)
    model = latent_model(make_decoder("dense", (1, 8, 8), 3, hidden=16), 3, (1, 8, 8), likelihood)
    x, start = torch.rand(4, 1, 8, 8, device=DEVICE), torch.randn(4, 3, device=DEVICE)
    with torch.no_grad():
        mode, at = ascend(model, x, start, steps=2)
    assert len(ours) == 3
    exact, there = ascend(copy.deepcopy(model).double(), x.double(), start.double(), steps=2)
    close(mode, exact, 20 * TF32)
    close(at.precision, there.precision.detach(), 20 * TF32)


@needs_kernels
def test_ascent_with_reused_curvature_agrees_with_float64(ours):
    torch.manual_seed(0)
    model = latent_model(make_decoder("dense", (1, 8, 8), 3, hidden=16), 3, (1, 8, 8))
    x, start = torch.rand(4, 1, 8, 8, device=DEVICE), torch.randn(4, 3, device=DEVICE)
    with torch.no_grad():
        mode, _ = ascend(model, x, start, steps=1, reuse=2)
    assert len(ours) == 4  # Jacobians by kernels
    exact, _ = ascend(copy.deepcopy(model).double(), x.double(), start.double(), steps=1, reuse=2)
    close(mode, exact, 20 * TF32)


@needs_kernels
@torch.no_grad()
def test_too_many_values_for_an_index_are_left_to_torch(monkeypatch):
    model = latent_model(make_decoder("dense", (1, 8, 8), 3, hidden=16), 3, (1, 8, 8))
    z = torch.randn(4, 3, device=DEVICE)
    packed = pack(model)
    assert tangent_kernels.push(packed, z, 3) is not NotImplemented
    monkeypatch.setattr(tangent_kernels, "INDICES", 4 * 3 * 64)
    assert tangent_kernels.push(packed, z, 3) is NotImplemented
    assert tangent_kernels.values(packed, z) is not NotImplemented
    monkeypatch.setattr(tangent_kernels, "INDICES", 4 * 64)
    assert tangent_kernels.values(packed, z) is NotImplemented


def test_without_triton_modules_load_and_kernels_are_not_usable():
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch, recmix.accelerate.tangent_kernels, recmix.accelerate.newton_kernels as n\n"
        "torch.set_grad_enabled(False); assert not n.usable(torch.zeros(2))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@needs_triton
@pytest.mark.skipif(INTERPRETED, reason="nothing is compiled under the interpreter")
@pytest.mark.parametrize("kind", ["shared", "fused", "values", "small algebra"])
def test_kernels_compile_for_a_gpu(kind):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    def compiles(kernel, tensors, fixed, warps, **others):
        kinds = dict.fromkeys(kernel.arg_names[:tensors], "*fp32")
        kinds |= {name: "i32" for name in kernel.arg_names[tensors:] if name not in fixed} | others
        source = ASTSource(
            fn=kernel, signature=kinds | dict.fromkeys(fixed, "constexpr"), constexprs=fixed
        )
        made = compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
        assert "ptx" in made.asm

    if kind == "small algebra":
        small = {"D": 20, "BD": 32}
        for parts, each in ((1, 800), (7, 128)):
            fixed = {"P": 784, "BP": 32, "PARTS": parts, "PART": each}
            compiles(newton_kernels._equations, 6, small | fixed, 2)
        compiles(newton_kernels._sum_parts, 5, small | {"PARTS": 7}, 2)
        compiles(newton_kernels._solve, 4, small, 1)
        compiles(newton_kernels._factor, 2, small, 1)
        limits = {"L": 5, "BEYOND": 1e4, "LEAST": 0.1, "MOST": 1e12, "BB": 4}
        compiles(newton_kernels._choose, 8, small | limits, 4)
        for gaussian in (True, False):
            fixed = {"GAUSSIAN": gaussian, "SLOPES": True, "P": 784, "BP": 1024}
            compiles(newton_kernels._score, 7, small | fixed, 4, floor="fp32")
        sizes = dict(
            zip(("C", "O", "KH", "KW", "AH", "AW", "SH", "SW"), (8, 8, 4, 4, *[2] * 4), strict=True)
        )
        compiles(tangent_kernels._pack, 2, sizes | {"ROUND": True, "BM": 512}, 4)
        return
    names = ("C", "H", "W", "O", "OH", "OW", "QH", "QW", "AH", "AW", "SH", "SW", "PH", "PW")
    shapes = dict(zip(names, (32, 7, 7, 32, 14, 14, 8, 8, 2, 2, 2, 2, 1, 1), strict=True))
    fixed = {"T": 20, "VALUES": False, "SHARED": kind == "shared", "BEFORE": 0.01, "AFTER": 0.0}
    fixed |= {"BIAS": 0, "FIRST": kind == "shared", "PRECISION": "tf32", "ROUND": True}
    if kind == "values":
        fixed |= {"T": 1, "VALUES": True, "BIAS": 1, "PRECISION": "tf32x3", "ROUND": False}
    *block, warps, _ = tangent_kernels.tiles(
        163840, 128, 128, whole=kind == "fused", precision=fixed["PRECISION"]
    )
    block = dict(zip(("BM", "BN", "BK"), block, strict=True))
    tail = {"TAIL": 16 if kind == "fused" else 0, "BT": 64}
    compiles(tangent_kernels._layer, 7, fixed | shapes | tail | block, warps)
    if kind == "fused":
        names = ("H", "W", "O", "OH", "OW", "KH", "KW", "SH", "SW", "PH", "PW", "BIASED", "BM")
        values = (14, 14, 1, 28, 28, 4, 4, 2, 2, 1, 1, True, 256)
        compiles(tangent_kernels._fold, 3, dict(zip(names, values, strict=True)), 8)
