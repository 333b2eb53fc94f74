"""Options: one definition of each drives the errors of `fit`, the help texts and the stored spec."""

import dataclasses
import re

import pytest
import torch
from cases.training import images

import recmix
from recmix.errors import ConfigError
from recmix.inference import Inference
from recmix.methods.method_options import growth_options, method_options
from recmix.methods.registry import METHODS
from recmix.methods.vae import VAE
from recmix.model.options import ModelOptions, option, options_of
from recmix.runs.training_options import Training
from recmix.training.arguments import GROUPS, read_options, split_auto
from recmix.training.request import read_request

SHARED = {name: found for group in GROUPS.values() for name, found in options_of(group).items()}
LIMITED = [
    (name, words, limit)
    for name, found in SHARED.items()
    for words, limit in found.limits.items()
    if limit is not None
]
OUTSIDE = {
    "at least": lambda limit: limit - 1,
    "above": lambda limit: limit,
    "at most": lambda limit: limit + 1,
    "below": lambda limit: limit,
}
"""Values that a limit excludes."""


def refused(**options):
    """The message with which `fit` refuses these options."""
    with pytest.raises(ConfigError) as caught:
        recmix.fit("vae", images(20), progress=False, **options)
    return str(caught.value)


@pytest.mark.parametrize(("name", "words", "limit"), LIMITED)
def test_value_out_of_range_names_option_value_and_range(name, words, limit):
    value = OUTSIDE[words](limit)
    message = refused(**{name: value})
    valid = re.escape(f"{words} {limit:g}")
    assert re.fullmatch(rf"{name} must be .*{valid}.*, got {value}(\.0)?", message)


@pytest.mark.parametrize("name", [name for name, found in SHARED.items() if found.choices])
def test_unknown_choice_names_option_value_and_choices(name):
    message = refused(**{name: "nothing-like-it"})
    assert message.startswith(f"unknown value of {name} 'nothing-like-it'")
    assert message.endswith("Valid: " + ", ".join(sorted(SHARED[name].choices)))


@pytest.mark.parametrize("name", [name for name, found in SHARED.items() if found.kind is not str])
def test_value_of_wrong_type_names_option_value_and_type(name):
    words = {
        "likelihood": "a name or an object of recmix.likelihoods",
        "decoder_network": "text",
        "tensorboard": "true or false",
        "end_token": "true or false",
        "deterministic": "true or false",
    }
    words |= {"activation": "text", "widths": "whole numbers such as 512,512"}
    expected = words.get(name, "a (whole )?number")
    given = 3 if "text" in expected or "name" in expected else "many"
    assert re.fullmatch(f"{name} must be {expected}, got {given!r}", refused(**{name: given}))


@pytest.mark.parametrize("name", [name for name, found in SHARED.items() if found.kind is float])
def test_numbers_must_be_finite(name):
    for value in (float("nan"), float("inf")):
        assert re.fullmatch(rf"{name} must be .*, got {value}", refused(**{name: value}))


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("epcohs", "'epochs'"),
        ("lr", "'learning_rate'"),
        ("architecture", "'network'"),
        ("overwite", "'overwrite'"),
        ("hidden", "'units' or 'widths'"),
        ("verbose", "'progress'"),
    ],
)
def test_unknown_option_names_the_nearest_and_not_all(given, hint):
    message = refused(**{given: 3})
    assert message.startswith(f"unknown option for vae {given!r}: did you mean {hint}")
    assert message.count("'") <= 8  # the given name and at most three others
    assert "Valid" not in message
    assert message.endswith("`recmix train --help-all` describes all options")


@pytest.mark.parametrize("old", ["moves", "dreams", "keep", "average", "widen", "starts"])
def test_names_of_earlier_versions_are_unknown(old):
    assert f"unknown option for vae {old!r}" in refused(**{old: 1})


def test_groups_do_not_share_names():
    names = [f.name for group in GROUPS.values() for f in dataclasses.fields(group)]
    assert len(names) == len(set(names))
    for method in METHODS.values():
        assert not set(names) & set(method_options(method) | growth_options(method)), method


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_option_has_a_help_text_and_a_valid_default(name):
    own = method_options(METHODS[name]) | growth_options(METHODS[name])
    for found in (SHARED | own).values():
        assert len(found.help) > 5, found
        if found.default is not None:
            assert found.read(found.default) == found.default


