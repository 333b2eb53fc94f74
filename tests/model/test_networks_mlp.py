"""Fully connected networks with given hidden layers."""

import pytest
import torch
from torch import nn

from recmix.errors import ConfigError
from recmix.model.encoder_decoder import parameter_count
from recmix.model.mlp import ACTIVATIONS, mlp_decoder, mlp_encoder
from recmix.model.normalisation import LayerNorm

double = torch.float64


def kinds(module):
    return [type(part) for part in module.modules() if not list(part.children())]


def sizes(module):
    linear = [part for part in module.modules() if isinstance(part, nn.Linear)]
    return [(part.in_features, part.out_features) for part in linear]


def test_hidden_layers_have_the_given_sizes():
    encoder, decoder = mlp_encoder((4, 5), 3, widths=(7, 6)), mlp_decoder((4, 5), 3, widths=(7, 6))
    assert sizes(encoder) == [(20, 7), (7, 6), (6, 6)]
    assert sizes(decoder) == [(3, 6), (6, 7), (7, 20)]
    assert encoder.hidden == 6
    assert kinds(encoder) == [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    assert kinds(decoder) == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear, nn.Unflatten]


def test_parameter_counts():
    linear = [(784, 512), (512, 512), (512, 40)]
    assert parameter_count(mlp_encoder((1, 28, 28), 20)) == sum((n + 1) * m for n, m in linear)
    linear = [(20, 512), (512, 512), (512, 784)]
    assert parameter_count(mlp_decoder((1, 28, 28), 20)) == sum((n + 1) * m for n, m in linear)


def test_without_hidden_layers_the_networks_are_linear():
    encoder, decoder = mlp_encoder((4,), 2, widths=()), mlp_decoder((4,), 2, widths=())
    assert (sizes(encoder), sizes(decoder), encoder.hidden) == ([(4, 4)], [(2, 4)], 4)
    z = torch.randn(3, 2)
    torch.testing.assert_close(decoder(z), z @ decoder.layers[0].weight.T + decoder.layers[0].bias)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_activations(name):
    for network in (mlp_encoder((4,), 2, activation=name), mlp_decoder((4,), 2, activation=name)):
        assert kinds(network).count(ACTIVATIONS[name]) == 2


def test_normalisation_and_dropout_come_in_this_order():
    encoder = mlp_encoder((4,), 2, widths=(8,), normalisation="layer", dropout=0.3)
    layers = [nn.Flatten, nn.Linear, LayerNorm, nn.ReLU, nn.Dropout]
    assert [type(layer) for layer in encoder.features] == layers
    assert encoder.features[-1].p == 0.3
    decoder = mlp_decoder((4,), 2, widths=(8,), normalisation="batch")
    assert [type(layer) for layer in decoder.layers][:3] == [nn.Linear, nn.BatchNorm1d, nn.ReLU]


@pytest.mark.parametrize("normalisation", ["none", "layer", "batch"])
def test_jacobians_exist_in_evaluation_mode(normalisation):
    torch.manual_seed(0)
    options = {"widths": (9, 8), "activation": "tanh", "normalisation": normalisation, "dropout": 0.2}
    decoder = mlp_decoder((3, 2), 2, **options).double()
    decoder(torch.randn(50, 2, dtype=double))  # statistics of batch normalisation
    decoder.eval()
    z = torch.randn(4, 2, dtype=double)
    jacobian = torch.func.vmap(torch.func.jacfwd(lambda one: decoder(one[None])[0]))(z)
    step = torch.tensor([1e-6, 0.0], dtype=double)
    slope = (decoder(z + step) - decoder(z - step)) / 2e-6
    torch.testing.assert_close(jacobian[..., 0], slope, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("make", [mlp_encoder, mlp_decoder])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"widths": (0,)}, r"widths=\(0,\): expected whole numbers of at least 1"),
        ({"widths": "512"}, "widths='512'"),
        ({"activation": "rely"}, "unknown activation 'rely': did you mean 'relu'"),
        ({"normalisation": "group"}, "unknown normalisation 'group'.*batch, layer, none"),
        ({"dropout": 1.0}, "dropout=1.0"),
    ],
)
def test_wrong_options_are_refused(make, options, message):
    with pytest.raises(ConfigError, match=message):
        make((4,), 2, **options)


def test_wrong_shapes_are_refused():
    for shape in ((), (3, 0), 784, (2.5,)):
        with pytest.raises(ConfigError, match=r"expected a tuple of whole numbers.*\(784,\)"):
            mlp_encoder(shape, 2)
        with pytest.raises(ConfigError, match="expected a tuple of whole numbers"):
            mlp_decoder((3,), 2, shape)


def test_derivatives_of_forward_mode_derivatives_of_layer_normalisation():
    torch.manual_seed(0)
    layer = LayerNorm(5).double()
    x, v = torch.randn(2, 3, 5, dtype=torch.float64)
    reference = nn.LayerNorm(5).double()
    torch.testing.assert_close(layer(x), reference(x))

    def along(x):
        return torch.func.jvp(layer, (x,), (v,))[1]

    at = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(along(at).square().sum(), at)
    step = 1e-6 * torch.randn_like(x)
    change = along(x + step).square().sum() - along(x - step).square().sum()
    torch.testing.assert_close((slope * step).sum(), change / 2, rtol=1e-5, atol=1e-12)
