"""Write the options and scores of all runs of a store into one small JSON file, and read it again.

A store is a folder of run folders, which hold weights and logs. The JSON file has one run per line.
Reports make the same tables from this file as from the store. Default options are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from recmix._version import __version__
from recmix.errors import ConfigError, RunError
from recmix.inference import Inference
from recmix.reports.records import Record, Row, TableColumn
from recmix.reports.variants import DEFAULTS, distinguish
from recmix.runs.files import finite, read_json, write_bytes
from recmix.runs.spec import FORMAT, check_format

__all__ = ["one_per_line", "read_runs", "write_runs"]

COLUMN = tuple(f.name for f in fields(TableColumn))
SAME = ("folder", "split", "restart", "continued", "status", "epochs", "best_epoch", "validation")
"""Fields of a record that the file has under the same name."""
SPEC = ("method", "options", "training", "init")
"""Fields of a spec that the file has under the same name."""
ENVIRONMENT = ("device", "torch", "host")
INFERENCE = Inference(checks=0).to_json()


def write_runs(records: Iterable[Record], path: Path) -> None:
    """Write the options and scores of runs into a JSON file, one run per line.

    The order of the lines is that of the result tables: by column, then by row.
    """
    ordered = sorted(records, key=lambda record: record.order)
    head = {"format": FORMAT, "recmix": __version__}
    write_bytes(path, one_per_line(head, "runs", map(_line, ordered)).encode())


def one_per_line(head: Mapping[str, Any], name: str, items: Iterable[Mapping[str, Any]]) -> str:
    """Return the text of a JSON object that has the keys of `head` and the list `items` under `name`.

    Each item is on a line of its own, so that a diff shows which items changed. NaN and infinity
    become null.

    >>> print(one_per_line({"format": 1}, "runs", [{"a": float("nan")}]), end="")
    {"format": 1,
     "runs": [
      {"a": null}]}
    """
    start, *rest = (json.dumps(finite(item), ensure_ascii=False) for item in (head, *items))
    lines = ",".join(f"\n  {line}" for line in rest)
    return f'{start[:-1]},\n "{name}": [{lines}]}}\n'


def read_runs(path: Path) -> list[Record]:
    """Read the options and scores of runs from a JSON file that `write_runs` wrote."""
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
        **{name: value for name, value in asdict(record.column).items() if value != ""},
        **{name: getattr(record, name) for name in SAME},
        **{name: spec.get(name) for name in SPEC},
        "training": _changed(spec.get("training"), DEFAULTS),
        "inference": _changed(record.inference.to_json(), INFERENCE),
        "scores": {
            key: {**score, "inference": _changed(score.get("inference"), INFERENCE)}
            for key, score in record.scores.items()
        },
        "gap": record.gap,
        "environment": {key: started[key] for key in ENVIRONMENT if key in started},
    }
    return {key: value for key, value in found.items() if value not in (None, {}, [])}


def _record(line: Mapping[str, Any]) -> Record:
    inference = Inference.from_json(line.get("inference", {}))
    return Record(
        row=Row.of(line["label"], line.get("setting"), inference),
        column=TableColumn(**{key: line[key] for key in COLUMN if key in line}),
        inference=inference,
        scores={
            key: {**score, "inference": {**INFERENCE, **score.get("inference", {})}}
            for key, score in line.get("scores", {}).items()
        },
        gap=line.get("gap"),
        spec={name: line.get(name) for name in SPEC},
        environment=[dict(line.get("environment", {}))],
        **{key: line[key] for key in SAME if key in line},
    )


def _changed(options: Any, defaults: Mapping[str, Any]) -> dict[str, Any]:
    given = options if isinstance(options, dict) else {}
    return {k: v for k, v in given.items() if k not in defaults or v != defaults[k]}
