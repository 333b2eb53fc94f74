"""Triton kernels compared with torch in float64: on a GPU, or under Triton's interpreter."""

import copy
import importlib.util
import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from recmix.accelerate import kernels, layers
from recmix.accelerate.stacked import Stacked, StackedEncoders, _sequence
from recmix.accelerate.stacked_posteriors import _encoders, _gates
from recmix.methods.gates import Gate
from recmix.methods.registry import METHODS
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Gaussian as GaussianLikelihood
from recmix.model.networks import make_decoder, make_encoder
from recmix.posteriors import recursive_log_weights
from recmix.posteriors.recursion import bounded

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
TRITON = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not TRITON, reason="Triton is not installed")
needs_kernels = pytest.mark.skipif(
    not (TRITON and (DEVICE == "cuda" or INTERPRETED)),
    reason="no CUDA device; this test runs in another process, under Triton's interpreter",
)


@needs_triton
@pytest.mark.skipif(DEVICE == "cuda" or INTERPRETED, reason="the kernels run in this process")
def test_under_the_interpreter():
    # The interpreter must be enabled before Triton is loaded.
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(
        run, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]


def close(got, expected, tolerance=1e-5):
    assert got.dtype == torch.float32
    assert got.shape == expected.shape
    assert (got.double() - expected).abs().max() <= tolerance * expected.abs().max()


def packed(weights):
    """Weights (K, N, C, rows, columns) in the layout of the kernel."""
    return kernels.split(weights.permute(0, 1, 3, 4, 2).flatten(2))


def rand(*shape):
    return torch.randn(shape, device=DEVICE)


@needs_kernels
@pytest.mark.parametrize(
    ("channels", "size", "out", "kernel", "stride", "padding", "slope"),
    [
        (1, (12, 12), 32, (4, 4), (2, 2), (1, 1), 0.01),
        (3, (9, 7), 5, (3, 2), (1, 2), (0, 1), 0.0),
        (32, (4, 5), 17, (4, 4), (2, 2), (1, 1), 1.0),
        (40, (3, 3), 17, (3, 3), (1, 1), (1, 1), 0.2),
        (6, (3, 3), 4, (1, 1), (1, 1), (0, 0), 1.0),
    ],
)
def test_convolutions(channels, size, out, kernel, stride, padding, slope):
    torch.manual_seed(0)
    weight, bias = rand(2, out, channels, *kernel), rand(2, out)
    options = {"kernel": kernel, "stride": stride, "padding": padding, "slope": slope}

    def expected(x, k):
        return F.leaky_relu(
            F.conv2d(x.double(), weight[k].double(), bias[k].double(), stride, padding), slope
        )

    images, centre = rand(3, channels, *size), rand(channels, *size)
    got = kernels.conv2d_stacked(images, packed(weight), bias, centre=centre, **options)
    both = torch.stack([expected(images - centre, k) for k in range(2)])
    close(got, both.permute(0, 1, 3, 4, 2))
    each = rand(2, 3, *size, channels)
    got = kernels.conv2d_stacked(each, packed(weight), bias, **options)
    both = torch.stack([expected(each[k].permute(0, 3, 1, 2), k) for k in range(2)])
    close(got, both.permute(0, 1, 3, 4, 2))


