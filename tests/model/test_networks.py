"""Networks by name: shapes, gradients, Jacobians, independence of examples, and options."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from recmix.errors import ConfigError
from recmix.model.encoder_decoder import parameter_count, reset
from recmix.model.mlp import ACTIVATIONS, NORMALISATIONS
from recmix.model.networks import (
    NETWORKS,
    check_network_options,
    default_network,
    encode_with_features,
    feature_size,
    keyword_options,
    make_decoder,
    make_encoder,
    network_options,
)
from recmix.model.options import ModelOptions, options_of

LATENT = 3
IMAGES = ("conv", "dense", "mlp", "resnet")
SHAPES = dict.fromkeys(IMAGES, (2, 9, 12))
SHAPES |= {"transformer": (5,), "gru": (5,), "graph": (10,), "video": (3, 2, 9, 12)}
"""For each kind of network the shape of an example."""
OUTPUTS = {"transformer": (5, 7), "gru": (5, 7), "graph": (24,)}
"""The shape of the decoder's output, if it is not that of the example."""
SMALL = {
    "mlp": {"widths": (16, 12)},
    "resnet": {"widths": (4, 6), "blocks": 1},
    "transformer": {"units": 8, "heads": 2, "classes": 7},
    "gru": {"units": 8, "classes": 7},
    "graph": {"units": 8, "heads": 2, "node_classes": 3, "edge_classes": 2},
}

images = st.tuples(st.integers(1, 4), st.integers(8, 128), st.integers(8, 128))
latents = st.integers(1, 100)
any_shape = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple)
few = settings(max_examples=12, deadline=None, derandomize=True)
each_kind = pytest.mark.parametrize("kind", sorted(NETWORKS))
each_image_kind = pytest.mark.parametrize("kind", IMAGES)
double = torch.float64


def test_every_network_has_a_case():
    assert set(SHAPES) == set(NETWORKS)


def made(kind, shape=None, latent=LATENT, output=None, **more):
    """A small encoder and decoder."""
    shape, output = shape or SHAPES[kind], output or OUTPUTS.get(kind)
    options = SMALL.get(kind, {"hidden": 16})
    both = NETWORKS[kind]
    mine, theirs = (
        {k: v for k, v in options.items() if k in keyword_options(make)}
        for make in (both.encoder, both.decoder)
    )
    return (
        make_encoder(kind, shape, latent, **mine, **more),
        make_decoder(kind, shape, latent, output, **theirs),
    )


def examples(kind, count):
    """Random examples; classes of tokens or of a path of four nodes for networks that read them."""
    generator = torch.Generator().manual_seed(3)
    if kind == "graph":
        nodes = torch.randint(1, 3, (count, 4), generator=generator)
        return torch.cat([nodes, torch.randint(2, (count, 6), generator=generator)], 1).double()
    if NETWORKS[kind].reads_classes:
        tokens = torch.randint(7, (count, 5), generator=generator).double()
        tokens[0, 3:] = -1
        tokens[:, :3] = tokens[:, :3].clamp(min=0)
        return tokens
    return torch.rand(count, *SHAPES[kind], dtype=double, generator=generator)


def pair(kind, output=None):
    """A small encoder and decoder in which every parameter has an effect, in evaluation mode."""
    torch.manual_seed(0)
    networks = made(kind, output=output)
    for network in networks:
        network.double().eval()
        for parameter in network.parameters():  # also those that start at zero
            parameter.data += 0.05 * torch.randn(parameter.shape, dtype=double)
    return networks


@few
@given(shape=images, latent=latents, channels=st.none() | st.integers(1, 5))
@each_image_kind
def test_shapes_for_every_image_size(kind, shape, latent, channels):
    wanted = None if channels is None else (channels, *shape[1:])
    options = SMALL.get(kind, {})
    with torch.device("meta"):  # shapes without arithmetic
        encoder = make_encoder(kind, shape, latent, **options)
        features, output = encode_with_features(encoder, torch.empty(2, *shape))
        assert features.shape == (2, feature_size(encoder, latent))
        assert output.shape == (2, 2 * latent)
        decoder = make_decoder(kind, shape, latent, wanted, **options)
        assert (decoder.shape, decoder.latent) == (wanted or shape, latent)
        assert decoder(torch.empty(2, latent)).shape == (2, *decoder.shape)


