"""The parts of a grid's file, checked: its protocol, budget, columns and methods."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from recmix.errors import ConfigError, unknown

__all__ = [
    "AXES",
    "STAGES",
    "Column",
    "Variant",
    "only",
    "read_budget",
    "read_columns",
    "read_protocol",
    "read_variants",
    "table",
    "tables",
    "variant",
]

PROTOCOL = ("splits", "restarts", "samples", "choose_by")
STAGES = ("first", "second")
AXES = ("data", "latent", "likelihood", "network", "decoder_network", "size", "crop")
COLUMN = (*AXES, "methods", *STAGES)
OWN = ("name", "continued", "label", "after", "refined", "calibrated")


@dataclass(frozen=True)
class Column:
    """One column of the table: its definition, its methods and its budget."""

    definition: dict[str, Any]
    methods: tuple[str, ...]
    budget: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Variant:
    """One row of the table: a method with its options.

    Attributes:
        name: of the method.
        second: whether it starts from the VAE, under the second stage's budget.
        options: the method's own, complete.
        training: those of training that the file gives to this method.
        label: of the row.
        option: which of the options the table varies.
        factor: the method's share of the usual learning rate.
        after: the row whose runs it starts from; the VAE's if empty.
        refined: numbers of Gauss-Newton steps by which its posterior is refined, and scored again.
        calibrated: whether each of these is scored again with its width fitted to validation images.
    """

    name: str
    second: bool
    options: dict[str, Any]
    training: dict[str, Any]
    label: str
    option: str | None
    factor: float
    after: str = ""
    refined: tuple[int, ...] = ()
    calibrated: bool = False

    def same(self, other: Variant) -> bool:
        """Whether it is the same run, under whatever label."""

        def of(row: Variant) -> tuple[Any, ...]:
            return row.name, row.second, row.options, row.training, row.after

        return of(self) == of(other)


def variant(
    name: str, given: Mapping[str, Any], *, continued: bool, label: str = "", axes: Iterable[str] = ()
) -> Variant:
    """A row of the table.

    Args:
        name: of the method.
        given: options of the method and of training.
        continued: start from the VAE even if the method does not need it.
        label: of the row; by default the method's name.
        axes: options that tell rows of one method apart and so go into the label.
    """
    from recmix.methods.registry import find_method
    from recmix.training.options import read_options

    cls = find_method(name)
    options, training = read_options(cls, given, OWN)
    second = continued or cls.second_stage
    label = label or name.upper() + ("+" if second and not cls.second_stage else "")
    label = " ".join([label, *(f"{k}={given[k]}" for k in axes if k != cls.setting)])
    return Variant(name, second, options, training, label, cls.setting, cls.rate_factor)


def read_protocol(given: Mapping[str, Any]) -> dict[str, Any]:
    """Seeds of the splits and restarts, and what is measured."""
    only(given, PROTOCOL, "key in [protocol]")
    samples = _numbers(given.get("samples", [100]), "samples", least=1)
    chosen = given.get("choose_by", samples[0])
    return {
        "splits": _seeds(given.get("splits", 10), "splits"),
        "restarts": _seeds(given.get("restarts", 3), "restarts"),
        "samples": samples,
        "choose_by": _numbers([chosen], "choose_by", least=1)[0],
    }


def read_budget(given: Mapping[str, Any], where: str) -> dict[str, dict[str, Any]]:
    """Training options by stage, checked."""
    from recmix.runs.options import Training
    from recmix.training.options import training_options

    only(given, STAGES, f"key in {where}")
    options = training_options()
    valid = [name for name in options if name not in ("seed", "device")]
    found: dict[str, dict[str, Any]] = {}
    for stage in STAGES:
        asked = table(given, stage)
        only(asked, valid, f"training option in {stage} of {where}")
        found[stage] = {name: options[name].read(value) for name, value in asked.items()}
        Training(**found[stage])
    return found


def read_columns(
    entry: Mapping[str, Any], budget: Mapping[str, Mapping[str, Any]], names: list[str]
) -> Iterator[Column]:
    """The columns of one entry: a list is an axis."""
    only(entry, COLUMN, "key in [[columns]]")
    wanted = entry.get("methods", names)
    if not isinstance(wanted, list):
        raise ConfigError(f"methods in [[columns]] must be a list of names, got {wanted!r}")
    for name in wanted:
        if name not in names:
            raise ConfigError(unknown("method in [[columns]]", str(name), names))
    over = read_budget({k: entry[k] for k in STAGES if k in entry}, "[[columns]]")
    merged = {stage: {**budget[stage], **over[stage]} for stage in STAGES}
    for values in _product({k: entry[k] for k in AXES if k in entry}):
        yield Column(_column(values), tuple(wanted), merged)


def _column(values: Mapping[str, Any]) -> dict[str, Any]:
    from recmix.data import SETS

    if "data" not in values:
        raise ConfigError("an entry of [[columns]] has no data: name a set (`recmix data`) or a path")
    name = values["data"]
    if not isinstance(name, str):
        raise ConfigError(f"data must be the name of a set or a path, got {name!r}")
    likelihood = values.get("likelihood")
    if name in SETS:
        likelihood = likelihood or ("bernoulli" if SETS[name].binary else "gaussian")
    else:
        path = Path(name).expanduser()
        if not (path.exists() or "/" in name or path.suffix):
            raise ConfigError(unknown("data set", name, SETS))
        name = str(path.resolve())  # nothing else tells two sets without a name apart
    network = values.get("network", "conv")
    sizes = {k: values.get(k) for k in ("size", "crop")}
    for key, size in sizes.items():
        if size is not None:
            _numbers([size], key, least=1)
    return {
        "data": {"name": name, **sizes},
        "latent": _numbers([values.get("latent", 20)], "latent", least=1)[0],
        "likelihood": likelihood,
        "network": network,
        "decoder_network": values.get("decoder_network", network),
    }


def read_variants(entry: Mapping[str, Any]) -> Iterator[Variant]:
    """The rows of one entry: a list is an axis."""
    name, continued, label = entry.get("name"), entry.get("continued", False), entry.get("label", "")
    if not isinstance(name, str):
        raise ConfigError("an entry of [[methods]] has no name: `recmix methods` lists them")
    calibrated = entry.get("calibrated", False)
    for key, choice in (("continued", continued), ("calibrated", calibrated)):
        if not isinstance(choice, bool):
            raise ConfigError(f"{key} must be true or false, got {choice!r}")
    after = entry.get("after", "")
    for key, text in (("label", label), ("after", after)):
        if not isinstance(text, str):
            raise ConfigError(f"{key} must be text, got {text!r}")
    refined = _numbers(entry["refined"], "refined", least=1) if "refined" in entry else []
    given = {k: v for k, v in entry.items() if k not in OWN}
    for key, why in (("seed", "restarts in [protocol]"), ("device", "--device")):
        if key in given:
            raise ConfigError(f"{key} is no option of a method in a grid: {why} chooses it")
    axes = [k for k, v in given.items() if isinstance(v, list)]
    for values in _product(given):
        row = variant(name, values, continued=continued or bool(after), label=label, axes=axes)
        row = replace(row, after=after, refined=tuple(refined), calibrated=calibrated)
        if row.name == "vae" and not row.second and row.training:
            raise ConfigError(
                f"the VAE that the others start from takes no options of its own "
                f"({', '.join(row.training)}): put them into first of [budget]"
            )
        yield row


def _product(values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every combination of the values, where a list is a choice.

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


def only(given: Mapping[str, Any], valid: Iterable[str], what: str) -> None:
    """Refuse keys that mean nothing, naming the nearest that do."""
    for key in given:
        if key not in valid:
            raise ConfigError(unknown(what, key, valid))


def table(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The table of this name, or an empty one."""
    found = content.get(name, {})
    if not isinstance(found, Mapping):
        raise ConfigError(f"{name} must be a table, got {found!r}")
    return found


def tables(content: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """The tables of this name, at least one."""
    found = content.get(name)
    if not isinstance(found, list) or not found or not all(isinstance(x, Mapping) for x in found):
        raise ConfigError(f"a grid needs at least one [[{name}]] table")
    return found
