"""What the terminal shows: plan, status, lines, live table, time left."""

import io
import json

import pytest
from cases.grids import content, grid, write_grid
from rich.console import Console

from recmix.errors import RunError
from recmix.experiments.driver import run_grid
from recmix.experiments.estimate import Clock, in_words
from recmix.experiments.grid import expand, read_grid
from recmix.experiments.job_queue import JobQueue
from recmix.experiments.store import Store
from recmix.experiments.time_updates import kind_of
from recmix.experiments.view import progress, watching
from recmix.runs.files import write_json

JOBS = grid().jobs


@pytest.fixture
def store(tmp_path, finished):
    """A store with the VAE and VAE+."""
    store = Store(tmp_path / "store")
    for job in JOBS[:2]:
        store.unpack(job.digest, finished.pack(job.digest))
    return store


def printed(capsys):
    return " ".join(capsys.readouterr().out.split())


def rows(text):
    """The cells of the printed table, by method."""
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines()]
    return {line[0]: line[1:] for line in lines if line}


def test_a_dry_run_prints_the_plan_and_writes_nothing(tmp_path, capsys):
    file = write_grid(tmp_path, data="digits")
    assert run_grid(file, tmp_path / "store", dry_run=True, device="cpu", workers=2) == 0
    shown = capsys.readouterr().out
    assert rows(shown) == {name: ["1", "", "", "1", "", ""] for name in ("VAE", "VAE+", "RME(2)")}
    shown = " ".join(shown.split())
    assert "runs: 3; columns: 1, splits: 1, restarts: 1" in shown
    assert "validation bound: IWAE-3; test bounds: IWAE-3" in shown
    assert "calibrated" not in shown
    assert "VAE+ is not in the file and was added" in shown
    assert "data: digits is present" in shown
    assert "timed: RME(2) digits" in shown
    assert "time left with 2 runs at a time: about" in shown
    assert "(from a few timed updates of each kind of run; runs that stop early take less)" in shown
    assert "at most" not in shown
    assert "no other program uses the machine. The start of each worker process" in shown
    assert not (tmp_path / "store").exists()


@pytest.fixture
def untimed(monkeypatch):
    """Without timed updates, which take a while."""
    monkeypatch.setattr("recmix.experiments.driver.time_updates", lambda *_, **_more: {})


@pytest.mark.usefixtures("untimed")
def test_a_dry_run_names_the_calibrations(tmp_path, capsys):
    for value, words in (
        ("true", "test bounds: IWAE-3; calibrated: 1 run note:"),
        ('"noise"', "test bounds: IWAE-3; calibrated: 1 run; calibrated with noise: 1 run note:"),
    ):
        file = write_grid(tmp_path, data="digits", method=f'name = "rme"\ncalibrated = {value}')
        assert run_grid(file, tmp_path / "store", dry_run=True, device="cpu") == 0
        assert words in printed(capsys)


def test_a_dry_run_names_missing_data(tmp_path, capsys):
    file = write_grid(tmp_path, data="mnist")
    assert run_grid(file, tmp_path, dry_run=True, device="cpu", data_root=tmp_path / "none") == 0
    shown = printed(capsys)
    assert "data: mnist is missing (missing files: train-images-idx3-ubyte" in shown
    assert "unknown until the first epoch of a run is done" in shown


@pytest.mark.usefixtures("untimed")
def test_a_dry_run_counts_finished_runs(tmp_path, store, capsys):
    file = write_grid(tmp_path, data="digits")
    assert run_grid(file, store.root, dry_run=True, device="cpu", workers=1) == 0
    shown = capsys.readouterr().out
    assert rows(shown)["VAE"] == ["1", "1", "", "", "", ""]
    assert rows(shown)["RME(2)"] == ["1", "", "", "1", "", ""]
    assert "(from 2 finished runs)" in " ".join(shown.split())


def test_status_shows_workers_and_failures(tmp_path, store, capsys):
    file = write_grid(tmp_path, data="digits")
    rme = JOBS[2]
    assert run_grid(file, store.root, status=True) == 0
    assert "3 runs: 2 done, 1 waiting" in printed(capsys)
    claim = store.claim(rme.digest)
    claim.note(pid=4711)
    store.unpack(
        rme.digest,
        {
            "spec.json": b"{}",
            "status.json": b'{"status": "running"}',
            "history.json": json.dumps([{"val_iwae": -3.25}, {"val_iwae": -4.5}]).encode(),
        },
    )
    assert run_grid(file, store.root, status=True) == 0
    shown = printed(capsys)
    assert "3 runs: 2 done, 1 running" in shown
    assert rme.digest in shown
    queue = JobQueue(store, JOBS)
    queue.find_others()
    entry = queue.entries[rme.digest]
    assert "process 4711" in entry.reason
    assert progress(store, entry) == "epoch 3 of at most 1, validation -4.50, best -3.25"
    claim.release()
    store.fail(rme.digest, "it was [too] hard")
    assert run_grid(file, store.root, status=True) == 0
    shown = printed(capsys)
    assert "3 runs: 2 done, 1 failed" in shown
    assert "failed: RME(2) digits 2 split 0 restart 0: it was [too] hard" in shown
    assert str(store.log(rme.digest)) in shown.replace(" ", "")


