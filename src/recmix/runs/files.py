"""Read and write files. A file is written under a temporary name and then renamed.

So a file with its final name is always complete.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import stat
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from recmix.errors import ConfigError, RunError

__all__ = ["check_regular", "finite", "read_json", "read_toml", "write_bytes", "write_json"]


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to `path`. A crash leaves the complete old file or the complete new one."""
    try:
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
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunError(
                f"the disk is full: could not write {path} ({len(content):,} bytes). Earlier files are "
                "complete: free some space and continue with --resume"
            ) from error
        raise RunError(f"could not write {path}: {error.strerror or error}") from error


def _umask() -> int:
    """Return the umask of the process. The system allows to read it only by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def write_json(path: Path, content: Any) -> None:
    """Write `content` to `path` as JSON. A number that is not finite becomes null.

    JSON has no such numbers. One is the standard error of a mean over a single example.
    """
    text = json.dumps(finite(content), indent=1, allow_nan=False)
    write_bytes(path, (text + "\n").encode())


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
