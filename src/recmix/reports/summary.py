"""What a store of runs amounts to: a row for each data set, dimension, method and kind of inference.

The kinds are told apart by what is done for an image when it is met:

================  =============================================================================
``encoder``       one pass through the encoders: a Gaussian, a mixture, a flow
``feed-forward``  encoder and decoder forward only, a few times: residual corrections
``refined``       steps down a loss for every image: Gauss-Newton steps, ``vlae``, ``sa``
================  =============================================================================

In each split validation picks the restart, as in the tables; means are over splits. A gain is a gain
over VAE+ of the same data set and dimension, split by split.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from recmix.reports.records import Record, Row, number
from recmix.reports.runs import FORMAT, one_per_line
from recmix.reports.statistics import (
    CONTROL,
    TIMED_BATCH,
    Cell,
    Results,
    control_of,
    signed_rank_p,
    summarise,
)
from recmix.runs.scores import ScoreKey

__all__ = ["SIGNIFICANT", "elsewhere", "inference", "panels", "summary", "to_json"]

SIGNIFICANT = 0.05
STEPPING = ("sa", "vlae")
"""Methods that take steps for every image by themselves."""


def inference(record: Record, row: Row) -> tuple[str, int]:
    """The kind of inference, and how many steps it takes for every image.

    Args:
        record: a run.
        row: the line of the table its score stands in.
    """
    spec = record.spec or {}
    options = spec.get("options") or {}
    steps = row.refine or _trained(record)
    if spec.get("method") in STEPPING:
        return "refined", steps + options.get("steps", 0)
    if steps:
        return "refined", steps
    return "feed-forward" if options.get("component") == "residual" else "encoder", 0


def summary(records: Iterable[Record], *, samples: int = 100) -> list[dict[str, Any]]:
    """The rows, by data set, dimension and method.

    Args:
        records: of a store.
        samples: K of IWAE-K.
    """
    results = summarise(records, samples=samples)
    places = ((row, column) for column in results.columns for row in results.rows)
    cells = [results.cells[place] for place in places if place in results.cells]
    return [_line(cell, results) for cell in cells if cell.values]


def to_json(rows: Sequence[dict[str, Any]], *, samples: int = 100) -> str:
    """The rows as a JSON file, one a line."""
    head = {"format": FORMAT, "samples": samples, "unit": "nats per test image"}
    return one_per_line(head, "rows", rows)


def panels(rows: Iterable[dict[str, Any]]) -> dict[str, list[tuple[str, float, float, float | None]]]:
    """The points of the frontier figure, by data set and dimension: gain over VAE+ against time.

    Where some rows of a column were timed with nothing else running, the others are left out; where
    none was, the panel's name says so. Rows that were timed on another device than VAE+ are left out,
    and calibrated ones, which take as long and are compared with another control.
    """
    found = list(rows)
    shown = [
        row
        for row in found
        if row["milliseconds"] is not None
        and row["difference"] is not None
        and not row["calibrated"]
        and not elsewhere(row, found)
    ]
    quiet = {row["column"] for row in shown if row["timed_alone"]}
    points: dict[str, list[tuple[str, float, float, float | None]]] = {}
    for row in shown:
        if row["timed_alone"] or row["column"] not in quiet:
            point = (row["row"], row["milliseconds"], row["difference"], row["difference_std"])
            shared = "" if row["timed_alone"] else ", machine shared"
            points.setdefault(row["column"] + shared, []).append(point)
    return points


def elsewhere(row: dict[str, Any], rows: Iterable[dict[str, Any]]) -> bool:
    """Whether a row was timed on another device than VAE+ of the same data set and dimension."""
    here = (r for r in rows if (r["column"], r["row"]) == (row["column"], str(CONTROL)))
    control = next(here, None)
    return control is not None and control["devices"] != row["devices"]


def _line(cell: Cell, results: Results) -> dict[str, Any]:
    row, column = cell.row, cell.column
    runs = [cell.chosen[split] for split in cell.values]
    key = str(ScoreKey("test", results.samples, row.refine or None, row.calibrated))
    kind, steps = inference(runs[0], row)
    return {
        "column": str(column),
        "dataset": column.data,
        "dim": column.latent,
        **{k: v for k, v in asdict(column).items() if k not in ("data", "latent")},
        "row": str(row),
        "method": (runs[0].spec or {}).get("method"),
        "label": row.label,
        "setting": row.setting,
        "inference": kind,
        "steps": steps,
        "calibrated": row.calibrated,
        "widen": _mean(run.score(key, "widen") for run in runs),
        "reuse": _same(run.scores[key].get("reuse", 0) for run in runs) if steps else None,
        "starts": _same(run.scores[key].get("starts", 1) for run in runs),
        "mean": cell.mean,
        "std": cell.std,
        "splits": len(cell.values),
        "values": {str(split): value for split, value in cell.values.items()},
        "seeds": sorted({run.restart for run in runs}),
        "epochs": statistics.median(run.epochs for run in runs),
        "elbo": _mean(run.score(key, "elbo") for run in runs),
        "samples": results.samples,
        **_validation(cell, results.samples),
        **_over_control(cell, results.cells.get((control_of(row), column))),
        **_times(runs, key),
        "gap": _gap(runs, row, key),
    }


def _validation(cell: Cell, samples: int) -> dict[str, Any]:
    """Bounds of the validation images, where they were refined as the row's test images were.

    ``validations`` has them by K and split, ``validation`` is their mean for the K of the test images
    where every run was scored with it, else for the smallest such K; None where there is none.
    """
    row, test = cell.row, str(ScoreKey("test", samples, cell.row.refine or None, cell.row.calibrated))
    found: dict[int, dict[str, float]] = {}
    for split in cell.values:
        run = cell.chosen[split]
        for name, score in run.scores.items():
            key = ScoreKey.parse(name)
            if key is None or (key.part, key.refine, key.calibrated) != (
                "val",
                row.refine or None,
                False,
            ):
                continue
            bound = run.score(name, "iwae")
            if bound is not None and _climbs(score) == _climbs(run.scores[test]):
                found.setdefault(key.samples, {})[str(split)] = bound
    whole = [k for k in sorted(found) if len(found[k]) == len(cell.values)]
    count = samples if samples in whole else next(iter(whole), None)
    return {
        "validation": None if count is None else statistics.fmean(found[count].values()),
        "validation_samples": count,
        "validations": {str(k): found[k] for k in sorted(found)},
    }


def _climbs(score: Mapping[str, Any]) -> tuple[Any, Any]:
    """How a refined score was taken, but for the number of steps."""
    return score.get("reuse", 0), score.get("starts", 1)


def _same(values: Iterable[Any]) -> Any:
    """What all are, or None where they differ."""
    found = set(values)
    return found.pop() if len(found) == 1 else None


def _trained(record: Record) -> int:
    """Steps of refinement that a run was trained with, and is scored with if nothing else is said."""
    steps: int = ((record.spec or {}).get("training") or {}).get("refine", 0)
    return steps


def _over_control(cell: Cell, control: Cell | None) -> dict[str, Any]:
    """The gain over VAE+, paired by split, with its exact p however few the pairs.

    With fewer pairs than the tables ask for, nothing is called significant and the reason is given.
    """
    theirs = control.values if control is not None else {}
    shared = sorted(cell.values.keys() & theirs.keys())
    differences = [cell.values[split] - theirs[split] for split in shared]
    found: dict[str, Any] = {
        "difference": statistics.fmean(differences) if differences else None,
        "difference_std": statistics.stdev(differences) if len(differences) > 1 else None,
        "pairs": len(differences),
    }
    if cell.row == CONTROL:
        return found | {"p_vae_plus": None, "significant": None, "reason": "the control itself"}
    if not differences:
        return found | {"p_vae_plus": None, "significant": None, "reason": "no VAE+ to compare with"}
    compared = cell.versus_control
    allowed = None if compared is None else compared.p
    exact = signed_rank_p(differences)
    reason = "" if compared is None else compared.reason
    if reason:
        reason += f": the smallest possible p is {0.5 ** len(differences):.2g}"
    significant = None if allowed is None else allowed <= SIGNIFICANT
    return found | {"p_vae_plus": exact, "significant": significant, "reason": reason}


def _times(runs: Sequence[Record], key: str) -> dict[str, Any]:
    """The median time of a batch over the runs, and what it was measured on.

    Runs that were timed with nothing else running speak alone, where there are any.
    """
    timed = [run for run in runs if run.score(key, "batch") == TIMED_BATCH]
    alone = [run for run in timed if run.scores[key].get("alone") is True]
    timed = alone or timed
    found = [time for run in timed if (time := run.score(key, "milliseconds")) is not None]
    devices = sorted({str(run.scores[key].get("device", "unknown")) for run in timed})
    middle = statistics.median(found) if found else None
    return {"milliseconds": middle, "timed_alone": bool(alone), "devices": devices}


def _gap(runs: Sequence[Record], row: Row, key: str) -> dict[str, Any] | None:
    """What inference loses against log p(x), over the runs whose gap was measured for this inference."""
    totals, references, errors = [], [], []
    for run in runs:
        gap = run.gap or {}
        part = (gap.get("summary") or {}).get("test") or {}
        total, reference = part.get("total") or {}, part.get("log_evidence") or {}
        same = gap.get("refine", 0) == (row.refine or _trained(run))
        same &= _climbs(gap) == _climbs(run.scores[key])
        if same and not row.calibrated and number(total.get("mean")) is not None:
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
