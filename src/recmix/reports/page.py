"""The report as one HTML file that loads nothing else: no network, no fonts, no other files."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from recmix._version import __version__
from recmix.errors import RunError
from recmix.pages import shared_text
from recmix.reports.published import CITATION, best_printed
from recmix.reports.read_store import printable, read_store
from recmix.reports.records import (
    CONTROL,
    PAPER_ORDER,
    Log,
    Problem,
    Record,
    Row,
    StoreContent,
    TableColumn,
    set_title,
)
from recmix.reports.statistics import Results, summarise
from recmix.reports.tables import LEVELS, all_tables, fixed, p_text, signed
from recmix.reports.template import environment, template_text
from recmix.runs.files import write_bytes

__all__ = ["Written", "page", "report"]

CHUNK = 64
"""Runs whose details are compressed together. A click on a run decompresses one chunk."""
COLOURS = 12
"""Colours of lines and points in the style sheet."""
MAX_MESSAGES = 200
"""Messages that the page lists. It gives the number of the rest."""
MAX_FIGURE_BYTES = 16 * 2**20
MEDIA_TYPES = {"jpg": "jpeg", "svg": "svg+xml"}
"""Media types of images whose names differ from the file's ending."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """A report page that was written.

    Attributes:
        path: the HTML file.
        runs: number of runs in it.
        problems: what could not be read.
        size: bytes of the file.
    """

    path: Path
    runs: int
    problems: Sequence[Problem]
    size: int


def report(
    store: str | Path,
    out: str | Path,
    *,
    samples: int = 100,
    holm: bool = False,
    figures: Sequence[Path] | Mapping[str, Path] | None = None,
) -> Written:
    """Write the report of a store as one HTML file.

    Args:
        store: folder of run folders.
        out: the file to write.
        samples: number of samples K of IWAE-K.
        holm: apply Holm's correction to the p-values of each column.
        figures: image files to show, or a mapping from captions to image files. By default the
            images in the store's folder ``figures``.
    """
    found = read_store(store)
    if not found.records and not found.problems:
        raise RunError(f"{store} holds no runs yet: train some, then write the report")
    results = summarise(found.records, samples=samples, correct=holm)
    text = page(found, results, figures=found.figures if figures is None else figures)
    content = text.encode("utf-8", "backslashreplace")
    out = Path(out)
    if out.is_dir():
        raise RunError(f"{out} is a folder: give the name of a file, such as {out / 'report.html'}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"could not create the folder {out.parent}: {error.strerror}") from error
    write_bytes(out, content)
    out.chmod(0o644)  # everyone may read it, also behind a web server
    return Written(path=out, runs=len(found.records), problems=found.problems, size=len(content))


def page(
    store: StoreContent, results: Results, *, figures: Sequence[Path] | Mapping[str, Path] = ()
) -> str:
    """Return the HTML of a report.

    Args:
        store: the runs.
        results: their statistics.
        figures: image files to show, or a mapping from captions to image files.
    """
    columns = {column: i for i, column in enumerate(results.columns)}
    rows = {row: i for i, row in enumerate(results.rows)}
    records = sorted(
        store.records, key=lambda r: (columns[r.column], rows[r.row], r.split, r.restart, r.folder)
    )
    style = shared_text("base.css") + template_text("page.css")
    script = shared_text("dom.js") + template_text("charts.js") + template_text("page.js")
    embedded, problems = _embed(figures)
    messages = [*(str(problem) for problem in store.problems), *problems]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        environment()
        .get_template("page.html")
        .render(
            title=printable(store.folder.resolve().name),
            version=__version__,
            citation=CITATION,
            style=Markup(style),
            script=Markup(script),
            digest=digest,
            tables=all_tables(results),
            levels=LEVELS,
            counts=_counts(records),
            highlights=_highlights(results),
            data_sets=list(dict.fromkeys((c.data, set_title(c.data)) for c in results.columns)),
            dims=sorted({column.latent for column in results.columns}),
            figures=embedded,
            messages=messages[:MAX_MESSAGES],
            more_messages=max(0, len(messages) - MAX_MESSAGES),
            samples=results.samples,
            index=_compressed(_index(records, results)),
            chunks=[
                _compressed([_details(record) for record in records[start : start + CHUNK]])
                for start in range(0, len(records), CHUNK)
            ],
        )
    )


# --- summary ---------------------------------------------------------------------------------------


def _counts(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Return the numbers at the top of the page, each with its name."""
    states: dict[str, int] = {}
    for record in records:
        states[record.status] = states.get(record.status, 0) + 1
    splits = {record.split for record in records}
    found = [("runs", f"{len(records):,}"), ("done", f"{states.pop('done', 0):,}")]
    found += [(status, f"{count:,}") for status, count in sorted(states.items())]
    found.append(("splits", f"{len(splits)}"))
    found.append(("methods and settings", f"{len({record.row for record in records})}"))
    return found


@dataclass(frozen=True, kw_only=True)
class Highlight:
    """The best row of one column, as text.

    Attributes:
        column: the column of the tables.
        place: its number.
        best: the name of the row.
        bound: mean and standard deviation of its test bound.
        gain: its gain over the control.
        paper: the paper's best row and mean.
    """

    column: TableColumn
    place: int
    best: str
    bound: str
    gain: str
    paper: str


