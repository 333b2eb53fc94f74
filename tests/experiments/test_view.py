"""What a person sees: plans, the state of things, lines, a live table, time left."""

import io
import json

import pytest
from rich.console import Console
from small_grid import content, do_here, grid, write_grid

from recmix.errors import RunError
from recmix.experiments.driver import run_grid
from recmix.experiments.estimate import Clock, in_words
from recmix.experiments.grid import expand, read_grid
from recmix.experiments.schedule import Schedule
from recmix.experiments.store import Store
from recmix.experiments.view import progress, watching
from recmix.runs.files import write_json

JOBS = grid().jobs


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return do_here(tmp_path_factory.mktemp("store"), JOBS)


@pytest.fixture
def store(tmp_path, finished):
    """A store with the VAE and VAE+."""
    store = Store(tmp_path / "store")
    for job in JOBS[:2]:
        store.unpack(job.digest, finished.pack(job.digest))
    return store


def said(capsys):
    return " ".join(capsys.readouterr().out.split())


def rows(text):
    """The cells of the printed table, by method."""
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines()]
    return {line[0]: line[1:] for line in lines if line}


def test_a_dry_run_says_what_would_be_done_and_does_nothing(tmp_path, capsys):
    file = write_grid(tmp_path, data="digits")
    assert run_grid(file, tmp_path / "store", dry_run=True, device="cpu", workers=2) == 0
    shown = capsys.readouterr().out
    assert rows(shown) == {name: ["1", "", "", "1", "", ""] for name in ("VAE", "VAE+", "RME(2)")}
    shown = " ".join(shown.split())
    assert "runs: 3; columns: 1, splits: 1, restarts: 1" in shown
    assert "scored by IWAE-3 of the test images" in shown
    assert "VAE+ is not in the file and was added" in shown
    assert "data: digits is present" in shown
    assert "time left with 2 at a time: unknown until the first run of its kind" in shown
    assert not (tmp_path / "store").exists()


def test_a_dry_run_names_missing_data(tmp_path, capsys):
    file = write_grid(tmp_path, data="mnist")
    assert run_grid(file, tmp_path, dry_run=True, device="cpu", data_root=tmp_path / "none") == 0
    assert "data: mnist is missing (not there: train-images-idx3-ubyte" in said(capsys)


def test_a_dry_run_of_a_store_that_has_something(tmp_path, store, capsys):
    file = write_grid(tmp_path, data="digits")
    assert run_grid(file, store.root, dry_run=True, device="cpu", workers=1) == 0
    shown = capsys.readouterr().out
    assert rows(shown)["VAE"] == ["1", "1", "", "", "", ""]
    assert rows(shown)["RME(2)"] == ["1", "", "", "1", "", ""]
    assert "(from 2 finished runs)" in " ".join(shown.split())


def test_status_shows_who_does_what_and_what_failed(tmp_path, store, capsys):
    file = write_grid(tmp_path, data="digits")
    rme = JOBS[2]
    assert run_grid(file, store.root, status=True) == 0
    assert "3 runs: 2 done, 1 waiting" in said(capsys)
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
    shown = said(capsys)
    assert "3 runs: 2 done, 1 running" in shown
    assert rme.digest in shown
    schedule = Schedule(store, JOBS)
    schedule.see_others()
    entry = schedule.entries[rme.digest]
    assert "process 4711" in entry.reason
    assert progress(store, entry) == "epoch 3 of at most 1, validation -4.50, best -3.25"
    claim.release()
    store.fail(rme.digest, "it was [too] hard")
    assert run_grid(file, store.root, status=True) == 0
    shown = said(capsys)
    assert "3 runs: 2 done, 1 failed" in shown
    assert "failed: RME(2) digits 2 split 0 restart 0: it was [too] hard" in shown
    assert str(store.log(rme.digest)) in shown.replace(" ", "")