def test_a_dry_run_reports_damage(tmp_path, store, capsys):
    file = write_grid(tmp_path, data="digits")
    (store.folder(JOBS[1].digest) / "scores.json").write_text("{")
    assert run_grid(file, store.root, dry_run=True, device="cpu") == 0
    assert "VAE+ digits 2 split 0 restart 0 is damaged and will be repaired" in printed(capsys)
    for broken in (b"{", b"[]", b'[{"x": 1}]'):
        (store.folder(JOBS[1].digest) / "history.json").write_bytes(broken)
        write_json(store.folder(JOBS[1].digest) / "status.json", {"status": "running"})
        assert progress(store, JobQueue(store, JOBS).entries[JOBS[1].digest])


def test_a_grid_file_without_a_name_is_refused(tmp_path):
    file = write_grid(tmp_path, data="digits").rename(tmp_path / ".toml")
    with pytest.raises(RunError, match="not the name of a grid"):
        run_grid(file, tmp_path / "store", dry_run=True, device="cpu")


@pytest.mark.parametrize("terminal", [True, False])
def test_events_are_shown_while_a_grid_runs(terminal, store, finished):
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=150)
    found = expand({**content(), "title": "With [brackets]"}, "small")
    queue = JobQueue(store, found.jobs)
    with watching(found, queue, 1, console) as watcher:
        entry = queue.take(threads=1)
        job = entry.job
        watcher.began(entry)
        watcher.tick()
        store.fail(job.digest, "not [finite]")
        watcher.ended(queue.ended(entry, ""))
        store.forget_failure(job.digest)
        store.unpack(job.digest, finished.pack(job.digest))
        watcher.ended(queue.ended(entry, ""))
    shown = text.getvalue()
    assert "not [finite]" in shown
    assert str(store.log(job.digest)) in shown.replace("\n", "")
    if terminal:
        assert "With [brackets]" in shown
        assert "not yet training" in shown
        assert "3 runs: 2 done, 1 running. Time left: about" in shown
    else:
        assert "[2/3] begun: RME(2) digits 2 split 0 restart 0" in shown
        assert "[3/3] done: RME(2) digits 2 split 0 restart 0, IWAE test/3" in shown
        assert "3 runs: 3 done; time left: none" in shown


def test_time_left_is_estimated_from_the_most_similar_runs(tmp_path):
    protocol = {"splits": 2, "restarts": 1, "samples": [3]}
    columns = [{"data": "digits", "latent": [2, 3]}]
    methods = [{"name": "rme", "order": [2, 3]}]
    found = grid(protocol=protocol, columns=columns, methods=methods)
    store = Store(tmp_path)
    assert str(Clock(JobQueue(store, found.jobs), 2).left()) == (
        "unknown until the first epoch of a run is done"
    )

    def took(row, latent, split, seconds):
        job = next(j for j in found.jobs if (j.row, j.column["latent"], j.split) == (row, latent, split))
        store.prepare(job, threads=1)
        write_json(
            store.folder(job.digest) / "job.json", store.job_file(job.digest) | {"seconds": seconds}
        )
        queue.entries[job.digest].kind = "done"

    queue = JobQueue(store, found.jobs)
    took("VAE", 2, 0, 100.0)
    left = Clock(queue, 1).left()
    assert (left.seconds, left.known, left.unknown, left.measured) == (100.0, 1, 14, 1)
    assert "14 runs without an estimate" in str(left)
    took("RME(2)", 2, 0, 10.0)  # the estimate for the whole second stage of this column
    assert Clock(queue, 1).left().seconds == 100 + 5 * 10 + 0
    took("VAE+", 2, 0, 2.0)
    left = Clock(queue, 1).left()
    assert left.seconds == 100 + 2 + 3 * 10  # VAE, VAE+, RME(2), RME(3) twice
    assert Clock(queue, 4).left().seconds == left.seconds / 4
    # In the other column no run is finished, but one is running. All runs have at most one epoch.
    vae = next(j for j in found.jobs if (j.row, j.column["latent"]) == ("VAE", 3))
    store.prepare(vae, threads=1)
    store.run(vae.digest).log("epoch", epoch=0, seconds=7.0)
    queue.entries[vae.digest].kind = "running"
    assert Clock(queue, 1).left().seconds == left.seconds + 2 * 7
    assert str(Clock(queue, 1).left()).startswith("about")
    assert "; runs that stop early take less)" in str(Clock(queue, 1).left())
    assert in_words(59.6) == "60 s"
    assert in_words(61) == "1 min 1 s"


def test_the_store_lists_the_runs_of_a_grid(tmp_path):
    file = write_grid(tmp_path)
    assert run_grid(file, tmp_path / "store", device="cpu", limit_hours=1e-9) == 130
    listed = json.loads((tmp_path / "store" / "grid-small.json").read_text())
    assert [job["digest"] for job in listed["jobs"]] == [j.digest for j in read_grid(file).jobs]


def test_timed_updates_count_for_kinds_without_a_finished_run(tmp_path):
    protocol = {"splits": 2, "restarts": 1, "samples": [3]}
    methods = [{"name": "rme", "order": [2, 3]}]
    found = grid(protocol=protocol, methods=methods)
    queue = JobQueue(Store(tmp_path), found.jobs)
    seconds = {"VAE": 100.0, "VAE+": 5.0, "RME(2)": 20.0}
    timed = {kind_of(job): seconds[job.row] for job in found.jobs if job.row in seconds}
    left = Clock(queue, 1, timed).left()
    assert (left.seconds, left.known, left.unknown, left.timed) == (250.0, 6, 2, 6)
    assert str(left) == (
        "about 4 min 10 s (from a few timed updates of each kind of run; runs that stop early take "
        "less), and 2 runs without an estimate"
    )
