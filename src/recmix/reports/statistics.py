"""From records to the figures of a table: selection on validation, means over splits, paired tests.

For each cell (row, column) and each split the restart with the best *validation* bound is taken; test
scores never select. Mean and standard deviation are over splits. Rows are compared split by split with
Wilcoxon's signed-rank test (Wilcoxon 1945) under its exact distribution.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from recmix.reports.records import Column, Record, Row
from recmix.runs.scores import ScoreKey

__all__ = [
    "CONTROL",
    "FEWEST_PAIRS",
    "Cell",
    "Comparison",
    "Results",
    "compare",
    "control_of",
    "holm",
    "select",
    "signed_rank_p",
    "summarise",
]

CONTROL = Row("VAE+")
"""The honest control: the VAE continued under the same schedule. A gain is a gain over it."""
FEWEST_PAIRS = 6
"""With fewer pairs no significance is claimed: five can at best give p = 1/32."""
SAME = 9
"""Differences that agree to this many decimals (of a nat) are ties, or zero."""
TIMED_BATCH = 128

Array = NDArray[np.float64]


# --- the test --------------------------------------------------------------------------------------


def _ranks(magnitudes: Array) -> Array:
    """Ranks from 1; tied values share the mean of theirs."""
    _, place, counts = np.unique(magnitudes, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    middle: Array = (last - (counts - 1) / 2)[place]
    return middle


def _signed_ranks(differences: Sequence[float]) -> tuple[Array, Array]:
    """Signs and ranks of the differences that are not zero; zeros are ranked, then dropped (Pratt)."""
    rounded = np.round(np.asarray(differences, dtype=float), SAME)
    ranks = _ranks(np.abs(rounded))
    keep = rounded != 0
    return np.sign(rounded[keep]), ranks[keep]


def signed_rank_p(differences: Sequence[float]) -> float:
    """One-sided exact p of Wilcoxon's signed-rank test: that the differences lie above zero.

    P(W₊ ≥ w₊) when each sign is a fair coin, given the ranks as they are. Ties share their mean rank
    and zeros are ranked but carry no sign (Pratt 1959), so the distribution is exact with them too.
    Without ties and zeros it is `scipy.stats.wilcoxon(method="exact", alternative="greater")`, which
    with ties would use the distribution of untied ranks.

    >>> signed_rank_p([1, 2, 3, 4, 5, 6]) == 1 / 64
    True
    """
    signs, ranks = _signed_ranks(differences)
    if not len(ranks):
        return 1.0
    doubled = np.rint(2 * ranks).astype(int)  # mean ranks of ties end in .5
    chance = np.zeros(doubled.sum() + 1)
    chance[0] = 1.0
    for rank in doubled:
        chance *= 0.5
        chance[rank:] += chance[:-rank].copy()
    observed = int(doubled[signs > 0].sum())
    return min(1.0, float(chance[observed:].sum()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A paired comparison of two rows over the splits they share.

    Attributes:
        pairs: splits that both have.
        p: one-sided exact p that the first row is higher; None where it cannot be claimed.
        reason: why there is no p.
        difference: mean of first minus second, nats.
        interval: 95 % t interval of that mean, where there are two pairs or more.
        effect: matched-pairs rank-biserial correlation, (W₊ - W₋)/(W₊ + W₋), from -1 to 1.
        ties: pairs with a tied or zero difference.
        adjusted: whether p was corrected for the number of comparisons (Holm).
    """

    pairs: int
    p: float | None = None
    reason: str = ""
    difference: float | None = None
    interval: tuple[float, float] | None = None
    effect: float | None = None
    ties: int = 0
    adjusted: bool = False