def test_text_is_converted_as_on_a_command_line():
    given = {"epochs": "3", "learning_rate": "1e-3", "tensorboard": "yes", "latent": "4", "refine": "2"}
    found = read_options(VAE, given)
    assert found.training == {"epochs": 3, "learning_rate": 1e-3, "tensorboard": True}
    assert (found.model, found.inference) == ({"latent": 4}, {"refine": 2})
    assert type(found.training["epochs"]) is int


def test_options_are_sorted_into_groups():
    given = {"order": 2, "latent": 3, "seed": 1, "refine": 2}
    found = read_options(METHODS["rme"], given)
    assert found.method["order"] == 2
    assert found.method.keys() == method_options(METHODS["rme"]).keys()  # with defaults
    assert (found.model, found.training, found.inference) == ({"latent": 3}, {"seed": 1}, {"refine": 2})


def test_auto_order_is_stored_separately():
    options, auto = split_auto(read_options(METHODS["rme"], {"order": "auto", "max_order": 4}).method)
    assert options["order"] == 1
    assert auto == {"order": "auto", "max_order": 4, "significance": 0.05}


def test_new_option_needs_only_its_definition():
    """A field of a group, or a constructor argument of a method, is all that an option is."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class More(Training):
        share: float = option(0.5, "A share.", at_least=0, at_most=1)

    class Own(VAE):
        """A method.

        Args:
            model: p(x, z).
            encoder: gives q(z | x).
            count: how many.
        """

        name = "own"

        def __init__(self, model, encoder, *, count: int = 2):
            super().__init__(model, encoder)

    assert More(share="0.25").share == 0.25
    with pytest.raises(ConfigError, match="share must be at least 0 and at most 1, got 2.0"):
        More(share=2)
    assert method_options(Own)["count"].help == "how many."
    with pytest.raises(ConfigError, match="count must be a whole number, got 'x'"):
        recmix.fit(Own, images(20), count="x")


@pytest.mark.parametrize("group", [ModelOptions, Training, Inference])
def test_group_is_the_same_after_json(group):
    made = group()
    assert group(**made.to_json()) == made
    assert made.changed() == {}


def test_changed_holds_only_options_that_differ_from_their_default():
    assert Training(epochs=3, patience=50).changed() == {"epochs": 3}
    assert Inference(refine=2, reuse=2).changed() == {"refine": 2}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("order", ": it is an option of bvi-er1, bvi-er2, me, rme."),
        ("component_setting", ": it is an option of bvi-er1, bvi-er2, me, rme."),
        ("flows", ": it is an option of hf, iaf."),
        ("max_order", ": it is an option of bvi-er1, bvi-er2, rme."),
        ("zzzz", "."),  # no option is similar
    ],
)
def test_unknown_option_names_the_methods_that_have_it(given, why):
    expected = f"unknown option for vae {given!r}{why} `recmix train --help-all` describes all options"
    assert refused(**{given: 3}) == expected


def test_device_and_dtype_of_torch_are_read_as_text():
    found = read_options(VAE, {"device": torch.device("cuda", 1), "dtype": torch.float64})
    assert found.training == {"device": "cuda:1", "dtype": "float64"}


def test_unknown_option_beside_a_class_with_wrong_options(monkeypatch):
    class Positional(VAE):
        name = "positional"

        def __init__(self, model, encoder, k: int = 3):
            super().__init__(model, encoder)

    monkeypatch.setitem(METHODS, "positional", Positional)
    assert "did you mean 'latent'" in refused(latnt=2)


@pytest.mark.parametrize("refine", [0, 2])
def test_training_refines_and_never_calibrates(refine):
    calibration = {"scale": 1.5, "slope": 0.1, "reference": 3.0, "noise": 2.0}
    given = {"how": "conjugate", "refine": refine, "reuse": 1, "restarts": 3}
    asked = read_request("rme", distil=0.5, distil_steps=4, **given, **calibration)
    assert asked.inference == Inference(**given, **calibration)
    assert asked.first.inference == Inference(**given)
    used = Inference(**given, checks=0) if refine else Inference()
    assert asked.objective.inference == asked.first.objective.inference == used
    assert asked.objective.teacher == Inference(**given | {"refine": 4})