def _highlights(results: Results) -> list[Highlight]:
    """Return the best row of each column."""
    found = []
    for place, column in enumerate(results.columns):
        cell = results.best(column)
        if cell is None or cell.mean is None:
            continue
        digits = 2 if abs(cell.mean) < 200 else 1
        spread = "" if cell.std is None else f" ± {fixed(cell.std, digits)}"
        printed = best_printed(column)
        gain, against = "", cell.versus_control
        if cell.row == CONTROL:
            gain = "the control: no method gains over it"
        if against is not None and against.difference is not None:
            gain = f"{signed(against.difference, digits)} nats over VAE+"
            gain += f" ({p_text(against)})" if against.p is not None else f" ({against.reason})"
        found.append(
            Highlight(
                column=column,
                place=place,
                best=str(cell.row),
                bound=f"{fixed(cell.mean, digits)}{spread}",
                gain=gain,
                paper="" if printed is None else f"{printed.row} {fixed(printed.mean, digits)}",
            )
        )
    return found


def _embed(
    figures: Sequence[Path] | Mapping[str, Path],
) -> tuple[list[tuple[str, str]], list[str]]:
    """Return captions and data addresses of images, and a message for each image that is left out."""
    named = figures if isinstance(figures, Mapping) else {_caption(path): path for path in figures}
    embedded, problems = [], []
    for caption, path in named.items():
        try:
            size = path.stat().st_size
            if size > MAX_FIGURE_BYTES:
                problems.append(f"{path.name}: {size:,} bytes, too large for the page: left out")
                continue
            content = path.read_bytes()
        except OSError as error:
            problems.append(f"{path.name}: could not read it: {error.strerror or error}")
            continue
        ending = path.suffix.lower().lstrip(".")
        encoded = base64.b64encode(content).decode()
        embedded.append((caption, f"data:image/{MEDIA_TYPES.get(ending, ending)};base64,{encoded}"))
    return embedded, problems


def _caption(path: Path) -> str:
    text = printable(path.stem).replace("_", " ").strip()
    return text[:1].upper() + text[1:]


# --- data of the page's script ---------------------------------------------------------------------


def _index(records: Sequence[Record], results: Results) -> dict[str, Any]:
    """Return the page's plot data: columns, cells, one entry per run, curves of the selected runs."""
    rows = list(results.rows)
    row_of = {row: i for i, row in enumerate(rows)}
    column_of = {column: i for i, column in enumerate(results.columns)}
    chosen = {record.folder for cell in results.cells.values() for record in cell.chosen.values()}
    statuses = sorted({record.status for record in records})
    status_of = {status: i for i, status in enumerate(statuses)}
    hues = _hues(rows)
    cells = [
        [row_of[row], column_of[column], cell.mean, cell.std, cell.milliseconds, len(cell.values)]
        for (row, column), cell in results.cells.items()
        if cell.mean is not None
    ]

    def score(record: Record, name: str) -> float | None:
        return _rounded(record.score(record.key("test", results.samples), name))

    return {
        "samples": results.samples,
        "chunk": CHUNK,
        "rows": [str(row) for row in rows],
        "hues": [hues[row.label] for row in rows],
        "columns": [{"name": str(c), "data": c.data, "dim": c.latent} for c in results.columns],
        "statuses": statuses,
        "cells": [[_rounded(value) for value in cell] for cell in cells],
        "runs": [
            [
                record.folder,
                row_of[record.row],
                column_of[record.column],
                record.split,
                record.restart,
                status_of[record.status],
                _rounded(record.validation),
                score(record, "iwae"),
                score(record, "milliseconds"),
                int(record.folder in chosen),
                int(record.continued),
            ]
            for record in records
        ],
        "curves": {
            str(i): record.curve
            for i, record in enumerate(records)
            if record.folder in chosen and record.curve
        },
    }


def _hues(rows: Sequence[Row]) -> dict[str, int]:
    """Return the number of each label's colour; labels of the paper keep theirs in every report."""
    labels = dict.fromkeys(row.label for row in rows)
    found = {label: PAPER_ORDER.index(label) for label in labels if label in PAPER_ORDER}
    free = [i for i in range(COLOURS) if i not in found.values()] or list(range(COLOURS))
    others = [label for label in labels if label not in found]
    return found | {label: free[i % len(free)] for i, label in enumerate(others)}


def _details(record: Record) -> dict[str, Any]:
    """Return the fields that the page shows after a click on a run; empty fields are left out."""
    found = {
        "reason": record.reason,
        "epochs": record.epochs,
        "best_epoch": record.best_epoch,
        "inference": record.inference.key,
        "spec": record.spec,
        "job": record.job,
        "scores": record.scores,
        "failure": record.failure,
        "environment": record.environment,
        "log": _log(record.log),
        "text": _log(record.text),
        "curve": {name: record.curve[name] for name in ("epoch", "val_iwae") if name in record.curve},
    }
    return {name: value for name, value in found.items() if value not in (None, "", {}, [], ())}


def _log(log: Log) -> list[Any]:
    return [list(log.head), log.left_out, list(log.tail)] if log.head or log.tail else []


def _rounded(value: float | int | None) -> float | int | None:
    """Round to seven digits, which is more than the page shows; None for a value that is not finite."""
    if value is None or isinstance(value, int):
        return value
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.7g}")
    return int(rounded) if rounded.is_integer() else rounded


def _compressed(content: Any) -> str:
    """Return compressed JSON as base64, which needs no escaping in HTML."""
    try:
        text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    except ValueError:  # JSON has no NaN and no infinity
        text = json.dumps(_nan_as_text(content), separators=(",", ":"))
    packed = gzip.compress(text.encode("utf-8", "backslashreplace"), compresslevel=6, mtime=0)
    return base64.b64encode(packed).decode("ascii")


def _nan_as_text(content: Any) -> Any:
    """Return the same with text for NaN and infinity, which JSON does not have."""
    if isinstance(content, float):
        return content if math.isfinite(content) else str(content)
    if isinstance(content, Mapping):
        return {key: _nan_as_text(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_nan_as_text(value) for value in content]
    return content
