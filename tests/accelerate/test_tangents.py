"""Jacobians of chains of simple layers equal those of forward-mode differentiation."""

import copy

import pytest
import torch
from torch import nn
from torch.distributions import Independent, Uniform

from recmix.accelerate import tangents
from recmix.accelerate.chain_log_joint import ChainLogJoint
from recmix.accelerate.tangents import chain_jacobian, layer_chain
from recmix.inference.gauss_newton import LogJoint, decoder_jacobian, make_log_joint
from recmix.model.curvature_network import CurvatureNetwork
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import LIKELIHOODS
from recmix.model.networks import Decoder, make_decoder
from recmix.model.priors import GaussianMixturePrior, StandardNormal, as_prior

OWN = nn.Sequential(
    nn.Linear(3, 12),
    nn.Tanh(),
    nn.Unflatten(1, (3, 2, 2)),
    nn.ConvTranspose2d(3, 4, 4, stride=4),
    nn.ReLU(),
    nn.Conv2d(4, 1, 3, padding=1, groups=1),
    nn.Sigmoid(),
    nn.Identity(),
)


def model(decoder, shape, prior=None):
    likelihood = LIKELIHOODS["bernoulli"]()
    return LatentModel(decoder, likelihood, latent=3, shape=shape, prior=prior).double()


@pytest.mark.parametrize("kind", ["conv", "dense", "own"])
@pytest.mark.parametrize("chunk", [2, 3])
def test_jacobian_equals_forward_mode(kind, chunk):
    torch.manual_seed(0)
    shape = (1, 8, 8) if kind == "own" else (1, 12, 12)
    made = model(OWN if kind == "own" else make_decoder(kind, shape, 3), shape)
    z = torch.randn(5, 3, dtype=torch.float64)
    decoded, slope = decoder_jacobian(made.decoder, z, chunk)
    theirs, expected = decoder_jacobian.plain(made.decoder, z, 3)
    assert layer_chain(made.decoder) is not None
    torch.testing.assert_close(decoded, theirs)
    torch.testing.assert_close(slope, expected)


@pytest.mark.parametrize("activation", list(tangents.ACTIVATIONS))
def test_gradient_of_the_jacobian_of_each_activation(activation):
    torch.manual_seed(0)
    decoder = nn.Sequential(nn.Linear(3, 6), activation(), nn.Linear(6, 5)).double()
    z = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    slopes = (f(decoder, z, 3)[1] for f in (chain_jacobian, decoder_jacobian.plain))
    inputs = [z, *decoder.parameters()]
    ours, theirs = (
        torch.autograd.grad(slope.sin().sum(), inputs, allow_unused=True) for slope in slopes
    )
    for mine, other, to in zip(ours, theirs, inputs, strict=True):
        zero = torch.zeros_like(to)
        torch.testing.assert_close(*(zero if g is None else g for g in (mine, other)))


def test_gradient_of_the_jacobian_equals_forward_mode():
    torch.manual_seed(0)
    made = model(make_decoder("conv", (1, 12, 12), 3), (1, 12, 12))
    z = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    inputs = [z, *made.decoder.parameters()]
    found = chain_jacobian(made.decoder, z, 3)[1]
    expected = decoder_jacobian.plain(made.decoder, z, 3)[1]
    ours, theirs = (
        torch.autograd.grad(slope.sin().sum(), inputs, allow_unused=True) for slope in (found, expected)
    )
    for mine, other, to in zip(ours, theirs, inputs, strict=True):
        zero = torch.zeros_like(to)
        torch.testing.assert_close(*(zero if g is None else g for g in (mine, other)))


