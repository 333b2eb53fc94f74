"""Read the files of run folders, which may be damaged or harmful.

Symbolic links are not followed, and only the beginning and the end of a large log are read.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

from recmix.errors import RunError
from recmix.runs.files import LARGEST_JSON, parse_json

__all__ = ["LINE", "LOG_HEAD", "LOG_TAIL", "read_json", "read_log", "read_optional"]

LOG_HEAD, LOG_TAIL, LINE = 6, 24, 400
"""Lines kept at the start and at the end of a log, and characters kept of a line."""
LARGEST_LOG = 64 * 2**10
STARTS = 5
"""Number of start events that are kept of a log: the last ones."""


@contextmanager
def _opened(folder: str, name: str) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file without following links, and yield it with its size in bytes.

    Raises:
        FileNotFoundError: if the file is missing.
        RunError: if it is not a regular file, or if it cannot be opened or read.
    """

    def without_links(path: str, flags: int) -> int:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)

    try:
        with open(f"{folder}/{name}", "rb", opener=without_links) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise OSError("it is not a plain file")
            yield file, found.st_size
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RunError(f"could not read {name}: {error.strerror or error}") from error


def read_json(folder: str, name: str) -> Any:
    """Return the content of the JSON file `name` in `folder`, or None if it does not exist."""
    try:
        with _opened(folder, name) as (file, size):
            if size > LARGEST_JSON:
                raise RunError(f"{name} has {size:,} bytes, more than a report reads ({LARGEST_JSON:,})")
            return parse_json(file.read(size), name)
    except FileNotFoundError:
        return None


def read_optional(folder: str, name: str, kind: type, messages: list[str]) -> Any:
    """Return the content of a JSON file, or None if the run has no such file or the file is damaged.

    If the file is damaged, or its content is not of the type `kind`, a message is added to `messages`.
    """
    try:
        content = read_json(folder, name)
    except RunError as error:
        messages.append(str(error))
        return None
    if content is not None and not isinstance(content, kind):
        messages.append(f"{name} holds {type(content).__name__}, not {kind.__name__}: left out")
        return None
    return content


def read_log(folder: str, name: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the start events of a log, and the first and last lines of the file.

    Training writes a start event each time it begins or continues. The event names the machine and the
    versions of software. Both lists are empty if the file does not exist. If the file cannot be read,
    the error message takes the place of the lines.
    """
    try:
        with _opened(folder, name) as (file, size):
            head = file.read(LARGEST_LOG)
            file.seek(max(LARGEST_LOG, size - LARGEST_LOG))
            tail = file.read(LARGEST_LOG)
    except FileNotFoundError:
        return [], []
    except RunError as error:
        return [], [str(error)]
    shown = [line if len(line) <= LINE else line[:LINE] + " …" for line in _ends(head, tail, size)]
    return _starts(head + b"\n" + tail), shown


def _ends(head: bytes, tail: bytes, size: int) -> list[str]:
    """Return the lines of a log. For a long log, return only the first and the last lines.

    Between these, a line of text says how many lines are left out.

    Args:
        head: the first bytes of the log.
        tail: the last bytes of the log; empty if `head` is the whole log.
        size: number of bytes of the log.
    """
    lines = head.decode("utf-8", "replace").splitlines()
    if not tail and len(lines) <= LOG_HEAD + LOG_TAIL:
        return lines
    total, last = len(lines), lines
    if tail:  # the middle was not read: estimate the number of lines from the head
        total = round(size * len(lines) / len(head))
        last = tail.decode("utf-8", "replace").splitlines()[1:]
    first, last = lines[:LOG_HEAD], last[-LOG_TAIL:]
    return [*first, f"… {max(total - len(first) - len(last), 1)} lines left out …", *last]


def _starts(content: bytes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for line in content.splitlines():
        if b'"start"' in line:
            with suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and event.pop("event", None) == "start":
                    found.append(event)
    return found[-STARTS:]
