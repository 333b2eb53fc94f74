"""Features of an example and another tensor."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from recmix.model.pair_features import PairFeatures
from recmix.model.paper_networks import conv_encoder

any_shape = st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(shape=any_shape, other=any_shape)
def test_any_two_shapes(shape, other):
    with torch.device("meta"):
        features = PairFeatures(shape, other, 3)
        assert features(torch.empty(2, *shape), torch.empty(2, *other)).shape == (2, features.hidden)


def test_images_are_read_by_the_layers_of_the_paper():
    """Weights, their names and the random stream are those of an encoder of both as channels."""
    torch.manual_seed(0)
    encoder = conv_encoder((2, 8, 9), 5, width=2.0)
    after = torch.rand(3)
    torch.manual_seed(0)
    features = PairFeatures((1, 8, 9), (1, 8, 9), 5, width=2.0)
    assert torch.equal(torch.rand(3), after)
    assert features.hidden == encoder.hidden
    expected = encoder.features.state_dict()
    assert list(features.state_dict()) == list(expected)
    x, other = torch.rand(4, 1, 8, 9), torch.rand(4, 1, 8, 9)
    assert torch.equal(features(x, other), encoder.features(torch.cat([x, other], 1)))


@pytest.mark.parametrize(
    ("shape", "other", "convolutional"),
    [
        ((1, 8, 8), (1, 8, 8), True),
        ((1, 8, 8), (2, 8, 8), True),
        ((1, 8, 8), (1, 8, 8, 6), True),
        ((1, 8, 8), (64,), False),
        ((1, 8, 8), (1, 9, 8), False),
        ((1, 8, 7), (1, 8, 7), False),
        ((64,), (1, 8, 8), False),
    ],
    ids=str,
)
def test_both_tensors_are_read(shape, other, convolutional):
    torch.manual_seed(0)
    features = PairFeatures(shape, other, 3)
    assert any(isinstance(part, nn.Conv2d) for part in features.modules()) is convolutional
    x, second = torch.rand(2, *shape, requires_grad=True), torch.rand(2, *other, requires_grad=True)
    features(x, second).sum().backward()
    for tensor in (x, second):
        assert (tensor.grad != 0).float().mean() > 0.9


def test_a_last_axis_becomes_channels():
    torch.manual_seed(0)
    features = PairFeatures((1, 8, 8), (2, 8, 8, 3), 4)
    x, other = torch.rand(5, 1, 8, 8), torch.rand(5, 2, 8, 8, 3)
    channels = torch.cat(
        [x, *(other[:, c, :, :, k, None].movedim(-1, 1) for c in range(2) for k in range(3))], 1
    )
    assert torch.equal(features(x, other), nn.Sequential(*features)(channels))
