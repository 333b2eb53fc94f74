"""Make the tables of a report from our results, in the layout of Kim and Pavlovic (2020).

Rows are methods in the paper's order. Columns are data sets, each with its latent dimensions. In
each column the best row is red and bold. The colour of another row shows the p-value of its
difference from the best row. The paper's number follows ours, with the difference between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

from recmix.reports import notes
from recmix.reports.paired import Comparison
from recmix.reports.published import Published, likelihood_of, time_of
from recmix.reports.records import CONTROL, Row, TableColumn
from recmix.reports.statistics import TIMED_BATCH, Cell, Results

__all__ = ["LEVELS", "Level", "Line", "Table", "TableEntry", "all_tables", "decimals", "fixed"]
__all__ += ["gain_table", "level_of", "likelihood_table", "p_text", "signed", "time_table"]
__all__ += ["with_spread"]

EMPTY = "–"


class Level(NamedTuple):
    """The meaning and colour of a mark in the tables: the best method, or a range of p-values."""

    name: str  # short name, for style sheets
    words: str  # what the mark means, such as ``p ≤ 0.01``
    colour: str = ""  # the colour in the terminal; empty for the usual colour of text
    latex: str = ""  # name of the colour in LaTeX


LEVELS = {
    "best": Level("best", "best on average", "rgb(255,0,0)", "red"),
    "strong": Level("strong", "p ≤ 0.01"),
    "weak": Level("weak", "0.01 < p ≤ 0.05", "rgb(255,217,0)", "lor"),
    "hint": Level("hint", "0.05 < p ≤ 0.1", "rgb(255,153,0)", "or"),
    "little": Level("little", "p > 0.1", "rgb(255,51,0)", "dor"),
}


def level_of(p: float | None) -> Level | None:
    """Return the `Level` of a p-value, one of `LEVELS`, or None if `p` is None.

    >>> [level_of(p).name for p in (0.01, 0.05, 0.1, 0.2)]
    ['strong', 'weak', 'hint', 'little']
    """
    if p is None:
        return None
    bounds = ((0.01, "strong"), (0.05, "weak"), (0.1, "hint"))
    return LEVELS[next((name for limit, name in bounds if p <= limit), "little")]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEntry:
    """A table cell as text, with the numbers by which the HTML page sorts it."""

    text: str = EMPTY  # the number that the cell shows: a mean score, a gain or a time
    spread: str = ""  # its standard deviation or interval
    value: float | None = None  # the number as a float, for sorting
    level: Level | None = None  # the colour of the cell and its meaning; None for no colour
    bold: bool = False  # whether the number is bold
    p: str = ""  # the p-value as text, or the word ``best``
    more: str = ""  # further text, such as the effect size
    paper: str = ""  # the number of Kim and Pavlovic (2020) for the same cell; empty if there is none
    paper_spread: str = ""  # the standard deviation of this number
    paper_value: float | None = None  # this number as a float, for sorting
    difference: str = ""  # our number minus this number

    @property
    def signed_spread(self) -> str:
        """The text `spread` with ± before it; an interval such as ``[0.1, 0.4]`` is not changed."""
        return self.spread if self.spread.startswith("[") else f"± {self.spread}"

    @property
    def details(self) -> list[str]:
        """The p-value and the further text `more` of the cell, without empty texts."""
        return [word for word in (self.p, self.more) if word]


class Line(NamedTuple):
    """One row of a `Table`, with its cells as text."""

    row: Row  # the method, its setting and its inference
    entries: Sequence[TableEntry]  # the cells, one for each column of the table
    first: bool  # whether the row is the first one of its method


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table as text cells, which can be written as HTML, Markdown, LaTeX or terminal text."""

    key: str  # short name of the table, such as ``gain``
    title: str  # title above the table
    caption: str  # what the numbers are
    columns: Sequence[TableColumn]  # the columns: data sets, each with a latent dimension
    lines: Sequence[Line]  # the rows
    notes: Sequence[str]  # notes below the table

    @cached_property
    def printed(self) -> list[bool]:
        """For each column, whether the paper by Kim and Pavlovic (2020) has numbers for it."""
        return [any(line.entries[i].paper for line in self.lines) for i in range(len(self.columns))]

    @cached_property
    def coloured(self) -> bool:
        """Whether at least one cell of the table has one of the colours of `LEVELS`."""
        return any(entry.level for line in self.lines for entry in line.entries)

    @cached_property
    def groups(self) -> list[tuple[str, list[int]]]:
        """The titles of the data sets, each with the indices of its columns in the table."""
        places = groupby(range(len(self.columns)), key=lambda i: self.columns[i].title)
        return [(title, list(found)) for title, found in places]


