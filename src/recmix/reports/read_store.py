"""Reads a store of run folders into records. A broken folder gets a message; the others are read.

A store is a folder of run folders (see `recmix.runs.folder`). A grid adds a ``job.json`` to each, which
says which row of a table the run belongs to. What cannot be read becomes a message for that folder.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recmix.errors import RunError
from recmix.inference import Inference
from recmix.reports.records import (
    CONTROL,
    Curve,
    Problem,
    Record,
    Row,
    StoreContent,
    TableColumn,
    number,
)
from recmix.reports.store_files import LINE, read_json, read_log, read_optional
from recmix.reports.variants import distinguish
from recmix.runs.spec import Spec

__all__ = ["FIGURES", "printable", "read_store"]

FIGURES = "figures"
"""Folder of a store that holds images for its report instead of a run."""
CURVE_POINTS = 80
"""A learning curve is thinned to about this many epochs."""
CURVES = ("val_iwae", "val_elbo", "elbo")
IMAGES = (".png", ".svg", ".gif", ".jpg", ".jpeg", ".webp")
PLACE = {"label": str, "data": str, "latent": int, "split": int, "restart": int}
PLACE |= dict.fromkeys(("network", "decoder_network", "likelihood"), str)
"""Fields that determine a run's row and column in the tables, with their types."""


def read_store(folder: str | Path) -> StoreContent:
    """Read every run folder of a store.

    Args:
        folder: of the store.
    """
    folder = Path(folder)
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise RunError(f"{folder} {what}: give the folder that holds the run folders")
    if (folder / "spec.json").exists():
        raise RunError(f"{folder} is the folder of one run: give the folder that holds it")
    records: list[Record] = []
    problems: list[Problem] = []
    figures: list[Path] = []
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise RunError(f"could not read {folder}: {error.strerror or error}") from error
    for entry in entries:
        name = printable(entry.name)
        if entry.name.startswith(".") or not (entry.is_symlink() or entry.is_dir()):
            continue
        if entry.is_symlink():
            problems.append(Problem(name, "is a link, and links are not followed: move the run here"))
        elif entry.name == FIGURES:
            found = (
                path for path in sorted(Path(entry.path).iterdir()) if path.suffix.lower() in IMAGES
            )
            figures = [path for path in found if path.is_file() and not path.is_symlink()]
        else:
            messages: list[str] = []
            try:
                records.append(_read_run(entry.path, name, messages))
            except RunError as error:
                messages.append(str(error))
            problems += [Problem(name, message) for message in messages]
    return StoreContent(folder=folder, records=distinguish(records), problems=problems, figures=figures)


