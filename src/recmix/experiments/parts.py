"""Read and check the four parts of the TOML file of a grid.

The results of a grid form a table. The part ``[[columns]]`` has the columns of this table: data sets,
each with the options of a model. The part ``[[methods]]`` has its rows: methods with their options.
``[protocol]`` has the seeds of the data splits and of the restarts (trainings with other initial
weights), and the K of the IWAE-K scores. ``[budget]`` has the training options of the two stages:
training from random weights, and training that starts from a trained model.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recmix.errors import ConfigError, unknown
from recmix.inference import Inference
from recmix.model.options import ModelOptions, options_of
from recmix.runs.data_options import DATA_OPTIONS
from recmix.runs.training_options import Training

if TYPE_CHECKING:
    from recmix.methods.method import Method

__all__ = ["GridColumn", "GridRow", "read_parts", "read_rows", "stage_training"]

PROTOCOL = ("splits", "restarts", "samples", "choose_by")
STAGES = ("first", "second")
ENTRY = ("name", "continued", "label", "after", "refined", "calibrated")
"""Keys of a [[methods]] entry that are not options of a method, of training or of inference."""
CHOSEN_ELSEWHERE = {
    "seed": "restarts in [protocol] chooses it",
    "device": "--device chooses it",
    **dict.fromkeys(options_of(ModelOptions), "it belongs to [[columns]]"),
    **dict.fromkeys(("scale", "slope", "reference"), "calibrated = true chooses it on validation data"),
    "noise": 'calibrated = "noise" chooses it on validation data',
}
"""Options that a [[methods]] entry cannot have, and why."""


@dataclass(frozen=True, kw_only=True)
class GridColumn:
    """One column of the grid's table: a data set with the options of a model."""

    data: dict[str, Any]  # name of the data set or path, and the given options of reading it
    model: ModelOptions  # latent dimension, likelihood and networks
    methods: tuple[str, ...]  # names of the methods in this column
    budget: Mapping[str, Mapping[str, Any]]  # training options by stage

    def to_json(self) -> dict[str, Any]:
        """Return the data set and the options of the model as JSON values, {name: value}."""
        return {"data": self.data["name"], **self.model.to_json()} | {
            key: self.data[key] for key in DATA_OPTIONS if key in self.data
        }


@dataclass(frozen=True, kw_only=True)
class GridRow:
    """One row of the grid's table: a method with its options.

    Training has two stages. The first stage trains a model from random weights. The second stage starts
    from that model.
    """

    method: type[Method]
    # the method of the first stage that it starts from, if it is of the second stage
    first: type[Method]
    second: bool  # whether it is of the second stage: it starts from a trained model
    after: str  # the row that it starts from instead of the first stage, or empty
    options: dict[str, Any]  # the method's own options, complete
    training: dict[str, Any]  # the training options of the entry
    inference: Inference  # the inference options of the entry
    refined: tuple[int, ...]  # further numbers of Gauss-Newton steps that it is scored with
    calibrated: bool  # whether it is also scored with calibration
    noise: bool  # whether it is also scored with calibration of the likelihood's noise
    label: str  # name of the row, or empty for the default
    varied: tuple[str, ...]  # options that the entry gives as lists, as words for the label

    def same_training(self, other: GridRow) -> bool:
        """Whether two rows have the same method and the same options that affect training."""
        names = ("method", "first", "second", "after", "options", "training")
        return self.inference.in_training == other.inference.in_training and all(
            getattr(self, name) == getattr(other, name) for name in names
        )


def read_parts(
    content: Mapping[str, Any], name: str
) -> tuple[str, dict[str, Any], list[GridColumn], list[GridRow]]:
    """Return the title, the protocol, the columns and the rows that the TOML file of a grid describes.

    The file may have no title. Then the title is `name`.
    """
    _check_keys(content, ("title", "protocol", "budget", "columns", "methods"), "table")
    title = content.get("title", name)
    if not isinstance(title, str):
        raise ConfigError(f"title must be text, got {title!r}")
    protocol = _protocol(_table(content, "protocol"))
    budget = _budget(_table(content, "budget"), "[budget]")
    rows = [row for entry in _tables(content, "methods") for row in read_rows(entry)]
    names = sorted({row.method.name for row in rows})
    columns = [c for entry in _tables(content, "columns") for c in _columns(entry, budget, names)]
    return title, protocol, columns, rows


