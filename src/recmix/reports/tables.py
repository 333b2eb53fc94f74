"""The paper's tables, made from results; `recmix.reports.forms` and `.latex` write them as text.

Rows are methods in the paper's order, columns are data sets by dimension. In each column the best row is
red and bold. The colour of another row shows the p-value of its difference from the best. The paper's
number follows ours, with the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from recmix.reports import notes
from recmix.reports.paired import Comparison
from recmix.reports.published import Published, likelihood_of, time_of
from recmix.reports.records import CONTROL, Row, TableColumn
from recmix.reports.statistics import TIMED_BATCH, Cell, Results

__all__ = [
    "LEVELS",
    "Level",
    "Line",
    "Table",
    "TableEntry",
    "all_tables",
    "fixed",
    "gain_table",
    "level_of",
    "likelihood_table",
    "p_text",
    "signed",
    "time_table",
]

EMPTY = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A colour of the paper's tables.

    Attributes:
        name: short, for style sheets.
        words: what it means.
        colour: red, green and blue, 0 to 1; None for the usual colour of text.
        latex: the paper's name of the colour.
    """

    name: str
    words: str
    colour: tuple[float, float, float] | None = None
    latex: str = ""

    @property
    def rgb(self) -> str:
        """The colour, for the terminal."""
        assert self.colour is not None
        return "rgb({},{},{})".format(*(round(255 * part) for part in self.colour))


LEVELS = {
    "best": Level(name="best", words="best on average", colour=(1.0, 0.0, 0.0), latex="red"),
    "strong": Level(name="strong", words="p ≤ 0.01"),
    "weak": Level(name="weak", words="0.01 < p ≤ 0.05", colour=(1.0, 0.85, 0.0), latex="lor"),
    "hint": Level(name="hint", words="0.05 < p ≤ 0.1", colour=(1.0, 0.6, 0.0), latex="or"),
    "little": Level(name="little", words="p > 0.1", colour=(1.0, 0.2, 0.0), latex="dor"),
}


def level_of(p: float | None) -> Level | None:
    """The paper's colour for a p-value.

    >>> [level_of(p).name for p in (0.01, 0.05, 0.1, 0.2)]
    ['strong', 'weak', 'hint', 'little']
    """
    if p is None:
        return None
    bounds = ((0.01, "strong"), (0.05, "weak"), (0.1, "hint"))
    return LEVELS[next((name for limit, name in bounds if p <= limit), "little")]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEntry:
    """A cell as text, with the numbers by which it is sorted.

    Attributes:
        text: the mean, or the gain.
        spread: the standard deviation, or an interval.
        value: number by which it is sorted.
        level: its colour.
        bold: whether it is bold.
        p: the p-value as text, or the word ``best``.
        more: further text, such as the effect size.
        paper: the paper's number.
        paper_spread: the paper's standard deviation.
        paper_value: the paper's number, for sorting.
        difference: ours minus the paper's.
    """

    text: str = EMPTY
    spread: str = ""
    value: float | None = None
    level: Level | None = None
    bold: bool = False
    p: str = ""
    more: str = ""
    paper: str = ""
    paper_spread: str = ""
    paper_value: float | None = None
    difference: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A row of a table; `first` is true for the first of a label, such as SA(1) of SA(1) to SA(8)."""

    row: Row
    entries: Sequence[TableEntry]
    first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table that can be written in any form.

    Attributes:
        key: short name.
        title: above it.
        caption: what its numbers are.
        columns: data sets by dimension.
        printed: for each column, whether the paper has numbers for it.
        lines: the rows.
        notes: below it.
        coloured: whether it uses the colours of `LEVELS`.
    """

    key: str
    title: str
    caption: str
    columns: Sequence[TableColumn]
    printed: Sequence[bool]
    lines: Sequence[Line]
    notes: Sequence[str]
    coloured: bool = False

    @property
    def groups(self) -> list[tuple[str, list[int]]]:
        """Data sets, each with the indices of its columns."""
        places = groupby(range(len(self.columns)), key=lambda i: self.columns[i].title)
        return [(title, list(found)) for title, found in places]


# --- the three tables ------------------------------------------------------------------------------


def all_tables(results: Results) -> list[Table]:
    """Log-likelihood, gain over VAE+, inference time."""
    return [likelihood_table(results), gain_table(results), time_table(results)]


def likelihood_table(results: Results) -> Table:
    """The paper's Table 1: test log-likelihood, with colours and the paper's numbers."""

    def entry(cell: Cell, digits: int) -> TableEntry:
        if cell.mean is None:
            return TableEntry()
        tested = cell.versus_best
        coloured = notes.coloured(results, cell.column)
        level = LEVELS["best"] if cell.best else level_of(tested.p if tested else None)
        return TableEntry(
            text=fixed(cell.mean, digits),
            spread="" if cell.std is None else fixed(cell.std, digits),
            value=cell.mean,
            level=level if coloured else None,
            bold=cell.best,
            p="best" if cell.best else "" if tested is None else p_text(tested),
            more=notes.short(cell, results),
        )

    corrected = " Holm-corrected within a column." if results.holm else ""
    return _table(
        results,
        entry,
        likelihood_of,
        key="likelihood",
        title=f"Test log-likelihood (IWAE-{results.samples}, nats per image)",
        caption=(
            "Mean and standard deviation over splits; in each split the restart with the best "
            "validation bound. p: one-sided exact Wilcoxon signed-rank test of the best row against "
            f"this one.{corrected} Paper: the paper's number and the difference of ours from it."
        ),
        remarks=[
            *notes.few(results),
            *notes.smallest(results),
            *notes.control_missing(results),
            *notes.incomplete(results),
            *notes.repeated(results),
            "The best row is chosen by the same test scores that are then compared, as in the paper. So "
            "the p-values are a little too small.",
        ],
        coloured=True,
    )


