"""A store of run folders as plain records. Each file is read once; a broken folder costs only itself.

A store is a folder of run folders (see `recmix.run`), each perhaps with a ``job.json`` that says which
cell of a table it belongs to. Nothing in a store is trusted: links are not followed, large files are
not read whole, and what cannot be read becomes a message for that folder.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recmix.errors import RunError
from recmix.reports.records import Column, Curve, Log, Problem, Record, Row, Store, number
from recmix.runs.spec import Spec

__all__ = ["FIGURES", "printable", "read_store"]

FIGURES = "figures"
"""Folder of a store that holds images for its report instead of a run."""
CURVE_POINTS = 80
"""A learning curve is thinned to about this many epochs."""
CURVES = ("val_iwae", "val_elbo", "elbo")
LOG_HEAD, LOG_TAIL, LINE = 6, 24, 400
"""Lines kept at the start and at the end of a log, and characters kept of a line."""
LARGEST_JSON = 64 * 2**20
LARGEST_LOG = 64 * 2**10


def read_store(folder: str | Path) -> Store:
    """Read every run folder of a store.

    Args:
        folder: of the store.
    """
    folder = Path(folder)
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise RunError(f"{folder} {what}: give the folder that holds the run folders")
    if (folder / "spec.json").exists():
        raise RunError(f"{folder} is the folder of one run: give the folder that holds it")
    records: list[Record] = []
    problems: list[Problem] = []
    figures: list[Path] = []
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise RunError(f"could not read {folder}: {error.strerror or error}") from error
    for entry in entries:
        name = printable(entry.name)
        if entry.name.startswith(".") or not (entry.is_symlink() or entry.is_dir()):
            continue
        if entry.is_symlink():
            problems.append(Problem(name, "is a link, and links are not followed: move the run here"))
        elif entry.name == FIGURES:
            figures = _images(Path(entry.path))
        else:
            messages: list[str] = []
            try:
                records.append(_read_run(entry.path, name, messages))
            except RunError as error:
                messages.append(str(error))
            problems += [Problem(name, message) for message in messages]
    return Store(folder=folder, records=records, problems=problems, figures=figures)


def printable(name: str) -> str:
    """A file's name as text that can be written, whatever bytes it has."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


# --- one run ---------------------------------------------------------------------------------------


def _read_run(path: str, name: str, messages: list[str]) -> Record:
    """The record of one folder; what is wrong but bearable goes to `messages`."""
    job = _optional(path, "job.json", dict, messages)
    content = _json(path, "spec.json")
    if content is None and job is None:
        raise RunError("does not hold a run (no spec.json in it), or is only half written")
    spec = None if content is None else _spec(content)
    status = _optional(path, "status.json", dict, messages) or {}
    history = _optional(path, "history.json", list, messages) or []
    scores = _optional(path, "scores.json", dict, messages) or {}
    gap = _optional(path, "gap.json", dict, messages)
    failure = _optional(path, "failed.json", object, messages)
    start, log = _log(path, "log.jsonl")
    _, text = _log(path, "log.txt")
    row, column, split, restart, continued = _place(spec, job or {})
    if job and job.get("digest") not in (None, name):
        messages.append(f"its job.json belongs to another folder ({str(job['digest'])[:80]!r})")
    curve, best = _curve(history, messages)
    validation = number(status.get("best_validation"))
    done = str(status.get("status", "new"))
    failed = failure is not None and done != "done"
    return Record(
        folder=name,
        row=row,
        column=column,
        split=split,
        restart=restart,
        continued=continued,
        status="failed" if failed else done,
        reason=_reason(failure) if failed else str(status.get("reason", "")),
        epochs=_whole(status.get("epoch")) or 0,
        best_epoch=_whole(status.get("best_epoch")),
        validation=best if validation is None else validation,
        scores={key: value for key, value in scores.items() if isinstance(value, dict)},
        gap=gap and {key: value for key, value in gap.items() if key not in ("images", "advice")},
        curve=curve,
        spec=content,
        job=job,
        failure=failure,
        environment=start,
        log=log,
        text=text,
    )


