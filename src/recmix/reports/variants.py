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
    """Return the records, with options added to row names where runs were trained differently.

    Two runs of one split and restart with the same label and setting, but with other options, get rows
    such as ``VAE+ [learning_rate=0.0001]``. Otherwise one of them would replace the other. Runs with
    different default inferences get different rows too. The row ``VAE+`` without options, the control,
    only holds runs that were trained with the same options and have no default refinement.

    Args:
        records: of one store.
    """
    records = list(records)
    groups: dict[tuple[Row, TableColumn], list[Record]] = defaultdict(list)
    for record in records:
        if record.spec is not None and record.status == "done":
            groups[model_of(record)].append(record)
    names = {place: _names_to_show(found) for place, found in groups.items()}
    return [_with_options(record, names.get(model_of(record), [])) for record in records]


def model_of(record: Record) -> tuple[Row, TableColumn]:
    """The row and column of a run without its inference: all uses of one model."""
    return replace(record.row, calibrated=False), record.column


def _names_to_show(records: Sequence[Record]) -> list[str]:
    """Names of the options that the rows of these runs, which have one label and setting, must show."""
    same_seed: dict[tuple[int, int], list[Record]] = defaultdict(list)
    for record in records:
        same_seed[record.split, record.restart].append(record)
    several = [group for group in same_seed.values() if len(group) > 1]
    names = {name for group in several for name in _unequal(map(_all_options, group))}
    refinements = [_refinement(record.inference) for record in records]
    if records[0].row.label == CONTROL.label:
        names |= _unequal(map(_training_options, records))
        refinements.append(_refinement(Inference()))
    return sorted(names | _unequal(refinements))


def _unequal(options: Iterable[Mapping[str, Any]]) -> set[str]:
    """Names of the options that are not the same in all that have them."""
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
    """The options that define a training."""
    spec = record.spec or {}
    training = {**DEFAULTS, **(spec.get("training") or {})}
    kept = {name: value for name, value in training.items() if name not in REPEATED}
    return {"method": spec.get("method"), **(spec.get("options") or {}), **kept}


def _all_options(record: Record) -> dict[str, Any]:
    """The options of a training and of the default inference that have an effect, and the start."""
    used, init = record.inference, (record.spec or {}).get("init") or {}
    start = [Path(str(init.get("run") or "")).name, str(init.get("weights") or "")[:8]]
    found = {"init": "/".join(filter(None, start)) or "none", **_training_options(record)}
    found |= _refinement(used) | {"scale": used.scale, "slope": used.slope}
    return found | ({"reference": used.reference} if used.calibrated else {})


def _refinement(used: Inference) -> dict[str, Any]:
    """The options of refinement that have an effect."""
    found: dict[str, Any] = {"refine": used.refine, "restarts": used.restarts}
    return found | ({"how": used.how, "reuse": used.reuse} if used.refine else {})