def all_tables(results: Results) -> list[Table]:
    """Return the three tables of a report: log-likelihood, gain over VAE+, and inference time.

    VAE+ is the plain VAE that was trained further.
    """
    return [likelihood_table(results), gain_table(results), time_table(results)]


def likelihood_table(results: Results) -> Table:
    """Return the table of test log-likelihoods: our numbers beside those of Kim and Pavlovic (2020)."""

    def entry(cell: Cell, digits: int) -> TableEntry:
        if cell.mean is None:
            return TableEntry()
        tested, most = cell.versus_best, results.splits(cell.column)
        level = LEVELS["best"] if cell.best else level_of(tested.p if tested else None)
        return TableEntry(
            text=fixed(cell.mean, digits),
            spread=fixed(cell.std, digits),
            value=cell.mean,
            level=level if notes.coloured(results, cell.column) else None,
            bold=cell.best,
            p="best" if cell.best else p_text(tested),
            more="" if len(cell.values) == most else f"{len(cell.values)} of {most} splits",
        )

    corrected = " Holm-corrected within a column." if results.holm else ""
    return Table(
        key="likelihood",
        title=f"Test log-likelihood (IWAE-{results.samples}, nats per example)",
        caption=(
            "Mean and standard deviation over splits; in each split the restart with the best "
            "validation bound. p: one-sided exact Wilcoxon signed-rank test of the best row against "
            f"this one.{corrected} Paper: the paper's number and the difference of ours from it."
        ),
        columns=results.columns,
        lines=_lines(results, entry, likelihood_of),
        notes=[
            *notes.few(results),
            *notes.smallest(results),
            *notes.control_missing(results),
            *notes.other_epochs(results),
            *notes.other_noise(results),
            *notes.incomplete(results),
            *notes.repeated(results),
            *notes.kinds(results),
            "The best row is chosen by the same test scores that are then compared, as in the paper. So "
            "the p-values are a little too small.",
        ],
    )


def gain_table(results: Results) -> Table:
    """Return the table of gains: differences from VAE+ in test log-likelihood, in nats.

    VAE+ is the plain VAE, trained further with the same schedule as the other methods.
    """

    def entry(cell: Cell, digits: int) -> TableEntry:
        found = cell.versus_control
        if found is None or found.difference is None:
            return TableEntry(text="control" if cell.row == CONTROL and cell.values else EMPTY)
        ends = ", ".join(signed(end, digits) for end in found.interval or ())
        return TableEntry(
            text=signed(found.difference, digits),
            spread=ends and f"[{ends}]",
            value=found.difference,
            bold=found.p is not None and found.p <= 0.05,
            p=p_text(found),
            more="" if found.p is None or found.effect is None else f"r = {fixed(found.effect, 2)}",
        )

    corrected = ", Holm-corrected within a column" if results.holm else ""
    return Table(
        key="gain",
        title="Gain over VAE+ (nats per example)",
        caption=(
            "Mean difference from VAE+ over shared splits with its 95 % t interval; p: one-sided exact "
            f"Wilcoxon signed-rank test that the row is higher{corrected}; r: matched-pairs "
            "rank-biserial correlation, from -1 to 1. Bold: p ≤ 0.05."
        ),
        columns=results.columns,
        lines=_lines(results, entry, lambda row, column: None),
        notes=[
            *notes.few(results),
            *notes.control_missing(results),
            *notes.other_epochs(results),
            *notes.other_noise(results),
        ],
    )