def _spec(content: Any) -> Spec:
    try:
        return Spec.from_json(content, "spec.json")
    except RunError:
        raise
    except Exception as error:  # any other fault of a damaged file
        raise RunError(f"spec.json is incomplete or damaged: {error}") from error


def _place(spec: Spec | None, job: Mapping[str, Any]) -> tuple[Row, Column, int, int, bool]:
    """Row, column, split, restart and stage: the job's word, then what the spec says."""
    found: dict[str, Any] = {"network": "conv", "decoder_network": "conv", "likelihood": "gaussian"}
    if spec is not None:
        again = spec.method == "vae" and spec.init is not None
        found |= {
            "label": "VAE+" if again else spec.method.upper(),
            "setting": spec.options.get(spec.setting) if spec.setting else None,
            "data": spec.data.get("name"),
            "latent": spec.latent,
            "split": spec.data.get("seed", 0),
            "restart": spec.training.seed,
            "network": spec.network,
            "decoder_network": spec.decoder_network,
            "likelihood": spec.likelihood,
            "continued": spec.init is not None,
        }
    found |= {key: value for key, value in job.items() if value is not None or key == "setting"}
    if spec is not None:
        found["likelihood"] = spec.likelihood
    elif found.get("data") in ("binary-mnist", "static-mnist"):
        found["likelihood"] = "bernoulli"  # by the data, as long as there is no spec
    kinds = {"label": str, "data": str, "latent": int, "split": int, "restart": int}
    kinds |= dict.fromkeys(("network", "decoder_network", "likelihood"), str)
    for key, kind in kinds.items():
        value = found.get(key)
        if not isinstance(value, kind) or isinstance(value, bool):
            where = "spec.json" if spec is not None and key not in job else "job.json"
            raise RunError(
                f"{where} gives {value!r:.60} as {key}: expected {kind.__name__}. "
                "Remove the folder and run it again"
            )
    setting = found.get("setting")
    if not isinstance(setting, int | float | str | None) or isinstance(setting, bool):
        setting = json.dumps(setting)
    column = Column(
        data=found["data"],
        latent=found["latent"],
        network=found["network"],
        decoder_network=found["decoder_network"],
        likelihood=found["likelihood"],
    )
    row = Row(found["label"], setting)
    return row, column, found["split"], found["restart"], bool(found.get("continued"))


def _curve(history: list[Any], messages: list[str]) -> tuple[Curve, float | None]:
    """Thinned learning curves, and the best validation bound in them."""
    rows = [row for row in history if isinstance(row, dict)]
    try:
        epochs = np.array([row["epoch"] for row in rows], dtype=float)
        bound = np.array([row.get("val_iwae") for row in rows], dtype=float)
    except (KeyError, TypeError, ValueError) as error:
        messages.append(f"history.json has rows without an epoch or with odd numbers ({error!r:.80})")
        return {}, None
    if not rows or not np.isfinite(epochs).all():
        return {}, None
    finite = np.isfinite(bound)
    at = int(np.where(finite, bound, -np.inf).argmax())
    best = float(bound[at]) if finite.any() else None
    kept = list(range(len(rows)))
    if len(rows) > CURVE_POINTS:
        even = np.linspace(0, len(rows) - 1, CURVE_POINTS).round().astype(int)
        kept = sorted({*even.tolist(), at})
    curve = {"epoch": _plain(epochs[kept])}
    for name in CURVES:
        if name in rows[at]:
            try:
                values = np.array([rows[i].get(name) for i in kept], dtype=float)
            except (TypeError, ValueError):
                messages.append(f"history.json has odd numbers in {name}: left out")
                continue
            curve[name] = _plain(values)
    return curve, best


def _plain(values: NDArray[np.float64]) -> list[float | None]:
    """Numbers as a screen shows them; those that are not finite become None."""
    rounded: list[float | None] = values.round(3).tolist()
    if not np.isfinite(values).all():
        return [value if value is not None and math.isfinite(value) else None for value in rounded]
    return rounded


def _reason(failure: Any) -> str:
    if isinstance(failure, dict):
        for key in ("reason", "message", "error"):
            if isinstance(failure.get(key), str):
                return str(failure[key])[:LINE]
    return json.dumps(failure)[:LINE]


