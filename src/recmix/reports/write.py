"""What `recmix report` does: read a store, write its report in the form that was asked for."""

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
from recmix.reports.records import Problem
from recmix.reports.statistics import Results, summarise
from recmix.reports.store import read_store
from recmix.reports.tables import all_tables
from recmix.runs.files import write_bytes

__all__ = ["FORMS", "write_report"]

FORMS = ("html", "markdown", "latex", "terminal")
SHOWN = 5
"""Messages printed at the end; the page lists them all."""


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
    """Report a store, and say what was written and what could not be read.

    Args:
        store: folder of run folders.
        out: the file to write; without it ``report.html``, or the terminal for the other forms.
        form: one of `FORMS`.
        samples: K of IWAE-K.
        holm: correct p-values for their number within a column.
        console: where text goes.
        errors: where messages about unreadable runs go.

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
        _complain(written.problems, errors)
        return written.path
    found = read_store(store)
    if not found.records and not found.problems:
        raise RunError(f"{store} holds no runs yet: nothing to report")
    results = summarise(found.records, samples=samples, correct=holm)
    if form == "terminal" and out is None:
        for table in all_tables(results):
            console.print(to_terminal(table, console.width))
        console.print(Text(f"Published figures: {CITATION}", style="dim"))
    else:
        text = _text(form, results)
        if out is None:
            console.file.write(text)
        else:
            write_bytes(Path(out), text.encode("utf-8", "backslashreplace"))
            console.print(Text(f"{_runs(len(found.records))} reported in {out}"))
    _complain(found.problems, errors)
    return None if out is None else Path(out)


def _text(form: str, results: Results) -> str:
    tables = all_tables(results)
    if form == "latex":
        return latex_document(tables)
    if form == "markdown":
        return "\n".join([*map(to_markdown, tables), f"Published figures: {CITATION}\n"])
    plain = Console(width=160, file=io.StringIO(), color_system=None)
    with plain.capture() as captured:
        for table in tables:
            plain.print(to_terminal(table, plain.width))
    return captured.get()


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count:,} runs"


def _complain(problems: Sequence[Problem], errors: Console) -> None:
    """Print the first messages about folders that could not be read."""
    for problem in problems[:SHOWN]:
        errors.print(Text(f"note: {problem}", style="yellow"))
    if more := len(problems[SHOWN:]):
        folders = "1 more such folder" if more == 1 else f"{more} more such folders"
        errors.print(Text(f"note: and {folders}", style="yellow"))
