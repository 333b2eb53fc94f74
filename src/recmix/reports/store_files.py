"""Reads files of a store without trusting them: no links are followed, no large file is read whole."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable
from typing import Any

from recmix.errors import RunError
from recmix.reports.records import Log

__all__ = ["LINE", "LOG_HEAD", "LOG_TAIL", "read_json", "read_log", "read_optional"]

LOG_HEAD, LOG_TAIL, LINE = 6, 24, 400
"""Lines kept at the start and at the end of a log, and characters kept of a line."""
LARGEST_JSON = 64 * 2**20
LARGEST_LOG = 64 * 2**10


def _open(path: str, name: str) -> tuple[int, int] | None:
    """Descriptor and size of a plain file, or None if it does not exist. Links are not followed."""
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


def read_json(path: str, name: str) -> Any:
    """The content of a JSON file, or None if it does not exist.

    Args:
        path: of the folder.
        name: of the file.
    """
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


def read_optional(path: str, name: str, kind: type, messages: list[str]) -> Any:
    """The content of a JSON file that the run can do without, or None. An error becomes a message.

    Args:
        path: of the folder.
        name: of the file.
        kind: expected type of the content.
        messages: to which the message is added.
    """
    try:
        content = read_json(path, name)
    except RunError as error:
        messages.append(str(error))
        return None
    if content is not None and not isinstance(content, kind):
        messages.append(f"{name} holds {type(content).__name__}, not {kind.__name__}: left out")
        return None
    return content


def read_log(path: str, name: str) -> tuple[list[dict[str, Any]], Log]:
    """The start events of a log, and its first and last lines.

    Args:
        path: of the folder.
        name: of the file.
    """
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
    if not tail and len(lines) <= LOG_HEAD + LOG_TAIL:
        return Log(head=_cut(lines))
    total, last = len(lines), lines[-LOG_TAIL:]
    if tail:  # the middle was not read: estimate the number of lines from the head
        total = round(size * len(lines) / len(head))
        last = tail.decode("utf-8", "replace").splitlines()[1:][-LOG_TAIL:]
    first = lines[:LOG_HEAD]
    left = max(total - len(first) - len(last), 1)
    return Log(head=_cut(first), tail=_cut(last), left_out=left)


def _cut(lines: Iterable[str]) -> list[str]:
    return [line if len(line) <= LINE else line[:LINE] + " …" for line in lines]


def _starts(content: bytes) -> list[dict[str, Any]]:
    """The start events, which name machine and versions; the last five."""
    found: list[dict[str, Any]] = []
    for line in content.splitlines() if b'"start"' in content else ():
        try:
            event = json.loads(line) if b'"start"' in line else None
        except ValueError:
            continue
        if isinstance(event, dict) and event.get("event") == "start":
            found.append({key: value for key, value in event.items() if key != "event"})
    return found[-5:]
