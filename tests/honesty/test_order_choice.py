"""The number of components is chosen on validation data, with one half for each decision."""

import numpy as np
import pytest
from cases.honesty import data_of
from cases.training import images

import recmix
from recmix.evaluation import bounds

OPTIONS = {"epochs": 1, "batch_size": 40, "device": "cpu", "progress": False}
BRIGHT = 0.5


def choose(data, vae):
    return recmix.fit("rme", data, init=vae, order="auto", max_order=2, **OPTIONS)


def shifted(bright, seed, n=40):
    """Images whose mean is above or below `BRIGHT`."""
    return 0.1 * images(n, seed=seed) + (0.7 if bright else 0.1)


@pytest.fixture(scope="module")
def vae():
    return recmix.fit("vae", shifted(True, 0), latent=2, network="dense", **OPTIONS)


@pytest.mark.parametrize("bright", [True, False])
def test_components_are_tested_on_validation_data(vae, monkeypatch, bright):
    """A component gains on bright images and loses on dark ones."""

    def gains(grown, control, examples, *rest, **more):
        return np.asarray(examples).mean((1, 2, 3)).astype(float) - BRIGHT

    monkeypatch.setattr("recmix.training.order.gains", gains)
    parts = shifted(not bright, 1), shifted(bright, 2), shifted(not bright, 3)
    assert choose(data_of(*parts), vae).spec.options["order"] == (2 if bright else 1)


def test_the_best_epoch_and_the_test_use_different_validation_examples(vae, monkeypatch):
    seen = {"job": set(), "order": set()}

    def recording(room):
        def recorded(method, x, *rest, **more):
            seen[room] |= {row.tobytes() for row in x.numpy()}
            return bounds(method, x, *rest, **more)

        return recorded

    for room in seen:
        monkeypatch.setattr(f"recmix.training.{room}.bounds", recording(room))
    data = data_of(shifted(False, 1), shifted(True, 2), shifted(False, 3))
    choose(data, vae)
    held_out = {row.tobytes() for row in data.x_val[:]}
    assert len(held_out) == 40
    assert seen["job"] | seen["order"] == held_out
    assert not seen["job"] & seen["order"]
    assert len(seen["job"]) == len(seen["order"]) == 20
