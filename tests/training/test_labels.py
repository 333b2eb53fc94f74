"""Names of table rows: two different trainings never share one."""

import itertools

import pytest

import recmix
from recmix.inference import Inference
from recmix.methods.registry import find_method
from recmix.runs.spec import Spec
from recmix.runs.training_options import Training
from recmix.training.labels import row_label


def label(method, training=None, inference=None, init=None):
    """The label of a run; `init` is the (method, label) of the model that it starts from."""
    start = init and Spec(method=init[0], label=init[1], shape=(1, 8, 8))
    cls = find_method(method)
    return row_label(cls, Training(**training or {}), Inference(**inference or {}), start)


VAE, PLUS = ("vae", "VAE"), ("vae", "VAE+")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"method": "vae"}, "VAE"),
        ({"method": "vae", "init": VAE}, "VAE+"),
        ({"method": "vae", "init": PLUS}, "VAE++"),
        ({"method": "rme", "init": VAE}, "RME"),
        ({"method": "residual", "init": VAE}, "RESIDUAL"),
        ({"method": "wide", "init": VAE}, "WIDE"),
        ({"method": "bvi-er1", "init": VAE}, "BVI-ER1"),
        ({"method": "vae", "init": VAE, "training": {"train": "encoder"}}, "VAE+ train=encoder"),
        ({"method": "vae", "init": VAE, "training": {"objective": "iwae"}}, "VAE+ objective=iwae"),
        ({"method": "rme", "init": PLUS}, "RME from VAE+"),
        ({"method": "rme", "init": ("rme", "RME from VAE+")}, "RME+ from RME from VAE+"),
        ({"method": "vae", "init": ("rme", "RME")}, "VAE from RME"),
        ({"method": "vae", "init": VAE, "inference": {"refine": 2}}, "VAE+ refine=2"),
        ({"method": "rme", "init": ("vae", "")}, "RME"),  # a model that has no label of its own
    ],
)
def test_labels(given, expected):
    assert label(**given) == expected


def test_different_trainings_have_different_labels():
    trainings = [
        {},
        {"objective": "iwae"},
        {"objective": "iwae", "objective_samples": 8},
        {"train": "encoder"},
        {"train": "encoder", "augment": 0.3},
        {"train": "encoder", "decoder_samples": 0.3},
        {"train": "encoder", "augment": 0.3, "decoder_samples": 0.3},
        {"distil": 0.5},
        {"distil": 1.0},
        {"distil": 0.5, "distil_steps": 4},
    ]
    inferences = [
        {},
        {"refine": 1},
        {"refine": 2},
        {"refine": 2, "reuse": 0},
        {"refine": 2, "restarts": 3},
    ]
    changed = label("vae", {"train": "encoder"}, init=VAE)
    starts = [None, VAE, PLUS, ("vae", changed), ("rme", "RME"), ("rme", "RME from VAE+")]
    found = {}
    for method in ("vae", "rme", "residual"):
        for training, inference, init in itertools.product(trainings, inferences, starts):
            if method != "vae" and init is None:  # the same as a start from a VAE
                continue
            name = label(method, training, inference, init)
            assert name not in found, (found.get(name), (method, training, inference, init))
            found[name] = (method, training, inference, init)


@pytest.mark.parametrize(
    "option",
    [
        {"seed": 3},
        {"epochs": 7},
        {"learning_rate": 1e-3},
        {"objective_samples": 8},  # no effect without objective = iwae
        {"distil_steps": 4},  # no effect without distil
    ],
)
def test_options_that_change_nothing_that_is_learned_are_not_in_the_label(option):
    assert label("vae", option, init=VAE) == "VAE+"


def test_calibration_is_not_in_the_label():
    assert label("vae", inference={"scale": 1.5, "reuse": 0, "restarts": 2}, init=VAE) == "VAE+"


def test_trained_models_have_labels(tmp_path):
    data = recmix.data.load("digits")
    small = {"network": "dense", "latent": 2, "epochs": 1, "progress": False}
    vae = recmix.fit("vae", data, **small)
    plus = recmix.fit("vae", data, init=vae, epochs=1, progress=False)
    encoder = recmix.fit("vae", data, init=vae, train="encoder", epochs=1, progress=False)
    rme = recmix.fit("rme", data, init=plus, order=2, epochs=1, out=tmp_path / "rme", progress=False)
    alone = recmix.fit("rme", data, order=2, vae_epochs=1, **small)
    labels = [model.spec.label for model in (vae, plus, encoder, rme, alone)]
    assert labels == ["VAE", "VAE+", "VAE+ train=encoder", "RME from VAE+", "RME"]
    stored = recmix.runs.folder.Run(tmp_path / "rme").spec()
    assert (stored.label, stored.init["label"]) == ("RME from VAE+", "VAE+")
