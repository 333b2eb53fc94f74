"""One stacked pass gives the same as the components one by one."""

import copy

import pytest
import torch
from torch import nn

from recmix.accelerate.stacked import Stacked
from recmix.accelerate.stacked_posteriors import STACKED, _encoders, _gates, stacks_of
from recmix.methods.registry import METHODS
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Gaussian as GaussianLikelihood
from recmix.model.networks import make_decoder, make_encoder
from recmix.posteriors import Mixture


@pytest.fixture(autouse=True)
def stacks_are_asked(monkeypatch):
    """As on a machine with a GPU."""
    for function, stacked in STACKED:
        monkeypatch.setattr(function, "alternatives", [stacked])


class Own(nn.Module):
    """A user's encoder: not a sequence of layers, with a buffer and a skip connection."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 12)
        self.second = nn.Linear(12, 12)
        self.last = nn.Linear(12, 6)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x):
        h = torch.tanh(self.first(x.flatten(1)))
        return self.last(h + self.scale * torch.relu(self.second(h)))


class Unstackable(nn.Module):
    """It branches on a value, which vmap cannot follow."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 6)

    def forward(self, x):
        h = self.linear(x.flatten(1))
        return h if h.sum() > 0 else 2 * h


def mixture(name, encoder, shape, order=4):
    latent = 3
    model = LatentModel(
        make_decoder("conv", shape, latent),
        GaussianLikelihood(0.1),
        latent=latent,
        shape=shape,
        centre=torch.rand(shape),
    )
    method = METHODS[name](model, encoder, order=order)
    for p in method.parameters():
        p.data.add_(0.05 * torch.randn_like(p))
    for stack in [_encoders(method), *([_gates(method)] if name == "rme" else [])]:
        stack.devices = ("cpu",)  # by default networks are stacked on a GPU only
    return method


def agree(method, x):
    method.eval()
    with torch.no_grad():
        q = method.posterior(x)
    with torch.enable_grad():  # never stacked
        one = method.posterior(x)
    z = torch.randn(3, len(x), 3)
    for a, b in zip(q.components, one.components, strict=True):
        torch.testing.assert_close(a.mean, b.mean, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(a.log_variance, b.log_variance, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(q.weights, one.weights, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(q.log_prob(z), one.log_prob(z), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["rme", "me"])
@pytest.mark.parametrize("kind", ["conv", "dense"])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 8, 8)])
def test_networks_of_the_paper(name, kind, shape):
    torch.manual_seed(0)
    method = mixture(name, make_encoder(kind, shape, 3), shape)
    agree(method, torch.rand(5, *shape))
    assert _encoders(method).how == "layers"


@pytest.mark.parametrize("name", ["rme", "me"])
def test_user_networks(name):
    torch.manual_seed(0)
    method = mixture(name, Own(), (1, 8, 8))
    agree(method, torch.rand(5, 1, 8, 8))
    assert _encoders(method).how == "vmap"


def test_networks_that_cannot_be_stacked_are_reported_once():
    torch.manual_seed(0)
    method = mixture("rme", Unstackable(), (1, 8, 8)).eval()
    x = torch.rand(5, 1, 8, 8)
    with torch.no_grad(), pytest.warns(UserWarning, match="Unstackable cannot be stacked"):
        method.posterior(x)
    agree(method, x)  # a second warning would be an error
    assert _encoders(method).how == "separate"


def test_stack_follows_changes_of_the_weights():
    torch.manual_seed(0)
    method = mixture("rme", make_encoder("conv", (1, 8, 8), 3), (1, 8, 8))
    x = torch.rand(5, 1, 8, 8)
    agree(method, x)
    method.train()
    method.step(x, method.optimizers(1e-2))
    agree(method, x)
    with torch.no_grad():
        for p in method.parameters():
            p.mul_(1.1)
    agree(method, x)
    other = mixture("rme", make_encoder("conv", (1, 8, 8), 3), (1, 8, 8))
    method.load_state_dict(other.state_dict())
    agree(method, x)
    assert isinstance(method.posterior(x), Mixture)


def test_one_network_and_inputs_without_channels():
    nets = [nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2, bias=False)) for _ in range(3)]
    x = torch.rand(5, 4)
    expected = torch.stack([net(x) for net in nets])
    torch.testing.assert_close(Stacked(nets, ("cpu",))(x), expected)
    torch.testing.assert_close(Stacked(nets[:1], ("cpu",))(x), expected[:1])
    assert Stacked(nets)(x) is None  # not on this device


def test_only_mixtures_without_gradients_use_stacks():
    torch.manual_seed(0)
    method = mixture("rme", make_encoder("dense", (1, 8, 8), 3), (1, 8, 8)).eval()
    x, calls = torch.rand(5, 1, 8, 8), []
    for stack in stacks_of(method):
        stack.gaussians = lambda *given, stack=stack: calls.append(stack)
        stack.log_weights = lambda *given, stack=stack: calls.append(stack)
    method.posterior(x)  # with gradients
    method.train()
    with torch.no_grad():
        method.posterior(x)
    assert calls == []
    method.eval()
    with torch.no_grad():
        method.posterior(x)
    assert set(calls) == set(stacks_of(method))


def test_copy_of_a_method_has_its_own_stacks():
    torch.manual_seed(0)
    method = mixture("rme", make_encoder("dense", (1, 8, 8), 3), (1, 8, 8))
    x = torch.rand(5, 1, 8, 8)
    agree(method, x)
    other = copy.deepcopy(method)
    assert stacks_of(method)
    assert not stacks_of(other)
    with torch.no_grad():
        before = method.posterior(x).mean
        for p in other.parameters():
            p.add_(0.1)
        assert not torch.equal(other.posterior(x).mean, before)
        torch.testing.assert_close(method.posterior(x).mean, before)
