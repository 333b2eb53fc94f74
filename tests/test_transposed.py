"""The quick last layer of grey images against torch's own."""

import copy

import pytest
import torch
from torch import nn

from recmix.accelerate.transposed import OneChannel
from recmix.model.networks import conv_decoder

KINDS = [
    {"kernel_size": 4, "stride": 2, "padding": 1},
    {"kernel_size": 4, "stride": 2, "padding": 1, "output_padding": 1},
    {"kernel_size": (3, 5), "stride": (1, 3), "padding": (0, 2), "output_padding": (0, 1)},
    {"kernel_size": 2, "stride": 2, "bias": False},
]


def twins(**kind):
    torch.manual_seed(0)
    ours = OneChannel(5, 1, dtype=torch.float64, **kind)
    theirs = nn.ConvTranspose2d(5, 1, dtype=torch.float64, **kind)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_values_and_gradients_are_those_of_the_convolution(kind, layout):
    ours, theirs = twins(**kind)
    x = torch.randn(3, 5, 6, 7, dtype=torch.float64).contiguous(memory_format=layout)
    a, b = (x.clone(memory_format=torch.preserve_format).requires_grad_() for _ in range(2))
    up, down = ours(a), theirs(b)
    torch.testing.assert_close(up, down)
    torch.testing.assert_close(ours.without_bias(x), theirs(x) - theirs(torch.zeros_like(x)))
    weight = torch.randn_like(up)
    (up * weight).sum().backward()
    (down * weight).sum().backward()
    torch.testing.assert_close(a.grad, b.grad)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


def test_second_derivatives():
    ours, _ = twins(**KINDS[1])
    x = torch.randn(2, 5, 3, 3, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradgradcheck(lambda x: ours(x).square(), (x,))


def test_torch_s_own_serves_whoever_looks_into_it():
    ours, theirs = twins(**KINDS[0])
    x = torch.randn(3, 5, 4, 4, dtype=torch.float64)
    want = theirs(x)
    several = x.expand(2, *x.shape)
    torch.testing.assert_close(torch.func.vmap(ours)(several), want.expand(2, *want.shape))
    _, moved = torch.func.jvp(ours, (x,), (x,))
    torch.testing.assert_close(moved, ours.without_bias(x))
    with torch.autograd.forward_ad.dual_level():
        dual = ours(torch.autograd.forward_ad.make_dual(x, x))
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(dual).tangent, moved)
    with pytest.warns(DeprecationWarning, match="deprecated"):
        traced = torch.jit.trace(ours, x)
    torch.testing.assert_close(traced(x[:1]), want[:1])
    exported = torch.export.export(ours, (x,))
    assert any("conv_transpose" in str(node.target) for node in exported.graph.nodes)
    torch.testing.assert_close(ours(x[0]), theirs(x[0]))
    torch.testing.assert_close(ours(x, [8, 9]), theirs(x, [8, 9]))
    torch.testing.assert_close(ours.bfloat16()(x.bfloat16()), theirs.bfloat16()(x.bfloat16()))


def test_a_frozen_layer_gives_its_input_s_gradient_alone():
    ours, theirs = twins(**KINDS[0])
    ours.requires_grad_(False)
    x = torch.randn(2, 5, 4, 4, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(ours(x).sum(), x)
    torch.testing.assert_close(found, torch.autograd.grad(theirs(x).sum(), x)[0])
    assert ours.weight.grad is None


def test_grey_decoders_end_in_it_and_copy():
    layers = conv_decoder((1, 28, 28), 3).layers
    assert type(layers[-1]) is OneChannel
    assert type(copy.deepcopy(layers)[-1]) is OneChannel
    assert type(conv_decoder((3, 28, 28), 3).layers[-1]) is nn.ConvTranspose2d