@needs_kernels
@pytest.mark.parametrize(("batch", "inputs", "outputs"), [(1, 3, 1), (5, 70, 40), (17, 64, 6)])
def test_linear_layers(batch, inputs, outputs):
    torch.manual_seed(0)
    weight, bias, centre = rand(3, inputs, outputs), rand(3, outputs), rand(inputs)
    x, each, halves = rand(batch, inputs), rand(3, batch, inputs), kernels.split(weight.mT)

    def expected(x):
        return x.double() @ weight.double() + bias.double()[:, None]

    close(kernels.linear_stacked(x, halves, bias, centre=centre), expected(x - centre))
    close(kernels.linear_stacked(each, halves, bias, slope=0.0), expected(each).relu())
    limited = expected(each)
    limited[..., outputs // 2 :].clamp_(-0.5, 0.25)
    close(kernels.linear_stacked(each, halves, bias, limits=(-0.5, 0.25)), limited)
    limited = expected(x)
    limited[..., outputs // 2 :].clamp_(-0.5, 0.25)
    close(kernels.linear_stacked(x, halves, bias, limits=(-0.5, 0.25)), limited)


def test_number_is_split_into_two_tf32_numbers():
    x = torch.tensor([1 / 3, -1e-30, 0.0, 1e30])
    near, rest = kernels.split(x)
    for part in (near, rest):
        assert (part.view(torch.int32) % 2**13 == 0).all()
    torch.testing.assert_close(near + rest, x, rtol=2**-22, atol=0)
    for bits in (0x7FC00000, 0x7FFFFFFF):  # as a CPU and as a GPU write it
        nan = torch.tensor([bits], dtype=torch.int32).view(torch.float32)
        assert kernels.split(nan).isnan().any()


@needs_kernels
def test_partial_sums_add_up():
    torch.manual_seed(0)
    x, centre, weight = rand(5, 60), rand(60), rand(60, 7)
    halves, nothing = kernels.split(weight.view(3, 20, 7).mT), torch.zeros(3, 7, device=DEVICE)
    parts = kernels.linear_stacked(x, halves, nothing, centre=centre, parts=True)
    close(parts.sum(0), (x - centre).double() @ weight.double())


@needs_kernels
def test_empty_batches_and_nan():
    weight, bias = kernels.split(rand(2, 4, 8)), rand(2, 4)
    assert kernels.linear_stacked(rand(0, 8), weight, bias).shape == (2, 0, 4)
    x = rand(3, 8)
    x[1] = torch.nan
    for slope in (1.0, 0.0, 0.01):
        got = kernels.linear_stacked(x, weight, bias, slope=slope, limits=(-1.0, 1.0))
        assert got[:, 1].isnan().all()
        assert got[:, ::2].isfinite().all()


def networks(kind, shape, count=2):
    torch.manual_seed(0)
    made = [make_encoder(kind, shape, 3, width=0.2).to(DEVICE) for _ in range(count)]
    for net in made:
        net.head.weight.data.mul_(500)  # so that some log-variances exceed their limits
    return made


@needs_kernels
@pytest.mark.parametrize("kind", ["conv", "dense"])
@pytest.mark.parametrize("shape", [(1, 12, 12), (3, 9, 13)])
def test_encoders(kind, shape):
    nets, x, centre = networks(kind, shape), rand(5, *shape), rand(*shape)
    stack = StackedEncoders(nets, (DEVICE,))
    got = stack.gaussians(x, centre)
    assert stack.how == "triton"
    with torch.no_grad():
        expected = torch.stack([copy.deepcopy(net).double()((x - centre).double()) for net in nets])
    mean, log_variance = expected.chunk(2, -1)
    assert log_variance.abs().max() > 20
    close(got.mean, mean)
    close(got.log_variance, log_variance.clamp(-20, 20))
    strided = x.transpose(2, 3).contiguous().transpose(2, 3)  # the same images in another layout
    assert torch.equal(stack.gaussians(strided, centre).mean, got.mean)


@needs_kernels
@pytest.mark.parametrize(("order", "shape"), [(2, (1, 8, 8)), (5, (64,)), (5, (8, 8)), (16, (1, 8, 8))])
def test_gates(order, shape):
    torch.manual_seed(0)
    gates = [Gate(shape).to(DEVICE) for _ in range(order - 1)]
    for p in (p for gate in gates for p in gate.parameters()):
        p.data.mul_(5)
    x, centre = rand(5, *shape), rand(*shape)
    run = layers.recursion([_sequence(gate.layers) for gate in gates], shape, 0.001, 0.1)
    with torch.no_grad():
        scores = [copy.deepcopy(gate.layers).double()((x - centre).double()) for gate in gates]
    expected = recursive_log_weights(*bounded(torch.cat(scores, -1), 0.001, 0.1))
    close(run(x, centre), expected)


@needs_kernels
@pytest.mark.parametrize("shape", [(64,), (8, 8), (2, 2, 4, 4)])
def test_examples_need_not_be_images(shape):
    torch.manual_seed(0)
    networks = [[nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 3)] for _ in range(2)]
    networks = [nn.Sequential(*network).to(DEVICE) for network in networks]
    x, centre = rand(5, *shape), rand(*shape)
    with torch.no_grad():
        expected = [copy.deepcopy(network).double()((x - centre).double()) for network in networks]
    close(layers.sequence(networks, shape)(x, centre), torch.stack(expected))


@pytest.mark.parametrize(
    "network",
    [
        [nn.Flatten(), nn.Linear(64, 4), nn.Tanh()],
        [nn.Conv2d(1, 2, 3, dilation=2), nn.Flatten(), nn.Linear(32, 2)],
        [nn.Conv2d(1, 2, 3, padding="same"), nn.Flatten(), nn.Linear(128, 2)],
        [nn.Conv2d(1, 2, 3, padding_mode="reflect", padding=1), nn.Flatten(), nn.Linear(128, 2)],
        [nn.Conv2d(1, 2, 3)],
        [nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)],
        [nn.Linear(8, 2)],
    ],
)
def test_unknown_layers_are_left_to_torch(network):
    assert layers.sequence([network, network], (1, 8, 8)) is None