def printable(name: str) -> str:
    """A file name as valid text; bytes that are not UTF-8 are escaped."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _read_run(path: str, name: str, messages: list[str]) -> Record:
    """The record of one folder. Messages about parts that are left out are added to `messages`."""
    job = read_optional(path, "job.json", dict, messages)
    content = read_json(path, "spec.json")
    if content is None and job is None:
        raise RunError("does not hold a run (no spec.json in it), or is only half written")
    spec = None if content is None else _spec(content)
    status = read_optional(path, "status.json", dict, messages) or {}
    history = read_optional(path, "history.json", list, messages) or []
    scores = read_optional(path, "scores.json", dict, messages) or {}
    gap = read_optional(path, "gap.json", dict, messages)
    failure = read_optional(path, "failed.json", object, messages)
    start, log = read_log(path, "log.jsonl")
    _, text = read_log(path, "log.txt")
    if job and job.get("digest") not in (None, name):
        messages.append(f"its job.json belongs to another folder ({str(job['digest'])[:80]!r})")
    curve, best = _curve(history, messages)
    validation = number(status.get("best_validation"))
    state = str(status.get("status", "new"))
    failed = failure is not None and state != "done"
    return Record(
        folder=name,
        **_place(spec, job or {}),
        status="failed" if failed else state,
        reason=_reason(failure) if failed else str(status.get("reason", "")),
        epochs=_whole(status.get("epoch")) or 0,
        best_epoch=_whole(status.get("best_epoch")),
        validation=best if validation is None else validation,
        scores={key: value for key, value in scores.items() if isinstance(value, dict)},
        gap=gap and {key: value for key, value in gap.items() if key not in ("images", "advice")},
        curve=curve,
        spec=content,
        job=job,
        failure=failure,
        environment=start,
        log=log,
        text=text,
    )


def _spec(content: Any) -> Spec:
    try:
        spec = Spec.from_json(content, "spec.json")
    except RunError:
        raise
    except Exception as error:  # any other fault of a damaged file
        raise RunError(f"spec.json is incomplete or damaged: {error}") from error
    if not isinstance(spec.data, dict) or not isinstance(spec.options, dict):
        raise RunError("spec.json is incomplete or damaged: data and options must be JSON objects")
    return spec


def _place(spec: Spec | None, job: Mapping[str, Any]) -> dict[str, Any]:
    """Row, column, split, restart and default inference. The values of a job replace those of the spec.

    But a job cannot give the label of the control to a run that is not the control.
    """
    binary = job.get("data") in ("binary-mnist", "static-mnist")
    found: dict[str, Any] = {"network": "conv", "decoder_network": "conv"}
    found["likelihood"] = "bernoulli" if binary else "gaussian"
    if spec is not None:
        found |= {
            "label": spec.label,
            "setting": spec.options.get(spec.setting) if spec.setting else None,
            "data": spec.data.get("name"),
            "latent": spec.model.latent,
            "split": spec.data.get("seed", 0),
            "restart": spec.training.seed,
            "network": spec.model.network,
            "decoder_network": spec.model.decoder_network or spec.model.network,
            "continued": spec.init is not None,
        }
    found |= {key: value for key, value in job.items() if value is not None or key == "setting"}
    if spec is not None:
        found["likelihood"] = spec.model.likelihood or found["likelihood"]
        found["label"] = spec.label if found["label"] == CONTROL.label else found["label"]
    for key, kind in PLACE.items():
        value = found.get(key)
        if not isinstance(value, kind) or isinstance(value, bool) or value == "":
            where = "spec.json" if spec is not None and key not in job else "job.json"
            raise RunError(
                f"{where} gives {value!r:.60} as {key}: expected {kind.__name__}. "
                "Remove the folder and run it again"
            )
    setting = found.get("setting")
    if not isinstance(setting, int | float | str | None) or isinstance(setting, bool):
        setting = json.dumps(setting)
    inference = Inference() if spec is None else spec.inference
    return {
        "row": Row(found["label"], setting, calibrated=inference.calibrated),
        "column": TableColumn(**{f.name: found[f.name] for f in fields(TableColumn)}),
        "split": found["split"],
        "restart": found["restart"],
        "inference": inference,
        "continued": bool(found.get("continued")),
    }


def _curve(history: list[Any], messages: list[str]) -> tuple[Curve, float | None]:
    """Thinned learning curves, and the best validation bound in them."""
    rows = [row for row in history if isinstance(row, dict)]
    try:
        epochs = np.array([row["epoch"] for row in rows], dtype=float)
        bound = np.array([row.get("val_iwae") for row in rows], dtype=float)
    except (KeyError, TypeError, ValueError) as error:
        messages.append(
            f"history.json has rows without an epoch or with text instead of numbers ({error!r:.80})"
        )
        return {}, None
    if not rows or not np.isfinite(epochs).all():
        return {}, None
    finite = np.isfinite(bound)
    at = int(np.where(finite, bound, -np.inf).argmax())
    best = float(bound[at]) if finite.any() else None
    kept = list(range(len(rows)))
    if len(rows) > CURVE_POINTS:
        even = np.linspace(0, len(rows) - 1, CURVE_POINTS).round().astype(int)
        kept = sorted({*even.tolist(), at})
    curve = {"epoch": _plain(epochs[kept])}
    for name in CURVES:
        if name in rows[at]:
            try:
                values = np.array([rows[i].get(name) for i in kept], dtype=float)
            except (TypeError, ValueError):
                messages.append(f"history.json has text instead of numbers in {name}: left out")
                continue
            curve[name] = _plain(values)
    return curve, best


def _plain(values: NDArray[np.float64]) -> list[float | None]:
    """Rounded numbers; those that are not finite become None."""
    return [value if math.isfinite(value) else None for value in values.round(3).tolist()]


def _reason(failure: Any) -> str:
    if isinstance(failure, dict):
        for key in ("reason", "message", "error"):
            if isinstance(failure.get(key), str):
                return str(failure[key])[:LINE]
    return json.dumps(failure)[:LINE]


def _whole(value: Any) -> int | None:
    found = number(value)
    return None if found is None else int(found)