@few
@given(shape=any_shape, output=any_shape, latent=latents)
def test_shapes_for_every_number_of_axes(shape, output, latent):
    with torch.device("meta"):
        assert make_encoder("auto", shape, latent)(torch.empty(2, *shape)).shape == (2, 2 * latent)
        decoder = make_decoder("auto", shape, latent, output)
        assert decoder(torch.empty(3, latent)).shape == (3, *output)
        assert decoder.shape == output


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ((1, 8, 8), "conv"),
        ((3, 128, 9), "conv"),
        ((3, 129, 9), "mlp"),
        ((3, 8, 7), "mlp"),
        ((28, 28), "mlp"),
        ((784,), "mlp"),
        ((3, 4, 28, 28), "video"),
        ((3, 4, 28, 7), "mlp"),
    ],
    ids=str,
)
def test_default_network_by_shape(shape, kind):
    assert default_network(shape) == kind
    torch.manual_seed(0)
    chosen = make_encoder("auto", shape, 2)
    torch.manual_seed(0)
    named = make_encoder(kind, shape, 2)
    assert str(chosen) == str(named)
    assert all(map(torch.equal, chosen.parameters(), named.parameters()))


@each_kind
def test_gradients_reach_every_parameter(kind):
    encoder, decoder = pair(kind)
    decoder(encoder(examples(kind, 4))[:, :LATENT]).square().sum().backward()
    for name, parameter in [*encoder.named_parameters(), *decoder.named_parameters()]:
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize(
    ("kind", "output"),
    [*((kind, None) for kind in SHAPES), *((kind, (2, 9, 12, 3)) for kind in IMAGES), ("gru", (6,))],
    ids=str,
)
def test_decoder_jacobian_by_forward_mode(kind, output):
    decoder = pair(kind, output=output)[1]
    z, units = torch.randn(4, LATENT, dtype=double), torch.eye(LATENT, dtype=double)

    def along(tangent):
        return torch.func.jvp(decoder, (z,), (tangent.expand_as(z),))[1]

    pushed = torch.func.vmap(along)(units)
    one_by_one = torch.func.vmap(torch.func.jacfwd(lambda one: decoder(one[None])[0]))(z)
    assert pushed.shape == (LATENT, 4, *decoder.shape)
    torch.testing.assert_close(one_by_one.movedim(-1, 0), pushed)
    for k, unit in enumerate(1e-6 * units):
        slope = (decoder(z + unit) - decoder(z - unit)) / 2e-6
        torch.testing.assert_close(pushed[k], slope, rtol=1e-5, atol=1e-7)


@each_kind
def test_one_example_does_not_depend_on_the_others(kind):
    networks = pair(kind)
    inputs = examples(kind, 5), torch.randn(5, LATENT, dtype=double)
    for network, given_ in zip(networks, inputs, strict=True):
        for mode in (True, False):
            network.train(mode)
            rows = torch.cat([network(row[None]) for row in given_])
            torch.testing.assert_close(network(given_), rows)


@each_kind
def test_reset_draws_the_weights_again(kind):
    for network in pair(kind):
        changed = [parameter.clone() for parameter in network.parameters()]
        torch.manual_seed(0)
        reset(network)
        first = [parameter.clone() for parameter in network.parameters()]
        torch.manual_seed(0)
        reset(network)
        for now, before, own in zip(network.parameters(), first, changed, strict=True):
            assert torch.equal(now, before)
            assert not torch.equal(now, own)


