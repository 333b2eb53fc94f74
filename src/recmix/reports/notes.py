"""Notes below the tables: too few splits, a missing control, incomplete rows, different devices."""

from __future__ import annotations

from collections.abc import Iterable

from recmix.reports.paired import FEWEST_PAIRS
from recmix.reports.records import TableColumn
from recmix.reports.statistics import TIMED_BATCH, Cell, Results

__all__ = [
    "coloured",
    "control_missing",
    "devices",
    "few",
    "incomplete",
    "repeated",
    "short",
    "smallest",
]

LISTED = 6
"""How many names a note lists before it counts the rest."""


def coloured(results: Results, column: TableColumn) -> bool:
    """Whether a column has enough splits for colours."""
    return results.splits(column) >= FEWEST_PAIRS


def _listed(names: Iterable[str]) -> str:
    found = list(names)
    rest = f" and {len(found) - LISTED} more" if len(found) > LISTED else ""
    return "; ".join(found[:LISTED]) + rest


def few(results: Results) -> list[str]:
    """Columns with too few splits for a test."""
    counts = {column: results.splits(column) for column in results.columns}
    found = [f"{column} ({count})" for column, count in counts.items() if 0 < count < FEWEST_PAIRS]
    if not found:
        return []
    return [
        f"Columns with fewer than {FEWEST_PAIRS} splits have no colours and no p-values, because no "
        f"difference can be significant: {_listed(found)}."
    ]


def smallest(results: Results) -> list[str]:
    """Columns where p ≤ 0.01 is impossible. Without this note its absence looks like similarity."""
    found = []
    for column in results.columns:
        splits = results.splits(column)
        rows = sum(bool(cell.values) for cell in results.column(column))
        least = 2.0**-splits * (max(rows - 1, 1) if results.holm else 1)
        if splits >= FEWEST_PAIRS and least > 0.01:
            found.append(f"{column} ({splits} splits: {min(least, 1.0):.2g})")
    if not found:
        return []
    holm = " after Holm's correction" if results.holm else ""
    return [
        f"The smallest possible p for this number of splits{holm} is above 0.01, so no row can reach "
        f"p ≤ 0.01: {_listed(found)}."
    ]


def control_missing(results: Results) -> list[str]:
    """Columns without VAE+, and columns with several different VAE+."""
    problems = {column: results.control_problem(column) for column in results.columns}
    missing = [str(column) for column, problem in problems.items() if problem.startswith("no ")]
    several = [str(column) for column, problem in problems.items() if problem.startswith("several")]
    notes = []
    if missing:
        notes.append(
            f"VAE+ has no score, so a gain may come from longer training alone: {_listed(missing)}. "
            "VAE+ is the VAE continued with the same schedule: add it, or let it finish."
        )
    if several:
        notes.append(
            "There are several different VAE+ trainings, so there is no control and gains are left "
            f"out: {_listed(several)}. Keep one of them in the store."
        )
    return notes


def incomplete(results: Results) -> list[str]:
    """Rows with fewer splits than others, runs without a score, runs that are not done."""
    notes = []
    fewer, unscored, pending = [], 0, 0
    for (row, column), cell in sorted(results.cells.items(), key=lambda item: item[0][0].order):
        most = results.splits(column)
        if 0 < len(cell.values) < most:
            fewer.append(f"{row} on {column} ({len(cell.values)} of {most})")
        by_default = [split for split, run in cell.chosen.items() if run.row == row]
        unscored += sum(split not in cell.values for split in by_default)
        pending += cell.pending
    if fewer:
        notes.append(f"Rows with fewer splits than others are never the best: {_listed(fewer)}.")
    if unscored:
        notes.append(
            f"{unscored} selected runs have no finite test score with {results.samples} samples: "
            f"recmix evaluate --samples {results.samples} adds it."
        )
    if pending:
        notes.append(f"Runs that are not done are left out: {pending}.")
    return notes


def repeated(results: Results) -> list[str]:
    """Rows with several runs of one split and restart that were trained with the same options."""
    found = [
        f"{row} on {column} ({cell.repeated})"
        for (row, column), cell in sorted(results.cells.items(), key=lambda item: item[0][0].order)
        if cell.repeated and not row.inference and not row.calibrated
    ]
    if not found:
        return []
    return [
        "Some runs repeat another run of the same split and restart with the same options. The one with "
        f"the best validation bound is used: {_listed(found)}."
    ]


def short(cell: Cell, results: Results) -> str:
    """How many splits a cell has, if others of its column have more."""
    most = results.splits(cell.column)
    return "" if len(cell.values) == most else f"{len(cell.values)} of {most} splits"


def devices(results: Results) -> list[str]:
    """The devices of the times, and what limits their comparison."""
    found = sorted({device for cell in results.cells.values() for device in cell.devices})
    others = sorted({batch for cell in results.cells.values() for batch in cell.batches})
    notes = []
    if found:
        notes.append(f"Timed on: {_listed(found)}.")
    if len(found) > 1:
        notes.append("Times of different devices cannot be compared with one another.")
    if found and not all(cell.timed_alone for cell in results.cells.values()):
        notes.append(
            "Some times were measured while other runs may have used the same machine: "
            "recmix grid FILE --store STORE --time measures them again, one after the other."
        )
    if others:
        sizes = ", ".join(map(str, others))
        notes.append(f"Left out: times of batches that do not have {TIMED_BATCH} images ({sizes}).")
    return notes
