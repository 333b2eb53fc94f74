"""The results of a store: one row for each data set, dimension, method and inference.

The kind of a row, from its scores, says what is computed for each example:

================  =============================================================================
``encoder``       one pass through the encoders
``feed-forward``  several passes through encoders and decoder, without gradients
``refined``       optimisation steps for each example
================  =============================================================================

In each split the run with the best validation bound is selected, as in the tables. Means are over
splits. Gains are differences from VAE+ of the same data set and dimension, split by split.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from recmix.errors import ConfigError
from recmix.inference import Inference
from recmix.reports.paired import signed_rank_p
from recmix.reports.records import Record, number, parsed
from recmix.reports.runs import one_per_line
from recmix.reports.statistics import CONTROL, TIMED_BATCH, Cell, Results, control_of, summarise
from recmix.runs.spec import FORMAT

__all__ = ["Point", "other_device", "panels", "summary", "to_json"]

SIGNIFICANT = 0.05
REFINEMENT = ("how", "refine", "reuse", "restarts")
Score = tuple[Record, str]
"""A run and the name of one of its scores."""


def summary(records: Iterable[Record], *, samples: int = 100) -> list[dict[str, Any]]:
    """The rows, by data set, dimension and method.

    Args:
        records: of a store.
        samples: K of IWAE-K.
    """
    results = summarise(records, samples=samples)
    cells = [cell for column in results.columns for cell in results.column(column)]
    return [_line(cell, results) for cell in cells if cell.values]


def to_json(rows: Sequence[dict[str, Any]], *, samples: int = 100) -> str:
    """The rows as a JSON file, one per line."""
    head = {"format": FORMAT, "samples": samples, "unit": "nats per test image"}
    return one_per_line(head, "rows", rows)


class Point(NamedTuple):
    """A point of the frontier figure."""

    name: str
    label: str
    milliseconds: float
    nats: float
    std: float | None = None


def panels(rows: Iterable[dict[str, Any]]) -> dict[str, list[Point]]:
    """The points of the frontier figure, by data set and dimension: gain over VAE+ against time.

    If some rows of a column were timed with nothing else running, the other rows are left out. If none
    was, the title says so. Two kinds of rows are always left out: those timed on another device than
    VAE+, and calibrated ones, which take the same time and have another control.
    """
    found = list(rows)
    shown = [
        row
        for row in found
        if row["milliseconds"] is not None
        and row["difference"] is not None
        and not row["calibrated"]
        and not other_device(row, found)
    ]
    alone = {row["column"] for row in shown if row["timed_alone"]}
    points: dict[str, list[Point]] = {}
    for row in shown:
        if row["timed_alone"] or row["column"] not in alone:
            title = row["column"] + ("" if row["timed_alone"] else ", machine shared")
            names = ("row", "label", "milliseconds", "difference", "difference_std")
            points.setdefault(title, []).append(Point(*(row[name] for name in names)))
    return points


def other_device(row: dict[str, Any], rows: Iterable[dict[str, Any]]) -> bool:
    """Whether a row was timed on another device than VAE+ of the same data set and dimension."""
    controls = (r for r in rows if (r["column"], r["row"]) == (row["column"], str(CONTROL)))
    control = next(controls, None)
    return control is not None and control["devices"] != row["devices"]


def _line(cell: Cell, results: Results) -> dict[str, Any]:
    row, column = cell.row, cell.column
    scored = [(cell.chosen[split], cell.keys[split]) for split in cell.values]
    runs = [run for run, _ in scored]
    first = runs[0].scores[scored[0][1]]
    inference = _inference(scored[0][1])
    return {
        "column": str(column),
        "dataset": column.data,
        "dim": column.latent,
        **{k: v for k, v in asdict(column).items() if k not in ("data", "latent")},
        "row": str(row),
        "method": (runs[0].spec or {}).get("method"),
        "label": row.label,
        "setting": row.setting,
        "options": row.options,
        "kind": first.get("kind"),
        "steps": first.get("steps", 0),
        "inference": {name: getattr(inference, name) for name in REFINEMENT},
        "calibrated": row.calibrated,
        "scale": _mean(number((r.scores[k].get("inference") or {}).get("scale")) for r, k in scored),
        "mean": cell.mean,
        "std": cell.std,
        "splits": len(cell.values),
        "values": {str(split): value for split, value in cell.values.items()},
        "seeds": sorted({run.restart for run in runs}),
        "epochs": statistics.median(run.epochs for run in runs),
        "elbo": _mean(run.score(key, "elbo") for run, key in scored),
        "samples": results.samples,
        **_validation(cell, results.samples),
        **_over_control(cell, results),
        **_times(scored),
        "gap": None if row.calibrated else _gap(scored),
    }


def _inference(name: str) -> Inference:
    """The inference of a score."""
    key = parsed(name)
    return Inference() if key is None else key.inference


def _validation(cell: Cell, samples: int) -> dict[str, Any]:
    """Bounds on the validation data, without calibration but with the refinement of the row.

    ``validations`` has them by K and split. ``validation`` is their mean over splits for the K of the
    test bound if every run has it, otherwise for the smallest K that every run has, otherwise None.
    """
    found: dict[int, dict[str, float]] = {}
    for split in cell.values:
        run, refinement = cell.chosen[split], _inference(cell.keys[split]).uncalibrated
        for name in run.scores:
            key, bound = parsed(name), run.score(name, "iwae")
            if key is None or key.part != "val" or key.calibrated or bound is None:
                continue
            if key.inference.key == refinement.key:
                found.setdefault(key.samples, {})[str(split)] = bound
    complete = [k for k in sorted(found) if len(found[k]) == len(cell.values)]
    count = samples if samples in complete else next(iter(complete), None)
    return {
        "validation": None if count is None else statistics.fmean(found[count].values()),
        "validation_samples": count,
        "validations": {str(k): found[k] for k in sorted(found)},
    }


def _over_control(cell: Cell, results: Results) -> dict[str, Any]:
    """The gain over VAE+, paired by split, with its exact p-value for any number of pairs.

    With fewer pairs than the tables need, nothing is called significant and the reason is given.
    """
    control = results.cells.get((control_of(cell.row), cell.column))
    theirs = control.values if control is not None else {}
    shared = sorted(cell.values.keys() & theirs.keys())
    differences = [cell.values[split] - theirs[split] for split in shared]
    found: dict[str, Any] = {
        "difference": statistics.fmean(differences) if differences else None,
        "difference_std": statistics.stdev(differences) if len(differences) > 1 else None,
        "pairs": len(differences),
        "p_vae_plus": None,
        "significant": None,
    }
    if cell.row == CONTROL:
        return found | {"reason": "the control itself"}
    if not differences or cell.versus_control is None:
        return found | {"reason": results.control_problem(cell.column) or "no split of VAE+ in common"}
    p, reason = cell.versus_control.p, cell.versus_control.reason
    if reason:
        reason += f": the smallest possible p is {0.5 ** len(differences):.2g}"
    significant = None if p is None else p <= SIGNIFICANT
    return found | {
        "p_vae_plus": signed_rank_p(differences),
        "significant": significant,
        "reason": reason,
    }


def _times(scored: Sequence[Score]) -> dict[str, Any]:
    """The median time of a batch over the runs, and the devices.

    If some runs were timed with nothing else running, the others are left out.
    """
    timed = [(run, key) for run, key in scored if run.score(key, "batch") == TIMED_BATCH]
    alone = [(run, key) for run, key in timed if run.scores[key].get("alone") is True]
    timed = alone or timed
    found = [time for run, key in timed if (time := run.score(key, "milliseconds")) is not None]
    return {
        "milliseconds": statistics.median(found) if found else None,
        "timed_alone": bool(alone),
        "devices": sorted({str(run.scores[key].get("device", "unknown")) for run, key in timed}),
    }


def _gap(scored: Sequence[Score]) -> dict[str, Any] | None:
    """The gap between log p(x) and the ELBO, over the runs that have it for the row's inference."""
    totals, references, errors = [], [], []
    for run, key in scored:
        gap = run.gap or {}
        try:
            measured = Inference(**gap.get("inference", {}))
        except (TypeError, ConfigError):  # a damaged file
            continue
        if measured.key != _inference(key).key:
            continue
        part = (gap.get("summary") or {}).get("test") or {}
        total, reference = part.get("total") or {}, part.get("log_evidence") or {}
        if number(total.get("mean")) is not None:
            totals.append(float(total["mean"]))
            errors.append(number(total.get("se")) or 0.0)
            references.append(number(reference.get("mean")))
    if not totals:
        return None
    return {
        "total": statistics.fmean(totals),
        "se": sum(error**2 for error in errors) ** 0.5 / len(errors),
        "reference": _mean(references),
        "runs": len(totals),
    }


def _mean(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return statistics.fmean(found) if found else None