def test_other_networks_are_not_chains():
    assert layer_chain(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))) is None
    assert layer_chain(nn.Sequential(nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"))) is None
    hooked = nn.Linear(3, 3)
    hooked.register_forward_hook(lambda _module, _input, output: 2 * output)
    assert layer_chain(hooked) is None

    class Twice(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    assert layer_chain(Twice(2, 2)) is None

    class Larger(Decoder):
        def forward(self, z):
            return 5 * super().forward(z)

    made = make_decoder("dense", (1, 8, 8), 3)
    assert layer_chain(made) is not None
    made.__class__ = Larger
    assert layer_chain(made) is None
    watched = nn.Linear(3, 3)
    watched.register_full_backward_hook(lambda _module, into, _out: into)
    assert layer_chain(nn.Sequential(watched)) is None


ONE_CHANNEL = nn.Sequential(
    nn.Unflatten(1, (3, 1, 1)),
    nn.ReLU(),
    nn.ConvTranspose2d(3, 4, 3, bias=False),
    nn.LeakyReLU(0.2),
    nn.ConvTranspose2d(4, 1, (3, 2), (2, 3), (1, 0), output_padding=(1, 2), dilation=(1, 2)),
)
SAME = nn.Sequential(nn.Unflatten(1, (3, 1, 1)), nn.Conv2d(3, 2, 3, padding="same"), nn.ReLU())
IN_PLACE = nn.Sequential(
    nn.Linear(3, 8), nn.Tanh(), nn.LeakyReLU(0.2, inplace=True), nn.Unflatten(1, (2, 2, 2))
)
WHOLE_STRIDES = nn.Sequential(
    nn.Unflatten(1, (3, 1, 1)),
    nn.ConvTranspose2d(3, 4, (3, 2)),
    nn.GELU(approximate="tanh"),
    nn.ConvTranspose2d(4, 1, (4, 9), (2, 3), (1, 2), output_padding=(1, 1)),
)
SMOOTH = nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 6), nn.GELU(), nn.Linear(6, 5))
CHAINS = {"own": OWN, "one channel": ONE_CHANNEL, "same": SAME, "in place": IN_PLACE}
CHAINS |= {"whole strides": WHOLE_STRIDES, "smooth": SMOOTH}
CHAINS["linear"] = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 64), nn.Unflatten(1, (1, 8, 8)))
KINDS = ["conv", "dense", *CHAINS]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [1, 5])
def test_jacobian_on_a_cpu_without_gradients(kind, batch, monkeypatch):
    """Blocks of examples, another memory layout and activations in place give the same numbers."""
    torch.manual_seed(0)
    decoder = (CHAINS.get(kind) or make_decoder(kind, (1, 12, 12), 3)).double()
    z = torch.randn(batch, 3, dtype=torch.float64)
    expected = decoder_jacobian.plain(decoder, z, 3)
    for examples in (2, 100):
        layers = layer_chain(decoder)
        reached = tangents._reached(layers, z)[1:]
        sizes = [
            after[0].numel()
            for layer, after in zip(layers, reached, strict=True)
            if type(layer) in tangents.ACTIVATIONS
        ]
        monkeypatch.setattr(tangents, "BLOCK", examples * 3 * max(sizes, default=1))
        with torch.no_grad():
            found = decoder_jacobian(decoder, z, 3)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("onednn", [True, False])
def test_values_on_a_cpu_in_float32(kind, onednn, monkeypatch):
    """Other matrix products and sums of windows give the output of the network, within rounding."""
    torch.manual_seed(0)
    if not onednn:
        monkeypatch.setattr(torch.ops, "mkldnn", object())
    decoder = copy.deepcopy(CHAINS.get(kind) or make_decoder(kind, (1, 12, 12), 3)).float()
    z = torch.randn(7, 3)
    with torch.no_grad():
        found = tangents.values(layer_chain(decoder), z)
        torch.testing.assert_close(found, decoder(z), atol=1e-5, rtol=1e-5)


def test_a_bias_with_gaps_in_memory():
    layer = nn.Linear(3, 5)
    packed = torch.randn(5, 2)
    for bias in (packed[:, 1], torch.randn(1).expand(5)):
        layer.bias = nn.Parameter(bias)
        z = torch.randn(7, 3)
        with torch.no_grad():
            torch.testing.assert_close(tangents.values([layer], z), layer(z))


def test_wrong_types_and_sizes_have_the_errors_of_torch():
    rows = torch.randn(4, 3)
    with torch.no_grad():
        for layer in (nn.Linear(3, 5).double(), nn.Linear(2, 5)):
            with pytest.raises(RuntimeError, match=r"mat1 and mat2"):
                tangents.values([layer], rows)


def test_forward_mode_without_gradients():
    """oneDNN's product has no forward derivative, so torch's own is used inside torch.func."""
    network = CurvatureNetwork(3, 0)
    nn.init.normal_(network.head.weight, std=0.1)
    z, along = torch.randn(2, 3), torch.randn(2, 3)
    expected = torch.func.jvp(lambda at: network(at)[0], (z,), (along,))[1]
    with torch.no_grad():
        found = torch.func.jvp(lambda at: network(at)[0], (z,), (along,))[1]
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(found, expected)


def test_outputs_can_be_viewed():
    """The likelihood of a user may call `view` on the decoder's output."""
    layers = layer_chain(
        nn.Sequential(
            nn.Unflatten(1, (3, 1, 1)), nn.ConvTranspose2d(3, 2, 4), nn.ConvTranspose2d(2, 1, 4, 2, 1)
        )
    )
    with torch.no_grad():
        z = torch.randn(5, 3)
        assert tangents.values(layers, z).is_contiguous()
        assert tangents.value_and_pullback(layers, z)[0].is_contiguous()
        assert chain_jacobian(nn.Sequential(*layers), z, 3)[0].is_contiguous()
        assert tangents.values(layers, z[:0]).shape == (0, 1, 8, 8)


