"""The command `recmix report`: write a report on a folder of runs as HTML, Markdown, LaTeX or text."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from recmix.errors import ConfigError, RunError, unknown
from recmix.reports.forms import to_markdown, to_terminal
from recmix.reports.latex import latex_document
from recmix.reports.page import page
from recmix.reports.published import CITATION
from recmix.reports.read_store import read_store
from recmix.reports.records import StoreContent
from recmix.reports.statistics import choose_samples, summarise
from recmix.reports.tables import Table, all_tables
from recmix.runs.files import write_bytes

__all__ = ["FORMS", "write_report"]

FORMS = ("html", "markdown", "latex", "terminal")
SHOWN = 5
"""Largest number of messages that are printed. The HTML page lists more of them."""


def write_report(
    store: str | Path,
    *,
    out: str | Path | None = None,
    form: str = "html",
    samples: int | None = None,
    holm: bool = False,
    console: Console | None = None,
    errors: Console | None = None,
) -> Path | None:
    """Write the report on a folder of runs, and print what was written and what could not be read.

    Args:
        store: the folder that holds the run folders.
        out: the file to write. Default: ``report.html`` for html, the terminal for the other forms.
        form: ``html``, ``markdown``, ``latex`` or ``terminal``.
        samples: K of the IWAE-K test bound that is reported. Default: see
            `recmix.reports.statistics.choose_samples`.
        holm: whether p-values are corrected for the number of tests in a table column (Holm).
        console: where text is printed. Default: the standard output.
        errors: where messages about unreadable runs are printed. Default: the standard error.

    Returns:
        The path of the file that was written, or None if the report was printed.

    Raises:
        RunError: if the folder has no run that can be read. Then no file is written.
    """
    if form not in FORMS:
        raise ConfigError(unknown("format", form, FORMS))
    console, errors = console or Console(), errors or Console(stderr=True)
    found = read_store(store)
    if not found.records:
        raise RunError(_no_run(found))
    chosen, note = choose_samples(found.records, samples)
    results = summarise(found.records, samples=chosen, correct=holm)
    path = None
    if form == "html":
        path = Path(out or "report.html")
        _write(path, page(found, results))
        path.chmod(0o644)  # everyone may read it, also behind a web server
    elif out is not None:
        path, file = Path(out), io.StringIO()
        _print_tables(all_tables(results), form, Console(width=160, file=file, color_system=None))
        _write(path, file.getvalue())
    else:
        _print_tables(all_tables(results), form, console)
    if path is not None:
        count, size = len(found.records), path.stat().st_size
        runs = "1 run" if count == 1 else f"{count:,} runs"
        bytes_ = f"{size / 2**20:.1f} MB" if size >= 2**20 else f"{size:,} bytes"
        console.print(Text(f"{runs} reported in {path} ({bytes_})"))
    _print_notes([note] if note else [], errors)
    _print_notes(found.problems, errors)
    return path


def _no_run(found: StoreContent) -> str:
    """Say that a folder has no run, and why its first subfolders were not read.

    Subfolders that hold runs themselves are named first.
    """
    if not found.problems:
        return f"{found.folder} holds no runs yet: train some, then write the report"
    problems = sorted(found.problems, key=lambda problem: ": is a folder of runs" not in problem)
    more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
    return (
        f"{found.folder} has no run that can be read, so no report is written: give the folder that "
        f"holds the run folders ({'; '.join(problems[:SHOWN])}{more})"
    )


def _write(path: Path, text: str) -> None:
    if path.is_dir():
        raise RunError(f"{path} is a folder: give the name of a file, such as {path / 'report.html'}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"could not create the folder {path.parent}: {error.strerror}") from error
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


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


def _print_notes(notes: Sequence[str], errors: Console) -> None:
    """Print the first notes, and the number of the others.

    Most notes are about folders without a readable run.
    """
    for note in notes[:SHOWN]:
        errors.print(Text(f"note: {note}", style="yellow"))
    if more := len(notes[SHOWN:]):
        folders = "1 more such folder" if more == 1 else f"{more} more such folders"
        errors.print(Text(f"note: and {folders}", style="yellow"))
