"""The runs of a store in one compact JSON file, from which every figure can be made again.

A store holds weights and logs; this file holds what was asked and what was measured, a line for each
run. Reading it gives the same figures as the store.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from recmix._version import __version__
from recmix.errors import RunError
from recmix.reports.records import Column, Record, Row
from recmix.runs.files import read_json, write_bytes
from recmix.runs.options import Training
from recmix.runs.spec import check_format

__all__ = ["FORMAT", "one_per_line", "read_runs", "write_runs"]

FORMAT = 1
USUAL = asdict(Training())
"""Training options with these values are left out."""
PLAIN = ("folder", "split", "restart", "continued", "status", "epochs", "best_epoch", "validation")
"""What stands in the file as it does in a record."""
ENVIRONMENT = ("device", "torch", "host")


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
    """A JSON object whose last value is a list with one item a line: short, and its changes can be read.

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
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(f"{path}, run {place + 1}: incomplete or damaged ({error!r})") from error
    return found


def _line(record: Record) -> dict[str, Any]:
    spec = record.spec or {}
    training = dict(spec.get("training") or {})
    started = record.environment[-1] if record.environment else {}
    found = {
        "label": record.row.label,
        "setting": record.row.setting,
        **asdict(record.column),
        **{name: getattr(record, name) for name in PLAIN},
        "after": (record.job or {}).get("dependency"),
        "method": spec.get("method"),
        "options": spec.get("options"),
        "training": {k: v for k, v in training.items() if k not in USUAL or v != USUAL[k]},
        "scores": record.scores,
        "gap": record.gap,
        "environment": {key: started[key] for key in ENVIRONMENT if key in started},
    }
    return {key: value for key, value in found.items() if value not in (None, {}, [])}


def _record(line: Mapping[str, Any]) -> Record:
    column = Column(**{key: line[key] for key in Column.__dataclass_fields__ if key in line})
    plain = {key: line[key] for key in PLAIN if key in line}
    return Record(
        row=Row(line["label"], line.get("setting")),
        column=column,
        scores={key: dict(value) for key, value in line.get("scores", {}).items()},
        gap=line.get("gap"),
        spec={
            "method": line.get("method"),
            "options": dict(line.get("options", {})),
            "training": dict(line.get("training", {})),
        },
        job={"dependency": line.get("after")},
        environment=[dict(line.get("environment", {}))],
        **plain,
    )


def _finite(content: Any) -> Any:
    """The same without numbers that JSON does not have."""
    if isinstance(content, float) and not math.isfinite(content):
        return None
    if isinstance(content, Mapping):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return content
