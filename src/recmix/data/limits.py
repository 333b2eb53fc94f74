"""Limit the files that can be read: only regular files, with no more bytes than the memory can hold.

A small compressed file can hold very many bytes, and a named pipe has no end. So the size of a file is
checked before the file is read. Compressed content is read in small steps, and its bytes are counted.
"""

from __future__ import annotations

import io
import os
import stat
import zipfile
from pathlib import Path
from typing import Protocol

from recmix.errors import ConfigError, DataError

__all__ = [
    "StepReader",
    "check_file",
    "check_members",
    "check_path",
    "check_regular",
    "check_size",
    "max_bytes",
    "read_at_most",
]

_VARIABLE = "RECMIX_MAX_BYTES"
_STEP_BYTES = 1 << 20
_UNKNOWN_MEMORY = 1 << 34  # assumed where the operating system does not say how much it has
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # zipfile reads the others in one step


class _Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


def max_bytes() -> int:
    """Return the largest number of bytes that one file may have, before and after decompression.

    The environment variable RECMIX_MAX_BYTES sets this limit. The default is half of the memory of the
    machine.
    """
    given = os.environ.get(_VARIABLE, "")
    if not given:
        try:
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
        except (AttributeError, OSError, ValueError):  # Windows has no sysconf
            return _UNKNOWN_MEMORY // 2
    if not (given.isascii() and given.isdigit() and int(given) > 0):
        raise ConfigError(
            f"the environment variable {_VARIABLE} is {given[:40]!r}; expected a whole number of bytes, "
            "1 or more: correct or unset it"
        )
    return int(given)


def check_path(name: str | Path, expected: str) -> Path:
    """Return a path with "~" expanded; raise a DataError if the operating system rejects it.

    Args:
        name: The path. It need not exist. It is rejected, for example, if it is too long.
        expected: Words for the error message that say what the path should name, such as "a folder".
    """
    try:
        path = Path(name).expanduser()
        path.exists()
    except (OSError, RuntimeError) as error:  # too long, not allowed, or "~" of an unknown user
        text = str(name)
        shown = text if len(text) <= 80 else f"{text[:80]}... ({len(text)} characters)"
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{shown} cannot be read ({reason}); expected {expected}: correct it") from error
    return path


def check_size(what: str | Path, size: int, most: int | None = None, share: int = 1) -> None:
    """Raise a DataError if a file or its content has too many bytes.

    The limit is the smaller of `most` and `max_bytes() // share`.

    Args:
        what: Name of the file in the message.
        size: Number of bytes.
        most: A fixed limit in bytes; None if there is none.
        share: Memory needed to process the content, as a multiple of its size.
    """
    limit = max(1, max_bytes() // share)
    advice = "remove it or make it smaller"
    if most is None or limit < most:
        most = limit
        advice = (
            f"if you trust it and have the memory, set the environment variable {_VARIABLE} to "
            f"{size * share} or more"
        )
    if size > most:
        raise DataError(f"{what} holds {size} bytes or more, expected at most {most}: {advice}")


def check_regular(path: Path) -> int:
    """Return the size of a file in bytes; raise a DataError if it is not a regular file."""
    try:
        found = path.stat()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        kinds = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
        kind = kinds.get(stat.S_IFMT(found.st_mode), "a device")
        raise DataError(
            f"cannot read {path}: it is {kind}, expected a regular file: remove or replace it"
        )
    return found.st_size


def check_file(path: Path, most: int | None = None) -> None:
    """Raise a DataError unless a path is a regular file that is not too large.

    The largest allowed number of bytes is the smaller of `most` and `max_bytes()`.
    """
    check_size(path, check_regular(path), most)


def check_members(path: Path, members: list[zipfile.ZipInfo]) -> None:
    """Check some members of the zip file `path` before they are read.

    Raise a DataError if they have too many bytes together, or if one has a compression method that
    Python cannot decompress in small steps.
    """
    for member in members:
        if member.compress_type not in _COMPRESSIONS:
            raise DataError(
                f"{member.filename} in {path} has compression method {member.compress_type}; expected "
                "stored (0) or deflated (8): create the zip file again with the ordinary method"
            )
    check_size(path, sum(member.file_size for member in members))


def read_at_most(stream: _Readable, what: str | Path, most: int | None = None, share: int = 1) -> bytes:
    """Read a stream to its end, and return its bytes.

    Raise a DataError as soon as there are too many bytes. `what`, `most` and `share` are as in
    `check_size`.
    """
    held = io.BytesIO()
    while chunk := stream.read(_STEP_BYTES):
        check_size(what, held.tell() + len(chunk), most, share)
        held.write(chunk)
    return held.getvalue()  # without a copy


class StepReader:
    """A stream whose method `read` returns only a small number of bytes at a time.

    If a caller asks for very many bytes of a file in a zip file, Python decompresses them all at once,
    even if the zip file declares a smaller size. Small steps prevent this.

    >>> StepReader(io.BytesIO(b"abc")).read(2)
    b'ab'
    """

    def __init__(self, stream: _Readable) -> None:
        self._stream = stream

    def read(self, size: int = -1) -> bytes:
        """Return at most `size` bytes, possibly fewer; b"" only at the end of the stream."""
        return self._stream.read(_STEP_BYTES if size < 0 else min(size, _STEP_BYTES))
