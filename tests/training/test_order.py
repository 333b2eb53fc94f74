"""`order = "auto"`: the tests that decide, and the number of modes that it finds."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

import recmix
from recmix.data import ArrayExamples, Data
from recmix.errors import ConfigError
from recmix.model.assembly import Own
from recmix.model.data_facts import Statistics
from recmix.model.options import ModelOptions
from recmix.runs.spec import Spec
from recmix.runs.training_options import Training
from recmix.training.build import build
from recmix.training.order import gains, halves, judge

# --- the decision ---------------------------------------------------------------------------------


def gained(rng, mean, images=200, spread=3.0):
    """Gains with a realistic distribution: many small ones and a long tail."""
    return mean + spread * (rng.gamma(0.5, size=images) - 0.5)


@pytest.mark.parametrize("images", [10, 40, 400])
def test_rate_of_false_positives_is_the_significance(images):
    rng = np.random.default_rng(0)
    kept = [judge(2, rng.normal(0, 1, images), rng.normal(0, 1, images), 0.05).kept for _ in range(2000)]
    equal = [judge(2, g, g, 0.05).kept for g in rng.normal(0, 1, (4000, images))]
    skewed = [judge(2, g, g, 0.05).kept for g in (gained(rng, 0, images) for _ in range(4000))]
    assert np.mean(kept) < 0.01  # two independent tests
    assert abs(np.mean(equal) - 0.05) < 4 * math.sqrt(0.05 * 0.95 / 4000)
    assert np.mean(skewed) < 0.065  # a t-test of values with a long upper tail is conservative


def test_clear_gain_is_found():
    rng = np.random.default_rng(1)
    kept = [judge(2, gained(rng, 0.8), gained(rng, 0.8), 0.05).kept for _ in range(500)]
    assert np.mean(kept) > 0.95


def test_both_tests_must_pass():
    rng = np.random.default_rng(2)
    yes, no = rng.normal(1, 1, 100), rng.normal(-0.1, 1, 100)
    assert judge(2, yes, yes, 0.05).kept
    assert not judge(2, yes, no, 0.05).kept
    assert not judge(2, no, yes, 0.05).kept


def test_equal_gains():
    assert judge(2, np.zeros(20), np.zeros(20), 0.05).p == 1
    assert judge(2, np.ones(20), np.ones(20), 0.05).p == 0
    assert not judge(2, np.full(20, -1.0), np.ones(20), 0.05).kept


def test_halves_share_no_image():
    images = ArrayExamples(np.arange(41, dtype=np.uint8).repeat(64).reshape(41, 1, 8, 8))
    pick, test = halves(images)
    assert (len(pick), len(test)) == (21, 20)
    both = np.concatenate([pick.raw, test.raw])[:, 0, 0, 0]
    assert sorted(both) == list(range(41))
    with pytest.raises(ConfigError, match="needs at least 20 validation examples, got 19"):
        halves(images.subset(range(19)))


# --- posteriors with a known number of modes ------------------------------------------------------

SHAPE = (1, 1, 2)
SCALE, NOISE = 0.2, 0.3


class Power(nn.Module):
    """z^k for a complex z. It has k roots, so k modes; each is round because the map is conformal."""

    def __init__(self, k):
        super().__init__()
        self.k = k
        self.constant = nn.Parameter(
            torch.zeros(1)
        )  # its gradient is zero: this decoder does not change

    def forward(self, z):
        w = torch.complex(z[:, 0], z[:, 1]) ** self.k
        return SCALE * torch.stack([w.real, w.imag], -1).view(-1, *SHAPE) + 0 * self.constant


class Root(nn.Module):
    """One of the k roots: the one at this angle from the first, with its own variance."""

    def __init__(self, k):
        super().__init__()
        self.k = k
        self.angle = nn.Parameter(torch.ones(1))  # 1 means angle 0, because jitter is relative
        self.size = nn.Parameter(torch.zeros(1))
        self.log_variance = nn.Parameter(torch.full((2,), 2 * math.log(NOISE / math.hypot(k, NOISE))))

    def forward(self, x):
        x = x.flatten(1) / SCALE
        size = self.size.exp() * x.square().sum(-1).add(1e-12).pow(0.5 / self.k)
        angle = torch.atan2(x[:, 1], x[:, 0]) / self.k + self.angle - 1
        mean = torch.stack([size * angle.cos(), size * angle.sin()], -1)
        return torch.cat([mean, self.log_variance.expand(len(x), 2)], -1)


def with_modes(k, count=600):
    """Examples whose true posterior has k modes, and a model that has found one of them."""
    rng = np.random.default_rng(0)
    angle, size = rng.uniform(-2.5, 2.5, count), rng.uniform(0.9, 1.1, count)
    x = size[:, None] * np.stack([np.cos(angle), np.sin(angle)], -1)
    x += NOISE * rng.standard_normal(x.shape)
    images = (0.5 + SCALE * x).clip(0, 1).astype(np.float32).reshape(count, *SHAPE)
    third = count // 3
    data = Data("modes", ArrayExamples(images[third:]), ArrayExamples(images[:third]), None)
    spec = Spec(
        method="vae",
        label="VAE",
        shape=SHAPE,
        model=ModelOptions(latent=2, likelihood="gaussian", network="own", decoder_network="own"),
        training=Training(dtype="float64", device="cpu"),
    )
    centre = np.full(SHAPE, 0.5, np.float32)
    method = build(
        spec,
        own=Own(Root(k), Power(k)),
        statistics=Statistics(centre, variance=(SCALE * NOISE) ** 2),
    )
    return data, recmix.Model(method, spec)


SEARCH = {
    "epochs": 16,
    "learning_rate": 0.1,
    "schedule": "cosine",
    "batch_size": 40,
    "bound": 60.0,  # above the cost of moving between modes, below the gain of a second mode
    "jitter": 2.0,  # in radians; identical components separate too slowly
    "eps_max": 0.5,
    "fresh_rate": 0.05,  # a faster gate would close before its component has arrived
    "variance_rate": 0.0,
    "dtype": "float64",
    "device": "cpu",
    "progress": False,
    "seed": 4,
}


@pytest.mark.parametrize("k", [1, 2, 3])
def test_order_is_the_number_of_modes(k, tmp_path):
    data, start = with_modes(k)
    found = recmix.fit("rme", data, init=start, order="auto", max_order=5, out=tmp_path, **SEARCH)
    assert found.spec.options["order"] == found.method.order == k, found.spec.auto["why"]
    assert found.spec.auto["why"].endswith(f"not kept: order {k}")
    steps = json.loads((tmp_path / "order.json").read_text())["steps"]
    for m, step in enumerate(steps[:-1], start=2):  # the m-th of m equal modes gains log(m / (m - 1))
        assert abs(step["own"] - math.log(m / (m - 1))) < 0.1
    assert steps[-1]["own"] < 0.02
    angles = [(part.encoder.angle.item() - 1) % (2 * math.pi) for part in found.method.components]
    expected = torch.arange(k) * 2 * math.pi / k
    near = torch.cos(torch.tensor(angles)[:, None] - expected)  # 1 where a component is at the mode
    torch.testing.assert_close(near.amax(0), torch.ones(k), atol=0.02, rtol=0)


# --- gains ----------------------------------------------------------------------------------------


def test_gains_use_the_same_noise_for_both_mixtures():
    """A copy of a component does not change the density; with the same noise no bound changes."""
    data, start = with_modes(2, count=60)
    once = SEARCH | {"epochs": 1}
    one, two = (recmix.fit("rme", data, init=start, order=n, **once).method for n in (1, 2))
    two.start_from(one)
    two.components[1].load_state_dict(one.components[0].state_dict())
    np.testing.assert_allclose(gains(two, one, data.x_val, samples=5), 0, atol=1e-10)
    for part in one.components:
        part.encoder.log_variance.data += 4
    assert gains(two, one, data.x_val, samples=5).mean() > 0.1


def test_order_is_tested_with_the_inference_that_selects_epochs(monkeypatch):
    from recmix.training import order

    seen = []
    plain = order.bounds

    def spy(method, x, inference=None, **options):
        seen.append(inference)
        return plain(method, x, inference, **options)

    monkeypatch.setattr(order, "bounds", spy)
    x = np.random.default_rng(0).random((400, 1, 8, 8), np.float32)
    options = {"latent": 2, "vae_epochs": 1, "epochs": 1, "progress": False}
    recmix.fit("rme", x, order="auto", max_order=2, refine=1, **options)
    assert {inference.refine for inference in seen} == {1}
