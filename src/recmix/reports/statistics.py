"""Compute the means, standard deviations and p-values in the tables of results.

A cell of a table belongs to a row (a method, and how its posterior is refined) and a column (a data
set and a model). For each cell and each split of the data, the run with the best *validation* bound
is selected. Test scores never select a run. Means are over the splits.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from recmix.errors import ConfigError
from recmix.reports.paired import Comparison, compare, holm
from recmix.reports.records import CONTROL, Record, Row, TableColumn, number
from recmix.reports.variants import model_of

__all__ = ["CONTROL", "TIMED_BATCH", "Cell", "Results", "choose_samples", "control_of", "select"]
__all__ += ["summarise"]

TIMED_BATCH = 128
PAPER_SAMPLES = 100
"""K of the IWAE-K test bounds in the paper."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The results of one method (table row) on one data set and model (table column)."""

    row: Row
    column: TableColumn
    chosen: Mapping[int, Record]  # the run that validation selected, by split
    keys: Mapping[int, str]  # names of the scores of these runs, by split
    values: Mapping[int, float]  # their test scores, by split; runs without a score are missing
    mean: float | None  # over splits, in nats
    std: float | None  # over splits (n - 1); None for one split
    milliseconds: float | None  # mean time of the posterior of a batch of 128, over the selected runs
    milliseconds_std: float | None  # its standard deviation
    repeated: int  # number of done runs that repeat another one of the same split and restart
    pending: int  # number of runs that are not done
    batches: Sequence[int]  # sizes of timed batches that are not 128; their times are left out
    devices: Sequence[str]  # on which it was timed
    timed_alone: bool  # whether nothing else ran on the machine
    best: bool = False  # whether it is the best of its column
    versus_best: Comparison | None = None  # the column's best row compared with this one
    versus_control: Comparison | None = None  # this row compared with VAE+


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The numbers in the tables of a report, for all runs of a folder."""

    # methods with their inference settings, in the order of the tables. The control VAE+, a plain VAE
    # that was trained further, is always one of them.
    rows: Sequence[Row]
    columns: Sequence[TableColumn]  # data sets with the options of a model, in the order of the tables
    # {(row, column): cell}. Combinations without runs are missing.
    cells: Mapping[tuple[Row, TableColumn], Cell]
    samples: int  # K of the IWAE-K bound that is compared
    holm: bool  # whether p-values were corrected for the number of tests in a column

    def best(self, column: TableColumn) -> Cell | None:
        """Return the cell of the best method in a table column, or None if the column has no score."""
        return next((cell for cell in self.column(column) if cell.best), None)

    def column(self, column: TableColumn) -> list[Cell]:
        """Return the cells of a table column that have runs, in the order of the rows."""
        found = (self.cells.get((row, column)) for row in self.rows)
        return [cell for cell in found if cell is not None]

    def splits(self, column: TableColumn) -> int:
        """Return the number of data splits of the method with the most splits in this column.

        Only splits with test scores count.
        """
        return max((len(cell.values) for cell in self.column(column)), default=0)

    def control_problem(self, column: TableColumn) -> str:
        """Say why a table column has no control VAE+; the text is empty if it has one.

        The control is the plain VAE that was trained further. If the VAE+ runs of a column have
        different training options, none of them is the control.
        """
        rows = [cell.row for cell in self.column(column) if cell.row.label == CONTROL.label]
        if len({row.options for row in rows if row.options}) > 1:
            return "several different VAE+ trainings"
        control = self.cells.get((CONTROL, column))
        return "" if control is not None and control.values else "no score of VAE+"


def select(records: Iterable[Record]) -> dict[int, Record]:
    """Select the finished run with the best validation bound for each split of the data, {split: run}.

    A run without a validation bound is selected only if no other run of its split has one. If several
    runs have the same bound, the run with the lowest restart number is selected, then by folder name.
    """

    def preference(record: Record) -> tuple[float, int, str]:
        bound = -math.inf if record.validation is None else record.validation
        return (-bound, record.restart, record.folder)

    chosen: dict[int, Record] = {}
    for record in sorted(records, key=preference):
        if record.status == "done":
            chosen.setdefault(record.split, record)
    return dict(sorted(chosen.items()))


def choose_samples(records: Iterable[Record], given: int | None = None) -> tuple[int, str]:
    """Choose K of the IWAE-K test bound that the tables compare.

    By default K is 100, as in Kim and Pavlovic (2020). If no run is scored with K = 100, it is the K
    with which the most runs are scored.

    Args:
        records: the runs.
        given: the K that the user asked for; None for the default.

    Returns:
        K, and a message about runs without a score with this K (empty if there are none).
    """
    if given is not None and given < 1:
        raise ConfigError(f"samples must be positive, got {given}")
    tests = [record.tested for record in records if record.status == "done" and record.tested]
    runs = Counter(samples for found in tests for samples in found)
    best = max(runs, key=lambda k: (k == PAPER_SAMPLES, runs[k], k), default=PAPER_SAMPLES)
    chosen = best if given is None else given
    if runs[chosen] == len(tests):
        return chosen, "" if tests else "no run is done and scored yet: recmix evaluate RUN scores one"
    shown = ", ".join(f"{k} samples ({runs[k]} run{'s' * (runs[k] != 1)})" for k in sorted(runs))
    others = " or ".join(f"--samples {k}" for k in sorted(runs) if k != chosen)
    missing = f"{len(tests) - runs[chosen]} of {len(tests)} scored runs"
    return chosen, (
        f"{missing} have no test score with {chosen} samples. Runs are scored with {shown}: "
        f"give {others}, or add scores with recmix evaluate RUN --samples {chosen}"
    )


def summarise(records: Iterable[Record], *, samples: int = 100, correct: bool = False) -> Results:
    """Compute the numbers in the tables of a report: means over splits, p-values and times.

    Args:
        records: the runs.
        samples: K of the IWAE-K test bound.
        correct: whether p-values are corrected for the number of tests in a column (Holm).
    """
    models: dict[tuple[Row, TableColumn], list[Record]] = defaultdict(list)
    for record in records:
        models[model_of(record)].append(record)
    cells = {}
    for (_, column), found in models.items():
        keys = {record.folder: record.keys(samples) for record in found}
        for row in {row for names in keys.values() for row in names}:
            names = {folder: known[row] for folder, known in keys.items() if row in known}
            cells[row, column] = _cell(row, column, found, names)
    columns = sorted({column for _, column in cells}, key=lambda column: column.order)
    rows = sorted({row for row, _ in cells} | {CONTROL}, key=lambda row: row.order)
    for column in columns:
        for cell in _tested([cells[row, column] for row in rows if (row, column) in cells], correct):
            cells[cell.row, column] = cell
    return Results(rows=rows, columns=columns, cells=cells, samples=samples, holm=correct)


def _cell(row: Row, column: TableColumn, records: Sequence[Record], names: Mapping[str, str]) -> Cell:
    """Compute the table cell in this row and column.

    Args:
        row: the table row.
        column: the table column.
        records: the runs of the row's method, also those without a score for this row.
        names: {folder of a run: name of the run's score for this row}.
    """
    chosen = select(records)
    keys = {split: names[run.folder] for split, run in chosen.items() if run.folder in names}
    scored = {split: chosen[split].score(key, "iwae") for split, key in keys.items()}
    values = {split: value for split, value in scored.items() if value is not None}
    mean, std = _moments(list(values.values()))
    scores = [chosen[s].scores[key] for s, key in keys.items() if key in chosen[s].scores]
    timed = [(number(score.get("milliseconds")), number(score.get("batch"))) for score in scores]
    milliseconds, milliseconds_std = _moments(
        [time for time, batch in timed if time is not None and batch == TIMED_BATCH]
    )
    done = [record for record in records if record.status == "done"]
    by_default = any(record.row == row for record in records)
    return Cell(
        row=row,
        column=column,
        chosen=chosen,
        keys=keys,
        values=values,
        mean=mean,
        std=std,
        milliseconds=milliseconds,
        milliseconds_std=milliseconds_std,
        repeated=len(done) - len({(record.split, record.restart) for record in done}),
        pending=len(records) - len(done) if by_default else 0,
        batches=sorted({int(batch) for _, batch in timed if batch not in (None, TIMED_BATCH)}),
        devices=sorted({str(score["device"]) for score in scores if score.get("device")}),
        timed_alone=all(score.get("alone") for score in scores),
    )


def _moments(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the mean and the standard deviation (divisor n - 1) of the values.

    Without values both are None. For one value the standard deviation is None.
    """
    if not values:
        return None, None
    array = np.asarray(values)
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else None


def _tested(cells: Sequence[Cell], correct: bool) -> list[Cell]:
    """Return the cells of one column, with the best cell marked and the comparisons added.

    The best cell has the highest mean among the cells with the most splits. Cells whose likelihood has
    a changed noise are another model of the data: they cannot be the best. If `correct` is True,
    p-values are corrected for the number of tests in the column (Holm).
    """
    same_model = [cell for cell in cells if not cell.row.noise]
    most = max((len(cell.values) for cell in same_model), default=0)
    complete = [cell for cell in same_model if len(cell.values) == most and cell.mean is not None]
    best = max(complete, key=lambda cell: cell.mean or 0.0, default=None)
    scored = {cell.row: cell for cell in cells if cell.values}
    against_best = {
        cell.row: compare(best.values, cell.values)
        for cell in same_model
        if best is not None and cell is not best and cell.values
    }
    against_control = {
        row: compare(cell.values, control.values)
        for row, cell in scored.items()
        if (control := scored.get(control_of(row))) is not None and cell is not control
    }
    if correct:
        against_best, against_control = _corrected(against_best), _corrected(against_control)
    return [
        replace(
            cell,
            best=cell is best,
            versus_best=against_best.get(cell.row),
            versus_control=against_control.get(cell.row),
        )
        for cell in cells
    ]


def control_of(row: Row) -> Row:
    """Return the table row with which a row is compared: VAE+, calibrated in the same way as the row.

    VAE+ is the plain VAE that was trained further. A calibrated VAE+ is compared with the
    uncalibrated VAE+.

    >>> print(control_of(Row("RME", 5)), control_of(Row("RME", calibrated=True)), sep=", ")
    VAE+, VAE+ calibrated
    >>> print(control_of(Row("RME", 5, calibrated=True, noise=True)))
    VAE+ calibrated with noise
    """
    alike = replace(CONTROL, calibrated=row.calibrated or row.noise, noise=row.noise)
    return CONTROL if row == alike else alike


def _corrected(family: Mapping[Row, Comparison]) -> dict[Row, Comparison]:
    corrected = holm([found.p for found in family.values()])
    return {row: replace(family[row], p=p) for row, p in zip(family, corrected, strict=True)}
