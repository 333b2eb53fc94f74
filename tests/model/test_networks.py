"""Networks: the paper's tables, any image size, and gates in log space."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from recmix.errors import ConfigError
from recmix.model.networks import (
    Decoder,
    Encoder,
    Gate,
    WeightNet,
    check_decoder,
    check_encoder,
    conv_decoder,
    conv_encoder,
    dense_decoder,
    dense_encoder,
    encode_with_features,
    feature_size,
    make_decoder,
    make_encoder,
    parameter_count,
    reset,
)

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


def trace(module, x):
    """(output shape of one example, parameter count) of every layer that has parameters."""
    rows = []

    def record(layer, _, output):
        rows.append((tuple(output.shape[1:]), parameter_count(layer)))

    hooks = [
        layer.register_forward_hook(record)
        for layer in module.modules()
        if list(layer.parameters(recurse=False))
    ]
    module(x)
    for hook in hooks:
        hook.remove()
    return rows


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
@pytest.mark.parametrize("kind", ["conv", "dense"])
def test_output_shapes_for_every_image_size(kind, shape, latent):
    with torch.device("meta"):  # shapes without arithmetic
        encoder, decoder = make_encoder(kind, shape, latent), make_decoder(kind, shape, latent)
        features, output = encode_with_features(encoder, torch.empty(2, *shape))
        assert features.shape == (2, feature_size(encoder, latent))
        assert output.shape == (2, 2 * latent)
        assert decoder(torch.empty(2, latent)).shape == (2, *shape)


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


@pytest.mark.parametrize("kind", ["conv", "dense"])
def test_gradients_reach_every_parameter(kind):
    torch.manual_seed(0)
    encoder, decoder = make_encoder(kind, (2, 9, 12), 3), make_decoder(kind, (2, 9, 12), 3)
    decoder(encoder(torch.rand(4, 2, 9, 12))[:, :3]).square().sum().backward()
    for name, parameter in [*encoder.named_parameters(), *decoder.named_parameters()]:
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("kind", ["conv", "dense"])
def test_decoder_jacobian_by_forward_mode(kind):
    torch.manual_seed(0)
    decoder = make_decoder(kind, (1, 9, 8), 2, hidden=16).double()
    z = torch.randn(3, 2, dtype=torch.float64)
    jacobian = torch.func.vmap(torch.func.jacfwd(lambda one: decoder(one[None])[0]))(z)
    assert jacobian.shape == (3, 1, 9, 8, 2)
    step = 1e-6 * torch.tensor([1.0, 0.0], dtype=torch.float64)
    slope = (decoder(z + step) - decoder(z - step)) / 2e-6
    torch.testing.assert_close(jacobian[..., 0], slope, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("make", [conv_encoder, conv_decoder, dense_encoder, dense_decoder])
@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((1, 7, 28), ["(1, 7, 28)", "8 to 128", "resize"]),
        ((1, 28, 129), ["(1, 28, 129)", "8 to 128", "resize"]),
        ((0, 28, 28), ["(0, 28, 28)", "channels"]),
        ((28, 28), ["(28, 28)", "(channels, height, width)"]),
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


def test_unknown_kinds_name_the_valid_ones():
    with pytest.raises(ConfigError, match=r"unknown encoder 'con'.*'conv'.*dense"):
        make_encoder("con", (1, 8, 8), 2)
    with pytest.raises(ConfigError, match=r"unknown decoder 'resnet'.*conv, dense"):
        make_decoder("resnet", (1, 8, 8), 2)


# --- gates -------------------------------------------------------------------------------------


@few
@given(
    low=st.floats(1e-6, 0.5),
    room=st.floats(0.01, 0.99),
    scale=st.sampled_from([0.0, 1.0, 100.0, 1e6]),
    seed=st.integers(0, 100),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_gate_stays_within_its_bounds_and_sums_to_one(low, room, scale, seed, dtype):
    torch.manual_seed(seed)
    high = low + room * (1 - low)
    gate = Gate((1, 4, 4), minimum=low, maximum=high).to(dtype)
    x = (scale * torch.randn(8, 1, 4, 4)).to(dtype)
    log_eps, log_rest = gate(x)
    assert log_eps.shape == log_rest.shape == (8,)
    slack = 1e-5
    assert (log_eps.exp() >= low * (1 - slack)).all()
    assert (log_eps.exp() <= high * (1 + slack)).all()
    total = torch.logaddexp(log_eps, log_rest)
    torch.testing.assert_close(total, torch.zeros(8, dtype=dtype), rtol=0, atol=1e-6)
    (log_eps.sum() + log_rest.sum()).backward()
    assert all(p.grad.isfinite().all() for p in gate.parameters())


def test_gate_has_the_network_and_formula_of_the_paper():
    gate = Gate((1, 28, 28)).double()
    assert trace(gate, torch.zeros(2, 1, 28, 28).double()) == [((10,), 7_850), ((1,), 11)]
    x = torch.rand(5, 1, 28, 28, dtype=torch.float64)
    eps = 0.001 + (0.1 - 0.001) * gate.layers(x)[:, 0].sigmoid()
    log_eps, log_rest = gate(x)
    torch.testing.assert_close(log_eps, eps.log())
    torch.testing.assert_close(log_rest, (1 - eps).log())


def test_gate_with_a_maximum_near_one_is_finite():
    gate = Gate((1, 2, 2), minimum=1e-9, maximum=1 - 1e-9)  # 1 - 1e-9 is 1 in float32
    nn.init.constant_(gate.layers[-1].bias, 1e3)
    log_eps, log_rest = gate(torch.zeros(1, 1, 2, 2))
    torch.testing.assert_close(log_rest, torch.tensor([math.log(1e-9)]), rtol=1e-5, atol=0)
    (log_eps + log_rest).sum().backward()
    assert all(p.grad.isfinite().all() for p in gate.parameters())


@pytest.mark.parametrize("bounds", [(0, 0.1), (0.1, 0.1), (0.2, 0.1), (0.1, 1), (math.nan, 0.5)])
def test_gate_bounds_out_of_range_are_refused(bounds):
    with pytest.raises(ConfigError, match="0 < minimum < maximum < 1"):
        Gate((1, 8, 8), minimum=bounds[0], maximum=bounds[1])


@few
@given(order=st.integers(1, 6), scale=st.sampled_from([1.0, 1e4]), seed=st.integers(0, 100))
def test_weight_net_gives_log_weights(order, scale, seed):
    torch.manual_seed(seed)
    net = WeightNet((2, 3, 4), order).double()
    log_weights = net(scale * torch.randn(7, 2, 3, 4, dtype=torch.float64))
    assert log_weights.shape == (7, order)
    assert log_weights.isfinite().all()
    torch.testing.assert_close(log_weights.logsumexp(-1), torch.zeros(7, dtype=torch.float64))


def test_weight_net_has_one_small_hidden_layer():
    rows = trace(WeightNet((1, 28, 28), 5), torch.zeros(2, 1, 28, 28))
    assert rows == [((10,), 7_850), ((5,), 55)]
    with pytest.raises(ConfigError, match="order=0"):
        WeightNet((1, 8, 8), 0)
    with pytest.raises(ConfigError, match="hidden=0"):
        WeightNet((1, 8, 8), 2, hidden=0)


# --- modules of the user ----------------------------------------------------------------------


def test_check_accepts_the_built_in_networks():
    for kind in ("conv", "dense"):
        check_encoder(make_encoder(kind, (1, 8, 9), 3), (1, 8, 9), 3)
        check_decoder(make_decoder(kind, (1, 8, 9), 3), (1, 8, 9), 3)


def test_check_names_the_shape_given_and_the_shape_expected():
    with pytest.raises(ConfigError, match=r"Flatten gave shape \(2, 64\).*expected \(2, 10\)"):
        check_encoder(nn.Flatten(), (1, 8, 8), 5)
    with pytest.raises(ConfigError, match=r"Identity gave shape \(2, 5\).*expected \(2, 1, 8, 8\)"):
        check_decoder(nn.Identity(), (1, 8, 8), 5)


def test_check_reports_a_module_that_fails_or_gives_no_tensor():
    class Pair(nn.Module):
        def forward(self, x):
            return x, x

    with pytest.raises(ConfigError, match=r"gave a tuple.*one tensor of shape \(2, 10\)"):
        check_encoder(Pair(), (1, 8, 8), 5)
    with pytest.raises(ConfigError, match=r"failed on an input of shape \(2, 5\)") as error:
        check_decoder(nn.Linear(6, 64), (1, 8, 8), 5)
    assert isinstance(error.value.__cause__, RuntimeError)


@pytest.mark.parametrize("latent", [32, 5], ids=["passes", "fails"])
def test_check_does_not_change_the_module(latent):
    module = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Dropout()).double()
    module[2].eval()  # one part is already in evaluation mode
    modes = [part.training for part in module.modules()]
    state = {name: value.clone() for name, value in module.state_dict().items()}
    if latent == 32:
        check_encoder(module, (1, 8, 8), latent)
    else:
        with pytest.raises(ConfigError):
            check_encoder(module, (1, 8, 8), latent)
    assert [part.training for part in module.modules()] == modes
    for name, value in module.state_dict().items():
        assert torch.equal(value, state[name])


def test_features_of_another_module_are_its_output():
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    x = torch.rand(3, 1, 8, 8)
    features, output = encode_with_features(module, x)
    assert features is output
    assert features.shape[1] == feature_size(module, 5)
    torch.testing.assert_close(output, module(x))


def test_features_and_output_agree_with_forward():
    encoder = conv_encoder((1, 8, 8), 3)
    x = torch.rand(3, 1, 8, 8)
    features, output = encode_with_features(encoder, x)
    assert torch.equal(output, encoder(x))
    assert torch.equal(features, encoder.features(x))


def test_reset_draws_like_the_constructor():
    torch.manual_seed(3)
    encoder = conv_encoder((1, 8, 8), 2)
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    reset(encoder)
    after = encoder.state_dict()
    assert all(not torch.equal(before[name], after[name]) for name in before)
    for name, value in after.items():  # uniform within the same bound
        fan_in = math.prod(encoder.get_parameter(name.replace("bias", "weight")).shape[1:])
        assert value.abs().max() <= 1 / math.sqrt(fan_in) + 1e-6


def test_reset_of_the_outer_module_comes_last():
    class ZeroLast(nn.Sequential):
        def reset_parameters(self):
            nn.init.zeros_(self[-1].weight)

    module = ZeroLast(nn.Linear(2, 3), nn.Linear(3, 4))
    reset(module)
    assert module[1].weight.abs().sum() == 0
    assert module[0].weight.abs().sum() > 0


def test_reset_refuses_unknown_parameters_and_changes_nothing():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.ones(()))

    module = nn.Sequential(nn.Linear(2, 3), Scale())
    before = module[0].weight.clone()
    with pytest.raises(ConfigError, match=r"'1\.factor'.*Scale.*reset_parameters"):
        reset(module)
    assert torch.equal(module[0].weight, before)
