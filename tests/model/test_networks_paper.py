"""The paper's networks: the layers of its tables, for any image size."""

import math

import pytest
import torch
from cases.networks import trace
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from recmix.errors import ConfigError
from recmix.model.encoder_decoder import parameter_count
from recmix.model.networks import Decoder, Encoder
from recmix.model.paper_networks import conv_decoder, conv_encoder, dense_decoder, dense_encoder

# Each row: a layer's output shape for one example, and its parameter count. From the paper's tables.
ENCODER_TABLE = {
    (1, 28, 28): [
        ((32, 14, 14), 544),
        ((32, 7, 7), 16_416),
        ((64, 3, 3), 32_832),
        ((256,), 147_712),
    ],
    (3, 32, 32): [
        ((32, 16, 16), 1_568),
        ((32, 8, 8), 16_416),
        ((64, 4, 4), 32_832),
        ((512,), 524_800),
    ],
    (3, 64, 64): [
        ((32, 32, 32), 1_568),
        ((32, 16, 16), 16_416),
        ((64, 8, 8), 32_832),
        ((64, 4, 4), 65_600),
        ((512,), 524_800),
    ],
}
HEAD_TABLE = {
    (1, 28, 28): {10: 5_140, 20: 10_280, 50: 25_700, 100: 51_400},
    (3, 32, 32): {10: 10_260, 20: 20_520, 50: 51_300, 100: 102_600},
    (3, 64, 64): {10: 10_260, 20: 20_520, 50: 51_300, 100: 102_600},
}
FIRST_TABLE = {
    (1, 28, 28): {10: 2_816, 20: 5_376, 50: 13_056, 100: 25_856},
    (3, 32, 32): {10: 5_632, 20: 10_752, 50: 26_112, 100: 51_712},
    (3, 64, 64): {10: 5_632, 20: 10_752, 50: 26_112, 100: 51_712},
}
DECODER_TABLE = {
    (1, 28, 28): [
        ((576,), 148_032),
        ((32, 7, 7), 32_800),
        ((32, 14, 14), 16_416),
        ((1, 28, 28), 513),
    ],
    (3, 32, 32): [
        ((1024,), 525_312),
        ((32, 8, 8), 32_800),
        ((32, 16, 16), 16_416),
        ((3, 32, 32), 1_539),
    ],
    (3, 64, 64): [
        ((1024,), 525_312),
        ((64, 8, 8), 65_600),
        ((32, 16, 16), 32_800),
        ((32, 32, 32), 16_416),
        ((3, 64, 64), 1_539),
    ],
}
LATENTS = [10, 20, 50, 100]
SHAPES = list(ENCODER_TABLE)


shapes = st.tuples(st.integers(1, 4), st.integers(8, 128), st.integers(8, 128))
latents = st.integers(1, 100)
few = settings(max_examples=40, deadline=None, derandomize=True)