@needs_kernels
def test_mixture_follows_changes_of_its_weights():
    torch.manual_seed(0)
    shape = (1, 8, 8)
    model = LatentModel(
        make_decoder("dense", shape, 3),
        GaussianLikelihood(0.1),
        latent=3,
        shape=shape,
        centre=torch.rand(shape),
    )
    method = METHODS["rme"](model, make_encoder("conv", shape, 3, width=0.1), order=2).to(DEVICE).eval()
    _encoders(method).devices = _gates(method).devices = (DEVICE,)
    x = torch.rand(4, *shape, device=DEVICE)

    def agree():
        with torch.no_grad():
            q = method.posterior(x)
        one = copy.deepcopy(method).double().posterior(x.double())
        assert (_encoders(method).how, _gates(method).how) == ("triton", "triton")
        for a, b in zip(q.components, one.components, strict=True):
            close(a.mean, b.mean.detach())
            close(a.log_variance, b.log_variance.detach())
        close(q.log_weights, one.log_weights.detach())

    agree()
    with torch.no_grad():
        for p in method.parameters():
            p.add_(0.05 * torch.randn_like(p))  # in place
    agree()
    method.gates[0].layers[1].bias.data = torch.randn(10, device=DEVICE)  # other memory
    agree()
    method.components[1].encoder.head.weight = nn.Parameter(
        torch.randn(6, 26, device=DEVICE)
    )  # another object
    agree()
    method.train()
    method.step(x, method.optimizers(1e-2))
    method.eval()
    agree()


@needs_kernels
def test_failed_kernels_are_replaced_by_torch_with_one_warning(monkeypatch):
    def fail(*_):
        raise RuntimeError("no compiler\nand more")

    monkeypatch.setattr(layers, "sequence", fail)
    nets, x = networks("conv", (1, 8, 8)), rand(3, 1, 8, 8)
    stack = Stacked(nets, (DEVICE,))
    with pytest.warns(UserWarning, match=r"Triton kernels for Encoder cannot be used \(no compiler\)"):
        got = stack(x)
    assert stack.how == "layers"
    torch.testing.assert_close(got, torch.stack([net(x) for net in nets]), rtol=1e-4, atol=1e-4)
    stack(x)  # a second warning would be an error


def test_single_network_is_stacked_only_by_kernels():
    stack = Stacked([nn.Sequential(nn.Linear(4, 3), nn.Tanh())], ("cpu",), only_kernels=True)
    assert stack(torch.zeros(2, 4)) is None
    assert stack.how == "separate"


def test_without_triton_modules_load_and_kernels_are_not_usable():
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch, recmix.accelerate.layers, recmix.accelerate.kernels as k\n"
        "assert not k.usable(torch.zeros(2))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@needs_triton
@pytest.mark.skipif(INTERPRETED, reason="nothing is compiled under the interpreter")
@pytest.mark.parametrize("wide", [1, 5])
@pytest.mark.parametrize("tile", [(128, 32, 32, 4, 3), (16, 16, 32, 2, 3)])
def test_kernels_compile_for_a_gpu(tile, wide):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    window = {"OH": 7, "OW": 7, "KH": 4, "KW": 4, "SH": 2, "SW": 2, "PH": 1, "PW": 1, "N": 32}
    shape = {"K": 5, "WIDE": wide, "STEP": 0, "IMAGE": 6272, "C": 32, "H": 14, "W": 14}
    more = dict.fromkeys(("SHARED", "CENTRED"), wide > 1)
    more |= {"SLOPE": 0.01, "LIMITED": True, "LOW": -20.0, "HIGH": 20.0}
    constants = shape | window | more | dict(zip(("BM", "BN", "BK"), tile, strict=False))
    gates = {"PARTS": 7, "GATES": 4, "HIDDEN": 10, "SLOPE": 0.0, "MINIMUM": 0.001, "MAXIMUM": 0.1}
    gates |= {"BB": 4, "BG": 16, "BH": 16}
    for kernel, fixed in ((kernels._layer, constants), (kernels._log_weights, gates)):
        names = kernel.arg_names
        kinds = dict.fromkeys(names[:5], "*fp32") | {names[5]: "i32"} | dict.fromkeys(fixed, "constexpr")
        source = ASTSource(fn=kernel, signature=kinds, constexprs=fixed)
        made = compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": tile[3]})
        assert "ptx" in made.asm
