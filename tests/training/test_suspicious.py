"""Warnings of data and networks that are probably a mistake."""

import numpy as np
import pytest
from torch import nn

import recmix
from recmix.data import DataWarning
from recmix.errors import ConfigError

SHORT = {"epochs": 1, "latent": 2, "device": "cpu", "progress": False}


@pytest.fixture
def bits():
    return (np.random.default_rng(0).random((20, 1, 8, 8)) < 0.5).astype(np.float32)


def test_very_few_examples(bits):
    with pytest.warns(DataWarning, match=r"only 1 training example\(s\)"):
        recmix.fit("vae", bits[:3], **SHORT)


def test_equal_values(bits):
    with pytest.warns(DataWarning, match="all values of the training data are 0"):
        recmix.fit("vae", 0 * bits, **SHORT)


def networks(*last):
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    return encoder, nn.Sequential(nn.Linear(2, 64), nn.Unflatten(1, (1, 8, 8)), *last)


def test_a_sigmoid_before_a_bernoulli_likelihood(bits):
    encoder, decoder = networks(nn.Sigmoid())
    with pytest.warns(UserWarning, match="needs logits"):
        recmix.fit("vae", bits, encoder=encoder, decoder=decoder, **SHORT)
    encoder, decoder = networks()
    recmix.fit("vae", bits, encoder=encoder, decoder=decoder, **SHORT)  # no warning


def test_initials_are_understood(bits):
    with pytest.raises(ConfigError, match="unknown option for vae 'lr': did you mean 'learning_rate'"):
        recmix.fit("vae", bits, lr=1e-3)


@pytest.mark.parametrize("own", [True, False])
def test_logits_are_refused_where_probabilities_are_needed(bits, own, tmp_path):
    names = ("encoder", "decoder")
    given = dict(zip(names, networks(), strict=True)) if own else {}
    more = {"likelihood": "bernoulli-probabilities", "out": tmp_path / "run"}
    with pytest.raises(ConfigError, match=r"gives values from -.*use likelihood='bernoulli'"):
        recmix.fit("vae", bits, **given, **more, **SHORT)
    assert not (tmp_path / "run").exists()
    given = dict(zip(names, networks(nn.Sigmoid()), strict=True))
    recmix.fit("vae", bits, **given, **more, **SHORT)
