"""The paper's tables from results; `recmix.reports.forms` and `.latex` write them down.

Rows are methods in the paper's order, columns data sets by dimension. In each column the best row is
red and bold, and every other row carries the colour of the p-value of its difference from the best.
The figure the paper printed stands beside ours, with the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from recmix.reports import notes
from recmix.reports.published import Published, likelihood_of, time_of
from recmix.reports.records import Column, Row
from recmix.reports.statistics import CONTROL, TIMED_BATCH, Cell, Comparison, Results

__all__ = [
    "LEVELS",
    "Entry",
    "Level",
    "Line",
    "Table",
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
    """A colour of the paper's code.

    Attributes:
        name: short, for style sheets.
        words: what it means.
        colour: red, green and blue, 0 to 1; None leaves the text as it is.
        latex: the paper's name of the colour.
    """

    name: str
    words: str
    colour: tuple[float, float, float] | None = None
    latex: str = ""

    @property
    def rgb(self) -> str:
        """For the terminal."""
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
class Entry:
    """A cell as text, with the numbers it sorts by.

    Attributes:
        text: the mean, or the gain.
        spread: the standard deviation, or an interval.
        value: what it sorts by.
        level: its colour.
        bold: whether it stands out.
        p: the p-value as text, or the word ``best``.
        more: what else there is to say, such as the effect size.
        paper: the printed figure.
        paper_spread: the printed standard deviation.
        paper_value: what that sorts by.
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
    """A row of a table; `first` starts a group, such as SA(1) … SA(8)."""

    row: Row
    entries: Sequence[Entry]
    first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table ready to be written in any form.

    Attributes:
        key: short name.
        title: above it.
        caption: what its figures are.
        columns: data sets by dimension.
        printed: for each column, whether the paper has figures for it.
        lines: the rows.
        notes: below it.
        coloured: whether it uses the colours of `LEVELS`.
    """

    key: str
    title: str
    caption: str
    columns: Sequence[Column]
    printed: Sequence[bool]
    lines: Sequence[Line]
    notes: Sequence[str]
    coloured: bool = False

    @property
    def groups(self) -> list[tuple[str, list[int]]]:
        """Data sets, each with the places of its columns."""
        places = groupby(range(len(self.columns)), key=lambda i: self.columns[i].title)
        return [(title, list(found)) for title, found in places]


# --- what the tables say ---------------------------------------------------------------------------


def all_tables(results: Results) -> list[Table]:
    """Log-likelihood, gain over VAE+, inference time."""
    return [likelihood_table(results), gain_table(results), time_table(results)]


def likelihood_table(results: Results) -> Table:
    """The paper's Table 1: test log-likelihood with the colour code and the printed figures."""

    def entry(cell: Cell, digits: int) -> Entry:
        if cell.mean is None:
            return Entry()
        tested = cell.versus_best
        coloured = notes.coloured(results, cell.column)
        level = LEVELS["best"] if cell.best else level_of(tested.p if tested else None)
        return Entry(
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
            f"this one.{corrected} Beside it the paper's figure and the difference to it."
        ),
        remarks=[
            *notes.few(results),
            *notes.smallest(results),
            *notes.control_missing(results),
            *notes.gaps(results),
            "The best row is picked on the same test scores that are then compared, as in the paper: "
            "p-values against it flatter it a little.",
        ],
        coloured=True,
    )


def gain_table(results: Results) -> Table:
    """What each row gains over VAE+, the same VAE continued under the same schedule."""

    def entry(cell: Cell, digits: int) -> Entry:
        found = cell.versus_control
        if found is None or found.difference is None:
            return Entry(text="control" if cell.row == CONTROL and cell.values else EMPTY)
        low, high = found.interval or (0.0, 0.0)
        shown = f"[{signed(low, digits)}, {signed(high, digits)}]" if found.interval else ""
        return Entry(
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
            "Mean difference to VAE+ over shared splits with its 95 % t interval; p: one-sided exact "
            f"Wilcoxon signed-rank test that the row is higher{corrected}; r: matched-pairs "
            "rank-biserial correlation, from -1 to 1. Bold: p ≤ 0.05."
        ),
        remarks=[*notes.few(results), *notes.control_missing(results)],
    )


def time_table(results: Results) -> Table:
    """The paper's table of inference times: milliseconds to form the posterior of a batch of 128."""

    def entry(cell: Cell, digits: int) -> Entry:
        if cell.milliseconds is None:
            return Entry()
        places = _time_digits(cell.milliseconds)
        return Entry(
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
            f"Time to form the posterior of a batch of {TIMED_BATCH} images: mean and standard "
            "deviation over the runs of the table above. Taken alone (recmix grid --time), a run's time "
            "is the mean of five passes over the test images. The paper's times are of an RTX 2080 Ti."
        ),
        remarks=[*notes.devices(results), *notes.control_missing(results)],
    )


def _table(
    results: Results,
    make: Callable[[Cell, int], Entry],
    printed: Callable[[Row, Column], Published | None],
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
            entry = Entry() if cell is None else make(cell, digits[column])
            entries.append(_beside(entry, printed(row, column), digits[column]))
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


def _beside(entry: Entry, printed: Published | None, digits: int) -> Entry:
    """The entry with the paper's figure beside it."""
    if printed is None:
        return entry
    time = printed.table.endswith("_ms")
    places = 1 if time else digits
    difference = ""
    if entry.value is not None:
        difference = signed(entry.value - printed.mean, places)
    return replace(
        entry,
        difference=difference,
        paper=fixed(printed.mean, places),
        paper_spread="" if printed.std is None else fixed(printed.std, places),
        paper_value=printed.mean,
    )


# --- numbers ---------------------------------------------------------------------------------------


def fixed(value: float, digits: int) -> str:
    """A number with so many decimals, and no minus before a zero."""
    shown = f"{value:.{digits}f}"
    return shown[1:] if float(shown) == 0 and shown.startswith("-") else shown


def signed(value: float, digits: int) -> str:
    """The same with its sign, as a difference is written."""
    shown = f"{value:+.{digits}f}"
    return fixed(0.0, digits) if float(shown) == 0 else shown


def _digits(results: Results, column: Column) -> int:
    """One decimal as in the paper; two where the scores are small, as on binary images."""
    cells = (results.cells.get((row, column)) for row in results.rows)
    sizes = [abs(cell.mean) for cell in cells if cell is not None and cell.mean is not None]
    return 2 if sizes and max(sizes) < 200 else 1


def _time_digits(milliseconds: float) -> int:
    return 1 if milliseconds >= 10 else 2 if milliseconds >= 1 else 3


def p_text(found: Comparison) -> str:
    """A p-value in words, or nothing where there is none."""
    if found.p is None:
        return ""
    if found.p < 0.001:
        return "p < 0.001"
    return f"p = {found.p:.3f}" if found.p >= 0.1 else f"p = {found.p:.4f}"
