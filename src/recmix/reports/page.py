"""Write the report on a folder of runs as one HTML file, which loads no other files and no fonts."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from recmix._version import __version__
from recmix.pages import shared_text
from recmix.reports.published import CITATION, best_printed
from recmix.reports.read_store import printable
from recmix.reports.records import CONTROL, PAPER_ORDER, SET_TITLES, Record, Row, StoreContent
from recmix.reports.statistics import Results
from recmix.reports.tables import LEVELS, all_tables, decimals, fixed, p_text, signed, with_spread
from recmix.runs.files import finite

__all__ = ["TEMPLATES", "page"]

FOLDER = Path(__file__).with_name("templates")
TEMPLATES = Environment(
    loader=FileSystemLoader(FOLDER),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
"""The Jinja templates of the page. They escape all values that they insert, except `Markup`."""
TEMPLATES.filters["minus"] = lambda text: text.replace("-", "−")  # as wide as a plus

CHUNK = 64
"""Number of runs whose details are compressed together. A click on a run decompresses one chunk."""
COLOURS = 12
"""Number of colours for lines and points in the style sheet."""
MAX_MESSAGES = 200
"""Largest number of messages that the page lists. The page gives the number of the others."""
MAX_FIGURE_BYTES = 16 * 2**20
MEDIA_TYPES = {"jpg": "jpeg", "svg": "svg+xml"}
"""Media types of images whose names differ from the file's ending."""


def page(store: StoreContent, results: Results) -> str:
    """Return the HTML text of a report on runs: tables, figures and learning curves.

    Args:
        store: the runs and figures that were read from the folder of run folders.
        results: the numbers of the tables, from `recmix.reports.statistics.summarise`.
    """
    records = sorted(store.records, key=lambda record: record.order)
    own = {name: (FOLDER / name).read_text("utf-8") for name in ("page.css", "charts.js", "page.js")}
    script = shared_text("dom.js") + own["charts.js"] + own["page.js"]
    figures, problems = _embedded(store.figures)
    messages = [*store.problems, *problems]
    return TEMPLATES.get_template("page.html").render(
        title=printable(store.folder.resolve().name),
        version=__version__,
        citation=CITATION,
        style=Markup(shared_text("base.css") + own["page.css"]),
        script=Markup(script),
        digest=_base64(hashlib.sha256(script.encode()).digest()),
        tables=all_tables(results),
        levels=LEVELS,
        counts=_counts(records),
        highlights=_highlights(results),
        data_sets={column.data: SET_TITLES.get(column.data, column.data) for column in results.columns},
        dims=sorted({column.latent for column in results.columns}),
        figures=figures,
        messages=messages[:MAX_MESSAGES],
        more_messages=max(0, len(messages) - MAX_MESSAGES),
        samples=results.samples,
        index=_compressed(_index(records, results)),
        chunks=[
            _compressed([_details(record) for record in records[start : start + CHUNK]])
            for start in range(0, len(records), CHUNK)
        ],
    )


def _counts(records: Sequence[Record]) -> dict[str, int]:
    """Return the counts at the top of the page: runs in each state, data splits, and table rows."""
    states = Counter(record.status for record in records)
    return {
        "runs": len(records),
        "done": states.pop("done", 0),
        **dict(sorted(states.items())),
        "splits": len({record.split for record in records}),
        "methods and settings": len({record.row for record in records}),
    }


def _highlights(results: Results) -> list[dict[str, Any]]:
    """Return the summary of the page: a mapping for each table column that has test scores.

    A mapping has the best row of the column, its test bound, its gain over VAE+ (the plain VAE that was
    trained further), and the highest number that Kim and Pavlovic (2020) report.
    """
    found = []
    for place, column in enumerate(results.columns):
        cell = results.best(column)
        if cell is None or cell.mean is None:
            continue
        digits, printed, against = decimals(cell.mean), best_printed(column), cell.versus_control
        gain = "the control: no method gains over it" if cell.row == CONTROL else ""
        if against is not None and against.difference is not None:
            why = p_text(against) or against.reason
            gain = f"{signed(against.difference, digits)} nats over VAE+ ({why})"
        paper = "" if printed is None else f"{printed.row} {fixed(printed.mean, digits)}"
        bound = with_spread(cell.mean, cell.std)
        found.append(
            {"column": column, "place": place, "best": cell.row, "bound": bound}
            | {"gain": gain, "paper": paper}
        )
    return found


