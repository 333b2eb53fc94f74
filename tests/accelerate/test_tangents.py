"""Jacobians of chains of simple layers equal those of forward-mode differentiation."""

import pytest
import torch
from torch import nn

from recmix.accelerate import tangents
from recmix.accelerate.chain_log_joint import ChainLogJoint
from recmix.accelerate.tangents import chain_jacobian, layer_chain
from recmix.inference.gauss_newton import LogJoint, decoder_jacobian, jacobian, make_log_joint
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import LIKELIHOODS
from recmix.model.networks import make_decoder
from recmix.model.priors import GaussianMixturePrior, StandardNormal

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
@pytest.mark.parametrize("chunk", [None, 2])
def test_jacobian_equals_forward_mode(kind, chunk):
    torch.manual_seed(0)
    shape = (1, 8, 8) if kind == "own" else (1, 12, 12)
    made = model(OWN if kind == "own" else make_decoder(kind, shape, 3), shape)
    z = torch.randn(5, 3, dtype=torch.float64)
    decoded, slope = jacobian(made, z, chunk=chunk)
    theirs, expected = decoder_jacobian.plain(made.decoder, z, 3)
    assert layer_chain(made.decoder) is not None
    torch.testing.assert_close(decoded, theirs)
    torch.testing.assert_close(slope, expected)


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


ONE_CHANNEL = nn.Sequential(
    nn.Unflatten(1, (3, 1, 1)),
    nn.ReLU(),
    nn.ConvTranspose2d(3, 4, 3, bias=False),
    nn.LeakyReLU(0.2),
    nn.ConvTranspose2d(4, 1, (3, 2), (2, 3), (1, 0), output_padding=(1, 2), dilation=(1, 2)),
)
LINEAR = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 64), nn.Unflatten(1, (1, 8, 8)))


@pytest.mark.parametrize("kind", ["conv", "dense", "own", "one channel", "linear"])
@pytest.mark.parametrize("batch", [1, 5])
def test_jacobian_on_a_cpu_without_gradients(kind, batch, monkeypatch):
    """Blocks of examples, another memory layout and activations in place give the same numbers."""
    torch.manual_seed(0)
    own = {"own": OWN, "one channel": ONE_CHANNEL, "linear": LINEAR}
    decoder = (own.get(kind) or make_decoder(kind, (1, 12, 12), 3)).double()
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


@pytest.mark.parametrize("kind", ["conv", "dense", "own", "one channel", "linear"])
@pytest.mark.parametrize("prior", [StandardNormal, GaussianMixturePrior])
def test_gradient_on_a_cpu_equals_autograd(kind, prior):
    torch.manual_seed(0)
    own = {"own": OWN, "one channel": ONE_CHANNEL, "linear": LINEAR}
    decoder = (own.get(kind) or make_decoder(kind, (1, 12, 12), 3)).double()
    z = torch.randn(5, 3, dtype=torch.float64)
    x = torch.rand_like(decoder(z))
    joint = make_log_joint(model(decoder, x.shape[1:], prior(3)), x, torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(joint.gradient(z), LogJoint.gradient(joint, z))


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
