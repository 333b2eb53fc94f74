"""The report as one HTML file that needs nothing else: no network, no fonts, no second file."""

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
from recmix.reports.published import CITATION, best_printed
from recmix.reports.records import Column, Log, Problem, Record, Row, Store, set_title
from recmix.reports.statistics import CONTROL, Results, summarise
from recmix.reports.store import printable, read_store
from recmix.reports.tables import LEVELS, all_tables, fixed, p_text, signed
from recmix.reports.template import environment, source
from recmix.runs.files import write_bytes

__all__ = ["Written", "page", "report"]

CHUNK = 64
"""Runs whose details are packed together; a click unpacks one such pack."""
FAMILIES = ("VAE", "VAE+", "SA", "IAF", "HF", "ME", "RME", "VLAE", "BVI-ER1", "BVI-ER2")
COLOURS = 12
"""Colours of the style sheet for lines and points."""
LISTED = 200
"""Messages that are listed; the rest is counted."""
LARGEST_FIGURE = 16 * 2**20
IMAGES = {"jpg": "jpeg", "svg": "svg+xml"}


@dataclass(frozen=True, kw_only=True)
class Written:
    """A page that was written, and what it is made of."""

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
        samples: K of IWAE-K.
        holm: correct p-values for their number within a column.
        figures: images to show, perhaps by their captions; without them those in the store's
            folder ``figures``.
    """
    found = read_store(store)
    if not found.records and not found.problems:
        raise RunError(f"{store} holds no runs yet: nothing to report")
    results = summarise(found.records, samples=samples, correct=holm)
    text = page(found, results, figures=found.figures if figures is None else figures)
    content = text.encode("utf-8", "backslashreplace")
    out = Path(out)
    if out.is_dir():
        raise RunError(f"{out} is a folder: name the file to write, such as {out / 'report.html'}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"could not make the folder {out.parent}: {error.strerror}") from error
    write_bytes(out, content)
    out.chmod(0o644)  # a page is made to be shown
    return Written(path=out, runs=len(found.records), problems=found.problems, size=len(content))


def page(store: Store, results: Results, *, figures: Sequence[Path] | Mapping[str, Path] = ()) -> str:
    """The HTML of a report.

    Args:
        store: what was read.
        results: its statistics.
        figures: images to show, perhaps by their captions.
    """
    columns = {column: i for i, column in enumerate(results.columns)}
    rows = {row: i for i, row in enumerate(results.rows)}
    records = sorted(
        store.records, key=lambda r: (columns[r.column], rows[r.row], r.split, r.restart, r.folder)
    )
    script = source("page.js")
    shown, left_out = _figures(figures)
    messages = [*(str(problem) for problem in store.problems), *left_out]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        environment()
        .get_template("page.html")
        .render(
            title=printable(store.folder.resolve().name),
            version=__version__,
            citation=CITATION,
            style=Markup(source("page.css")),
            script=Markup(script),
            digest=digest,
            tables=all_tables(results),
            levels=LEVELS,
            counts=_counts(records),
            highlights=_highlights(results),
            data_sets=list(dict.fromkeys((c.data, set_title(c.data)) for c in results.columns)),
            dims=sorted({column.latent for column in results.columns}),
            figures=shown,
            messages=messages[:LISTED],
            more_messages=max(0, len(messages) - LISTED),
            samples=results.samples,
            index=_pack(_index(records, results)),
            chunks=[
                _pack([_details(record) for record in records[start : start + CHUNK]])
                for start in range(0, len(records), CHUNK)
            ],
        )
    )


# --- what stands at the top ------------------------------------------------------------------------


def _counts(records: Sequence[Record]) -> list[tuple[str, str]]:
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
    """The best of one column in words."""

    column: Column
    place: int
    best: str
    figure: str
    gain: str
    paper: str


def _highlights(results: Results) -> list[Highlight]:
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
                figure=f"{fixed(cell.mean, digits)}{spread}",
                gain=gain,
                paper="" if printed is None else f"{printed.row} {fixed(printed.mean, digits)}",
            )
        )
    return found


def _figures(
    figures: Sequence[Path] | Mapping[str, Path],
) -> tuple[list[tuple[str, str]], list[str]]:
    """Captions and data addresses of images, and a message for each that is left out."""
    named = figures if isinstance(figures, Mapping) else {_caption(path): path for path in figures}
    shown, left_out = [], []
    for caption, path in named.items():
        try:
            size = path.stat().st_size
            if size > LARGEST_FIGURE:
                left_out.append(f"{path.name}: {size:,} bytes, too large to embed: left out")
                continue
            content = path.read_bytes()
        except OSError as error:
            left_out.append(f"{path.name}: could not read it: {error.strerror or error}")
            continue
        kind = path.suffix.lower().lstrip(".")
        kind = IMAGES.get(kind, kind)
        encoded = base64.b64encode(content).decode()
        shown.append((caption, f"data:image/{kind};base64,{encoded}"))
    return shown, left_out


def _caption(path: Path) -> str:
    words = printable(path.stem).replace("_", " ").strip()
    return words[:1].upper() + words[1:]


# --- what the page's script reads ------------------------------------------------------------------


def _index(records: Sequence[Record], results: Results) -> dict[str, Any]:
    """Everything the page draws: columns, cells, one line for each run, curves of selected runs."""
    key = f"test/{results.samples}"
    rows = list(results.rows)
    row_of = {row: i for i, row in enumerate(rows)}
    column_of = {column: i for i, column in enumerate(results.columns)}
    chosen = {record.folder for cell in results.cells.values() for record in cell.chosen.values()}
    statuses = sorted({record.status for record in records})
    status_of = {status: i for i, status in enumerate(statuses)}
    families = _families(rows)
    cells = [
        [row_of[row], column_of[column], cell.mean, cell.std, cell.milliseconds, len(cell.values)]
        for (row, column), cell in results.cells.items()
        if cell.mean is not None
    ]
    return {
        "samples": results.samples,
        "chunk": CHUNK,
        "rows": [str(row) for row in rows],
        "families": [families[row.label] for row in rows],
        "columns": [{"name": str(c), "data": c.data, "dim": c.latent} for c in results.columns],
        "statuses": statuses,
        "cells": [[_short(value) for value in cell] for cell in cells],
        "runs": [
            [
                record.folder,
                row_of[record.row],
                column_of[record.column],
                record.split,
                record.restart,
                status_of[record.status],
                _short(record.validation),
                _short(record.score(key, "iwae")),
                _short(record.score(key, "milliseconds")),
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


def _families(rows: Sequence[Row]) -> dict[str, int]:
    """The colour of each method, the same in every report for the paper's."""
    labels = dict.fromkeys(row.label for row in rows)
    found = {label: FAMILIES.index(label) for label in labels if label in FAMILIES}
    free = [i for i in range(COLOURS) if i not in found.values()] or list(range(COLOURS))
    others = [label for label in labels if label not in found]
    return found | {label: free[i % len(free)] for i, label in enumerate(others)}


def _details(record: Record) -> dict[str, Any]:
    """What a click on a run shows; empty things are left out."""
    found = {
        "reason": record.reason,
        "epochs": record.epochs,
        "best_epoch": record.best_epoch,
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


def _short(value: float | int | None) -> float | int | None:
    """A number with seven digits, which is more than a screen shows."""
    if value is None or isinstance(value, int):
        return value
    if not math.isfinite(value):
        return None
    short = float(f"{value:.7g}")
    return int(short) if short.is_integer() else short


def _pack(content: Any) -> str:
    """Compact JSON, compressed, as letters that need no escaping in HTML."""
    try:
        text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    except ValueError:  # somewhere in it is a NaN, which JSON does not have
        text = json.dumps(_finite(content), separators=(",", ":"))
    packed = gzip.compress(text.encode("utf-8", "backslashreplace"), compresslevel=6, mtime=0)
    return base64.b64encode(packed).decode("ascii")


def _finite(content: Any) -> Any:
    """The same with words for the numbers that JSON does not have."""
    if isinstance(content, float):
        return content if math.isfinite(content) else str(content)
    if isinstance(content, Mapping):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return content
