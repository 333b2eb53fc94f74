"""All runs of a store in one compact JSON file. It gives the same tables as the store.

A store holds weights and logs. This file has one line for each run, with its options and its scores.
Options of training and inference that have their default value are left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from recmix._version import __version__
from recmix.errors import ConfigError, RunError
from recmix.inference import Inference
from recmix.reports.records import Record, Row, TableColumn
from recmix.reports.variants import DEFAULTS, distinguish
from recmix.runs.files import read_json, write_bytes
from recmix.runs.spec import FORMAT, check_format

__all__ = ["one_per_line", "read_runs", "write_runs"]

COLUMN = tuple(f.name for f in fields(TableColumn))
SAME = ("folder", "split", "restart", "continued", "status", "epochs", "best_epoch", "validation")
"""Fields of a record that the file has under the same name."""
SPEC = ("method", "options", "training", "init")
"""Fields of a spec that the file has under the same name."""
ENVIRONMENT = ("device", "torch", "host")
INFERENCE = Inference().to_json()


def write_runs(records: Iterable[Record], path: Path) -> None:
    """Write the runs of a store, in the order of the tables.

    Args:
        records: of the store.
        path: of the file.
    """
    ordered = sorted(records, key=lambda r: (r.column.order, r.row.order, r.split, r.restart, r.folder))
    head = {"format": FORMAT, "recmix": __version__}
    write_bytes(path, one_per_line(head, "runs", map(_line, ordered)).encode())


def one_per_line(head: Mapping[str, Any], name: str, items: Iterable[Mapping[str, Any]]) -> str:
    """A JSON object whose last value is a list with one item per line, for short files and diffs.

    >>> print(one_per_line({"format": 1}, "runs", [{"a": math.nan}]), end="")
    {"format": 1,
     "runs": [
      {"a": null}]}
    """
    start = json.dumps(_finite(head), ensure_ascii=False)[:-1]
    lines = ",".join(f"\n  {json.dumps(_finite(item), ensure_ascii=False)}" for item in items)
    return f'{start},\n "{name}": [{lines}]}}\n'


def read_runs(path: Path) -> list[Record]:
    """The records of a file that `write_runs` wrote.

    Args:
        path: of the file.
    """
    content = read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("runs"), list):
        raise RunError(f"{path} does not hold the runs of a store: `recmix summary STORE` writes them")
    check_format(content.get("format", 0), str(path))
    found = []
    for place, line in enumerate(content["runs"]):
        try:
            found.append(_record(line))
        except (KeyError, TypeError, ValueError, AttributeError, ConfigError) as error:
            raise RunError(f"{path}, run {place + 1}: incomplete or damaged ({error!r})") from error
    return distinguish(found)


def _line(record: Record) -> dict[str, Any]:
    spec = record.spec or {}
    started = record.environment[-1] if record.environment else {}
    found = {
        "label": record.row.label,
        "setting": record.row.setting,
        **asdict(record.column),
        **{name: getattr(record, name) for name in SAME},
        **{name: spec.get(name) for name in SPEC},
        "training": _changed(spec.get("training") or {}, DEFAULTS),
        "inference": record.inference.changed(),
        "scores": {key: _short(score) for key, score in record.scores.items()},
        "gap": record.gap,
        "environment": {key: started[key] for key in ENVIRONMENT if key in started},
    }
    return {key: value for key, value in found.items() if value not in (None, {}, [])}


def _record(line: Mapping[str, Any]) -> Record:
    inference = Inference(**line.get("inference", {}))
    return Record(
        row=Row(line["label"], line.get("setting"), calibrated=inference.calibrated),
        column=TableColumn(**{key: line[key] for key in COLUMN if key in line}),
        inference=inference,
        scores={key: _long(score) for key, score in line.get("scores", {}).items()},
        gap=line.get("gap"),
        spec={name: line.get(name) for name in SPEC},
        environment=[dict(line.get("environment", {}))],
        **{key: line[key] for key in SAME if key in line},
    )


def _changed(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in options.items() if k not in defaults or v != defaults[k]}


def _short(score: Mapping[str, Any]) -> dict[str, Any]:
    """A score without the default values of its inference."""
    used = score.get("inference")
    return {**score, "inference": _changed(used, INFERENCE)} if isinstance(used, dict) else dict(score)


def _long(score: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `_short`."""
    used = score.get("inference")
    return {**score, "inference": {**INFERENCE, **used}} if isinstance(used, dict) else dict(score)


def _finite(content: Any) -> Any:
    """The same without the numbers that JSON does not have."""
    if isinstance(content, float) and not math.isfinite(content):
        return None
    if isinstance(content, Mapping):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return content