@each_kind
def test_width_multiplies_the_size_of_the_encoder(kind):
    one, two = (made(kind, width=width)[0] for width in (1.0, 2.0))
    assert parameter_count(two) > 1.5 * parameter_count(one)
    assert two.double()(examples(kind, 3)).shape == (3, 2 * LATENT)
    with pytest.raises(ConfigError, match="width=0"):
        made(kind, width=0.0)


@each_kind
def test_wrong_latent_dimensions_are_refused(kind):
    with pytest.raises(ConfigError, match="latent=0"):
        made(kind, latent=0)


def test_unknown_kinds_name_the_valid_ones():
    with pytest.raises(ConfigError, match=r"unknown encoder 'con'.*'conv'.*auto, conv, dense, .*mlp"):
        make_encoder("con", (1, 8, 8), 2)
    with pytest.raises(ConfigError, match=r"unknown decoder 'diffusion'.*conv, dense, .*mlp, resnet"):
        make_decoder("diffusion", (1, 8, 8), 2)


def test_missing_options_are_named():
    with pytest.raises(ConfigError, match="the transformer encoder needs the option classes"):
        make_encoder("transformer", (5,), 2)
    with pytest.raises(ConfigError, match="the graph decoder needs the option node_classes"):
        make_decoder("graph", (10,), 2)


def test_unknown_options_name_the_valid_ones():
    with pytest.raises(ConfigError, match=r"unknown option of the mlp encoder 'width_s'.*widths"):
        make_encoder("mlp", (5,), 2, width_s=(3,))
    with pytest.raises(ConfigError, match=r"unknown option of the conv decoder 'blocks'.*hidden"):
        make_decoder("conv", (1, 8, 8), 2, blocks=3)


# --- options of the model ------------------------------------------------------------------------


@pytest.mark.parametrize("given_", ["64,32", "64, 32", (64, 32), [64, 32], ["64", 32.0]], ids=repr)
def test_widths_are_read_from_text_and_lists(given_):
    options = ModelOptions(network="mlp", widths=given_)
    assert options.widths == (64, 32)
    assert ModelOptions(**json.loads(json.dumps(options.to_json()))) == options
    encoder = make_encoder("mlp", (5,), 2, **network_options("mlp", options))
    assert [n.out_features for n in encoder.modules() if isinstance(n, nn.Linear)] == [64, 32, 4]


@pytest.mark.parametrize("given_", ["64,", "wide", 64, (64, None), "64,3.5", True], ids=repr)
def test_wrong_widths_are_refused(given_):
    with pytest.raises(ConfigError, match="widths must be whole numbers such as 512,512, got"):
        ModelOptions(widths=given_)


def test_choices_of_options_are_those_of_the_networks():
    known = options_of(ModelOptions)
    assert set(known["activation"].choices) == set(ACTIVATIONS)
    assert set(known["normalisation"].choices) == set(NORMALISATIONS)


def test_a_network_gets_the_options_that_it_has():
    options = ModelOptions(latent=5, widths=(8,), blocks=3, activation="elu", dropout=0.1)
    assert network_options("conv", options) == {}
    assert network_options("mlp", options) == {"widths": (8,), "activation": "elu", "dropout": 0.1}
    assert network_options("resnet", options) == {"widths": (8,), "blocks": 3, "activation": "elu"}
    assert network_options("resnet", ModelOptions()) == {}
    with pytest.raises(ConfigError, match="unknown network 'own'"):
        network_options("own", options)


def test_options_that_no_network_has_are_refused():
    check_network_options(ModelOptions(latent=3, blocks=3), ["own", "resnet"])
    check_network_options(ModelOptions(latent=3), ["own", "conv"])
    check_network_options(ModelOptions(blocks=3, classes=5), ["mlp"], ["blocks"])
    with pytest.raises(ConfigError, match=r"blocks=3 is an option of network resnet.*conv and mlp"):
        check_network_options(ModelOptions(blocks=3), ["conv", "mlp"])
    with pytest.raises(ConfigError, match=r"widths=\(9,\) is an option of network mlp and resnet"):
        check_network_options(ModelOptions(widths=(9,)), ["conv", "conv"])
