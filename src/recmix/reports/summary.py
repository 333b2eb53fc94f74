"""Summarise the results of a store, the folder of run folders, as plain rows for a JSON file.

There is one row for each data set, latent dimension, method and inference. The field ``kind`` of a
row says what its inference computes for each example:

================  =============================================================================
``encoder``       one pass through the encoders
``feed-forward``  several passes through encoders and decoder, without gradients
``refined``       optimisation steps for each example
================  =============================================================================

Means are over the splits of the data. In each split the run with the best validation bound is
selected. A gain is the difference from VAE+, a plain VAE that was trained further. Rows with the
field ``noise`` multiply the noise of the likelihood by this factor, which changes p(x).
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
from recmix.reports.tables import EMPTY, decimals, signed, with_spread
from recmix.runs.spec import FORMAT

__all__ = ["Point", "gains", "panels", "summary", "to_json", "why_no_panel"]

SIGNIFICANT = 0.05
REFINEMENT = ("how", "refine", "reuse", "restarts")
Score = tuple[Record, str]
"""A run and the name of one of its scores."""


def summary(records: Iterable[Record], *, samples: int = 100) -> list[dict[str, Any]]:
    """Return the results of runs, one mapping for each data set, latent dimension, method and inference.

    Inference means how the posterior is refined and calibrated. Each mapping has the test bound, the
    validation bounds, the gain over VAE+ (the plain VAE that was trained further) with its p-value, and
    the inference time. Results without a test bound are left out.

    Args:
        records: the runs of a store.
        samples: K of the IWAE-K test bound.
    """
    results = summarise(records, samples=samples)
    cells = [cell for column in results.columns for cell in results.column(column)]
    return [_line(cell, results) for cell in cells if cell.values]


def to_json(rows: Sequence[dict[str, Any]], *, samples: int = 100) -> str:
    """Return the text of a JSON file with the rows that `summary` returns, one row per line."""
    head = {"format": FORMAT, "samples": samples, "unit": "nats per test image"}
    return one_per_line(head, "rows", rows)


class Point(NamedTuple):
    """A method as a point in the figure of accuracy gain against inference time."""

    name: str  # name of the method with its settings, such as ``RME(2) +2 steps``
    label: str  # name of the method alone, which selects colour and marker
    milliseconds: float  # inference time for a batch of 128 examples
    nats: float  # gain of the test bound over VAE+, the plain VAE that was trained further
    std: float | None = None  # standard deviation of the gain over splits, if there are several


def panels(rows: Sequence[dict[str, Any]]) -> dict[str, list[Point]]:
    """Return the points of the figure of gain over VAE+ against inference time, {panel title: points}.

    There is one panel for each data set and latent dimension. If some rows of a panel were timed while
    no other program used the machine, only these are shown. Three kinds of rows are left out: rows that
    were timed on another device than VAE+, calibrated rows, and rows with a changed noise.
    """
    shown = [
        row
        for row in rows
        if row["milliseconds"] is not None
        and row["difference"] is not None
        and not row["calibrated"]
        and "noise" not in row
        and not _other_device(row, rows)
    ]
    alone = {row["column"] for row in shown if row["timed_alone"]}
    points: dict[str, list[Point]] = {}
    for row in shown:
        if row["timed_alone"] or row["column"] not in alone:
            title = row["column"] + ("" if row["timed_alone"] else ", machine shared")
            names = ("row", "label", "milliseconds", "difference", "difference_std")
            points.setdefault(title, []).append(Point(*(row[name] for name in names)))
    return points


def why_no_panel(rows: Sequence[dict[str, Any]]) -> str:
    """Return a text that says why the figure of gain against inference time has no points."""
    if all(row["difference"] is None for row in rows):
        return "it shows gains over VAE+, and no run of VAE+ is scored on the same data and splits"
    if all(row["milliseconds"] is None for row in rows):
        return f"no inference was timed with a batch of {TIMED_BATCH}; the test part may be smaller"
    return "no row has both a gain over VAE+ and a time on the device of VAE+"


def _other_device(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> bool:
    """Whether a row and the control VAE+ on the same data were timed on different devices.

    VAE+ is the plain VAE that was trained further. `rows` are all rows, and include the control.
    """
    controls = (r for r in rows if (r["column"], r["row"]) == (row["column"], str(CONTROL)))
    control = next(controls, None)
    return control is not None and control["devices"] != row["devices"]


def gains(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return the column heads and the cells of a table with all rows of `summary`, as texts.

    The columns are the data set, the model, its kind of inference, the IWAE bound, its gain over VAE+
    (the plain VAE that was trained further) with the p-value, and the inference time.
    """
    samples = rows[0]["samples"] if rows else 100
    heads = ["data, dimension", "model", "inference", f"IWAE-{samples}", "over VAE+", "exact p", "ms"]
    lines = []
    for row in rows:
        difference = row["difference"]
        over = EMPTY if difference is None else signed(difference, decimals(row["mean"]))
        p = EMPTY if row["p_vae_plus"] is None else f"{row['p_vae_plus']:.2g}"
        lines.append(
            [
                row["column"],
                row["row"],
                str(row["kind"]),
                with_spread(row["mean"], row["std"]),
                "control" if row["row"] == str(CONTROL) else over,
                p if row["significant"] is not None or p == EMPTY else f"{p} (few)",
                _time(row) + (f" on {' and '.join(row['devices'])}" if _other_device(row, rows) else ""),
            ]
        )
    return heads, lines


