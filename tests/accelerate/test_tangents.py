"""Jacobians of chains of simple layers equal those of forward-mode differentiation."""

import pytest
import torch
from torch import nn

from recmix.accelerate.tangents import layer_chain, push
from recmix.inference.gauss_newton import decoder_jacobian, jacobian
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import make_likelihood
from recmix.model.networks import make_decoder

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


def model(decoder, shape):
    return LatentModel(decoder, make_likelihood("bernoulli"), latent=3, shape=shape).double()


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
    units = torch.eye(3, dtype=torch.float64)
    pushed = push(layer_chain(made.decoder), z, units)[1]
    expected = decoder_jacobian.plain(made.decoder, z, 3)[1]
    ours, theirs = (
        torch.autograd.grad(found.sin().sum(), inputs, allow_unused=True) for found in (pushed, expected)
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