def time_table(results: Results) -> Table:
    """Return the table of inference times: milliseconds for the posterior of a batch of 128 examples."""

    def entry(cell: Cell, digits: int) -> TableEntry:
        if cell.milliseconds is None:
            return TableEntry()
        places = 1 if cell.milliseconds >= 10 else 2 if cell.milliseconds >= 1 else 3
        return TableEntry(
            text=fixed(cell.milliseconds, places),
            spread=fixed(cell.milliseconds_std, places),
            value=cell.milliseconds,
        )

    return Table(
        key="time",
        title=f"Inference time (milliseconds per batch of {TIMED_BATCH})",
        caption=(
            f"Time to compute the posterior of a batch of {TIMED_BATCH} examples: mean and standard "
            "deviation over the runs of the table above. recmix grid --time measures each run alone, as "
            "the mean of five passes over the test examples. The paper used an RTX 2080 Ti."
        ),
        columns=results.columns,
        lines=_lines(results, entry, time_of),
        notes=[*notes.devices(results), *notes.control_missing(results)],
    )


def _lines(
    results: Results,
    make: Callable[[Cell, int], TableEntry],
    printed_for: Callable[[Row, TableColumn], Published | None],
) -> list[Line]:
    """Return the rows of a table as text.

    Args:
        results: the numbers.
        make: function that writes a cell as text. Its arguments are the cell and the number of
            decimals.
        printed_for: function that returns the number of Kim and Pavlovic (2020) for a row and a
            column, or None.
    """
    columns = {}
    for column in results.columns:
        means = [cell.mean for cell in results.column(column) if cell.mean is not None]
        columns[column] = min(map(decimals, means), default=1)
    lines: list[Line] = []
    for row in results.rows:
        entries = []
        for column, digits in columns.items():
            cell = results.cells.get((row, column))
            entry = TableEntry() if cell is None else make(cell, digits)
            printed = printed_for(row, column)
            entries.append(entry if printed is None else _with_paper(entry, printed, digits))
        lines.append(Line(row, entries, not lines or row.label != lines[-1].row.label))
    return lines


def _with_paper(entry: TableEntry, printed: Published, digits: int) -> TableEntry:
    places = 1 if printed.table.endswith("_ms") else digits
    return replace(
        entry,
        difference="" if entry.value is None else signed(entry.value - printed.mean, places),
        paper=fixed(printed.mean, places),
        paper_spread=fixed(printed.std, places),
        paper_value=printed.mean,
    )


def fixed(value: float | None, digits: int) -> str:
    """Return a number as text with `digits` decimals. Zero has no sign. None gives an empty text."""
    return "" if value is None else f"{value:z.{digits}f}"


def signed(value: float, digits: int) -> str:
    """Return a number as text with `digits` decimals and the sign + or -. Zero has no sign."""
    shown = f"{value:+z.{digits}f}"
    return shown if float(shown) else shown[1:]


def decimals(value: float) -> int:
    """Return how many decimals a score in nats has as text: 2 if it is between -200 and 200, else 1."""
    return 2 if abs(value) < 200 else 1


def with_spread(mean: float, std: float | None) -> str:
    """Return a mean score and its standard deviation, if there is one, as text.

    >>> with_spread(-84.5, 0.25), with_spread(1185.7, None)
    ('-84.50 ± 0.25', '1185.7')
    """
    return " ± ".join(fixed(value, decimals(mean)) for value in (mean, std) if value is not None)


def p_text(found: Comparison | None) -> str:
    """Return the p-value of a comparison of two methods as text; empty if there is no p-value."""
    if found is None or found.p is None:
        return ""
    if found.p < 0.001:
        return "p < 0.001"
    return f"p = {found.p:.3f}" if found.p >= 0.1 else f"p = {found.p:.4f}"
