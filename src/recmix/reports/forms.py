"""Write the tables of a report as text: for the terminal, and as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Group
from rich.table import Table as RichTable
from rich.text import Text

from recmix.reports.tables import LEVELS, Line, Table, TableEntry

__all__ = ["markdown_table", "one_line", "to_markdown", "to_terminal"]

MARKDOWN = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", **{c: "\\" + c for c in r"\`*_[]|#"}},
)


def _cells(
    table: Table, line: Line, places: Sequence[int], show: Callable[[TableEntry], Any]
) -> list[Any]:
    """Return the cells of one table row, for the columns with the indices `places`.

    The function `show` converts an entry to a cell. If Kim and Pavlovic (2020) report numbers for a
    column, a second cell with their number follows.
    """
    found = []
    for i in places:
        entry = line.entries[i]
        found.append(show(entry))
        if table.printed[i]:
            found.append(f"{entry.paper} ({entry.difference})" if entry.difference else entry.paper)
    return found


def to_terminal(table: Table, width: int = 120) -> Group:
    """Convert a table of a report to an object that a console of the package rich prints.

    Each data set gets its own table, or several tables if one table would be wider than `width`
    characters.
    """
    parts: list[RichTable | Text] = [Text(table.title, style="bold"), Text(table.caption, style="dim")]
    for title, places in table.groups:
        for some in _pieces(table, places, width):
            parts += [Text(title, style="italic"), _terminal_table(table, some)]
    if table.coloured:
        legend = Text("Colours: ")
        for level in LEVELS.values():
            legend.append(level.words, style=f"{'bold' if level.name == 'best' else ''} {level.colour}")
            legend.append("  ")
        parts.append(legend)
    parts += [Text(f"Note: {note}", style="dim") for note in table.notes]
    return Group(*parts, Text())


def _terminal_table(table: Table, places: Sequence[int]) -> RichTable:
    drawn = RichTable(header_style="bold")
    drawn.add_column("method", no_wrap=True)
    for i in places:
        drawn.add_column(f"dim {table.columns[i].latent}", no_wrap=True)
        if table.printed[i]:
            drawn.add_column("paper", style="dim", no_wrap=True)
    for line in table.lines:
        if line.first:
            drawn.add_section()
        drawn.add_row(Text(str(line.row)), *_cells(table, line, places, _terminal_cell))
    return drawn


def _pieces(table: Table, places: Sequence[int], width: int) -> list[list[int]]:
    """Divide the table columns with the indices `places` into groups, one for each printed table.

    A printed table of one group has at most `width` characters per line. A group has at least one
    column.
    """
    name = max(cell_len(str(line.row)) for line in table.lines) + 4
    pieces: list[list[int]] = []
    room = 0
    for i in places:
        rows = [_cells(table, line, [i], _terminal_cell) for line in table.lines]
        needed = sum(
            max(cell_len(str(cell)) for cell in column) + 3 for column in zip(*rows, strict=True)
        )
        if not pieces or needed > room:
            pieces.append([])
            room = width - name
        pieces[-1].append(i)
        room -= needed
    return pieces


def _terminal_cell(entry: TableEntry) -> Text:
    colour = entry.level.colour if entry.level else ""
    text = Text(entry.text, style=f"bold {colour}" if entry.bold else colour)
    if entry.spread:
        text.append(f" {entry.signed_spread}")
    for word in entry.details:
        text.append(f"  {word}", style="not bold dim")
    return text


def to_markdown(table: Table) -> str:
    """Write a table of a report as Markdown, with one Markdown table for each data set."""
    parts = [f"## {_escaped(table.title)}", "", _escaped(table.caption), ""]
    for title, places in table.groups:
        heads = ["method"]
        for i in places:
            heads += [f"dim {table.columns[i].latent}", "paper (difference)"][: 1 + table.printed[i]]
        rows = [
            [_escaped(str(line.row)), *_cells(table, line, places, _markdown_cell)]
            for line in table.lines
        ]
        parts += [f"### {_escaped(title)}", "", markdown_table(heads, rows)]
    parts += [f"- {_escaped(note)}" for note in table.notes]
    return "\n".join(parts) + "\n"


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """Return a Markdown table with the column titles `heads`.

    The first `left` columns are aligned to the left, the others to the right.
    """
    aligned = ["---"] * left + ["---:"] * (len(heads) - left)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (heads, aligned, *rows))


def _markdown_cell(entry: TableEntry) -> str:
    shown = f"**{entry.text}**" if entry.bold else entry.text
    if entry.spread:
        shown += f" {entry.signed_spread}"
    if entry.details:
        shown += f" ({', '.join(entry.details)})"
    return shown.replace("<", "&lt;")


def _escaped(text: str) -> str:
    """Return a text on one line, with the special characters of Markdown and HTML escaped."""
    return one_line(text).translate(MARKDOWN)


def one_line(text: str) -> str:
    """Return a text on one line: line breaks and control characters become spaces."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