def gain_table(results: Results) -> Table:
    """The gain of each row over VAE+, the same VAE continued with the same schedule."""

    def entry(cell: Cell, digits: int) -> TableEntry:
        found = cell.versus_control
        if found is None or found.difference is None:
            return TableEntry(text="control" if cell.row == CONTROL and cell.values else EMPTY)
        low, high = found.interval or (0.0, 0.0)
        shown = f"[{signed(low, digits)}, {signed(high, digits)}]" if found.interval else ""
        return TableEntry(
            text=signed(found.difference, digits),
            spread=shown,
            value=found.difference,
            bold=found.p is not None and found.p <= 0.05,
            p=p_text(found),
            more="" if found.p is None or found.effect is None else f"r = {fixed(found.effect, 2)}",
        )

    corrected = ", Holm-corrected within a column" if results.holm else ""
    return _table(
        results,
        entry,
        lambda row, column: None,
        key="gain",
        title="Gain over VAE+ (nats per image)",
        caption=(
            "Mean difference from VAE+ over shared splits with its 95 % t interval; p: one-sided exact "
            f"Wilcoxon signed-rank test that the row is higher{corrected}; r: matched-pairs "
            "rank-biserial correlation, from -1 to 1. Bold: p ≤ 0.05."
        ),
        remarks=[*notes.few(results), *notes.control_missing(results)],
    )


def time_table(results: Results) -> Table:
    """The paper's table of inference times: milliseconds for the posterior of a batch of 128."""

    def entry(cell: Cell, digits: int) -> TableEntry:
        if cell.milliseconds is None:
            return TableEntry()
        places = _time_digits(cell.milliseconds)
        return TableEntry(
            text=fixed(cell.milliseconds, places),
            spread="" if cell.milliseconds_std is None else fixed(cell.milliseconds_std, places),
            value=cell.milliseconds,
        )

    return _table(
        results,
        entry,
        time_of,
        key="time",
        title=f"Inference time (milliseconds per batch of {TIMED_BATCH})",
        caption=(
            f"Time to compute the posterior of a batch of {TIMED_BATCH} images: mean and standard "
            "deviation over the runs of the table above. recmix grid --time measures each run alone, as "
            "the mean of five passes over the test images. The paper used an RTX 2080 Ti."
        ),
        remarks=[*notes.devices(results), *notes.control_missing(results)],
    )


def _table(
    results: Results,
    make: Callable[[Cell, int], TableEntry],
    printed: Callable[[Row, TableColumn], Published | None],
    *,
    key: str,
    title: str,
    caption: str,
    remarks: Sequence[str],
    coloured: bool = False,
) -> Table:
    digits = {column: _digits(results, column) for column in results.columns}
    lines, label = [], ""
    for row in results.rows:
        entries = []
        for column in results.columns:
            cell = results.cells.get((row, column))
            entry = TableEntry() if cell is None else make(cell, digits[column])
            entries.append(_with_paper(entry, printed(row, column), digits[column]))
        lines.append(Line(row=row, entries=entries, first=row.label != label))
        label = row.label
    has = [any(line.entries[i].paper for line in lines) for i in range(len(results.columns))]
    return Table(
        key=key,
        title=title,
        caption=caption,
        columns=results.columns,
        printed=has,
        lines=lines,
        notes=remarks,
        coloured=coloured and any(notes.coloured(results, column) for column in results.columns),
    )


def _with_paper(entry: TableEntry, printed: Published | None, digits: int) -> TableEntry:
    """The entry with the paper's number added."""
    if printed is None:
        return entry
    places = 1 if printed.table.endswith("_ms") else digits
    return replace(
        entry,
        difference="" if entry.value is None else signed(entry.value - printed.mean, places),
        paper=fixed(printed.mean, places),
        paper_spread="" if printed.std is None else fixed(printed.std, places),
        paper_value=printed.mean,
    )


# --- numbers ---------------------------------------------------------------------------------------


def fixed(value: float, digits: int) -> str:
    """A number with this many decimals, without a minus before zero."""
    shown = f"{value:.{digits}f}"
    return shown[1:] if float(shown) == 0 and shown.startswith("-") else shown


def signed(value: float, digits: int) -> str:
    """The same with its sign, for differences."""
    shown = f"{value:+.{digits}f}"
    return fixed(0.0, digits) if float(shown) == 0 else shown


def _digits(results: Results, column: TableColumn) -> int:
    """One decimal as in the paper; two for small scores, as on binary images."""
    sizes = [abs(cell.mean) for cell in results.column(column) if cell.mean is not None]
    return 2 if sizes and max(sizes) < 200 else 1


def _time_digits(milliseconds: float) -> int:
    return 1 if milliseconds >= 10 else 2 if milliseconds >= 1 else 3


def p_text(found: Comparison) -> str:
    """A p-value as text; empty if there is none."""
    if found.p is None:
        return ""
    if found.p < 0.001:
        return "p < 0.001"
    return f"p = {found.p:.3f}" if found.p >= 0.1 else f"p = {found.p:.4f}"