def _embedded(figures: Sequence[Path]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return pairs (caption, ``data:`` URL) of the images, and a message for each image left out."""
    embedded, problems = [], []
    for path in figures:
        try:
            if (size := path.stat().st_size) > MAX_FIGURE_BYTES:
                problems.append(f"{path.name}: {size:,} bytes, too large for the page: left out")
                continue
            content = path.read_bytes()
        except OSError as error:
            problems.append(f"{path.name}: could not read it: {error.strerror or error}")
            continue
        caption = printable(path.stem).replace("_", " ").strip()
        ending = path.suffix.lower().lstrip(".")
        address = f"data:image/{MEDIA_TYPES.get(ending, ending)};base64,{_base64(content)}"
        embedded.append((caption[:1].upper() + caption[1:], address))
    return embedded, problems


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _index(records: Sequence[Record], results: Results) -> dict[str, Any]:
    """Return the data for the page's JavaScript: tables, runs, and learning curves.

    There are learning curves only for the runs that were selected for the tables.
    """
    row_of = {row: i for i, row in enumerate(results.rows)}
    column_of = {column: i for i, column in enumerate(results.columns)}
    chosen = {record.folder for cell in results.cells.values() for record in cell.chosen.values()}
    hues = _hues(results.rows)

    def score(record: Record, name: str) -> float | None:
        return _rounded(record.score(record.keys(results.samples)[record.row], name))

    return {
        "samples": results.samples,
        "chunk": CHUNK,
        "rows": [str(row) for row in results.rows],
        "hues": [hues[row.label] for row in results.rows],
        "columns": [{"name": str(c), "data": c.data, "dim": c.latent} for c in results.columns],
        "cells": [
            [row_of[row], column_of[column], len(cell.values)]
            + [_rounded(value) for value in (cell.mean, cell.std, cell.milliseconds)]
            for (row, column), cell in results.cells.items()
            if cell.mean is not None and not row.noise  # that is another model of the data
        ],
        "runs": [
            [
                record.folder,
                row_of[record.row],
                column_of[record.column],
                record.split,
                record.restart,
                record.status,
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
    """Return {label of a method: number of its colour}.

    The methods of Kim and Pavlovic (2020) have the same colours in every report.
    """
    labels = dict.fromkeys(row.label for row in rows)
    found = {label: PAPER_ORDER.index(label) for label in labels if label in PAPER_ORDER}
    free = [i for i in range(COLOURS) if i not in found.values()] or list(range(COLOURS))
    others = [label for label in labels if label not in found]
    return found | {label: free[i % len(free)] for i, label in enumerate(others)}


def _details(record: Record) -> dict[str, Any]:
    """Return the fields that the page shows after a click on a run. Empty fields are left out."""
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
        "log": record.log,
        "text": record.text,
        "curve": {name: record.curve[name] for name in ("epoch", "val_iwae") if name in record.curve},
    }
    return {name: value for name, value in found.items() if value not in (None, "", {}, [], ())}


def _rounded(value: float | None) -> float | None:
    """Round a number to seven digits, which is more than the page shows. None stays None."""
    return None if value is None else float(f"{value:.7g}")


def _compressed(content: Any) -> str:
    """Return the content as JSON, compressed with gzip and written as base64."""
    try:
        text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    except ValueError:  # JSON has no NaN and no infinity
        text = json.dumps(finite(content, str), separators=(",", ":"))
    packed = gzip.compress(text.encode("utf-8", "backslashreplace"), compresslevel=6, mtime=0)
    return _base64(packed)