@pytest.mark.parametrize("rank", [0, 2])
def test_curvature_network_on_a_cpu_gives_the_same_factors(rank):
    torch.manual_seed(0)
    network = CurvatureNetwork(3, rank)
    nn.init.normal_(network.head.weight, std=0.1)
    z = torch.randn(5, 3)
    expected = [part.detach() for part in network(z)]  # with gradients: the plain layers
    with torch.no_grad():
        torch.testing.assert_close(list(network(z)), expected)


def test_jacobian_on_a_cpu_uses_blocks_of_examples(monkeypatch):
    seen = []
    move = tangents._move
    monkeypatch.setattr(
        tangents, "_move", lambda *given: seen.append(given[1][1].shape[0]) or move(*given)
    )
    decoder = make_decoder("dense", (1, 12, 12), 3)
    width = max(
        layer.out_features for layer in layer_chain(decoder)[:-2] if isinstance(layer, nn.Linear)
    )
    monkeypatch.setattr(tangents, "BLOCK", 2 * 3 * width)
    z = torch.randn(5, 3)
    with torch.no_grad():
        decoder_jacobian(decoder, z, 3)
    assert seen == [2, 2, 1]
    decoder_jacobian(decoder, z, 3)  # with gradients
    assert seen == [2, 2, 1, 5]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prior", [StandardNormal, GaussianMixturePrior])
def test_gradient_on_a_cpu_equals_autograd(kind, prior):
    torch.manual_seed(0)
    decoder = (CHAINS.get(kind) or make_decoder(kind, (1, 12, 12), 3)).double()
    z = torch.randn(5, 3, dtype=torch.float64)
    x = torch.rand_like(decoder(z))
    joint = make_log_joint(model(decoder, x.shape[1:], prior(3)), x, torch.float64)
    plain = copy.deepcopy(joint)
    for layer in plain.model.decoder.modules():  # autograd cannot differentiate tanh, then one in place
        if hasattr(layer, "inplace"):
            layer.inplace = False
    with torch.no_grad():
        torch.testing.assert_close(joint.gradient(z), LogJoint.gradient(plain, z))


def test_gradient_on_a_cpu_with_a_prior_that_is_constant():
    """Its log density carries no gradient."""
    prior = as_prior(Independent(Uniform(-torch.full((3,), 9.0), torch.full((3,), 9.0)), 1), 3)
    made = model(OWN, (1, 8, 8), prior)
    x, z = torch.rand(2, 1, 8, 8), torch.randn(2, 3)
    joint = make_log_joint(made.float(), x, torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(joint.gradient(z), LogJoint.gradient(joint, z))


def test_gradient_on_a_cpu_is_that_of_an_own_log_prob():
    """A likelihood may change `log_prob` of its base class, and not `residual`."""

    class Half(LIKELIHOODS["bernoulli"]):
        def log_prob(self, x, decoded):
            return 0.5 * super().log_prob(x, decoded)

    made = LatentModel(OWN.float(), Half(), latent=3, shape=(1, 8, 8))
    x, z = torch.rand(2, 1, 8, 8), torch.randn(2, 3)
    joint = make_log_joint(made, x, torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(joint.gradient(z), LogJoint.gradient(joint, z))


def test_slopes_keep_no_tangents_for_backward():
    """The derivative of a ReLU's slope is zero, so the products with it need not be kept twice."""
    made = make_decoder("conv", (1, 12, 12), 3)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        chain_jacobian(made, torch.randn(2, 3), 3)
    decoder = [layer for layer in layer_chain(made) if type(layer) in tangents.ACTIVATIONS]
    assert len(decoder) > 2
    assert kept.count(max(kept)) <= 2


def test_jacobian_of_an_empty_batch():
    for decoder in (ONE_CHANNEL.float(), OWN.float()):
        with torch.no_grad():
            decoded, slope = chain_jacobian(decoder, torch.zeros(0, 3), 3)
        assert len(decoded) == len(slope) == 0


def test_log_joint_on_a_cpu():
    torch.manual_seed(0)
    made = model(make_decoder("conv", (1, 12, 12), 3), (1, 12, 12))
    x, z = (torch.rand(n, dtype=torch.float64) for n in ((50, 1, 12, 12), (4, 50, 3)))
    joint = make_log_joint(made, x, torch.float64)
    assert type(joint) is ChainLogJoint
    expected = LogJoint(made, x, torch.float64).log_joint(z)
    torch.testing.assert_close(joint.log_joint(z), expected)  # with gradients
    with torch.no_grad():
        torch.testing.assert_close(joint.log_joint(z), expected.detach())
    other = model(
        nn.Sequential(nn.Linear(3, 64), nn.LayerNorm(64), nn.Unflatten(1, (1, 8, 8))), (1, 8, 8)
    )
    assert type(make_log_joint(other, x[..., :8, :8], torch.float64)) is LogJoint
