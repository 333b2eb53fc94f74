"""Read all run folders of a store, one `Record` for each run.

A store is a folder of run folders (see `recmix.runs.folder`). The folder of a run that a grid made
also has a ``job.json``, which names the table row of the run. If a folder cannot be read, there is
a message about it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recmix.errors import ConfigError, RunError
from recmix.inference import Inference
from recmix.model.options import ModelOptions, options_of
from recmix.reports.records import (
    CONTROL,
    Curve,
    Record,
    Row,
    StoreContent,
    TableColumn,
    more_options,
    number,
)
from recmix.reports.store_files import LINE, read_json, read_log, read_optional
from recmix.reports.variants import distinguish
from recmix.runs.data_options import DATA_OPTIONS
from recmix.runs.spec import Spec

__all__ = ["FIGURES", "printable", "read_store"]

FIGURES = "figures"
"""Folder of a store that holds images for its report instead of a run."""
OWN_DATA = "own data"
"""Name of the data in the tables, if a model was trained elsewhere and has no score yet."""
CURVE_POINTS = 80
"""A learning curve is thinned to about this many epochs."""
CURVES = ("val_iwae", "val_elbo", "elbo")
IMAGES = (".png", ".svg", ".gif", ".jpg", ".jpeg", ".webp")
PLACE = {"label": str, "data": str, "latent": int, "split": int, "restart": int}
PLACE |= dict.fromkeys(("network", "decoder_network", "likelihood"), str)
"""Fields that determine a run's row and column in the tables, with their types."""
JOB_COLUMN = ("data", *DATA_OPTIONS, *options_of(ModelOptions))
"""Fields of a ``job.json`` that name a column of its grid."""


def read_store(folder: str | Path) -> StoreContent:
    """Read all runs in a folder, and list the images in its subfolder ``figures``.

    If a run folder cannot be read, the result has a message about it, and no error is raised.

    Raises:
        RunError: if `folder` does not exist, cannot be read, or is itself the folder of one run.
    """
    folder = Path(folder)
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise RunError(f"{folder} {what}: give the folder that holds the run folders")
    if (folder / "spec.json").exists():
        raise RunError(f"{folder} is the folder of one run: give the folder that holds it")
    records: list[Record] = []
    problems: list[str] = []
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
            problems.append(f"{name}: is a link, and links are not followed: move the run here")
        elif entry.name == FIGURES:
            images = [p for p in sorted(Path(entry.path).iterdir()) if p.suffix.lower() in IMAGES]
            figures = [path for path in images if path.is_file() and not path.is_symlink()]
        else:
            messages: list[str] = []
            try:
                records.append(_read_run(entry.path, name, messages))
            except RunError as error:
                messages.append(str(error))
            problems += [f"{name}: {message}" for message in messages]
    records = distinguish(_with_known_columns(records))
    return StoreContent(folder=folder, records=records, problems=problems, figures=figures)


def _with_known_columns(records: Sequence[Record]) -> list[Record]:
    """Complete the table columns of runs that have not begun.

    Such a run does not yet know some options, such as the likelihood, because they are chosen when the
    data are loaded. They are copied from a run in the same column of the grid that has begun.
    """

    def named(job: Mapping[str, Any] | None) -> str:
        return json.dumps([(job or {}).get(name) for name in JOB_COLUMN])

    known = {named(record.job): record.column for record in records if record.spec is not None}
    return [
        replace(record, column=known.get(named(record.job), record.column))
        if record.spec is None
        else record
        for record in records
    ]


