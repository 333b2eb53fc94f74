"""Downloads: checked, atomic, with the time left; what fails says why."""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import http.client
import os
import secrets
import shutil
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO

from recmix._version import __version__
from recmix.errors import DataError

__all__ = ["Unreachable", "download", "md5_of", "offline", "unpack"]

_CHUNK = 1 << 18
_LARGEST = 1 << 28  # bytes of one archive member; the largest that is published has 30,730,000


class Unreachable(Exception):
    """No address gave the file; the message says why, address by address."""


def offline() -> bool:
    """Whether the environment variable RECMIX_OFFLINE forbids downloads."""
    return os.environ.get("RECMIX_OFFLINE", "") not in ("", "0")


def download(
    urls: Sequence[str],
    target: Path,
    *,
    md5: str | None = None,
    of_content: bool = True,
    timeout: float = 30.0,
) -> Path:
    """Fetch a file from the first address that gives it whole, and put it in place at once.

    It is written beside its place under another name, flushed to the disk, checked and then renamed:
    a file under its own name is always whole.

    Args:
        urls: Addresses to try in turn.
        target: Where it goes; ".gz" is added if the address ends so and the target does not.
        md5: Its MD5 sum.
        of_content: Whether that is the sum of the content once decompressed, or of the file itself.
        timeout: Seconds without an answer after which an address is given up.

    Returns:
        The path it was given.

    Raises:
        Unreachable: If every address failed.
        DataError: If the disk cannot be written.
    """
    reasons = []
    for url in urls:
        gzipped = url.endswith(".gz") and target.suffix != ".gz"
        place = target.with_name(target.name + ".gz") if gzipped else target
        try:
            with placing(place) as part:
                _receive(url, part, place, timeout)
                part.flush()
                found = md5_of(Path(part.name), of_content) if md5 else None
                if found != md5:
                    raise Unreachable(f"its content has MD5 {found}, expected {md5}")
        except Unreachable as error:
            reasons.append(f"{url}: {error}")
        else:
            return place
    raise Unreachable("\n".join(reasons))


@contextlib.contextmanager
def placing(place: Path) -> Iterator[IO[bytes]]:
    """A file to write that takes its place when the block ends well and vanishes when it does not."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_name(f".{place.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
        try:
            with part.open("xb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(part, place)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(_unwritable(place, error)) from error


def md5_of(path: Path, of_content: bool = True) -> str | None:
    """The MD5 sum of a file or, by default, of its content once decompressed; None if it is damaged.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a.gz"
    ...     _ = path.write_bytes(gzip.compress(b"abc"))
    ...     md5_of(path) == hashlib.md5(b"abc").hexdigest()
    True
    """
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as stream:
        packed = of_content and stream.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if packed else path.open("rb") as content:
            while chunk := content.read(_CHUNK):
                digest.update(chunk)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return None
    return digest.hexdigest()


def unpack(archive: Path, folder: Path, wanted: Collection[str]) -> None:
    """Put some files of a tar archive into a folder, whatever folder they have inside it.

    Only regular files are written, only under the names asked for, and nothing at all if a name
    inside the archive leads out of it.

    Args:
        archive: The tar file, compressed or not.
        folder: Where the files go.
        wanted: Base names of the files to take.
    """
    try:
        with tarfile.open(archive) as tar:
            members = tar.getmembers()
            for member in members:
                path = PurePosixPath(member.name)
                if path.is_absolute() or ".." in path.parts:
                    raise DataError(
                        f"{archive} is not safe to unpack: it names {member.name!r}; "
                        "delete it and fetch it from the published address"
                    )
            for member in members:
                name = PurePosixPath(member.name).name
                if name not in wanted or not member.isreg():
                    continue
                if member.size > _LARGEST:
                    raise DataError(f"{archive}: {member.name!r} claims {member.size} bytes")
                source = tar.extractfile(member)
                if source is not None:
                    with placing(folder / name) as stream:
                        _copy(source, stream, archive)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DataError(
            f"{archive} is not a whole tar archive ({error}); delete it and fetch it again"
        ) from error


def _copy(source: IO[bytes], stream: IO[bytes], archive: Path) -> None:
    while True:
        try:
            chunk = source.read(_CHUNK)
        except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
            raise DataError(
                f"{archive} is not a whole tar archive ({error}); delete it and fetch it again"
            ) from error
        if not chunk:
            return
        stream.write(chunk)


def _receive(url: str, part: IO[bytes], place: Path, timeout: float) -> None:
    """Write what an address sends; trouble with the address is Unreachable, with the disk OSError."""
    try:
        request = urllib.request.Request(url, headers={"User-Agent": f"recmix/{__version__}"})
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        raise Unreachable(f"the server answered {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Unreachable(f"cannot be reached ({getattr(error, 'reason', error)})") from error
    with response, _progress(place.name) as advance:
        if response.headers.get_content_type() == "text/html":
            raise Unreachable("answered with a web page, not with the file")
        length = response.headers.get("Content-Length", "")
        total = int(length) if length.isdigit() else None
        if total is not None and total > shutil.disk_usage(place.parent).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        advance(0, total)
        received = 0
        while True:
            try:
                chunk = response.read(_CHUNK)
            except (OSError, http.client.HTTPException) as error:
                raise Unreachable(f"broke off after {received} bytes ({error})") from error
            if not chunk:
                break
            part.write(chunk)
            received += len(chunk)
            advance(received, total)
    if total is not None and received != total:
        raise Unreachable(f"broke off after {received} of {total} bytes")


@contextlib.contextmanager
def _progress(name: str) -> Iterator[Callable[[int, int | None], None]]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(name, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _unwritable(place: Path, error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        advice = "the disk is full: make room"
    else:
        advice = f"{error.strerror or error}: make the folder writable"
    return (
        f"cannot write {place.name} into {place.parent}: {advice}, "
        "or choose another folder with root=... or the environment variable RECMIX_DATA"
    )