@pytest.mark.parametrize("latent", LATENTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_encoder_has_the_layers_of_the_paper(shape, latent):
    encoder = conv_encoder(shape, latent)
    expected = [*ENCODER_TABLE[shape], ((2 * latent,), HEAD_TABLE[shape][latent])]
    assert trace(encoder, torch.zeros(2, *shape)) == expected
    assert encoder.latent == latent
    assert encoder.hidden == ENCODER_TABLE[shape][-1][0][0]


@pytest.mark.parametrize("latent", LATENTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_decoder_has_the_layers_of_the_paper(shape, latent):
    decoder = conv_decoder(shape, latent)
    hidden = 256 if shape == (1, 28, 28) else 512
    expected = [((hidden,), FIRST_TABLE[shape][latent]), *DECODER_TABLE[shape]]
    assert trace(decoder, torch.zeros(2, latent)) == expected
    assert (decoder.shape, decoder.latent) == (shape, latent)


def test_activations_and_kernels_are_those_of_the_paper():
    features = list(conv_encoder((1, 28, 28), 20).features)
    layers = list(conv_decoder((1, 28, 28), 20).layers)
    leaky = [layer.negative_slope for layer in features if isinstance(layer, nn.LeakyReLU)]
    assert leaky == [0.01] * 4
    assert sum(isinstance(layer, nn.ReLU) for layer in layers) == 4
    assert isinstance(layers[-1], nn.ConvTranspose2d)  # no last activation
    for layer in [*features, *layers]:
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            assert (layer.kernel_size, layer.stride, layer.padding) == ((4, 4), (2, 2), (1, 1))
    paddings = [n.output_padding for n in layers if isinstance(n, nn.ConvTranspose2d)]
    assert paddings == [(1, 1), (0, 0), (0, 0)]  # 3 -> 7 -> 14 -> 28


@pytest.mark.parametrize(
    ("shape", "smallest"),
    [
        ((1, 8, 8), (32, 4, 4)),
        ((2, 9, 10), (32, 4, 5)),
        ((1, 10, 10), (32, 2, 2)),
        ((1, 8, 128), (32, 4, 64)),
        ((5, 20, 33), (64, 2, 4)),
        ((3, 128, 128), (64, 4, 4)),
    ],
    ids=str,
)
def test_halving_rule_on_other_sizes(shape, smallest):
    maps = [row for row, _ in trace(conv_encoder(shape, 3), torch.zeros(1, *shape)) if len(row) > 1]
    assert maps[-1] == smallest
    back = [row for row, _ in trace(conv_decoder(shape, 3), torch.zeros(1, 3)) if len(row) > 1]
    assert back == [*maps[-2::-1], shape]


@few
@given(shape=shapes, latent=latents)
def test_dense_networks_have_as_many_parameters_as_convolutional_ones(shape, latent):
    with torch.device("meta"):
        for conv, dense in [(conv_encoder, dense_encoder), (conv_decoder, dense_decoder)]:
            target, count = (parameter_count(make(shape, latent)) for make in (conv, dense))
            assert abs(count - target) <= 0.03 * target


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_dense_networks_have_two_hidden_layers(shape):
    encoder, decoder = dense_encoder(shape, 20), dense_decoder(shape, 20)
    linear = [n for n in encoder.modules() if isinstance(n, nn.Linear)]
    assert len(linear) == 3
    assert sum(isinstance(n, nn.LeakyReLU) for n in encoder.modules()) == 2
    assert len([n for n in decoder.modules() if isinstance(n, nn.Linear)]) == 3
    assert sum(isinstance(n, nn.ReLU) for n in decoder.modules()) == 2
    assert isinstance(encoder, Encoder)
    assert isinstance(decoder, Decoder)


def test_counting_parameters_draws_no_random_numbers():
    torch.manual_seed(0)
    dense = dense_encoder((1, 8, 8), 2)
    torch.manual_seed(0)
    first = nn.Linear(64, dense.features[1].out_features)
    assert torch.equal(dense.features[1].weight, first.weight)


def test_width_multiplies_channels_and_hidden():
    encoder = conv_encoder((1, 28, 28), 20, width=2.0)
    maps = [row for row, _ in trace(encoder, torch.zeros(1, 1, 28, 28))]
    assert maps == [(64, 14, 14), (64, 7, 7), (128, 3, 3), (512,), (40,)]
    with torch.device("meta"):
        target = parameter_count(conv_encoder((1, 28, 28), 20, width=2.0))
        count = parameter_count(dense_encoder((1, 28, 28), 20, width=2.0))
    assert abs(count - target) <= 0.03 * target


def test_hidden_size_depends_on_the_image_or_is_given():
    assert conv_encoder((1, 32, 32), 2).hidden == 256  # 1024 values
    assert conv_encoder((1, 32, 33), 2).hidden == 512
    assert conv_encoder((1, 8, 8), 2, hidden=7).hidden == 7
    assert conv_decoder((1, 8, 8), 2, hidden=7).layers[0].out_features == 7


@pytest.mark.parametrize("make", [conv_encoder, conv_decoder, dense_encoder, dense_decoder])
@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((1, 7, 28), ["(1, 7, 28)", "8 to 128", "network='mlp'", "resize"]),
        ((1, 28, 129), ["(1, 28, 129)", "8 to 128", "network='mlp'", "resize"]),
        ((0, 28, 28), ["(0, 28, 28)", "channels"]),
        ((28, 28), ["(28, 28)", "(channels, height, width)", "network='mlp'"]),
        ((784,), ["(784,)", "(channels, height, width)", "network='mlp'"]),
        ((1, 28.5, 28), ["28.5", "whole numbers"]),
    ],
    ids=str,
)
def test_shape_out_of_range_is_refused(make, shape, words):
    with pytest.raises(ConfigError) as error:
        make(shape, 10)
    for word in words:
        assert word in str(error.value)


def test_other_numbers_out_of_range_are_refused():
    with pytest.raises(ConfigError, match="latent=0"):
        conv_encoder((1, 8, 8), 0)
    with pytest.raises(ConfigError, match="hidden=0"):
        conv_decoder((1, 8, 8), 2, hidden=0)
    for width in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match=r"width="):
            conv_encoder((1, 8, 8), 2, width=width)
    with pytest.raises(ConfigError, match="3 numbers"):
        Encoder(nn.Flatten(), nn.Linear(64, 3))


def test_impossible_dense_network_is_refused():
    for make in (dense_encoder, dense_decoder):
        with pytest.raises(ConfigError, match=r"\(64, 128, 128\).*1048576.*conv"):
            make((64, 128, 128), 10)


@pytest.mark.parametrize("make", [conv_decoder, dense_decoder])
def test_outputs_with_more_channels_keep_the_other_layers(make):
    plain, wide = (make((3, 12, 8), 4, output) for output in (None, (6, 12, 8)))
    assert (plain.shape, wide.shape) == ((3, 12, 8), (6, 12, 8))
    assert wide(torch.zeros(2, 4)).shape == (2, 6, 12, 8)
    if make is conv_decoder:
        assert trace(plain, torch.zeros(2, 4))[:-1] == trace(wide, torch.zeros(2, 4))[:-1]


def test_a_last_axis_of_outputs_holds_the_logits_of_one_value():
    decoder = conv_decoder((2, 8, 9), 4, (2, 8, 9, 5))
    z = torch.randn(3, 4)
    decoded, channels = decoder(z), decoder.layers[:-1](z)
    assert decoded.shape == (3, 2, 8, 9, 5)
    assert channels.shape == (3, 10, 8, 9)
    assert torch.equal(decoded[:, 1, :, :, 3], channels[:, 5 + 3])


@pytest.mark.parametrize("make", [conv_decoder, dense_decoder])
@pytest.mark.parametrize("output", [(8, 9), (2, 9, 8), (144,), (2, 8, 9, 5, 1)], ids=str)
def test_outputs_that_are_not_images_are_refused(make, output):
    with pytest.raises(ConfigError, match=r"\(2, 8, 9\).*\(channels, 8, 9\).*decoder_network='mlp'"):
        make((2, 8, 9), 4, output)
