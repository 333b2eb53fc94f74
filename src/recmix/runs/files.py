"""Read and write files. A file is written under a temporary name and then renamed.

So a file with its final name is always complete.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import math
import os
import stat
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from recmix.errors import ConfigError, RunError
from recmix.runs.lock import exclusive

__all__ = [
    "check_regular",
    "finite",
    "read_json",
    "read_toml",
    "remove_parts",
    "update_json",
    "write_bytes",
    "write_json",
]

WAIT_SECONDS = 10.0
"""How long to wait for another process that writes in the same folder; files are written quickly."""


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to `path`. A crash leaves the complete old file or the complete new one.

    Unfinished files of the same name that killed processes left are removed.
    """
    with _writing(path):
        _replace(path, content)


def update_json(path: Path, change: Callable[[], Any]) -> None:
    """Write what `change` returns to `path` as JSON. No other process writes in between.

    Args:
        path: the file.
        change: reads the old content and returns the new one.
    """
    with _writing(path):
        _replace(path, _json(change()))


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Let one process at a time write in the folder of `path`; make any OSError a RunError."""
    try:
        with exclusive(path.parent, WAIT_SECONDS) as alone:
            if alone:  # no process is writing here, so unfinished files belong to none
                remove_parts(path)
            yield
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
            os.fchmod(file.fileno(), 0o666 & ~_umask())
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


def remove_parts(path: Path) -> None:
    """Remove unfinished files that killed processes left of this file.

    The caller must know that no other process is writing the file.
    """
    for part in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        with contextlib.suppress(OSError):
            part.unlink()


def _umask() -> int:
    """Return the umask of the process. The system allows to read it only by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def write_json(path: Path, content: Any) -> None:
    """Write `content` to `path` as JSON. A number that is not finite becomes null.

    JSON has no such numbers. One is the standard error of a mean over a single example.
    """
    write_bytes(path, _json(content))


def _json(content: Any) -> bytes:
    return (json.dumps(finite(content), indent=1, allow_nan=False) + "\n").encode()


def finite(content: Any) -> Any:
    """Return JSON values with None in place of each number that is not finite.

    >>> finite({"elbo": -90.5, "elbo_se": float("nan")})
    {'elbo': -90.5, 'elbo_se': None}
    """
    if isinstance(content, dict):
        return {name: finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def check_regular(path: Path) -> int:
    """Return the size of a file in bytes. Anything but a regular file is refused.

    Reading a device or a pipe might never end.
    """
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise RunError(f"{path} is not a regular file: replace it by the file that recmix wrote")
    return about.st_size


def read_json(path: Path) -> Any:
    """Return the content of a JSON file."""
    try:
        check_regular(path)
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RunError(f"{path} does not exist: is {path.parent} the folder of a run?") from error
    except OSError as error:
        raise RunError(f"could not read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is not readable JSON ({error}): the file is damaged") from error


def read_toml(path: Path, what: str = "") -> dict[str, Any]:
    """Return the content of a user's TOML file.

    Args:
        path: the file.
        what: what the file is, such as "the preset", for error messages.
    """
    name = f"{what} {path}".strip()
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {name}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # also numbers with too many digits
        raise ConfigError(f"{name} is not TOML: {error}") from error