# --- files -----------------------------------------------------------------------------------------


def _open(path: str, name: str) -> tuple[int, int] | None:
    """Descriptor and size of a plain file, or nothing if there is none; a link is not followed."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        handle = os.open(f"{path}/{name}", flags)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(f"could not read {name}: {error.strerror or error}") from error
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        os.close(handle)
        raise RunError(f"could not read {name}: it is not a plain file")
    return handle, found.st_size


def _read(handle: int, count: int) -> bytes:
    parts = []
    while count > 0 and (part := os.read(handle, count)):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _json(path: str, name: str) -> Any:
    """The content of a JSON file, or nothing if there is none."""
    opened = _open(path, name)
    if opened is None:
        return None
    handle, size = opened
    try:
        if size > LARGEST_JSON:
            raise RunError(f"{name} has {size:,} bytes, more than a report reads ({LARGEST_JSON:,})")
        return json.loads(_read(handle, size))
    except (ValueError, RecursionError) as error:
        raise RunError(
            f"{name} is not readable JSON ({error}): it is damaged or half written"
        ) from error
    except OSError as error:
        raise RunError(f"could not read {name}: {error.strerror or error}") from error
    finally:
        os.close(handle)


def _optional(path: str, name: str, kind: type, messages: list[str]) -> Any:
    """The same; what is wrong with it is noted, and the run goes without it."""
    try:
        content = _json(path, name)
    except RunError as error:
        messages.append(str(error))
        return None
    if content is not None and not isinstance(content, kind):
        messages.append(f"{name} holds {type(content).__name__}, not {kind.__name__}: left out")
        return None
    return content


def _log(path: str, name: str) -> tuple[list[dict[str, Any]], Log]:
    """The start events of a log, and its first and last lines."""
    try:
        opened = _open(path, name)
    except RunError as error:
        return [], Log(head=[str(error)])
    if opened is None:
        return [], Log()
    handle, size = opened
    try:
        head = _read(handle, min(size, LARGEST_LOG))
        tail = b""
        if size > LARGEST_LOG:
            os.lseek(handle, max(LARGEST_LOG, size - LARGEST_LOG), os.SEEK_SET)
            tail = _read(handle, LARGEST_LOG)
    except OSError as error:
        return [], Log(head=[f"could not read {name}: {error.strerror or error}"])
    finally:
        os.close(handle)
    return _starts(head + b"\n" + tail), _trim(head, tail, size)


def _trim(head: bytes, tail: bytes, size: int) -> Log:
    lines = head.decode("utf-8", "replace").splitlines()
    if tail:  # the middle was not read: estimate what it holds from the lines we have
        last = tail.decode("utf-8", "replace").splitlines()[1:][-LOG_TAIL:]
        first = lines[:LOG_HEAD]
        left = round(size * len(lines) / len(head)) - len(first) - len(last)
        return Log(head=_cut(first), tail=_cut(last), left_out=max(left, 1))
    if len(lines) <= LOG_HEAD + LOG_TAIL:
        return Log(head=_cut(lines))
    left = len(lines) - LOG_HEAD - LOG_TAIL
    return Log(head=_cut(lines[:LOG_HEAD]), tail=_cut(lines[-LOG_TAIL:]), left_out=left)


def _cut(lines: Iterable[str]) -> list[str]:
    return [line if len(line) <= LINE else line[:LINE] + " …" for line in lines]


def _starts(content: bytes) -> list[dict[str, Any]]:
    """The events that say on which machine and with which versions a run started."""
    found: list[dict[str, Any]] = []
    if b'"start"' not in content:
        return found
    for line in content.splitlines():
        if b'"start"' in line:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict) and event.get("event") == "start":
                known = {key: value for key, value in event.items() if key != "event"}
                found.append(known)
    return found[-5:]


def _images(folder: Path) -> list[Path]:
    kinds = {".png", ".svg", ".gif", ".jpg", ".jpeg", ".webp"}
    found = (path for path in sorted(folder.iterdir()) if path.suffix.lower() in kinds)
    return [path for path in found if path.is_file() and not path.is_symlink()]


def _whole(value: Any) -> int | None:
    found = number(value)
    return None if found is None else int(found)
