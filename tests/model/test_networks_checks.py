"""A user's own modules: checks, features, and new random weights."""

import math

import pytest
import torch
from torch import nn

from recmix.errors import ConfigError
from recmix.model.assembly import Own, make_model
from recmix.model.encoder_decoder import reset
from recmix.model.likelihoods import Bernoulli, Gaussian, ProbabilityBernoulli
from recmix.model.network_checks import ROUNDING, check_output, mistaken_output
from recmix.model.networks import (
    encode_with_features,
    feature_size,
    make_decoder,
    make_encoder,
)
from recmix.model.options import ModelOptions
from recmix.model.paper_networks import conv_encoder


def check_encoder(module, shape, latent):
    like = next(module.parameters(), torch.zeros(()))
    check_output("encoder", module, torch.zeros(2, *shape).to(like), (2, 2 * latent), "mean and more")


def check_decoder(module, output, latent):
    check_output("decoder", module, torch.zeros(2, latent), (2, *output), "what the likelihood reads")


def test_check_accepts_the_built_in_networks():
    for kind in ("conv", "dense", "mlp", "resnet"):
        check_encoder(make_encoder(kind, (1, 8, 9), 3), (1, 8, 9), 3)
        check_decoder(make_decoder(kind, (1, 8, 9), 3), (1, 8, 9), 3)


@pytest.mark.parametrize("output", [(7,), (7, 3), (14,), (2, 7, 1, 1)], ids=str)
def test_check_takes_examples_and_outputs_of_any_shape(output):
    check_encoder(make_encoder("mlp", (7,), 3), (7,), 3)
    decoder = make_decoder("mlp", (7,), 3, output)
    check_decoder(decoder, output, 3)
    with pytest.raises(ConfigError, match=r"shape \(2, 5, 7\), what the likelihood reads"):
        check_decoder(decoder, (5, 7), 3)
    with pytest.raises(ConfigError, match=r"shape \(2, 10\), mean and more"):
        check_encoder(make_encoder("mlp", (7,), 3), (7,), 5)


def test_check_names_the_shape_given_and_the_shape_expected():
    with pytest.raises(
        ConfigError, match=r"Flatten gave shape \(2, 64\).*expected one tensor of shape \(2, 10\)"
    ):
        check_encoder(nn.Flatten(), (1, 8, 8), 5)
    with pytest.raises(
        ConfigError, match=r"Identity gave shape \(2, 5\).*expected one tensor of shape \(2, 1, 8, 8\)"
    ):
        check_decoder(nn.Identity(), (1, 8, 8), 5)


def test_check_reports_a_module_that_fails_or_gives_no_tensor():
    class Pair(nn.Module):
        def forward(self, x):
            return x, x

    with pytest.raises(ConfigError, match=r"gave a tuple.*one tensor of shape \(2, 10\)"):
        check_encoder(Pair(), (1, 8, 8), 5)
    with pytest.raises(ConfigError, match=r"failed for an input of shape \(2, 5\)") as error:
        check_decoder(nn.Linear(6, 64), (1, 8, 8), 5)
    assert isinstance(error.value.__cause__, RuntimeError)


@pytest.mark.parametrize("latent", [32, 5], ids=["passes", "fails"])
def test_check_does_not_change_the_module(latent):
    module = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Dropout()).double()
    module[2].eval()  # one part is already in evaluation mode
    before = torch.random.get_rng_state()
    modes = [part.training for part in module.modules()]
    state = {name: value.clone() for name, value in module.state_dict().items()}
    if latent == 32:
        check_encoder(module, (1, 8, 8), latent)
    else:
        with pytest.raises(ConfigError):
            check_encoder(module, (1, 8, 8), latent)
    assert torch.equal(torch.random.get_rng_state(), before)
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


class Between(nn.Module):
    """Gives the values `low` and `high` for any z."""

    def __init__(self, low, high):
        super().__init__()
        self.values = torch.tensor([low, high], dtype=torch.float64)

    def forward(self, z):
        return self.values.expand(len(z), 2)


@pytest.mark.parametrize(
    ("likelihood", "low", "high", "words"),
    [
        (ProbabilityBernoulli(), -0.5 * ROUNDING, 1 + 0.5 * ROUNDING, ""),
        (ProbabilityBernoulli(), -2 * ROUNDING, 1.0, "needs probabilities"),
        (ProbabilityBernoulli(), 0.0, 1 + 2 * ROUNDING, "needs probabilities"),
        (Bernoulli(), 0.1, 0.9, "needs logits"),
        (Bernoulli(), -0.1, 0.9, ""),
        (Bernoulli(), 0.1, 1.1, ""),
        (Gaussian(1.0), 0.1, 0.9, ""),
    ],
)
def test_logits_and_probabilities_are_told_apart(likelihood, low, high, words):
    found = mistaken_output(Between(low, high), likelihood, 3, torch.zeros(()).double())
    assert words in found
    assert bool(found) == bool(words)


def test_the_mode_of_a_decoder_that_fails_is_restored():
    decoder = nn.Sequential(nn.Dropout(), nn.Linear(4, 6))
    with pytest.raises(RuntimeError, match="shapes"):
        mistaken_output(decoder, Bernoulli(), 3, torch.zeros(()))
    assert all(part.training for part in decoder.modules())


def test_a_model_of_own_modules_leaves_the_mode_of_each_part():
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.Dropout().eval(), nn.Linear(6, 4))
    decoder = nn.Sequential(nn.Dropout().eval(), nn.Linear(2, 4))
    options = ModelOptions(latent=2, network="own", decoder_network="own", likelihood="gaussian")
    make_model(options, (4,), own=Own(encoder=encoder, decoder=decoder))
    assert [part.training for part in encoder] == [True, True, False, True]
    assert [part.training for part in decoder] == [False, True]
