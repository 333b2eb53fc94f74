"""Read and write files. A file is written under a temporary name and then renamed.

So a file with its final name is always complete. A JSON file ends with a SHA-256 hash (digest) of its
content, which is checked when the file is read.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import math
import os
import stat
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from recmix.errors import ConfigError, RunError
from recmix.runs.lock import exclusive

__all__ = [
    "check_regular",
    "finite",
    "make_folder",
    "parse_json",
    "read_json",
    "read_toml",
    "remove_parts",
    "update_json",
    "write_bytes",
    "write_json",
]

WAIT_SECONDS = 10.0
"""How long to wait for another process that writes in the same folder; files are written quickly."""
DIGEST = "content_sha256"
"""Name of the last field of a JSON file: the SHA-256 digest of the other fields."""
LARGEST_JSON = 64 << 20  # largest size of a JSON or TOML file that is read, in bytes


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to `path`. A crash leaves the complete old file or the complete new one.

    Temporary files of killed processes that wrote to `path` are removed.
    """
    with _writing(path):
        _replace(path, content)


def update_json(path: Path, change: Callable[[], Any]) -> None:
    """Lock the folder of a JSON file, call `change`, and write the result of `change` to the file.

    No other process can write to the file in the meantime, if the system can lock folders.

    Raises:
        RunError: another process has been writing in the folder for too long.
    """
    with _writing(path) as alone:
        if alone is False:  # what the other process writes would be lost
            raise RunError(
                f"could not write {path}: another process has locked its folder for {WAIT_SECONDS:g} "
                "seconds, which is longer than a write takes. It may hang: look for commands of recmix "
                "that use this folder, wait for them or end them, and try again"
            )
        _replace(path, _json(change()))


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[bool | None]:
    """Lock the folder of `path` while the context is open, and convert an OSError to a RunError.

    The context yields True if this process has the lock. It yields False if another process still has
    the lock after `WAIT_SECONDS`, and None if the system cannot lock folders.
    """
    try:
        with exclusive(path.parent, WAIT_SECONDS) as alone:
            if alone:  # no process is writing here, so unfinished files belong to none
                _remove_parts(path)
            yield alone
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunError(
                f"the disk is full: could not write {path}. Earlier files are complete: free some space "
                "and continue with --resume"
            ) from error
        raise RunError(f"could not write {path}: {error.strerror or error}") from error


def _replace(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            mask = os.umask(0o077)  # it can be read only by setting it
            os.umask(mask)
            os.fchmod(file.fileno(), 0o666 & ~mask)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def make_folder(folder: Path) -> None:
    """Make a folder and the folders above it; raise a RunError if this is not possible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"could not make the folder {folder}: {error.strerror}") from error


def remove_parts(*paths: Path) -> None:
    """Remove the temporary files that killed processes left while they wrote the files `paths`.

    The files must be in one folder. Nothing is removed while another process writes in the folder,
    because that process may still need its temporary file.
    """
    with contextlib.suppress(OSError), exclusive(paths[0].parent, WAIT_SECONDS) as alone:
        for path in paths if alone else ():
            _remove_parts(path)


def _remove_parts(path: Path) -> None:
    for part in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        with contextlib.suppress(OSError):
            part.unlink()


def write_json(path: Path, content: Any) -> None:
    """Write `content` to `path` as a JSON object, with a SHA-256 hash as its last field.

    A number that is not finite becomes null, because JSON has no such numbers. A list is stored in the
    field ``rows``.
    """
    write_bytes(path, _json(content))


def _json(content: Any) -> bytes:
    fields = {"rows": content} if isinstance(content, list | tuple) else content
    fields = json.loads(json.dumps(finite(fields), allow_nan=False))  # names and values as they are read
    fields.pop(DIGEST, None)
    return (json.dumps(fields | {DIGEST: _digest(fields)}, indent=1) + "\n").encode()


def _digest(fields: dict[str, Any]) -> str:
    """Return the SHA-256 hash of JSON values. The order of the names does not change the hash."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def parse_json(text: bytes, name: str) -> Any:
    """Return the content of a JSON file that `write_json` wrote, after a check of its SHA-256 hash.

    Args:
        text: the bytes of the file. A file of an older version, without a hash, is accepted.
        name: name of the file, for error messages.
    """
    try:
        content = json.loads(text)
        if isinstance(content, dict) and content:
            # The digest's name with a changed byte counts as the digest, too.
            has_digest = bool(get_close_matches(next(reversed(content)), [DIGEST], cutoff=0.9))
            stated = content.pop(DIGEST, None)
            if (has_digest or stated) and stated != _digest(content):
                raise RunError(
                    f"{name} is damaged: its content does not match its SHA-256 digest. Restore it from "
                    f"a copy. If you changed the file on purpose, remove its field {DIGEST}"
                )
    except (ValueError, RecursionError) as error:
        raise RunError(f"{name} is not readable JSON ({error}): the file is damaged") from error
    return content["rows"] if isinstance(content, dict) and content.keys() == {"rows"} else content


def finite(content: Any, replacement: Callable[[float], Any] = lambda value: None) -> Any:
    """Return JSON values with None, or `replacement(number)`, for each number that is not finite.

    >>> finite({"elbo": -90.5, "elbo_se": float("nan")})
    {'elbo': -90.5, 'elbo_se': None}
    """
    if isinstance(content, dict):
        return {name: finite(value, replacement) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite(value, replacement) for value in content]
    bad = isinstance(content, float) and not math.isfinite(content)
    return replacement(content) if bad else content


def check_regular(path: Path) -> int:
    """Return the size of a regular file in bytes.

    Raise a RunError for anything else, such as a device or a pipe: reading it might never end.
    """
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise RunError(f"{path} is not a regular file: replace it by the file that recmix wrote")
    return about.st_size


def read_json(path: Path, largest: int = LARGEST_JSON) -> Any:
    """Return the content of a JSON file; raise a RunError if it has more than `largest` bytes."""
    try:
        size = check_regular(path)
        if size > largest:
            raise RunError(f"{path} has {size:,} bytes, more than recmix reads ({largest:,})")
        with path.open("rb") as file:
            return parse_json(file.read(size), str(path))
    except FileNotFoundError as error:
        raise RunError(f"{path} does not exist: is {path.parent} the folder of a run?") from error
    except OSError as error:
        raise RunError(f"could not read {path}: {error.strerror or error}") from error


def read_toml(path: Path, what: str = "") -> dict[str, Any]:
    """Return the content of a user's TOML file; raise a ConfigError if this is not possible.

    `what` says what the file is, such as "the preset", for error messages.
    """
    name = f"{what} {path}".strip()
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST_JSON + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {name}: {error.strerror}") from error
    if len(text) > LARGEST_JSON:
        raise ConfigError(f"{name} has more than {LARGEST_JSON:,} bytes: is it another file?")
    try:
        return tomllib.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # also numbers with too many digits
        raise ConfigError(f"{name} is not TOML: {error}") from error
