"""What a table must admit: too few splits, a missing control, gaps, mixed devices."""

from __future__ import annotations

from collections.abc import Iterable

from recmix.reports.records import Column
from recmix.reports.statistics import CONTROL, FEWEST_PAIRS, TIMED_BATCH, Cell, Results

__all__ = ["coloured", "control_missing", "devices", "few", "gaps", "short", "smallest"]

LISTED = 6
"""How many cells a note names before it counts the rest."""


def coloured(results: Results, column: Column) -> bool:
    """Whether a column has enough splits for any colour."""
    return results.splits(column) >= FEWEST_PAIRS


def _named(names: Iterable[str]) -> str:
    found = list(names)
    rest = f" and {len(found) - LISTED} more" if len(found) > LISTED else ""
    return "; ".join(found[:LISTED]) + rest


def few(results: Results) -> list[str]:
    """Where there are too few splits for a test."""
    found = [
        f"{column} ({results.splits(column)})"
        for column in results.columns
        if 0 < results.splits(column) < FEWEST_PAIRS
    ]
    if not found:
        return []
    return [
        f"No colours and no p-values where there are fewer than {FEWEST_PAIRS} splits, for no "
        f"significance can be claimed from them: {_named(found)}."
    ]


def smallest(results: Results) -> list[str]:
    """Say where p ≤ 0.01 is out of reach, so that its absence is not read as similarity."""
    found = []
    for column in results.columns:
        splits = results.splits(column)
        rows = sum(bool(c.values) for (_, k), c in results.cells.items() if k == column)
        least = 2.0**-splits * (max(rows - 1, 1) if results.holm else 1)
        if splits >= FEWEST_PAIRS and least > 0.01:
            found.append(f"{column} ({splits} splits: {min(least, 1.0):.2g})")
    if not found:
        return []
    holm = " after Holm's correction" if results.holm else ""
    return [
        f"The smallest p that the number of splits allows{holm} is above 0.01, so that no row can be "
        f"strongly distinguished: {_named(found)}."
    ]


def control_missing(results: Results) -> list[str]:
    """Where there is no VAE+ to measure gains from."""
    missing = []
    for column in results.columns:
        cell = results.cells.get((CONTROL, column))
        if cell is None or not cell.values:
            missing.append(str(column))
    if not missing:
        return []
    return [
        f"VAE+ has no score, so that gains cannot be told from longer training: {_named(missing)}. "
        "It is the VAE continued under the same schedule: add it, or let it finish."
    ]


def gaps(results: Results) -> list[str]:
    """Rows with fewer splits than others, runs without a score, runs that are not done."""
    notes = []
    fewer, unscored, pending = [], 0, 0
    for (row, column), cell in sorted(results.cells.items(), key=lambda item: item[0][0].order):
        most = results.splits(column)
        if 0 < len(cell.values) < most:
            fewer.append(f"{row} on {column} ({len(cell.values)} of {most})")
        unscored += 0 if row.use else len(cell.chosen) - len(cell.values)
        pending += cell.pending
    if fewer:
        notes.append(f"Fewer splits than the rest of the column, so never its best: {_named(fewer)}.")
    if unscored:
        notes.append(
            f"{unscored} selected runs have no finite test score with {results.samples} samples: "
            f"recmix evaluate --samples {results.samples} adds it."
        )
    if pending:
        notes.append(f"Not done, and so without a part in it: {pending} of the runs.")
    return notes


def short(cell: Cell, results: Results) -> str:
    """How many splits a cell has, if others of its column have more."""
    most = results.splits(cell.column)
    return "" if len(cell.values) == most else f"{len(cell.values)} of {most} splits"


def devices(results: Results) -> list[str]:
    """What the times were measured on."""
    found = sorted({device for cell in results.cells.values() for device in cell.devices})
    others = sorted({batch for cell in results.cells.values() for batch in cell.batches})
    notes = []
    if found:
        notes.append(f"Timed on: {_named(found)}.")
    if len(found) > 1:
        notes.append("Times of different devices cannot be compared with one another.")
    if found and not all(cell.timed_alone for cell in results.cells.values()):
        notes.append(
            "Some times were taken while other runs of the grid may have shared the machine: "
            "recmix grid FILE --store STORE --time takes them again, one after the other."
        )
    if others:
        sizes = ", ".join(map(str, others))
        notes.append(f"Left out: times of batches that are not of {TIMED_BATCH} images ({sizes}).")
    return notes