def read_rows(entry: Mapping[str, Any]) -> Iterator[GridRow]:
    """Yield the table rows of one ``[[methods]]`` entry of a grid's file.

    An option may be a list of values. There is one row for each combination of values.
    """
    from recmix.methods.method import Method
    from recmix.methods.registry import find_method
    from recmix.training.arguments import read_options

    if not isinstance(entry.get("name"), str):
        raise ConfigError("an entry of [[methods]] has no name: `recmix methods` lists them")
    method = find_method(entry["name"])
    given: dict[str, Any] = {}
    for key, kind in (("continued", bool), ("label", str), ("after", str)):
        given[key] = entry.get(key, kind())
        if not isinstance(given[key], kind):
            words = "text" if kind is str else "true or false"
            raise ConfigError(f"{key} must be {words}, got {given[key]!r}")
    calibrated = entry.get("calibrated", False)
    if not (isinstance(calibrated, bool) or calibrated == "noise"):
        raise ConfigError(f'calibrated must be true, false or "noise", got {calibrated!r}')
    refined = _numbers(entry["refined"], "refined", least=1) if "refined" in entry else []
    options = {key: value for key, value in entry.items() if key not in ENTRY}
    for key in options:
        if key in CHOSEN_ELSEWHERE:
            raise ConfigError(f"{key} is not an option of a method in a grid: {CHOSEN_ELSEWHERE[key]}")
    lists = [key for key, value in options.items() if isinstance(value, list) and key != method.setting]
    for values in _product(options):
        own = read_options(method, values, ENTRY)
        yield GridRow(
            method=method,
            first=find_method(method.starts_from or str(Method.starts_from)),
            second=given["continued"] or bool(given["after"]) or method.starts_from is not None,
            after=given["after"],
            options=own.method,
            training=own.training,
            inference=Inference(**own.inference),
            refined=tuple(refined),
            calibrated=bool(calibrated),
            noise=calibrated == "noise",
            label=given["label"],
            varied=tuple(f"{key}={values[key]}" for key in lists),
        )


def _protocol(given: Mapping[str, Any]) -> dict[str, Any]:
    """Read ``[protocol]``: seeds of splits and restarts, and the K of the IWAE-K scores."""
    _check_keys(given, PROTOCOL, "key in [protocol]")
    samples = _numbers(given.get("samples", [100]), "samples", least=1)
    chosen = given.get("choose_by", samples[0])
    return {
        "splits": _seeds(given.get("splits", 10), "splits"),
        "restarts": _seeds(given.get("restarts", 3), "restarts"),
        "samples": samples,
        "choose_by": _numbers([chosen], "choose_by", least=1)[0],
    }


def _budget(given: Mapping[str, Any], where: str) -> dict[str, dict[str, Any]]:
    """Read and check the training options of each stage, ``first`` and ``second``.

    `where` is the name of the TOML table in error messages.
    """
    _check_keys(given, STAGES, f"key in {where}")
    known = {name: one for name, one in options_of(Training).items() if name not in CHOSEN_ELSEWHERE}
    found: dict[str, dict[str, Any]] = {}
    for stage in STAGES:
        options = _table(given, stage)
        _check_keys(options, known, f"training option in {stage} of {where}")
        found[stage] = {name: known[name].read(value) for name, value in options.items()}
        Training(**found[stage])
    return found


def stage_training(budget: Mapping[str, Mapping[str, Any]], row: GridRow) -> Training:
    """Return the training options of a method (a row of the grid's table).

    The options come from three sources: the defaults of the row's stage, `budget`, and the row. If two
    sources have the same option, the later one counts. A learning rate from the defaults or from
    `budget` is multiplied by the method's `rate_factor`. A learning rate from the row is not.
    """
    from recmix.methods.training_checks import check_kl_can_change
    from recmix.training.request import FIRST_STAGE, SECOND_STAGE

    stage, defaults = ("second", SECOND_STAGE) if row.second else ("first", FIRST_STAGE)
    found: dict[str, Any] = {**defaults, **budget[stage]}
    found["learning_rate"] *= row.method.rate_factor
    training = Training(**{**found, **row.training})
    if training.changes_kl:
        check_kl_can_change(row.method, "kl_warmup" if training.kl_warmup else "free_bits")
    return training


