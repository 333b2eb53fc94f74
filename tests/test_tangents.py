import pytest
import torch
from torch import nn

from recmix.accelerate.tangents import chain, push
from recmix.inference.gauss_newton import _forward_mode, jacobian
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
def test_they_are_what_forward_mode_gives(kind, chunk):
    torch.manual_seed(0)
    shape = (1, 8, 8) if kind == "own" else (1, 12, 12)
    made = model(OWN if kind == "own" else make_decoder(kind, shape, 3), shape)
    z = torch.randn(5, 3, dtype=torch.float64)
    decoded, slope = jacobian(made, z, chunk=chunk)
    theirs, moved = _forward_mode(made, z, torch.eye(3, dtype=torch.float64))
    assert chain(made.decoder) is not None
    torch.testing.assert_close(decoded, theirs)
    torch.testing.assert_close(slope, moved.flatten(2).permute(1, 2, 0))


def test_gradients_go_through():
    torch.manual_seed(0)
    made = model(make_decoder("conv", (1, 12, 12), 3), (1, 12, 12))
    z = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    inputs = [z, *made.decoder.parameters()]
    units = torch.eye(3, dtype=torch.float64)
    ours = torch.autograd.grad(
        push(chain(made.decoder), z, units)[1].sin().sum(), inputs, allow_unused=True
    )
    theirs = torch.autograd.grad(_forward_mode(made, z, units)[1].sin().sum(), inputs, allow_unused=True)
    for mine, other, to in zip(ours, theirs, inputs, strict=True):
        zero = torch.zeros_like(to)
        torch.testing.assert_close(*(zero if g is None else g for g in (mine, other)))


def test_what_it_does_not_know_it_leaves():
    assert chain(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))) is None
    assert chain(nn.Sequential(nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"))) is None
    hooked = nn.Linear(3, 3)
    hooked.register_forward_hook(lambda _module, _input, output: 2 * output)
    assert chain(hooked) is None

    class Twice(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    assert chain(Twice(2, 2)) is None