def printable(name: str) -> str:
    """Return a file name as valid text, in which bytes that are not UTF-8 are escaped."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _read_run(path: str, name: str, messages: list[str]) -> Record:
    """Read one run folder.

    Args:
        path: path of the folder.
        name: name of the folder.
        messages: list to which a message is added for each file that cannot be used.
    """
    job = read_optional(path, "job.json", dict, messages)
    content = read_json(path, "spec.json")
    if content is None and job is None:
        if inside := sorted(entry.name for entry in os.scandir(path) if _holds_run(entry)):
            names = printable(", ".join(inside[:3])) + ", ..." * (len(inside) > 3)
            raise RunError(f"is a folder of runs ({names}), which are left out: give {path} itself")
        raise RunError("does not hold a run (no spec.json in it), or is only half written")
    spec = None if content is None else Spec.from_json(content, "spec.json")
    status = read_optional(path, "status.json", dict, messages) or {}
    history = read_optional(path, "history.json", list, messages) or []
    scores = read_optional(path, "scores.json", dict, messages) or {}
    gap = read_optional(path, "gap.json", dict, messages)
    failure = read_optional(path, "failed.json", dict, messages)
    start, log = read_log(path, "log.jsonl")
    _, text = read_log(path, "log.txt")
    if job and job.get("digest") not in (None, name):
        messages.append(f"its job.json belongs to another folder ({str(job['digest'])[:80]!r})")
    curve, best = _curve(history, messages)
    validation, best_epoch = number(status.get("best_validation")), number(status.get("best_epoch"))
    state = str(status.get("status", "new"))
    failed = failure is not None and state != "done"
    return Record(
        folder=name,
        **_place(spec, job or {}, scores),
        status="failed" if failed else state,
        reason=str((failure if failed else status).get("reason", ""))[:LINE],
        epochs=int(number(status.get("epoch")) or 0),
        best_epoch=None if best_epoch is None else int(best_epoch),
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


def _holds_run(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False) and os.path.isfile(os.path.join(entry, "spec.json"))


def _place(spec: Spec | None, job: Mapping[str, Any], scores: Mapping[str, Any]) -> dict[str, Any]:
    """Return where a run belongs in the tables: row, column, split, restart and default inference.

    Values of ``job.json`` replace those of ``spec.json``, with two exceptions. The networks, the
    likelihood and the further options of a model always come from ``spec.json``. If ``job.json`` has
    the label VAE+, which only the control (the plain VAE that was trained further) may have, the label
    also comes from ``spec.json``.

    Args:
        spec: content of ``spec.json``; None if the run has not begun.
        job: content of ``job.json``, or empty.
        scores: content of ``scores.json``, or empty.
    """
    binary = job.get("data") in ("binary-mnist", "static-mnist")
    found: dict[str, Any] = {"network": "conv", "decoder_network": "conv"}
    found["likelihood"] = "bernoulli" if binary else "gaussian"
    if spec is not None:
        found |= {
            "label": spec.label,
            "setting": spec.options.get(spec.setting) if spec.setting else None,
            "data": spec.data.get("name") if spec.data else _scored_data(scores),
            "latent": spec.model.latent,
            "split": spec.data.get("seed", 0),
            "restart": spec.training.seed,
            "continued": spec.init is not None,
        }
    found |= {key: value for key, value in job.items() if value is not None or key == "setting"}
    if spec is None:
        found["more"] = more_options(_job_model(job), job)
    else:
        found["network"] = spec.model.network
        found["decoder_network"] = spec.model.decoder_network or spec.model.network
        found["likelihood"] = spec.model.likelihood or found["likelihood"]
        options, texts = spec.data.get("options") or {}, "vocabulary" in spec.data
        found["more"] = more_options(spec.model, options, texts=texts)
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
        "row": Row.of(found["label"], setting, inference),
        "column": TableColumn(**{f.name: found[f.name] for f in fields(TableColumn)}),
        "split": found["split"],
        "restart": found["restart"],
        "inference": inference,
        "continued": bool(found.get("continued")),
    }


def _scored_data(scores: Mapping[str, Any]) -> str:
    """Return the name of the data on which a model was scored, or `OWN_DATA` without a score.

    It is for models that were trained elsewhere, whose ``spec.json`` does not name the data.
    """
    for score in scores.values():
        data = score.get("data") if isinstance(score, dict) else None
        name = data.get("name") if isinstance(data, dict) else None
        if name and isinstance(name, str):
            return name
    return OWN_DATA


def _job_model(job: Mapping[str, Any]) -> ModelOptions:
    """Return the model options in the content of a ``job.json``."""
    try:
        return ModelOptions(**{k: job[k] for k in options_of(ModelOptions) if job.get(k) is not None})
    except ConfigError as error:
        raise RunError(f"job.json: {error}. Remove the folder and run it again") from error


def _curve(history: list[Any], messages: list[str]) -> tuple[Curve, float | None]:
    """Return the learning curves of a run at some of its epochs, and its best validation bound.

    Args:
        history: content of ``history.json``, with one mapping for each epoch.
        messages: list to which a message is added if values are not numbers.
    """
    rows = [row for row in history if isinstance(row, dict)]
    series: dict[str, NDArray[np.float64]] = {}
    for name in ("epoch", *CURVES):
        if any(name in row for row in rows):
            try:
                values = (row.get(name) for row in rows)
                series[name] = np.array([np.nan if v is None else float(v) for v in values])
            except (TypeError, ValueError):
                messages.append(f"history.json has text instead of numbers in {name}: left out")
    if rows and not np.isfinite(series.get("epoch", np.nan)).all():
        messages.append("history.json has rows without an epoch: left out")
        return {}, None
    bound = series.get("val_iwae", np.full(len(rows), np.nan))
    bound = np.where(np.isfinite(bound), bound, -np.inf)
    kept = list(range(len(rows)))
    if len(rows) > CURVE_POINTS:
        even = np.linspace(0, len(rows) - 1, CURVE_POINTS).round().astype(int)
        kept = sorted({*even.tolist(), int(bound.argmax())})
    curve = {name: _plain(values[kept]) for name, values in series.items()}
    return curve, number(bound.max(initial=-np.inf))


def _plain(values: NDArray[np.float64]) -> list[float | None]:
    """Round numbers to three decimals; NaN and infinity become None."""
    return [value if math.isfinite(value) else None for value in values.round(3).tolist()]
