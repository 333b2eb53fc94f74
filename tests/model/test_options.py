"""Options: types, limits, conversion of text, and error messages."""

import math
from dataclasses import dataclass
from typing import Literal

import pytest

from recmix.errors import ConfigError
from recmix.model.options import ModelOptions, Option, Options, option, options_of


@dataclass(frozen=True, kw_only=True)
class Example(Options):
    """A group of options."""

    count: int = option(3, "How many.", at_least=1, at_most=9)
    rate: float | None = option(None, "Learning rate.", above=0)
    share: float = option(0.0, "A share.", at_least=0, below=1)
    limit: float = option(math.inf, "A limit that may be infinite.", above=0)
    kind: str = option("adam", "Which one.", choices=["adam", "muon"])
    on: bool = option(False, "Whether.")


def test_defaults_and_help():
    found = options_of(Example)
    assert list(found) == ["count", "rate", "share", "limit", "kind", "on"]
    assert found["count"].default == 3
    assert found["kind"].choices == ("adam", "muon")
    assert all(one.help for one in found.values())
    assert Example().to_json() == {
        "count": 3,
        "rate": None,
        "share": 0.0,
        "limit": math.inf,
        "kind": "adam",
        "on": False,
    }


def test_changed_names_only_options_that_differ():
    assert Example().changed() == {}
    assert Example(count=3, rate=0.1).changed() == {"rate": 0.1}


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ({"count": "4"}, 4),
        ({"count": 4.0}, 4),
        ({"rate": "1e-3"}, 1e-3),
        ({"rate": 1}, 1.0),
        ({"rate": None}, None),
        ({"on": "yes"}, True),
        ({"on": "False"}, False),
        ({"kind": "muon"}, "muon"),
        ({"limit": "inf"}, math.inf),
    ],
)
def test_values_are_converted_to_their_type(given, value):
    (name,) = given
    found = getattr(Example(**given), name)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"count": 0}, "count must be at least 1 and at most 9, got 0"),
        ({"count": 10}, "count must be at least 1 and at most 9, got 10"),
        ({"count": 2.5}, "count must be a whole number, got 2.5"),
        ({"count": "many"}, "count must be a whole number, got 'many'"),
        ({"count": True}, "count must be a whole number, got True"),
        ({"count": None}, "count must be a whole number, got None"),
        ({"rate": 0.0}, "rate must be above 0, got 0.0"),
        ({"rate": math.nan}, "rate must be above 0, got nan"),
        ({"rate": math.inf}, "rate must be above 0, got inf"),
        ({"share": 1}, "share must be at least 0 and below 1, got 1"),
        ({"kind": "adan"}, "unknown value of kind 'adan': did you mean 'adam'"),
        ({"kind": 3}, "kind must be text, got 3"),
        ({"on": 2}, "on must be true or false, got 2"),
    ],
)
def test_wrong_values_are_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        Example(**given)


def test_literal_values():
    order = Option("order", int | Literal["auto"], 5, "")
    assert order.read("auto") == "auto"
    assert order.read("3") == 3
    with pytest.raises(ConfigError, match="order must be a whole number or 'auto', got 'all'"):
        order.read("all")
    clock = Option("clock", Literal["iteration", "round"], "iteration", "")
    with pytest.raises(ConfigError, match="clock must be one of 'iteration', 'round', got 'epoch'"):
        clock.read("epoch")


def test_model_options():
    assert ModelOptions() == ModelOptions(latent=20, network="conv")
    with pytest.raises(ConfigError, match="latent must be at least 1, got 0"):
        ModelOptions(latent=0)