def compare(first: Mapping[int, float], second: Mapping[int, float]) -> Comparison:
    """Compare two rows, each given by its score on each split.

    >>> found = compare({s: 2.0 + s / 9 for s in range(8)}, {s: 1.0 for s in range(8)})
    >>> found.p == 1 / 256, found.effect
    (True, 1.0)
    """
    shared = sorted(first.keys() & second.keys())
    pairs = len(shared)
    if not pairs:
        return Comparison(pairs=0, reason="no split in common")
    differences = np.array([first[split] - second[split] for split in shared])
    mean = float(differences.mean())
    interval = None
    if pairs > 1:
        half = float(stdtrit(pairs - 1, 0.975)) * float(differences.std(ddof=1)) / math.sqrt(pairs)
        interval = (mean - half, mean + half)
    signs, ranks = _signed_ranks(differences.tolist())
    total = float(ranks.sum())
    few = pairs < FEWEST_PAIRS
    magnitudes = np.round(np.abs(differences), SAME)
    return Comparison(
        pairs=pairs,
        p=None if few else signed_rank_p(differences.tolist()),
        reason=f"{pairs} paired splits, fewer than {FEWEST_PAIRS}" if few else "",
        difference=mean,
        interval=interval,
        effect=float((signs * ranks).sum()) / total if total else 0.0,
        ties=int((magnitudes == 0).sum()) + int(len(ranks) - len(np.unique(magnitudes[magnitudes > 0]))),
    )


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction (Holm 1979); what is None stays None and does not count.

    >>> holm([0.01, None, 0.04, 0.03])
    [0.03, None, 0.06, 0.06]
    """
    known = sorted((value, i) for i, value in enumerate(values) if value is not None)
    adjusted: list[float | None] = [None] * len(values)
    highest = 0.0
    for done, (value, i) in enumerate(known):
        highest = max(highest, min(1.0, value * (len(known) - done)))
        adjusted[i] = highest
    return adjusted


# --- the cells -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What a table says about one method on one data set and dimension.

    Attributes:
        chosen: the run of each split that validation selected.
        values: its test score, by split; splits whose chosen run has none are missing.
        mean: over splits, nats.
        std: over splits (n - 1); None for one split.
        milliseconds: mean time of the posterior of a batch of 128, over the chosen runs.
        milliseconds_std: its standard deviation.
        candidates: runs among which validation chose.
        pending: runs of the cell that are not done.
        batches: sizes of the timed batches that are not 128, whose times are left out.
        devices: on which it was timed.
        timed_alone: whether the grid timed it with nothing else running.
        best: whether it is the best of its column.
        versus_best: the column's best row against this one.
        versus_control: this row against VAE+.
    """

    row: Row
    column: Column
    chosen: Mapping[int, Record] = field(default_factory=dict)
    values: Mapping[int, float] = field(default_factory=dict)
    mean: float | None = None
    std: float | None = None
    milliseconds: float | None = None
    milliseconds_std: float | None = None
    candidates: int = 0
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
        rows: in the paper's order; VAE+ always among them.
        columns: in the paper's order.
        cells: by row and column; combinations without runs are missing.
        most: the largest number of scored splits in each column.
        samples: K of the IWAE-K that is compared.
        holm: whether p-values were corrected within each column.
    """

    rows: Sequence[Row]
    columns: Sequence[Column]
    cells: Mapping[tuple[Row, Column], Cell]
    most: Mapping[Column, int]
    samples: int
    holm: bool

    def best(self, column: Column) -> Cell | None:
        """The best cell of a column."""
        found = (self.cells.get((row, column)) for row in self.rows)
        return next((cell for cell in found if cell is not None and cell.best), None)

    def splits(self, column: Column) -> int:
        """The largest number of scored splits in a column."""
        return self.most.get(column, 0)


def select(records: Iterable[Record]) -> dict[int, Record]:
    """For each split the run with the best validation bound; its test scores are not looked at.

    Only runs that are done can be chosen. A run without a validation bound comes last; equal bounds go
    to the lower restart, then to the folder's name.
    """

    def merit(record: Record) -> tuple[float, int, str]:
        bound = -math.inf if record.validation is None else record.validation
        return (-bound, record.restart, record.folder)

    chosen: dict[int, Record] = {}
    for record in records:
        if record.status == "done":
            rival = chosen.get(record.split)
            if rival is None or merit(record) < merit(rival):
                chosen[record.split] = record
    return dict(sorted(chosen.items()))


def summarise(
    records: Iterable[Record], *, samples: int = 100, correct: bool = False, part: str = "test"
) -> Results:
    """The cells of all tables.

    Args:
        records: of a store.
        samples: K of IWAE-K.
        correct: adjust p-values within a column for their number, after Holm.
        part: the images whose scores are shown.
    """
    grouped: dict[tuple[Row, Column], list[Record]] = defaultdict(list)
    for record in records:
        grouped[record.row, record.column].append(record)
    cells = {}
    for (row, column), found in grouped.items():
        for steps, calibrated in _uses(found, part, samples):
            line = replace(row, refine=steps, calibrated=calibrated)
            key = str(ScoreKey(part, samples, steps or None, calibrated))
            cells[line, column] = _cell(line, column, found, key)
    columns = sorted({column for _, column in cells}, key=lambda column: column.order)
    rows = sorted({row for row, _ in cells} | {CONTROL}, key=lambda row: row.order)
    most = {}
    for column in columns:
        here = [cells[row, column] for row in rows if (row, column) in cells]
        most[column] = max(len(cell.values) for cell in here)
        for cell in _tested(here, correct):
            cells[cell.row, column] = cell
    return Results(rows=rows, columns=columns, cells=cells, most=most, samples=samples, holm=correct)


def _uses(records: Iterable[Record], part: str, samples: int) -> list[tuple[int, bool]]:
    """Steps of refinement, and whether calibrated, with which some of the runs were scored."""
    told = [found for r in records for key in r.scores if (found := ScoreKey.parse(key))]
    here = [key for key in told if (key.part, key.samples) == (part, samples) and key.refine != 0]
    return sorted({(0, False)} | {(key.refine or 0, key.calibrated) for key in here})


def _cell(row: Row, column: Column, records: Sequence[Record], key: str) -> Cell:
    chosen = select(records)
    scored = {split: record.score(key, "iwae") for split, record in chosen.items()}
    values = {split: value for split, value in scored.items() if value is not None}
    mean, std = _moments(list(values.values()))
    times, others = _times([record for record in chosen.values() if key in record.scores], key)
    milliseconds, milliseconds_std = _moments(times)
    devices = {str(r.scores[key].get("device", "")) for r in chosen.values() if key in r.scores}
    return Cell(
        row=row,
        column=column,
        chosen=chosen,
        values=values,
        mean=mean,
        std=std,
        milliseconds=milliseconds,
        milliseconds_std=milliseconds_std,
        candidates=sum(record.status == "done" for record in records),
        pending=0 if row.use else sum(record.status != "done" for record in records),
        batches=others,
        devices=sorted(devices - {""}),
        timed_alone=all(r.scores[key].get("alone") for r in chosen.values() if key in r.scores),
    )


def _times(records: Sequence[Record], key: str) -> tuple[list[float], list[int]]:
    """Times of batches of 128, and the sizes of other batches that were timed."""
    times, others = [], set()
    for record in records:
        time, batch = record.score(key, "milliseconds"), record.score(key, "batch")
        if batch == TIMED_BATCH and time is not None:
            times.append(time)
        elif batch is not None:
            others.add(int(batch))
    return times, sorted(others)


def _moments(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean and standard deviation (n - 1)."""
    if not values:
        return None, None
    array = np.asarray(values)
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else None


