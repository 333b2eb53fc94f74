"""Make the notes below the tables of a report, which say what limits a comparison of the numbers.

Each function that returns a list returns an empty one if there is nothing to say. In the notes, a
result is a mean over splits of the data, and the control is VAE+: the plain VAE, trained further like
the other methods.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from recmix.inference.inference import REFINEMENT
from recmix.reports.paired import FEWEST_PAIRS
from recmix.reports.records import CONTROL, Row, TableColumn
from recmix.reports.statistics import TIMED_BATCH, Cell, Results, control_of
from recmix.reports.variants import DEFAULTS

__all__ = ["coloured", "control_missing", "devices", "few", "incomplete", "kinds", "other_epochs"]
__all__ += ["other_noise", "repeated", "smallest"]

LISTED = 6
"""Largest number of names that a note lists. A note gives the number of the other names."""


def coloured(results: Results, column: TableColumn) -> bool:
    """Whether a table column has enough data splits for p-values. The colours show these p-values."""
    return results.splits(column) >= FEWEST_PAIRS


def _note(text: str, names: Iterable[str]) -> list[str]:
    """Return a list with one note: the text, and the first `LISTED` names.

    If there are no names, the list is empty.
    """
    found = list(names)
    rest = f" and {len(found) - LISTED} more" if len(found) > LISTED else ""
    return [f"{text}: {'; '.join(found[:LISTED])}{rest}."] if found else []


def _ordered(results: Results) -> list[tuple[tuple[Row, TableColumn], Cell]]:
    return sorted(results.cells.items(), key=lambda item: item[0][0].order)


def few(results: Results) -> list[str]:
    """Make a note that names the table columns with too few data splits for a significance test."""
    counts = {column: results.splits(column) for column in results.columns}
    return _note(
        f"Columns with fewer than {FEWEST_PAIRS} splits have no colours and no p-values, because no "
        "difference can be significant",
        [f"{column} ({count})" for column, count in counts.items() if 0 < count < FEWEST_PAIRS],
    )


def smallest(results: Results) -> list[str]:
    """Make a note that names the table columns with too few data splits for a p-value p ≤ 0.01.

    Columns without p-values are not named. With Holm's correction, more rows need more splits.
    Without this note a reader could think that the methods in these columns are equally good.
    """
    found = []
    for column in filter(lambda column: coloured(results, column), results.columns):
        splits = results.splits(column)
        rows = sum(bool(cell.values) and not cell.row.noise for cell in results.column(column))
        least = 2.0**-splits * (max(rows - 1, 1) if results.holm else 1)
        if least > 0.01:
            found.append(f"{column} ({splits} splits: {min(least, 1.0):.2g})")
    holm = " after Holm's correction" if results.holm else ""
    return _note(
        f"The smallest possible p for this number of splits{holm} is above 0.01, so no row can reach "
        "p ≤ 0.01",
        found,
    )


def control_missing(results: Results) -> list[str]:
    """Make notes that name the table columns without a control.

    They have no score of VAE+, or runs of VAE+ with different training options.
    """
    problems = {str(column): results.control_problem(column) for column in results.columns}
    missing = [column for column, problem in problems.items() if problem.startswith("no ")]
    several = [column for column, problem in problems.items() if problem.startswith("several")]
    without = "VAE+ has no score, so a gain may come from longer training alone"
    add = " VAE+ is the VAE continued with the same schedule: add it, or let it finish."
    unclear = "There are several different VAE+ trainings, so there is no control and gains are left out"
    return [
        *(note + add for note in _note(without, missing)),
        *(note + " Keep one of them in the store." for note in _note(unclear, several)),
    ]


def other_epochs(results: Results) -> list[str]:
    """Make a note that names the rows that were trained for another number of epochs than VAE+.

    The numbers are the training option ``epochs``, so early stopping does not count. Only rows with a
    gain over VAE+ are named, and only if their training started from a trained model, as that of VAE+.
    """
    found = []
    for column in results.columns:
        trained: dict[str, set[int]] = defaultdict(set)
        for cell in results.column(column):
            control = results.cells.get((control_of(cell.row), column))
            gain = cell.versus_control and cell.versus_control.difference
            if control is None or gain is None:
                continue
            ours, theirs = _epochs(cell), _epochs(control)
            if ours and theirs and ours != theirs:
                trained[str(CONTROL)] |= theirs
                trained[str(replace(cell.row, inference="", calibrated=False, noise=False))] |= ours
        words = [f"{row} {' and '.join(map(str, sorted(epochs)))}" for row, epochs in trained.items()]
        if words:
            more = f" and {len(words) - LISTED} more" if len(words) > LISTED else ""
            found.append(f"{column} ({', '.join(words[:LISTED])}{more})")
    same = " Gains over VAE+ are comparable only for the same number."
    return [note + same for note in _note("Trained for different numbers of epochs", found)]


def _epochs(cell: Cell) -> set[int]:
    """Return the values of the training option ``epochs`` of the scored runs of a cell.

    Runs that did not start from a trained model are left out.
    """
    runs = [cell.chosen[split] for split in cell.values]
    specs = [run.spec for run in runs if run.continued and run.spec is not None]
    asked = [{**DEFAULTS, **(spec.get("training") or {})}["epochs"] for spec in specs]
    return {epochs for epochs in asked if isinstance(epochs, int)}


def other_noise(results: Results) -> list[str]:
    """Make a note that rows with a calibrated noise of the likelihood have a different model p(x).

    The list has this one note, or is empty if there are no such rows.
    """
    if not any(row.noise and cell.values for (row, _), cell in results.cells.items()):
        return []
    return [
        "Rows calibrated with noise are another model of the data: the likelihood's noise, and with it "
        "p(x), was chosen on validation data. They are compared with VAE+ calibrated with noise. They "
        "are never the best row of a column."
    ]


def incomplete(results: Results) -> list[str]:
    """Make notes on missing results.

    They name the table rows with fewer data splits than other rows and the runs without a test score,
    and give the number of runs that are not done.
    """
    fewer, unscored, pending = [], [], 0
    for (row, column), cell in _ordered(results):
        most = results.splits(column)
        if 0 < len(cell.values) < most:
            fewer.append(f"{row} on {column} ({len(cell.values)} of {most})")
        by_default = [split for split, run in cell.chosen.items() if run.row == row]
        missing = [str(split) for split in by_default if split not in cell.values]
        if missing:
            word = "split" if len(missing) == 1 else "splits"
            unscored.append(f"{row} on {column} ({word} {', '.join(missing)})")
        pending += cell.pending
    notes = _note("Rows with fewer splits than others are never the best", fewer)
    if unscored:
        said = f"Runs without a finite test score with {results.samples} samples"
        notes += _note(f"{said} (recmix evaluate --samples {results.samples} adds it)", unscored)
    if pending:
        notes.append(f"Runs that are not done are left out: {pending}.")
    return notes


def kinds(results: Results) -> list[str]:
    """Make a note that steps in names such as ``VAE +2 steps`` are Gauss-Newton steps.

    It is made only if other rows have steps of another kind.
    """
    refined = [row.inference for row in results.rows if "step" in row.inference]
    named = [any(kind in words for kind in REFINEMENT) for words in refined]
    if all(named) or not any(named):
        return []
    return ["Steps without a kind are Gauss-Newton steps."]


def repeated(results: Results) -> list[str]:
    """Make a note that names the table rows with repeated runs: same options, data split and seed."""
    return _note(
        "Some runs repeat another run of the same split and restart with the same options. The one with "
        "the best validation bound is used",
        [
            f"{row} on {column} ({cell.repeated})"
            for (row, column), cell in _ordered(results)
            if cell.repeated and any(run.row == row for run in cell.chosen.values())
        ],
    )


def devices(results: Results) -> list[str]:
    """Make notes on the devices on which inference was timed, and on times that cannot be compared."""
    cells = results.cells.values()
    found = sorted({device for cell in cells for device in cell.devices})
    others = sorted({batch for cell in cells for batch in cell.batches})
    notes = _note("Timed on", found)
    if len(found) > 1:
        notes.append("Times of different devices cannot be compared with one another.")
    if found and not all(cell.timed_alone for cell in cells):
        notes.append(
            "Some times were measured while other runs may have used the same machine: "
            "recmix grid FILE --store STORE --time measures them again, one after the other."
        )
    if others:
        sizes = ", ".join(map(str, others))
        notes.append(f"Left out: times of batches that do not have {TIMED_BATCH} examples ({sizes}).")
    return notes
