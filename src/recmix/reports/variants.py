"""Give separate table rows to runs that have the same name but different training options."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from recmix.inference import Inference
from recmix.reports.records import CONTROL, Record, Row, TableColumn
from recmix.runs.training_options import Training

__all__ = ["distinguish", "model_of"]

REPEATED = ("seed", "device", "engine", "checkpoint_every", "tensorboard")
"""Training options that may differ between repetitions of one training."""
DEFAULTS = Training().to_json()


def distinguish(records: Iterable[Record]) -> list[Record]:
    """Add options to the table rows of different runs that would otherwise share a row by mistake.

    If runs of one method and column have the same split and seed, but different options, their rows show
    these options, such as ``VAE+ [learning_rate=0.0001]``. For VAE+, the plain VAE that was trained
    further and with which other methods are compared, options of runs with different splits and seeds
    are compared, too. So a row ``VAE+`` without options has only runs that were trained equally.

    Runs of one method can refine their posteriors differently by default. Their rows are then ``VAE``
    and ``VAE +4 steps``, for example. If the first was also scored with 4 steps, both would have a row
    ``VAE +4 steps``. Then the rows also name the default: ``VAE [default=+4 steps]``.
    """
    records = list(records)
    groups: dict[tuple[Row, TableColumn], list[Record]] = defaultdict(list)
    for record in records:
        if record.spec is not None and record.status == "done":
            groups[_trained(record)].append(record)
    names = {place: _names_to_show(found) for place, found in groups.items()}
    named = [_with_options(record, names.get(_trained(record), [])) for record in records]
    users: dict[tuple[Row, TableColumn], set[str]] = defaultdict(set)
    for record in named:
        for row in record.rows():
            users[row, record.column].add(record.row.inference)
    shared = {place for place, defaults in users.items() if len(defaults) > 1}
    return [
        _with_default(record) if any((row, record.column) in shared for row in record.rows()) else record
        for record in named
    ]


def _with_default(record: Record) -> Record:
    """Add the default refinement of a run to the options of its row."""
    default = record.row.inference and f"default={record.row.inference}"
    options = ", ".join(filter(None, [record.row.options, default]))
    return replace(record, row=replace(record.row, options=options))


def model_of(record: Record) -> tuple[Row, TableColumn]:
    """Return the table row and the table column of a run. The row does not say whether it is calibrated.

    So runs that differ only in calibration have the same result.
    """
    return replace(record.row, calibrated=False, noise=False), record.column


def _trained(record: Record) -> tuple[Row, TableColumn]:
    """Return the table row of a run, without refinement and calibration, and its table column."""
    row, column = model_of(record)
    return replace(row, inference=""), column


def _names_to_show(records: Sequence[Record]) -> list[str]:
    """Return the names of the options that the row of a run must show.

    `records` are runs that would share a row. With these options, different runs get different rows.
    """
    same_seed: dict[tuple[int, int], list[Record]] = defaultdict(list)
    for record in records:
        same_seed[record.split, record.restart].append(record)
    several = [group for group in same_seed.values() if len(group) > 1]
    names = {name for group in several for name in _unequal(map(_all_options, group))}
    if records[0].row.label == CONTROL.label:
        names |= _unequal(map(_training_options, records))
    return sorted(names | _unequal(_refinement(record.inference) for record in records))


def _unequal(options: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the names of the options whose values differ between the mappings."""
    values: dict[str, set[str]] = defaultdict(set)
    for found in options:
        for name, value in found.items():
            values[name].add(repr(value))
    return {name for name, found in values.items() if len(found) > 1}


def _with_options(record: Record, names: Sequence[str]) -> Record:
    if not names or record.spec is None:
        return record
    found = _all_options(record)
    shown = {name: found[name] for name in names if name in found}
    text = ", ".join(f"{k}={'default' if v is None else v}" for k, v in shown.items())
    return replace(record, row=replace(record.row, options=text))


def _training_options(record: Record) -> dict[str, Any]:
    """Return the method of a run and all options that define its training."""
    spec = record.spec or {}
    training = {**DEFAULTS, **(spec.get("training") or {})}
    kept = {name: value for name, value in training.items() if name not in REPEATED}
    return {"method": spec.get("method"), **(spec.get("options") or {}), **kept}


def _all_options(record: Record) -> dict[str, Any]:
    """Return the options of a run's training and inference, and the name of the run it started from.

    Options that have no effect are left out.
    """
    used, init = record.inference, (record.spec or {}).get("init") or {}
    start = [Path(str(init.get("run") or "")).name, str(init.get("weights") or "")[:8]]
    found = {"init": "/".join(filter(None, start)) or "none", **_training_options(record)}
    found |= _refinement(used) | {"scale": used.scale, "slope": used.slope, "noise": used.noise}
    return found | ({"reference": used.reference} if used.calibrated else {})


def _refinement(used: Inference) -> dict[str, Any]:
    """Return the values of ``reuse`` and ``checks``; nothing if the posterior is not refined.

    These are the options of a refinement that `inference_words` does not always name.
    """
    return {"reuse": used.reuse, "checks": used.checks} if used.refine else {}
