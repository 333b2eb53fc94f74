import errno
import gzip
import hashlib
import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from recmix.data import fetch
from recmix.errors import DataError

CONTENT = np.random.default_rng(0).bytes(600_000)
MD5 = hashlib.md5(CONTENT).hexdigest()


def left_in(folder):
    return sorted(path.name for path in Path(folder).rglob("*") if path.is_file())


@pytest.fixture
def target(tmp_path):
    return tmp_path / "root" / "set" / "file"


@pytest.mark.parametrize("zipped", [False, True])
def test_a_file_is_fetched_checked_and_put_in_place(server, target, zipped, capsys):
    folder, address = server
    name = "file.gz" if zipped else "file"
    (folder / name).write_bytes(gzip.compress(CONTENT) if zipped else CONTENT)
    place = fetch.download([f"{address}/{name}"], target, md5=MD5)
    assert place.name == name
    assert fetch.md5_of(place) == MD5
    assert left_in(target.parent) == [name]
    printed = capsys.readouterr()
    assert printed.out == ""
    assert name in printed.err
    assert place.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_the_sum_may_be_of_the_file_itself(server, target):
    folder, address = server
    blob = gzip.compress(CONTENT)
    (folder / "file.gz").write_bytes(blob)
    right = hashlib.md5(blob).hexdigest()
    fetch.download([f"{address}/file.gz"], target, md5=right, of_content=False)
    with pytest.raises(fetch.Unreachable, match="MD5"):
        fetch.download([f"{address}/file.gz"], target, md5=MD5, of_content=False)


def test_the_next_address_is_tried(server, target):
    folder, address = server
    (folder / "wrong").write_bytes(b"another content")
    (folder / "file").write_bytes(CONTENT)
    urls = [f"{address}/none", f"{address}/wrong", f"{address}/file"]
    assert fetch.download(urls, target, md5=MD5).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("none", None, "the server answered 404"),
        ("wrong", b"another content", f"its content has MD5 .*, expected {MD5}"),
        ("wrong.gz", gzip.compress(CONTENT)[:1000], "its content has MD5 None"),
        ("file.half", CONTENT, "broke off after"),
        ("file.page", b"<html>sign in</html>", "a web page, not with the file"),
    ],
)
def test_failures_say_why_and_leave_nothing(server, target, name, content, reason):
    folder, address = server
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(fetch.Unreachable, match=rf"{address}/{name}: .*{reason}"):
        fetch.download([f"{address}/{name}"], target, md5=MD5)
    assert left_in(target.parent) == []


def test_a_failure_leaves_the_old_file_alone(server, target):
    folder, address = server
    (folder / "file.half").write_bytes(CONTENT)
    target.parent.mkdir(parents=True)
    target.write_bytes(b"old")
    with pytest.raises(fetch.Unreachable):
        fetch.download([f"{address}/file.half"], target)
    assert target.read_bytes() == b"old"
    assert left_in(target.parent) == ["file"]


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/file", "nonsense", "http://[bad/file"])
def test_addresses_that_cannot_be_reached(target, url, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(fetch.Unreachable, match="cannot be reached"):
        fetch.download([url], target, timeout=5)
    assert left_in(target.parent) == []


def test_a_silent_server_is_given_up(target, monkeypatch):
    import socket

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/file"
        with pytest.raises(fetch.Unreachable, match="timed out"):
            fetch.download([url], target, timeout=0.2)


def test_a_full_disk(server, target, monkeypatch):
    folder, address = server
    (folder / "file").write_bytes(CONTENT)

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DataError, match=r"cannot write file into .*disk is full.*RECMIX_DATA"):
        fetch.download([f"{address}/file"], target)
    assert left_in(target.parent) == []


def test_a_disk_that_will_be_full_is_noticed_at_once(server, target, monkeypatch):
    folder, address = server
    (folder / "file").write_bytes(CONTENT)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(DataError, match="disk is full"):
        fetch.download([f"{address}/file"], target)


def test_a_root_that_cannot_be_written(server, tmp_path, target, monkeypatch):
    folder, address = server
    (folder / "file").write_bytes(CONTENT)
    (tmp_path / "blocked").write_text("a file where a folder should be")
    with pytest.raises(DataError, match=r"cannot write file into .*blocked.*root="):
        fetch.download([f"{address}/file"], tmp_path / "blocked" / "file")

    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DataError, match=r"Permission denied: make the folder writable"):
        fetch.download([f"{address}/file"], target)


def test_an_interrupt_leaves_nothing(server, target, monkeypatch):
    folder, address = server
    (folder / "file").write_bytes(CONTENT)

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch.download([f"{address}/file"], target)
    assert left_in(target.parent) == []


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_offline(monkeypatch, value, expected):
    monkeypatch.setenv("RECMIX_OFFLINE", value)
    assert fetch.offline() is expected


def tar_of(path, members):
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


def test_unpack_takes_regular_files_asked_for(tmp_path):
    archive = tar_of(
        tmp_path / "a.tar.gz", {"in/one.bin": b"1", "in/two.bin": b"2", "in/link.bin": None}
    )
    fetch.unpack(archive, tmp_path / "out", ["one.bin", "link.bin", "three.bin"])
    assert left_in(tmp_path / "out") == ["one.bin"]


@pytest.mark.parametrize("name", ["../one.bin", "/tmp/one.bin", "in/../../one.bin"])
def test_unpack_refuses_names_that_lead_out(tmp_path, name):
    archive = tar_of(tmp_path / "a.tar.gz", {"in/two.bin": b"2", name: b"1"})
    with pytest.raises(DataError, match="not safe to unpack"):
        fetch.unpack(archive, tmp_path / "out", ["one.bin", "two.bin"])
    assert not (tmp_path / "out").exists()


def test_unpack_refuses_damage(tmp_path, monkeypatch):
    archive = tar_of(tmp_path / "a.tar.gz", {"in/one.bin": CONTENT})
    blob = archive.read_bytes()
    for length in (0, 50, 1000, len(blob) // 2):
        archive.write_bytes(blob[:length])
        with pytest.raises(DataError, match=r"a\.tar\.gz is not a whole tar archive"):
            fetch.unpack(archive, tmp_path / "out", ["one.bin"])
    assert left_in(tmp_path / "out") == []
    archive.write_bytes(blob)
    monkeypatch.setattr(fetch, "_LARGEST", 1000)
    with pytest.raises(DataError, match="claims 600000 bytes"):
        fetch.unpack(archive, tmp_path / "out", ["one.bin"])
