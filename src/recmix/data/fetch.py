"""Download files, check them, and unpack archives."""

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
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO

from recmix._version import __version__
from recmix.data.formats import open_decompressed
from recmix.data.limits import check_regular, check_size
from recmix.errors import DataError

__all__ = ["DownloadError", "checksum", "download", "md5_of", "offline", "unpack"]

_CHUNK_BYTES = 1 << 18
_MAX_MEMBER_BYTES = 1 << 28  # limit for one file of an archive; published ones have 30,730,000 bytes


class DownloadError(Exception):
    """A file could not be downloaded. The message has one line with the reason for each URL."""


def offline() -> bool:
    """Whether the environment variable RECMIX_OFFLINE forbids downloads."""
    return os.environ.get("RECMIX_OFFLINE", "") not in ("", "0")


def download(
    urls: Sequence[str],
    target: Path,
    *,
    md5: str | None = None,
    file_sum: str | None = None,
    timeout: float = 30.0,
) -> Path:
    """Download a file from the first URL that works, and return its path.

    The file is written under a temporary name, checked, and then renamed. So a file at the returned path
    is always complete. Raise a `DownloadError` if all URLs fail.

    Args:
        urls: URLs to try in this order.
        target: Path of the file; ".gz" is added if only the URL ends in ".gz".
        md5: Expected MD5 sum of the decompressed content; None for no check.
        file_sum: Expected checksum of the file itself, see `checksum`; None for no check.
        timeout: Seconds to wait for an answer before the next URL is tried.
    """
    reasons = []
    for url in urls:
        add_suffix = url.endswith(".gz") and target.suffix != ".gz"
        path = target.with_name(target.name + ".gz") if add_suffix else target
        try:
            with _atomic_file(path) as stream:
                _receive(url, stream, path, timeout)
                stream.flush()
                found = md5_of(Path(stream.name)) if md5 else None
                if found != md5:
                    raise DownloadError(f"its content has MD5 sum {found}, expected {md5}")
                if file_sum and (of_file := checksum(Path(stream.name), file_sum)) != file_sum:
                    raise DownloadError(f"the file has checksum {of_file}, expected {file_sum}")
        except DownloadError as error:
            reasons.append(f"{url}: {error}")
        else:
            return path
    raise DownloadError("\n".join(reasons))


def checksum(path: Path, like: str) -> str:
    """Return the checksum of a file in the form ``algorithm:digits``. A gzip file is not decompressed.

    Args:
        path: The file.
        like: A checksum whose prefix selects the algorithm: ``md5:``, ``sha256:`` or ``git:``. ``git:``
            is the hash that git gives to the content of a file.
    """
    name = like.partition(":")[0]
    digest = hashlib.new("sha1" if name == "git" else name, usedforsecurity=False)
    if name == "git":
        digest.update(f"blob {path.stat().st_size}".encode() + bytes(1))
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return f"{name}:{digest.hexdigest()}"


def md5_of(path: Path) -> str | None:
    """Return the MD5 sum of the decompressed content of a file; None if a gzip file is damaged."""
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with open_decompressed(path) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                digest.update(chunk)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return None
    return digest.hexdigest()


def unpack(archive: Path, folder: Path, names: Collection[str]) -> None:
    """Unpack files from a tar archive into `folder`. The folders of the archive are not made.

    `names` are the names of the files to unpack, without folders. Other files are ignored.
    """
    check_regular(archive)
    try:
        with tarfile.open(archive) as tar:
            for member in tar.getmembers():
                name = PurePosixPath(member.name).name
                if name not in names or not member.isreg():
                    continue
                check_size(f"{name} in {archive}", member.size, _MAX_MEMBER_BYTES)
                source = tar.extractfile(member)
                content = source.read() if source else b""
                with _atomic_file(folder / name) as stream:
                    stream.write(content)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DataError(
            f"{archive} is not a complete tar archive ({error}); delete it and download it again"
        ) from error


@contextlib.contextmanager
def _atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file that replaces `path` if the context ends without an error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
        try:
            with temporary.open("xb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            advice = "the disk is full: free some space"
        else:
            advice = f"{error.strerror or error}: make the folder writable"
        raise DataError(
            f"cannot write {path.name} into {path.parent}: {advice}, "
            "or choose another folder with root=... or the environment variable RECMIX_DATA"
        ) from error


def _receive(url: str, stream: IO[bytes], path: Path, timeout: float) -> None:
    """Write the content of a URL to a stream, and show the progress in the terminal.

    Raise a DownloadError if the network fails, and an OSError if the disk fails. `path` is the path of
    the file that is written.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    try:
        request = urllib.request.Request(url, headers={"User-Agent": f"recmix/{__version__}"})
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        raise DownloadError(f"the server answered {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DownloadError(f"cannot be reached ({getattr(error, 'reason', error)})") from error
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with response, Progress("{task.description}", *columns, console=console) as progress:
        if response.headers.get_content_type() == "text/html":
            raise DownloadError("the server answered with a web page instead of the file")
        length = response.headers.get("Content-Length", "")
        total = int(length) if length.isdigit() else None
        if total is not None and total > shutil.disk_usage(path.parent).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        task = progress.add_task(path.name, total=total)
        received = 0
        while True:
            try:
                chunk = response.read(_CHUNK_BYTES)
            except (OSError, http.client.HTTPException) as error:
                raise DownloadError(f"stopped after {received} bytes ({error})") from error
            if not chunk:
                break
            stream.write(chunk)
            received += len(chunk)
            progress.update(task, completed=received)
    if total is not None and received != total:
        raise DownloadError(f"stopped after {received} of {total} bytes")
