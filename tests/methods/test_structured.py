"""Every method, kind of refinement, calibration and gap on data that are neither vectors nor images.

To add a kind of data, add a `Kind` to `KINDS`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from cases.molecules import SMALL_MOLECULES

import recmix
from recmix.errors import ConfigError
from recmix.inference.refinement import HOW
from recmix.methods.registry import METHODS

FAST = {"latent": 2, "epochs": 1, "batch_size": 20, "progress": False, "device": "cpu", "seed": 0}
WORDS = ("the", "cat", "sat", "on", "a", "mat", "dog", "ran")


@dataclass(frozen=True)
class Kind:
    """A kind of data: a function that makes a small data set, and options of a small model for it.

    Attributes:
        data: makes the data set, about 40 training examples.
        options: model options.
        likelihood: the likelihood that is expected.
        network: the encoder's network that is expected.
    """

    data: Callable[[], Any]
    options: Mapping[str, Any]
    likelihood: str
    network: str


def texts():
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(WORDS, size=rng.integers(1, 6))) for _ in range(64)]
    return recmix.data.from_texts(lines[:40], lines[40:], kind="words", length=6)


def molecules():
    pytest.importorskip("rdkit")
    return recmix.data.from_texts(SMALL_MOLECULES * 2, SMALL_MOLECULES, kind="molecule-graphs", length=8)


def clips():
    x = recmix.data.moving_digits(recmix.data.load("digits").x_train, 60, frames=3, side=8, seed=0)
    return recmix.data.from_arrays(x[:40], x[40:], name="clips")


SMALL = {"units": 8, "heads": 2, "blocks": 1}
KINDS = {
    "graph": Kind(molecules, SMALL, "graph", "graph"),
    "autoregressive": Kind(texts, SMALL, "autoregressive", "transformer"),
    "autoregressive gru": Kind(texts, SMALL | {"causal": "gru"}, "autoregressive", "transformer"),
    "categorical": Kind(texts, SMALL | {"likelihood": "categorical"}, "categorical", "transformer"),
    "categorical gru": Kind(
        texts,
        {"units": 8, "blocks": 2, "likelihood": "categorical", "network": "gru"},
        "categorical",
        "gru",
    ),
    "video": Kind(clips, {"units": 8, "likelihood": "bernoulli"}, "bernoulli", "video"),
}
_trained: dict[str, Any] = {}


@pytest.fixture(params=sorted(KINDS))
def kind(request):
    return KINDS[request.param]


def start(kind):
    """A VAE trained for one epoch, made once for each kind of data."""
    name = next(name for name, one in KINDS.items() if one is kind)
    if name not in _trained:
        data = kind.data()
        _trained[name] = data, recmix.fit("vae", data, **FAST, **kind.options)
    return _trained[name]


def test_networks_and_likelihood_are_chosen_by_the_data(kind):
    _, model = start(kind)
    assert model.spec.model.likelihood == kind.likelihood
    assert model.spec.model.network == kind.network


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_trains_scores_and_loads(kind, name, tmp_path):
    data, vae = start(kind)
    options = {"order": 2} if METHODS[name].setting == "order" else {}
    options |= {"init": vae} if METHODS[name].starts_from else kind.options
    model = recmix.fit(name, data, out=tmp_path / "run", **options, **FAST)
    x = data.x_val[:3]
    found = model.log_likelihood(x, 5)
    assert found.isfinite().all()
    again = recmix.load(tmp_path / "run", device="cpu")
    torch.testing.assert_close(again.log_likelihood(x, 5), found)


@pytest.mark.parametrize("how", sorted(HOW))
def test_no_refinement_lowers_the_bound(kind, how):
    data, model = start(kind)
    if how == "learned":
        model = recmix.fit("curvature", data, init=model, **FAST)
    x = data.x_val[:5]
    refined = model.using(refine=2, how=how, checks=4)
    before, after = model.elbo(x, 500).mean(), refined.elbo(x, 500).mean()
    assert after > before - 0.05


@pytest.mark.filterwarnings("ignore:.*held-out examples are few")
def test_calibration(kind):
    data, model = start(kind)
    calibrated = model.calibrated(data.x_val, noise=model.latent_model.likelihood.can_temper)
    assert calibrated.elbo(data.x_val[:3], 5).isfinite().all()


def test_gap(kind):
    data, model = start(kind)
    found = model.gap(data.x_val[:2], samples=10, check=0)
    assert found.elbo.isfinite().all()


def test_order_auto(kind):
    data, vae = start(kind)
    model = recmix.fit("rme", data, init=vae, order="auto", max_order=2, **FAST)
    assert model.log_likelihood(data.x_val[:3], 5).isfinite().all()


def test_residual_components_and_decoder_samples(kind):
    data, vae = start(kind)
    model = recmix.fit(
        "rme",
        data,
        init=vae,
        order=2,
        component="residual",
        train="encoder",
        decoder_samples=0.5,
        **FAST | {"learning_rate": 1e-3},
    )
    assert model.log_likelihood(data.x_val[:3], 5).isfinite().all()
    for ours, theirs in zip(model.latent_model.parameters(), vae.latent_model.parameters(), strict=True):
        assert torch.equal(ours, theirs)  # the likelihood's networks are frozen, too


def test_samples_are_examples(kind):
    data, model = start(kind)
    latent = model.latent_model
    decoded = latent.decoder_output(torch.randn(7, 2, generator=torch.Generator().manual_seed(0)))
    drawn = latent.likelihood.sample(decoded, torch.Generator().manual_seed(1))
    likely = latent.likelihood.most_likely(decoded)
    for x in (drawn, likely):
        assert x.shape == (7, *data.shape)
        assert model.log_likelihood(x, 5).isfinite().all()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("graph", {"network": "transformer"}, "network='transformer' is not for graphs"),
        ("graph", {"likelihood": "categorical"}, "likelihood='categorical' is not for graphs"),
        ("autoregressive", {"network": "graph"}, "network='graph' is not for texts"),
        ("autoregressive", {"likelihood": "gaussian"}, "likelihood='gaussian' is not for texts"),
        ("categorical", {"token_dropout": 0.2}, "option of the likelihood autoregressive, got categ"),
        ("categorical", {"causal": "gru"}, "option of the likelihood autoregressive, got categorical"),
    ],
)
def test_options_for_another_kind_of_data_are_refused(name, options, message):
    kind = KINDS[name]
    with pytest.raises(ConfigError, match=message):
        recmix.fit("vae", kind.data(), **FAST, **{**kind.options, **options})
