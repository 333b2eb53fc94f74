"""Residual networks: sizes, start, and outputs."""

import pytest
import torch
from cases.networks import trace
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from recmix.errors import ConfigError
from recmix.model.encoder_decoder import parameter_count
from recmix.model.resnet import ResidualBlock, resnet_decoder, resnet_encoder

MAKE = (resnet_encoder, resnet_decoder)
few = settings(max_examples=8, deadline=None, derandomize=True)


def maps(module, x):
    """Shapes of the feature maps that convolutions give, without repetitions."""
    rows = [row for row, _ in trace(module, x) if len(row) == 3]
    return [row for k, row in enumerate(rows) if k == 0 or rows[k - 1] != row]


def test_parameter_counts_for_binary_mnist():
    with torch.device("meta"):
        for make in (resnet_encoder, resnet_decoder):
            assert 1_000_000 < parameter_count(make((1, 28, 28), 20)) < 3_000_000


def test_channels_and_resolutions():
    encoder, decoder = (make((1, 28, 20), 3, widths=(8, 12), blocks=1) for make in MAKE)
    expected = [(8, 28, 20), (12, 14, 10), (12, 7, 5), (12, 3, 2)]
    assert maps(encoder, torch.zeros(1, 1, 28, 20)) == expected
    assert maps(decoder, torch.zeros(1, 3)) == [*expected[::-1], (1, 28, 20)]


def test_number_of_blocks():
    for make in MAKE:
        network = make((1, 16, 16), 3, widths=(4,), blocks=3)
        assert sum(isinstance(part, ResidualBlock) for part in network.modules()) == 3 * 3


@few
@given(side=st.integers(129, 256), other=st.integers(8, 256))
def test_larger_images_than_the_paper(side, other):
    with torch.device("meta"):
        encoder, decoder = (make((3, side, other), 5, widths=(4,), blocks=1) for make in MAKE)
        assert encoder(torch.empty(2, 3, side, other)).shape == (2, 10)
        assert decoder(torch.empty(2, 5)).shape == (2, 3, side, other)


@given(channels=st.integers(1, 70))
@few
def test_blocks_start_as_the_identity_for_any_number_of_channels(channels):
    block = ResidualBlock(channels)
    x = torch.rand(2, channels, 3, 5)
    assert torch.equal(block(x), x)
    nn.init.normal_(block.layers[-1].weight)
    assert not torch.equal(block(x), x)


def test_outputs_start_small_and_features_do_not_shrink_with_depth():
    torch.manual_seed(0)
    small, large = (resnet_encoder((1, n, n), 5, widths=(8,), blocks=1) for n in (8, 128))
    for n, encoder in ((8, small), (128, large)):
        spread = encoder.features[:-4](torch.rand(4, 1, n, n)).std()  # the smallest feature map
        assert 0.1 < spread < 10
    decoded = resnet_decoder((1, 32, 32), 5, widths=(8,), blocks=1)(torch.randn(8, 5))
    assert 0.01 < decoded.std() < 0.3


@pytest.mark.parametrize("rate", [5e-4, 1e-3])
def test_training_is_stable_from_the_start(rate):
    torch.manual_seed(0)
    encoder, decoder = (make((1, 8, 8), 4, widths=(8, 8), blocks=1, hidden=16) for make in MAKE)
    x = (torch.rand(32, 1, 8, 8) > 0.5).float()
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], rate)
    losses = []
    for _ in range(60):
        logits = decoder(encoder(x)[:, :4])
        loss = nn.functional.binary_cross_entropy_with_logits(logits, x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert max(losses) < losses[0] + 0.05
    assert losses[-1] < losses[0] - 0.02


@pytest.mark.parametrize("make", MAKE)
@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((1, 28, 257), {}, r"\(1, 28, 257\).*'resnet' takes sides from 8 to 256.*network='mlp'"),
        ((784,), {}, r"\(784,\).*network='resnet' takes images.*network='mlp'"),
        ((1, 8, 8), {"blocks": 0}, "blocks=0"),
        ((1, 8, 8), {"widths": ()}, r"widths=\(\): expected.*channels"),
        ((1, 8, 8), {"widths": (8, 0)}, r"widths=\(8, 0\)"),
        ((1, 8, 8), {"hidden": 0}, "hidden=0"),
        ((1, 8, 8), {"activation": "sin"}, "unknown activation 'sin'"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(make, shape, options, message):
    with pytest.raises(ConfigError, match=message):
        make(shape, 3, **options)


def test_outputs_of_another_shape():
    assert resnet_decoder((1, 8, 9), 3, (4, 8, 9))(torch.zeros(2, 3)).shape == (2, 4, 8, 9)
    assert resnet_decoder((1, 8, 9), 3, (2, 8, 9, 5))(torch.zeros(2, 3)).shape == (2, 2, 8, 9, 5)
    with pytest.raises(ConfigError, match=r"\(72,\).*decoder_network='mlp'"):
        resnet_decoder((1, 8, 9), 3, (72,))