def _columns(
    entry: Mapping[str, Any], budget: Mapping[str, Mapping[str, Any]], names: list[str]
) -> Iterator[GridColumn]:
    """Yield the table columns of one ``[[columns]]`` entry of a grid's file.

    A value may be a list. There is one column for each combination of values.
    """
    axes = ("data", *options_of(ModelOptions), *DATA_OPTIONS)
    _check_keys(entry, (*axes, "methods", *STAGES), "key in [[columns]]")
    methods = entry.get("methods", names)
    if not isinstance(methods, list):
        raise ConfigError(f"methods in [[columns]] must be a list of names, got {methods!r}")
    for name in methods:
        if name not in names:
            raise ConfigError(unknown("method in [[columns]]", str(name), names))
    own = _budget({key: entry[key] for key in STAGES if key in entry}, "[[columns]]")
    merged = {stage: {**budget[stage], **own[stage]} for stage in STAGES}
    for values in _product({key: entry[key] for key in axes if key in entry}):
        data, model = _data_and_model(values)
        yield GridColumn(data=data, model=model, methods=tuple(methods), budget=merged)


def _data_and_model(values: Mapping[str, Any]) -> tuple[dict[str, Any], ModelOptions]:
    from recmix.data import SETS
    from recmix.model.networks import AUTO_NETWORK

    if "data" not in values:
        raise ConfigError("an entry of [[columns]] has no data: name a set (`recmix data`) or a path")
    name = values["data"]
    if not isinstance(name, str):
        raise ConfigError(f"data must be the name of a set or a path, got {name!r}")
    model = {key: values[key] for key in options_of(ModelOptions) if key in values}
    if name in SETS and SETS[name].vocabulary:
        model.setdefault("network", AUTO_NETWORK)
    elif name in SETS:
        model.setdefault("likelihood", "bernoulli" if SETS[name].binary else "gaussian")
    else:
        path = Path(name).expanduser()
        if not (path.exists() or "/" in name or path.suffix):
            raise ConfigError(unknown("data set", name, SETS))
        name = str(path.resolve())  # the path is the identity of a user's own data
        model.setdefault(
            "network", AUTO_NETWORK
        )  # what suits the shape, which is known when it is loaded
    made = ModelOptions(**model)
    made = replace(made, decoder_network=made.decoder_network or made.network)
    return {"name": name, **_data_options(values)}, made


def _data_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options for reading the data that a ``[[columns]]`` entry has, {name: value}.

    Options that are false are left out.
    """
    found: dict[str, Any] = {}
    for name, (kind, _) in DATA_OPTIONS.items():
        if name not in values:
            continue
        if kind is int:
            found[name] = _numbers([values[name]], name, least=1)[0]
        elif not isinstance(values[name], bool):
            raise ConfigError(f"{name} must be true or false, got {values[name]!r}")
        elif values[name]:
            found[name] = True
    return found


def _product(values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every combination of the values, where a list means several values to choose from.

    >>> list(_product({"a": [1, 2], "b": 3}))
    [{'a': 1, 'b': 3}, {'a': 2, 'b': 3}]
    """
    for key, value in values.items():
        if value == []:
            raise ConfigError(f"{key} is an empty list: give at least one value")
    choices = [value if isinstance(value, list) else [value] for value in values.values()]
    for chosen in itertools.product(*choices):
        yield dict(zip(values, chosen, strict=True))


def _seeds(given: Any, what: str) -> list[int]:
    if isinstance(given, int) and not isinstance(given, bool):
        return list(range(_numbers([given], what, least=1)[0]))
    return _numbers(given, what, least=0)


def _numbers(given: Any, what: str, *, least: int) -> list[int]:
    if not isinstance(given, list) or not given or len(set(map(str, given))) < len(given):
        raise ConfigError(f"{what} must be a list of different whole numbers, got {given!r}")
    for number in given:
        if not isinstance(number, int) or isinstance(number, bool) or number < least:
            raise ConfigError(f"{what} must be whole numbers of {least} or more, got {number!r}")
    return list(given)


def _check_keys(given: Mapping[str, Any], valid: Iterable[str], what: str) -> None:
    """Raise a ConfigError if a key is not valid. `what` says in the message what the key names."""
    for key in given:
        if key not in valid:
            raise ConfigError(unknown(what, key, valid))


def _table(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the TOML table ``[name]`` of the content, or an empty one if there is none."""
    found = content.get(name, {})
    if not isinstance(found, Mapping):
        raise ConfigError(f"{name} must be a table, got {found!r}")
    return found


def _tables(content: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Return the TOML tables ``[[name]]`` of the content. There must be at least one."""
    found = content.get(name)
    if not isinstance(found, list) or not found or not all(isinstance(x, Mapping) for x in found):
        raise ConfigError(f"a grid needs at least one [[{name}]] table")
    return found