def test_damage_is_reported(tmp_path, store, capsys):
    file = write_grid(tmp_path, data="digits")
    (store.folder(JOBS[1].digest) / "scores.json").write_text("{")
    assert run_grid(file, store.root, dry_run=True, device="cpu") == 0
    assert "VAE+ digits 2 split 0 restart 0 is damaged, will be mended" in said(capsys)
    for broken in (b"{", b"[]", b'[{"x": 1}]'):
        (store.folder(JOBS[1].digest) / "history.json").write_bytes(broken)
        write_json(store.folder(JOBS[1].digest) / "status.json", {"status": "running"})
        assert progress(store, Schedule(store, JOBS).entries[JOBS[1].digest])


def test_a_file_whose_name_is_no_name(tmp_path):
    file = write_grid(tmp_path, data="digits").rename(tmp_path / ".toml")
    with pytest.raises(RunError, match="not the name of a grid"):
        run_grid(file, tmp_path / "store", dry_run=True, device="cpu")


@pytest.mark.parametrize("terminal", [True, False])
def test_what_is_seen_while_it_runs(terminal, store, finished):
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=150)
    found = expand({**content(), "title": "With [brackets]"}, "small")
    schedule = Schedule(store, found.jobs)
    with watching(found, schedule, 1, console) as watcher:
        job, claim = schedule.take(threads=1)
        entry = schedule.entries[job.digest]
        watcher.began(entry)
        watcher.tick()
        store.fail(job.digest, "not [finite]")
        watcher.ended(schedule.ended(job, ""))
        store.forget_failure(job.digest)
        store.unpack(job.digest, finished.pack(job.digest))
        watcher.ended(schedule.ended(job, ""))
        claim.release()
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


def test_time_left_is_taken_from_what_is_most_alike(tmp_path):
    protocol = {"splits": 2, "restarts": 1, "samples": [3]}
    columns = [{"data": "digits", "latent": [2, 3]}]
    methods = [{"name": "rme", "order": [2, 3]}]
    found = grid(protocol=protocol, columns=columns, methods=methods)
    store = Store(tmp_path)
    assert str(Clock(Schedule(store, found.jobs), 2).left()) == (
        "unknown until the first run of its kind is under way"
    )

    def took(row, latent, split, seconds):
        job = next(j for j in found.jobs if (j.row, j.column["latent"], j.split) == (row, latent, split))
        store.prepare(job, threads=1)
        write_json(
            store.folder(job.digest) / "job.json", store.job_file(job.digest) | {"seconds": seconds}
        )
        schedule.entries[job.digest].kind = "done"

    schedule = Schedule(store, found.jobs)
    took("VAE", 2, 0, 100.0)
    left = Clock(schedule, 1).left()
    assert (left.seconds, left.known, left.unknown, left.measured) == (100.0, 1, 14, 1)
    assert "14 runs of a kind not seen yet" in str(left)
    took("RME(2)", 2, 0, 10.0)  # stands for all of the second stage in this column
    assert Clock(schedule, 1).left().seconds == 100 + 5 * 10 + 0
    took("VAE+", 2, 0, 2.0)
    left = Clock(schedule, 1).left()
    assert left.seconds == 100 + 2 + 3 * 10  # VAE, VAE+, RME(2), RME(3) twice
    assert Clock(schedule, 4).left().seconds == left.seconds / 4
    # In the other column nothing has ended, but a run of at most one epoch, as all here, is under way.
    vae = next(j for j in found.jobs if (j.row, j.column["latent"]) == ("VAE", 3))
    store.prepare(vae, threads=1)
    store.run(vae.digest).log("epoch", epoch=0, seconds=7.0)
    schedule.entries[vae.digest].kind = "running"
    assert Clock(schedule, 1).left().seconds == left.seconds + 2 * 7
    assert str(Clock(schedule, 1).left()).startswith("at most about")
    assert in_words(59.6) == "60 s"
    assert in_words(61) == "1 min 1 s"


def test_the_runs_of_a_grid_are_listed_in_the_store(tmp_path):
    file = write_grid(tmp_path)
    assert run_grid(file, tmp_path / "store", device="cpu", limit_hours=1e-9) == 130
    listed = json.loads((tmp_path / "store" / "grid-small.json").read_text())
    assert [job["digest"] for job in listed["jobs"]] == [j.digest for j in read_grid(file).jobs]
