"""A run folder belongs to one process at a time, and a killed process leaves a usable folder."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cases.training import SMALL, images

import recmix
from recmix.errors import RunError
from recmix.runs.files import write_json
from recmix.runs.folder import PRESET, TUNED, Run
from recmix.runs.lock import LOCK, NO_LINKS, exclusive, has_lock, lock
from recmix.runs.spec import Spec

HOLD = """
import fcntl, json, os, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
json.dump({"host": "there", "pid": os.getpid()}, file)
file.flush()
print("locked", flush=True)
time.sleep(60)
"""
SPEC = Spec(method="vae", shape=(1, 8, 8))


@pytest.fixture
def folder(tmp_path):
    recmix.fit("vae", images(), out=tmp_path / "run", **SMALL)
    return tmp_path / "run"


@pytest.fixture
def other(folder):
    """Another process that trains in the folder."""
    pytest.importorskip("fcntl")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder / LOCK)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def test_second_process_is_refused_until_the_first_ends(folder, other):
    more = SMALL | {"epochs": 3}
    expected = f"is in use by process {other.pid} on there: wait until it ends, stop it"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(RunError, match=expected):
        recmix.fit("vae", images(), out=folder, resume=True, **more)
    with pytest.raises(RunError, match=expected):
        recmix.fit("vae", images(), out=folder, overwrite=True, **more)
    with pytest.raises(RunError, match=expected):
        Run(folder).clear()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    other.kill()
    other.wait()
    recmix.fit("vae", images(), out=folder, resume=True, **more)


def test_lock_names_this_process_and_ends_with_the_training(folder):
    assert not (folder / LOCK).exists()
    run = Run(folder)
    run.lock()
    run.lock()  # the same process
    run.set_status("running")
    assert has_lock(folder)
    assert json.loads((folder / LOCK).read_text())["pid"] == os.getpid()
    run.set_status("interrupted")
    assert not has_lock(folder)
    assert not (folder / LOCK).exists()


def test_folder_that_was_removed_and_made_again_is_locked_again(tmp_path):
    run = Run(tmp_path)
    run.lock()
    (tmp_path / LOCK).unlink()
    run.lock()
    assert (tmp_path / LOCK).exists()
    run.unlock()


def test_new_run_is_locked(tmp_path):
    Run(tmp_path / "new").create(SPEC)
    assert has_lock(tmp_path / "new")
    Run(tmp_path / "new").unlock()


def test_run_of_a_faster_process_is_not_replaced(tmp_path, monkeypatch):
    """The other process makes its run after the first look into the folder, before the lock."""

    def lock_late(run):
        write_json(run.folder / "spec.json", {"run": "of the other process"})

    monkeypatch.setattr(Run, "lock", lock_late)
    with pytest.raises(RunError, match="already holds a run"):
        Run(tmp_path / "run").create(SPEC)
    assert "other process" in (tmp_path / "run" / "spec.json").read_text()


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"{}", b"[" * 100_000])
def test_holder_that_did_not_write_its_name_is_another_process(tmp_path, content):
    fcntl = pytest.importorskip("fcntl")
    (tmp_path / LOCK).write_bytes(content)
    with (tmp_path / LOCK).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(RunError, match="is in use by another process"):
            lock(tmp_path)


def test_file_that_its_holder_removes_is_made_again(tmp_path, monkeypatch):
    """The holder ends between opening and locking the file. A lock on a removed file holds nobody."""
    fcntl = pytest.importorskip("fcntl")
    plain, calls = fcntl.flock, []

    def flock(descriptor, how):
        if not calls:
            (tmp_path / LOCK).unlink()
        calls.append(how)
        plain(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    lock(tmp_path)
    assert (tmp_path / LOCK).exists()
    Run(tmp_path).unlock()


def test_failed_creation_keeps_no_lock(folder):
    with pytest.raises(RunError, match="already holds a run"):
        Run(folder).create(SPEC)
    assert not has_lock(folder)


@pytest.mark.parametrize("last", [*Run.FILES, PRESET])
def test_killed_overwrite_can_be_overwritten_and_resumed(folder, last, monkeypatch):
    plain = Path.unlink

    def unlink(path, missing_ok=False):
        if path.name == last:
            raise KeyboardInterrupt
        plain(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    with pytest.raises(KeyboardInterrupt):
        Run(folder).create(SPEC, overwrite=True)
    monkeypatch.undo()
    recmix.fit("vae", images(), out=folder, resume=True, **SMALL)
    assert Run(folder).status()["status"] == "done"
    Run(folder).create(SPEC, overwrite=True)
    Run(folder).unlock()


@pytest.mark.parametrize("function", ["unlink", "open"])
def test_overwrite_on_a_read_only_disk_is_one_error(folder, function, monkeypatch):
    plain = os.open

    def refuse(path, *args, **kwargs):
        if function == "open" and Path(path).name != LOCK:
            return plain(path, *args, **kwargs)
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path if function == "unlink" else os, function, refuse)
    with pytest.raises(RunError, match="could not .*: Read-only file system"):
        Run(folder).create(SPEC, overwrite=True)
    monkeypatch.undo()
    assert Run(folder).status()["status"] == "done"
    assert not has_lock(folder)


def test_resume_removes_unfinished_files(folder):
    left = folder / ".checkpoint.safetensors.abc.part"
    mine = folder / ".notes.part"
    for path in (left, mine):
        path.write_text("")
    recmix.fit("vae", images(), out=folder, resume=True, **(SMALL | {"epochs": 3}))
    assert not left.exists()
    assert mine.exists()


def test_files_that_cannot_be_changed_are_one_error(tmp_path):
    (tmp_path / "log.jsonl").mkdir()
    (tmp_path / TUNED).mkdir()
    with pytest.raises(RunError, match=r"could not write .*log\.jsonl: "):
        Run(tmp_path).log("start")
    with pytest.raises(RunError, match=r"could not remove .*tuned\.json: "):
        Run(tmp_path).reset_tuned()


@pytest.mark.parametrize("name", ["scores.json", "gap.json", "status.json"])
def test_writing_a_file_removes_its_unfinished_versions(tmp_path, name):
    """A finished run is not trained again, so nothing else would remove them."""
    pytest.importorskip("fcntl")
    left, other = tmp_path / f".{name}.abc.part", tmp_path / ".other.json.abc.part"
    for path in (left, other):
        path.write_text("")
    write_json(tmp_path / name, {})
    assert not left.exists()
    assert other.exists()


def test_file_that_another_process_writes_is_not_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("recmix.runs.files.WAIT_SECONDS", 0.0)
    written = tmp_path / ".scores.json.abc.part"
    written.write_text("")
    run = Run(tmp_path)
    with exclusive(tmp_path) as alone:
        assert alone
        write_json(tmp_path / "scores.json", {})
        run.lock()  # as a training does while `recmix evaluate` writes
        run.unlock()
    assert written.exists()
    run.lock()
    run.unlock()
    assert not written.exists()


def test_score_is_not_written_while_another_process_writes(tmp_path, monkeypatch):
    """Its scores would be lost."""
    pytest.importorskip("fcntl")
    monkeypatch.setattr("recmix.runs.files.WAIT_SECONDS", 0.02)
    score = {"elbo": -1.0, "iwae": -1.0}
    Run(tmp_path).add_score("val/1", score)
    with (
        exclusive(tmp_path),
        pytest.raises(RunError, match="another process has locked its folder.*end them"),
    ):
        Run(tmp_path).add_score("test/1", score)
    assert Run(tmp_path).scores().keys() == {"val/1"}
    monkeypatch.setattr("recmix.runs.lock.fcntl", None)  # a system without locks
    Run(tmp_path).add_score("test/1", score)
    assert Run(tmp_path).scores().keys() == {"val/1", "test/1"}


def test_scores_of_two_processes_are_both_kept(tmp_path):
    pytest.importorskip("fcntl")
    code = """
import sys
from recmix.runs.folder import Run
for i in range(20):
    Run(sys.argv[1]).add_score(f"{sys.argv[2]}/{i + 1}", {"elbo": -1.0, "iwae": -1.0})
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    both = [subprocess.Popen([*command, part]) for part in ("val", "test")]
    assert [process.wait(timeout=120) for process in both] == [0, 0]
    assert len(Run(tmp_path).scores()) == 40


@pytest.mark.skipif(not NO_LINKS, reason="this system opens links only")
def test_a_link_does_not_choose_which_file_is_written(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).symlink_to(precious)
    with pytest.raises(RunError, match="could not write"):
        lock(tmp_path / "run")
    assert precious.read_text() == "mine"