def _time(row: dict[str, Any]) -> str:
    """Return the time of a row in milliseconds, in brackets if other runs shared the machine."""
    if row["milliseconds"] is None:
        return EMPTY
    text = f"{row['milliseconds']:.2f}"
    return text if row["timed_alone"] else f"({text})"


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
        **{k: v for k, v in asdict(column).items() if k not in ("data", "latent") and v != ""},
        "row": str(row),
        "method": (runs[0].spec or {}).get("method"),
        "label": row.label,
        "setting": row.setting,
        "options": row.options,
        "kind": first.get("kind"),
        "steps": first.get("steps", 0),
        "inference": {name: getattr(inference, name) for name in REFINEMENT},
        "calibrated": row.calibrated,
        "scale": _factor(scored, "scale"),
        **({"noise": _factor(scored, "noise")} if row.noise else {}),
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


def _factor(scored: Sequence[Score], name: str) -> float | None:
    """Return the mean over the scored runs of an option that a calibration chose, such as ``scale``."""
    return _mean(number((run.scores[key].get("inference") or {}).get(name)) for run, key in scored)


def _inference(name: str) -> Inference:
    """Return the settings of inference in the name of a score; the defaults if it is not valid."""
    key = parsed(name)
    return Inference() if key is None else key.inference


def _validation(cell: Cell, samples: int) -> dict[str, Any]:
    """Return the fields of a row that contain IWAE-K bounds on validation data, before calibration.

    ``validations`` is {K: {split: bound}}. ``validation`` is the mean bound over splits. Its K,
    ``validation_samples``, is `samples`. If a run has no bound with this K, it is the smallest K with
    which every run has a bound.
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
    """Return the fields of a row that describe the gain over the control VAE+.

    VAE+ is the plain VAE that was trained further. Among the fields are the mean and the standard
    deviation of the gain over splits, and the p-value.
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
    own = {"p_vae_plus": signed_rank_p(differences), "significant": significant, "reason": reason}
    return found | own


def _times(scored: Sequence[Score]) -> dict[str, Any]:
    """Return the fields of a row that contain the inference time of a batch of 128 and the devices.

    The time is the median over the scored runs.

    If some runs were timed while nothing else ran on the machine, the other runs are left out.
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
    """Return the mean gap between log p(x) and the ELBO over the scored runs, with its standard error.

    A run counts only if its gap was measured with the same settings of inference as its score. The
    result is None if no run counts.
    """
    totals, references, errors = [], [], []
    for run, key in scored:
        gap = run.gap or {}
        try:
            measured = Inference.from_json(gap.get("inference", {}))
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
