"""Tables as text: for the terminal, as Markdown and as HTML."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table as RichTable
from rich.text import Text

from recmix.reports.tables import LEVELS, Level, Table, TableEntry
from recmix.reports.template import environment

__all__ = ["one_line", "to_html", "to_markdown", "to_terminal"]


def to_terminal(table: Table, width: int = 120) -> Group:
    """For a rich console: one table or more for each data set, so that they fit into the width.

    Args:
        table: to show.
        width: of the console, in characters.
    """
    parts: list[RichTable | Text] = [Text(table.title, style="bold"), Text(table.caption, style="dim")]
    for title, places in table.groups:
        for some in _pieces(table, places, width):
            parts += [Text(title, style="italic"), _terminal_table(table, some)]
    if table.coloured:
        legend = Text("Colours: ")
        for level in LEVELS.values():
            legend.append(level.words, style=_terminal_style(level, bold=level.name == "best"))
            legend.append("  ")
        parts.append(legend)
    parts += [Text(f"Note: {note}", style="dim") for note in table.notes]
    parts.append(Text())
    return Group(*parts)


def _terminal_table(table: Table, places: Sequence[int]) -> RichTable:
    drawn = RichTable(header_style="bold")
    drawn.add_column("method", no_wrap=True)
    for i in places:
        drawn.add_column(f"dim {table.columns[i].latent}", no_wrap=True)
        if table.printed[i]:
            drawn.add_column("paper", style="dim", no_wrap=True)
    for number, line in enumerate(table.lines):
        cells = [Text(str(line.row))]
        for i in places:
            cells.append(_terminal_cell(line.entries[i]))
            if table.printed[i]:
                cells.append(Text(_paper(line.entries[i])))
        last = number + 1 == len(table.lines) or table.lines[number + 1].first
        drawn.add_row(*cells, end_section=last)
    return drawn


def _pieces(table: Table, places: Sequence[int], width: int) -> list[list[int]]:
    """The columns in groups that fit into the width."""
    name = max(len(str(line.row)) for line in table.lines) + 4
    pieces: list[list[int]] = []
    room = 0
    for i in places:
        entries = [line.entries[i] for line in table.lines]
        needed = max(_terminal_cell(entry).cell_len for entry in entries) + 3
        if table.printed[i]:
            needed += max(len(_paper(entry)) for entry in entries) + 3
        if not pieces or needed > room:
            pieces.append([])
            room = width - name
        pieces[-1].append(i)
        room -= needed
    return pieces


def _paper(entry: TableEntry) -> str:
    """The paper's number, and in brackets our number minus the paper's."""
    return f"{entry.paper} ({entry.difference})" if entry.difference else entry.paper


def _terminal_style(level: Level | None, *, bold: bool) -> str:
    words = ["bold"] if bold else []
    if level is not None and level.colour is not None:
        words.append(level.rgb)
    return " ".join(words)


def _terminal_cell(entry: TableEntry) -> Text:
    text = Text(entry.text, style=_terminal_style(entry.level, bold=entry.bold))
    if entry.spread:
        text.append(f" {entry.spread}" if entry.spread.startswith("[") else f" ± {entry.spread}")
    for word in (entry.p, entry.more):
        if word:
            text.append(f"  {word}", style="not bold dim")
    return text


def to_markdown(table: Table) -> str:
    """One Markdown table for each data set, with p-values as text."""
    parts = [f"## {_markdown(table.title)}", "", _markdown(table.caption), ""]
    for title, places in table.groups:
        head = ["method"]
        for i in places:
            head.append(f"dim {table.columns[i].latent}")
            if table.printed[i]:
                head.append("paper (difference)")
        parts += [f"### {_markdown(title)}", "", _markdown_row(head)]
        parts.append(_markdown_row(["---", *["---:"] * (len(head) - 1)]))
        for line in table.lines:
            cells = [_markdown(str(line.row))]
            for i in places:
                entry = line.entries[i]
                cells.append(_markdown_cell(entry))
                if table.printed[i]:
                    cells.append(_paper(entry))
            parts.append(_markdown_row(cells))
        parts.append("")
    parts += [f"- {_markdown(note)}" for note in table.notes]
    return "\n".join(parts) + "\n"


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _markdown_cell(entry: TableEntry) -> str:
    shown = f"**{entry.text}**" if entry.bold else entry.text
    if entry.spread:
        shown += f" {entry.spread}" if entry.spread.startswith("[") else f" ± {entry.spread}"
    more = ", ".join(word for word in (entry.p, entry.more) if word)
    return (f"{shown} ({more})" if more else shown).replace("<", "&lt;")


def _markdown(text: str) -> str:
    """Text in which Markdown and HTML characters are escaped."""
    escaped = "".join("\\" + c if c in r"\`*_[]|#" else c for c in one_line(text))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def one_line(text: str) -> str:
    """Text without line breaks and control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def to_html(table: Table) -> str:
    """One HTML table, as in the page: escaped, with sort buttons and a caption."""
    return environment().get_template("table.html").render(table=table, levels=LEVELS, alone=True)
