import errno
import gzip
import hashlib
import io
import os
import socket
import tarfile
from pathlib import Path

import numpy as np
import pytest

from recmix.data import fetch
from recmix.errors import DataError

CONTENT = np.random.default_rng(0).bytes(600_000)
MD5 = hashlib.md5(CONTENT).hexdigest()


def files_in(folder):
    return sorted(path.name for path in Path(folder).rglob("*") if path.is_file())


def raiser(error):
    def fail(*_, **__):
        raise error

    return fail


@pytest.fixture
def target(tmp_path):
    return tmp_path / "root" / "set" / "file"


@pytest.fixture
def serve(server):
    """Serve content under a name and return its URL."""
    folder, address = server

    def write(name="file", content=CONTENT):
        (folder / name).write_bytes(content)
        return f"{address}/{name}"

    return write


@pytest.mark.parametrize("zipped", [False, True])
def test_download_checks_and_writes_file(serve, target, zipped, capsys):
    name = "file.gz" if zipped else "file"
    path = fetch.download([serve(name, gzip.compress(CONTENT) if zipped else CONTENT)], target, md5=MD5)
    assert path.name == name
    assert fetch.md5_of(path) == MD5
    assert files_in(target.parent) == [name]
    printed = capsys.readouterr()
    assert printed.out == ""
    assert name in printed.err
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


@pytest.mark.parametrize("kind", ["md5", "sha256", "git"])
def test_the_checksum_of_the_compressed_file_is_checked(serve, target, kind):
    content = gzip.compress(CONTENT)
    url = serve("file.gz", content)
    whole = b"blob %d\0" % len(content) + content  # as `git hash-object` names it
    digits = hashlib.sha1(whole) if kind == "git" else hashlib.new(kind, content)
    fetch.download([url], target, file_sum=f"{kind}:{digits.hexdigest()}")
    with pytest.raises(fetch.DownloadError, match=f"checksum {kind}:{digits.hexdigest()}, expected"):
        fetch.download([url], target, file_sum=f"{kind}:{MD5}")


def test_next_url_is_tried_after_a_failure(server, serve, target):
    urls = [f"{server[1]}/none", serve("wrong", b"another content"), serve()]
    assert fetch.download(urls, target, md5=MD5).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("none", None, "the server answered 404"),
        ("wrong", b"another content", f"its content has MD5 sum .*, expected {MD5}"),
        ("wrong.gz", gzip.compress(CONTENT)[:1000], "its content has MD5 sum None"),
        ("file.half", CONTENT, "stopped after"),
        ("file.page", b"<html>sign in</html>", "a web page instead of the file"),
    ],
)
def test_failed_download_gives_reason_and_leaves_no_file(server, serve, target, name, content, reason):
    url = f"{server[1]}/{name}" if content is None else serve(name, content)
    with pytest.raises(fetch.DownloadError, match=rf"{url}: .*{reason}"):
        fetch.download([url], target, md5=MD5)
    assert files_in(target.parent) == []


def test_failed_download_keeps_old_file(serve, target):
    target.parent.mkdir(parents=True)
    target.write_bytes(b"old")
    with pytest.raises(fetch.DownloadError):
        fetch.download([serve("file.half")], target)
    assert target.read_bytes() == b"old"
    assert files_in(target.parent) == ["file"]


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/file", "nonsense", "http://[bad/file"])
def test_unreachable_or_invalid_url_is_reported(target, url, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(fetch.DownloadError, match="cannot be reached"):
        fetch.download([url], target, timeout=5)
    assert files_in(target.parent) == []


def test_silent_server_times_out(target, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/file"
        with pytest.raises(fetch.DownloadError, match="timed out"):
            fetch.download([url], target, timeout=0.2)


def test_full_disk_is_reported(serve, target, monkeypatch):
    monkeypatch.setattr("os.fsync", raiser(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(DataError, match=r"cannot write file into .*disk is full.*RECMIX_DATA"):
        fetch.download([serve()], target)
    assert files_in(target.parent) == []


def test_too_little_disk_space_is_reported_before_the_download(serve, target, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(DataError, match="disk is full"):
        fetch.download([serve()], target)


def test_folder_that_cannot_be_written_is_reported(serve, tmp_path, target, monkeypatch):
    url = serve()
    (tmp_path / "blocked").write_text("a file where a folder should be")
    with pytest.raises(DataError, match=r"cannot write file into .*blocked.*root="):
        fetch.download([url], tmp_path / "blocked" / "file")
    monkeypatch.setattr(Path, "open", raiser(PermissionError(errno.EACCES, "Permission denied")))
    with pytest.raises(DataError, match=r"Permission denied: make the folder writable"):
        fetch.download([url], target)


def test_interrupted_download_leaves_no_file(serve, target, monkeypatch):
    monkeypatch.setattr("os.fsync", raiser(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        fetch.download([serve()], target)
    assert files_in(target.parent) == []


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_recmix_offline_values(monkeypatch, value, expected):
    monkeypatch.setenv("RECMIX_OFFLINE", value)
    assert fetch.offline() is expected


@pytest.fixture
def write_tar(tmp_path):
    def write(**members):
        path = tmp_path / "a.tar.gz"
        with tarfile.open(path, "w:gz") as tar:
            for name, content in members.items():
                info = tarfile.TarInfo(name)
                if content is None:
                    info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
                    tar.addfile(info)
                else:
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
        return path

    return write


def test_unpack_writes_only_named_regular_files(tmp_path, write_tar):
    archive = write_tar(**{"in/one.bin": b"1", "in/two.bin": b"2", "in/link.bin": None})
    fetch.unpack(archive, tmp_path / "out", ["one.bin", "link.bin", "three.bin"])
    assert files_in(tmp_path / "out") == ["one.bin"]


@pytest.mark.parametrize("name", ["../one.bin", "/one.bin", "in/../../one.bin"])
def test_unpack_writes_into_its_folder_only(tmp_path, write_tar, name):
    archive = write_tar(**{name: b"1"})
    fetch.unpack(archive, tmp_path / "a" / "out", ["one.bin"])
    assert files_in(tmp_path) == ["a.tar.gz", "one.bin"]
    assert (tmp_path / "a" / "out" / "one.bin").exists()


def test_unpack_rejects_damaged_archives_and_large_members(tmp_path, write_tar, monkeypatch):
    archive = write_tar(**{"in/one.bin": CONTENT})
    content = archive.read_bytes()
    for length in (0, 50, 1000, len(content) // 2):
        archive.write_bytes(content[:length])
        with pytest.raises(DataError, match=r"a\.tar\.gz is not a complete tar archive"):
            fetch.unpack(archive, tmp_path / "out", ["one.bin"])
    archive.write_bytes(content)
    monkeypatch.setattr(fetch, "_MAX_MEMBER_BYTES", 1000)
    with pytest.raises(
        DataError, match="one.bin in .*holds 600000 bytes or more, expected at most 1000"
    ):
        fetch.unpack(archive, tmp_path / "out", ["one.bin"])
    assert files_in(tmp_path / "out") == []