def _tested(cells: Sequence[Cell], correct: bool) -> list[Cell]:
    """The cells of one column with the best marked and the comparisons made.

    The best is the highest mean among the rows that have the most splits, so that a row of one lucky
    split is not the best.
    """
    most = max((len(cell.values) for cell in cells), default=0)
    complete = [cell for cell in cells if len(cell.values) == most and cell.mean is not None]
    if not complete:
        return list(cells)
    best = max(complete, key=lambda cell: cell.mean if cell.mean is not None else -math.inf)
    controls = {cell.row: cell for cell in cells if cell.row.label == CONTROL.label and cell.values}
    scored = [cell for cell in cells if cell.values]
    against_best = {cell.row: compare(best.values, cell.values) for cell in scored if cell is not best}
    against_control = {
        cell.row: compare(cell.values, control.values)
        for cell in scored
        if (control := controls.get(control_of(cell.row))) is not None and cell is not control
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
    """What a row is compared with: VAE+, calibrated as the row is; VAE+ calibrated with VAE+ as it is.

    >>> print(control_of(Row("RES", None, 2)), control_of(Row("RES", calibrated=True)), sep=", ")
    VAE+, VAE+ calibrated
    """
    wide = replace(CONTROL, calibrated=True)
    return wide if row.calibrated and row != wide else CONTROL


def _corrected(family: Mapping[Row, Comparison]) -> dict[Row, Comparison]:
    adjusted = holm([found.p for found in family.values()])
    return {
        row: replace(found, p=p, adjusted=p is not None)
        for (row, found), p in zip(family.items(), adjusted, strict=True)
    }
