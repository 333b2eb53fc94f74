"""Reserve a folder for one process, with a lock on a file in it.

The operating system releases the lock when the process ends, also if it is killed. Where it has no such
locks (Windows, some network file systems), nothing is reserved.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from recmix.errors import RunError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["LOCK", "exclusive", "has_lock", "lock", "unlock"]

LOCK = ".lock"  # name of the locked file. It holds the host and the number of the process.
NO_LINKS = getattr(os, "O_NOFOLLOW", 0)
"""Flag of `os.open` that does not follow symbolic links. Otherwise a link in another user's folder could
choose which file is written."""
_held: dict[Path, int] = {}  # the descriptors of the files that this process has locked


def has_lock(folder: Path) -> bool:
    """Whether this process has reserved the folder with `lock`."""
    return folder.resolve() in _held


def lock(folder: Path) -> None:
    """Reserve the folder for this process. Do nothing if this process has reserved it already.

    Raises:
        RunError: another process has reserved the folder. The message names the other process.
    """
    path = folder / LOCK
    if has_lock(folder) and not _same_file(_held[folder.resolve()], path):
        unlock(folder)  # the folder was removed and made again
    if fcntl is None or has_lock(folder):
        return
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | NO_LINKS, 0o666)
        except OSError as error:
            raise RunError(f"could not write {path}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _holder(descriptor)
            os.close(descriptor)
            raise RunError(
                f"{folder} is in use by {holder}: wait until it ends, stop it, or give another folder"
            ) from error
        except OSError:  # this file system has no locks
            os.close(descriptor)
            return
        if _same_file(descriptor, path):
            break
        os.close(descriptor)  # its holder has removed it in the meantime
    about = {"host": socket.gethostname(), "pid": os.getpid()}
    with contextlib.suppress(OSError):  # on a full disk the lock holds without them
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(about).encode(), 0)
    _held[folder.resolve()] = descriptor


def unlock(folder: Path) -> None:
    """End the reservation that `lock` made, if this process has reserved the folder."""
    descriptor = _held.pop(folder.resolve(), None)
    if descriptor is None:
        return
    path = folder / LOCK
    with contextlib.suppress(OSError):
        if _same_file(descriptor, path):
            path.unlink()
    os.close(descriptor)


@contextlib.contextmanager
def exclusive(folder: Path, seconds: float = 0.0) -> Iterator[bool | None]:
    """Lock a folder while the context is open, for short changes by one process at a time.

    The context yields True if this process has the lock. It yields False if another process still has
    the lock after `seconds`, and None if the system cannot lock folders. The lock is on the folder
    itself, so no lock file is left.
    """
    if fcntl is None:
        yield None
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    end = time.monotonic() + seconds
    held: bool | None = False
    try:
        while not held:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held = True
            except BlockingIOError:
                if time.monotonic() >= end:
                    break
                time.sleep(0.01)
            except OSError:  # this file system cannot lock folders
                held = None
                break
        yield held
    finally:
        os.close(descriptor)


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _holder(descriptor: int) -> str:
    """Return a name of the process that holds the lock, such as "process 123 on host".

    That process has written its number and its host into the locked file.

    Args:
        descriptor: the descriptor of the locked file.
    """
    try:
        about = json.loads(os.pread(descriptor, 1000, 0))
        return f"process {about['pid']} on {about['host']}"
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return "another process"
