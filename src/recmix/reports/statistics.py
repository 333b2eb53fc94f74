"""From records to the numbers of a table: selection on validation data, means over splits, comparisons.

In each cell (row, column) and each split the run with the best *validation* bound is selected. Test
scores never select. Means and standard deviations are over splits. Rows are compared split by split.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from recmix.reports.paired import Comparison, compare, holm
from recmix.reports.records import CONTROL, Record, Row, TableColumn, number
from recmix.reports.variants import model_of

__all__ = ["CONTROL", "TIMED_BATCH", "Cell", "Results", "control_of", "select", "summarise"]

TIMED_BATCH = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The numbers of one row in one column.

    Attributes:
        chosen: the run that validation selected, by split.
        keys: names of the scores of these runs, by split.
        values: their test scores, by split; splits whose run has no score are missing.
        mean: over splits, in nats.
        std: over splits (n - 1); None for one split.
        milliseconds: mean time to compute the posterior of a batch of 128, over the selected runs.
        milliseconds_std: its standard deviation.
        repeated: number of done runs that repeat another one of the same split and restart.
        pending: number of runs that are not done.
        batches: sizes of timed batches that are not 128; their times are left out.
        devices: on which it was timed.
        timed_alone: whether nothing else ran on the machine.
        best: whether it is the best of its column.
        versus_best: the column's best row compared with this one.
        versus_control: this row compared with VAE+.
    """

    row: Row
    column: TableColumn
    chosen: Mapping[int, Record] = field(default_factory=dict)
    keys: Mapping[int, str] = field(default_factory=dict)
    values: Mapping[int, float] = field(default_factory=dict)
    mean: float | None = None
    std: float | None = None
    milliseconds: float | None = None
    milliseconds_std: float | None = None
    repeated: int = 0
    pending: int = 0
    batches: Sequence[int] = ()
    devices: Sequence[str] = ()
    timed_alone: bool = True
    best: bool = False
    versus_best: Comparison | None = None
    versus_control: Comparison | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """All cells of a store.

    Attributes:
        rows: in the paper's order; VAE+ is always among them.
        columns: in the paper's order.
        cells: by row and column; combinations without runs are missing.
        most: the largest number of scored splits in each column.
        samples: K of the IWAE-K that is compared.
        holm: whether p-values were corrected within each column.
    """

    rows: Sequence[Row]
    columns: Sequence[TableColumn]
    cells: Mapping[tuple[Row, TableColumn], Cell]
    most: Mapping[TableColumn, int]
    samples: int
    holm: bool

    def best(self, column: TableColumn) -> Cell | None:
        """The best cell of a column."""
        return next((cell for cell in self.column(column) if cell.best), None)

    def column(self, column: TableColumn) -> list[Cell]:
        """The cells of a column, in the order of the rows."""
        found = (self.cells.get((row, column)) for row in self.rows)
        return [cell for cell in found if cell is not None]

    def splits(self, column: TableColumn) -> int:
        """The largest number of scored splits in a column."""
        return self.most.get(column, 0)

    def control_problem(self, column: TableColumn) -> str:
        """Why a column has no control, in words; empty if it has one.

        If there are VAE+ with different options, none of them is chosen.
        """
        rows = [cell.row for cell in self.column(column) if cell.row.label == CONTROL.label]
        if len({row.options for row in rows if row.options}) > 1:
            return "several different VAE+ trainings"
        control = self.cells.get((CONTROL, column))
        return "" if control is not None and control.values else "no score of VAE+"


def select(records: Iterable[Record]) -> dict[int, Record]:
    """For each split the run with the best validation bound. Test scores are not used.

    Only runs that are done are selected. A run without a validation bound comes last; among equal bounds
    the lower restart is selected, then the first folder by name.
    """

    def preference(record: Record) -> tuple[float, int, str]:
        bound = -math.inf if record.validation is None else record.validation
        return (-bound, record.restart, record.folder)

    chosen: dict[int, Record] = {}
    for record in sorted(records, key=preference):
        if record.status == "done":
            chosen.setdefault(record.split, record)
    return dict(sorted(chosen.items()))


def summarise(
    records: Iterable[Record], *, samples: int = 100, correct: bool = False, part: str = "test"
) -> Results:
    """The cells of all tables.

    Args:
        records: of a store.
        samples: K of IWAE-K.
        correct: correct p-values for their number within a column (Holm).
        part: of the data, whose scores are shown.
    """
    models: dict[tuple[Row, TableColumn], list[Record]] = defaultdict(list)
    for record in records:
        models[model_of(record)].append(record)
    cells = {}
    for (_, column), found in models.items():
        keys = {record.folder: record.keys(part, samples) for record in found}
        for row in {row for names in keys.values() for row in names}:
            names = {folder: known[row] for folder, known in keys.items() if row in known}
            cells[row, column] = _cell(row, column, found, names)
    columns = sorted({column for _, column in cells}, key=lambda column: column.order)
    rows = sorted({row for row, _ in cells} | {CONTROL}, key=lambda row: row.order)
    most = {}
    for column in columns:
        here = [cells[row, column] for row in rows if (row, column) in cells]
        most[column] = max(len(cell.values) for cell in here)
        for cell in _tested(here, correct):
            cells[cell.row, column] = cell
    return Results(rows=rows, columns=columns, cells=cells, most=most, samples=samples, holm=correct)


def _cell(row: Row, column: TableColumn, records: Sequence[Record], names: Mapping[str, str]) -> Cell:
    """The cell of a row. `names` has the name of the score of each run, by folder."""
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
    """Mean and standard deviation (n - 1)."""
    if not values:
        return None, None
    array = np.asarray(values)
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else None


def _tested(cells: Sequence[Cell], correct: bool) -> list[Cell]:
    """The cells of one column, with the best marked and the comparisons added.

    The best is the highest mean among the rows with the most splits. So a row with one
    good split is never the best.
    """
    most = max((len(cell.values) for cell in cells), default=0)
    complete = [cell for cell in cells if len(cell.values) == most and cell.mean is not None]
    if not complete:
        return list(cells)
    best = max(complete, key=lambda cell: cell.mean if cell.mean is not None else -math.inf)
    scored = {cell.row: cell for cell in cells if cell.values}
    against_best = {
        row: compare(best.values, cell.values) for row, cell in scored.items() if cell is not best
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
    """The row that a row is compared with: VAE+, or for a calibrated row VAE+ calibrated.

    VAE+ calibrated itself is compared with VAE+.

    >>> print(control_of(Row("RME", 5)), control_of(Row("RME", calibrated=True)), sep=", ")
    VAE+, VAE+ calibrated
    """
    calibrated = replace(CONTROL, calibrated=True)
    return calibrated if row.calibrated and row != calibrated else CONTROL


def _corrected(family: Mapping[Row, Comparison]) -> dict[Row, Comparison]:
    corrected = holm([found.p for found in family.values()])
    return {row: replace(family[row], p=p) for row, p in zip(family, corrected, strict=True)}
