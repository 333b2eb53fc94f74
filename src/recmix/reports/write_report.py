"""`recmix report`: read a store and write its report as a page, Markdown, LaTeX or terminal text."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from recmix.errors import ConfigError, RunError, unknown
from recmix.reports.forms import to_markdown, to_terminal
from recmix.reports.latex import latex_document
from recmix.reports.page import report
from recmix.reports.published import CITATION
from recmix.reports.read_store import read_store
from recmix.reports.records import Problem
from recmix.reports.statistics import summarise
from recmix.reports.tables import Table, all_tables
from recmix.runs.files import write_bytes

__all__ = ["FORMS", "write_report"]

FORMS = ("html", "markdown", "latex", "terminal")
SHOWN = 5
"""Messages that are printed; the page lists all of them."""


def write_report(
    store: str | Path,
    *,
    out: str | Path | None = None,
    form: str = "html",
    samples: int = 100,
    holm: bool = False,
    console: Console | None = None,
    errors: Console | None = None,
) -> Path | None:
    """Write the report of a store, and print what was written and what could not be read.

    Args:
        store: folder of run folders.
        out: the file to write. Default: ``report.html`` for html, the terminal for the other forms.
        form: one of `FORMS`.
        samples: K of IWAE-K.
        holm: correct p-values for their number within a column.
        console: for text.
        errors: for messages about runs that could not be read.

    Returns:
        The file, if one was written.
    """
    if form not in FORMS:
        raise ConfigError(unknown("format", form, FORMS))
    if samples < 1:
        raise ConfigError(f"samples must be positive, got {samples}")
    console = console or Console()
    errors = errors or Console(stderr=True)
    if form == "html":
        written = report(store, out or "report.html", samples=samples, holm=holm)
        size = f"{written.size / 2**20:.1f} MB" if written.size >= 2**20 else f"{written.size:,} bytes"
        console.print(Text(f"{_runs(written.runs)} reported in {written.path} ({size})"))
        _print_problems(written.problems, errors)
        return written.path
    found = read_store(store)
    if not found.records and not found.problems:
        raise RunError(f"{store} holds no runs yet: nothing to report")
    tables = all_tables(summarise(found.records, samples=samples, correct=holm))
    if out is not None:
        plain = Console(width=160, file=io.StringIO(), color_system=None)
        _print_tables(tables, form, plain)
        text = plain.file.getvalue()  # type: ignore[attr-defined]
        write_bytes(Path(out), text.encode("utf-8", "backslashreplace"))
        console.print(Text(f"{_runs(len(found.records))} reported in {out}"))
    else:
        _print_tables(tables, form, console)
    _print_problems(found.problems, errors)
    return None if out is None else Path(out)


def _print_tables(tables: Sequence[Table], form: str, console: Console) -> None:
    source = f"Paper: {CITATION}"
    if form == "latex":
        console.file.write(latex_document(tables))
    elif form == "markdown":
        console.file.write("\n".join([*map(to_markdown, tables), f"{source}\n"]))
    else:
        for table in tables:
            console.print(to_terminal(table, console.width))
        console.print(Text(source, style="dim"))


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count:,} runs"


def _print_problems(problems: Sequence[Problem], errors: Console) -> None:
    """Print the first messages about folders that could not be read, and count the rest."""
    for problem in problems[:SHOWN]:
        errors.print(Text(f"note: {problem}", style="yellow"))
    if more := len(problems[SHOWN:]):
        folders = "1 more such folder" if more == 1 else f"{more} more such folders"
        errors.print(Text(f"note: and {folders}", style="yellow"))
