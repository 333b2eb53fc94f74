"""The store: who may work on what, what counts as done, what damage costs."""

import json
import signal
import subprocess
import sys

import pytest
from small_grid import do_here, grid, results, same_stores, starts

from recmix.errors import RunError
from recmix.experiments.schedule import RETRIES, Schedule
from recmix.experiments.store import Store
from recmix.experiments.worker import work
from recmix.runs.files import write_json

JOBS = grid().jobs
VAE, PLUS, RME = JOBS


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return do_here(tmp_path_factory.mktemp("store"), JOBS)


@pytest.fixture
def store(tmp_path):
    """A store with the VAE."""
    return do_here(tmp_path / "store", [VAE])


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["..", "../x", "/etc", "", "a" * 15, "A" * 16, "0" * 16 + "/..", "."])
def test_names_that_leave_the_store_are_refused(tmp_path, name):
    store = Store(tmp_path / "store")
    for call in (store.folder, store.claim, store.job_file, store.failure, store.mend, store.holder):
        with pytest.raises(RunError, match="not the name of a run"):
            call(name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["..", "../x", "a/b", "", ".hidden", "/etc/x", "-x"])
def test_grids_that_leave_the_store_are_refused(tmp_path, name):
    with pytest.raises(RunError, match="not the name of a grid"):
        Store(tmp_path).grid_file(name)


@pytest.mark.parametrize("name", ["../spec.json", "/etc/passwd", "other.txt", "lock", "x/spec.json"])
def test_files_that_leave_the_run_are_refused(tmp_path, name):
    with pytest.raises(RunError, match="not the name of a file of a run"):
        Store(tmp_path).unpack(VAE.digest, {name: b""})


def test_a_store_that_is_a_file(tmp_path):
    (tmp_path / "store").write_text("")
    with pytest.raises(RunError, match="could not make the folder"):
        Store(tmp_path / "store").keep(grid())


# --- what is written -----------------------------------------------------------------------------


def test_what_a_reader_finds(finished):
    assert [finished.state(job).kind for job in JOBS] == ["done"] * 3
    found = json.loads((finished.folder(RME.digest) / "job.json").read_text())
    wanted = {"label": "RME", "setting": 2, "option": "order", "data": "digits", "latent": 2}
    wanted |= {"likelihood": "gaussian", "network": "conv", "decoder_network": "conv"}
    wanted |= {"split": 0, "restart": 0, "digest": RME.digest, "dependency": VAE.digest}
    wanted |= {"continued": True, "evaluate": ["test/3", "val/3"], "definition": RME.definition}
    assert wanted.items() <= found.items()
    assert found["seconds"] > 0
    assert not finished.run(RME.digest).checkpoint.exists()
    assert finished.run(RME.digest).spec().init["run"] == str(finished.folder(VAE.digest))
    path = finished.keep(grid())
    listed = json.loads(path.read_text())
    assert path.name == "grid-small.json"
    assert listed["title"] == "Small"
    assert [job["digest"] for job in listed["jobs"]] == [job.digest for job in JOBS]


def test_a_run_is_never_done_twice(store):
    before = results(store, VAE.digest)
    assert work(store, VAE.digest, device="cpu") == "done"
    assert results(store, VAE.digest) == before
    assert starts(store, VAE.digest) == 1


def test_more_measurements_need_no_more_training(store):
    more = grid(protocol={"splits": 1, "restarts": 1, "samples": [3, 4]}).jobs[0]
    assert more.digest == VAE.digest
    assert store.state(more).kind == "begun"
    assert "test/4" in store.state(more).reason
    store.prepare(more, threads=1)
    assert work(store, more.digest, device="cpu") == "done"
    assert store.state(more).kind == "done"
    assert store.state(VAE).kind == "done"
    assert starts(store, VAE.digest) == 1
    store.prepare(VAE, threads=1)
    assert store.job_file(VAE.digest)["evaluate"] == ["test/3", "val/3", "test/4"]  # nothing is lost


def test_scores_of_other_chains_are_taken_again_without_training(tmp_path):
    def asked(**how):
        chain = {"name": "vae", "label": "CHAIN", "continued": True, "component": "residual", **how}
        whole = grid(protocol={"splits": 1, "restarts": 1, "samples": [3]}, methods=[chain])
        return whole.jobs

    jobs, several = asked(calibrated=True), asked(calibrated=True, starts=3)[-1]
    one = jobs[-1]
    assert (one.digest, one.chained, jobs[0].chained) == (several.digest, True, False)
    store = do_here(tmp_path / "store", jobs)
    before = store.run(one.digest).scores()
    assert store.state(one).kind == "done"
    assert store.state(several).reason == "not scored: " + ", ".join(one.evaluate)
    store.prepare(several, threads=1)
    assert work(store, several.digest, device="cpu") == "done"
    now = store.run(one.digest).scores()
    assert store.state(several).kind == "done"
    assert store.state(one).kind == "begun"
    for key in one.evaluate:
        assert (before[key]["starts"], now[key]["starts"]) == (1, 3)
        assert before[key]["iwae"] != now[key]["iwae"]
    assert starts(store, one.digest) == 1


def test_scores_of_other_climbs_are_taken_again_without_training(tmp_path):
    def asked(**how):
        methods = [{"name": "vae", "label": "R", "after": "VAE", "warmup": 1, "refined": [1], **how}]
        whole = grid(protocol={"splits": 1, "restarts": 1, "samples": [3]}, methods=methods)
        return [job for job in whole.jobs if job.row in ("VAE", "R")]

    store = do_here(tmp_path / "store", asked())
    one, several = asked()[-1], asked(starts=3)[-1]
    assert one.digest == several.digest
    assert store.state(one).kind == "done"
    assert store.state(several).reason == "not scored: test/3/refine 1, val/3/refine 1"
    before = store.run(one.digest).scores()
    store.prepare(several, threads=1)
    assert work(store, several.digest, device="cpu") == "done"
    now = store.run(one.digest).scores()
    assert now["test/3"] == before["test/3"]
    assert (before["test/3/refine 1"]["starts"], now["test/3/refine 1"]["starts"]) == (1, 3)
    assert now["test/3/refine 1"]["iwae"] != before["test/3/refine 1"]["iwae"]
    assert starts(store, one.digest) == 1
    assert store.state(several).kind == "done"


def test_a_run_keeps_its_number_of_threads(store):
    store.prepare(VAE, threads=7)
    assert store.job_file(VAE.digest)["threads"] == 1
    store.prepare(PLUS, threads=7)
    store.prepare(PLUS, threads=3)  # not begun yet
    assert store.job_file(PLUS.digest)["threads"] == 3


def test_a_digest_that_meets_another_definition_is_refused(store):
    path = store.folder(VAE.digest) / "job.json"
    found = json.loads(path.read_text())
    write_json(path, found | {"definition": found["definition"] | {"latent": 3}})
    assert store.job_file(VAE.digest) == {}  # does not belong to this folder
    assert work(store, VAE.digest) == "failed"
    assert "no readable job.json" in store.state(VAE).reason


# --- claims --------------------------------------------------------------------------------------

HOLD = """
import sys, os, time
from recmix.experiments.store import Store
claim = Store(sys.argv[1]).claim(sys.argv[2])
if claim is None:
    print("taken", flush=True)
else:
    claim.note(pid=os.getpid())
    print("mine", flush=True)
    time.sleep(60)
"""


def another(store):
    command = [sys.executable, "-c", HOLD, str(store.root), VAE.digest]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_never_hold_one_run(tmp_path):
    store = Store(tmp_path)
    many = [another(store) for _ in range(4)]
    said = [process.stdout.readline().strip() for process in many]
    assert sorted(said) == ["mine", "taken", "taken", "taken"]
    holder = many[said.index("mine")]
    assert store.claim(VAE.digest) is None
    assert str(holder.pid) in store.holder(VAE.digest)
    holder.send_signal(signal.SIGKILL)  # however it ends, the run is free again
    for process in many:
        process.wait()
        process.stdout.close()
    assert store.holder(VAE.digest) == ""
    claim = store.claim(VAE.digest)
    assert store.claim(VAE.digest) is None  # nor twice in one process
    claim.release()
    claim.release()
    assert store.holder(VAE.digest) == ""


def test_a_claim_goes_on_in_a_child(tmp_path):
    store = Store(tmp_path)
    claim = store.claim(VAE.digest)
    child = subprocess.Popen(["sleep", "60"], pass_fds=[claim.descriptor])
    claim.release()
    assert store.claim(VAE.digest) is None
    child.kill()
    child.wait()
    assert store.holder(VAE.digest) == ""


# --- failures and damage -------------------------------------------------------------------------


def test_a_failure_says_why(tmp_path):
    """A learning rate that no training survives."""
    bad = grid(budget={"first": {"epochs": 1, "learning_rate": 1e30}}).jobs[0]
    store = Store(tmp_path)
    store.prepare(bad, threads=1)
    assert work(store, bad.digest, device="cpu") == "failed"
    state = store.state(bad)
    assert state.kind == "failed"
    assert "not a finite number" in state.reason
    assert "NonFiniteError" in store.failure(bad.digest)["traceback"]
    store.forget_failure(bad.digest)
    assert store.state(bad).kind == "begun"


DAMAGE = {
    "half a status": ("status.json", lambda b: b[: len(b) // 2]),
    "half the scores": ("scores.json", lambda b: b[: len(b) // 2]),
    "empty scores": ("scores.json", lambda b: b""),
    "a list of scores": ("scores.json", lambda b: b"[]"),
    "half the weights": ("weights.safetensors", lambda b: b[: len(b) // 2]),
    "no weights": ("weights.safetensors", None),
    "empty weights": ("weights.safetensors", lambda b: b""),
    "half a spec": ("spec.json", lambda b: b[: len(b) // 2]),
    "no spec": ("spec.json", None),
    "half a history": ("history.json", lambda b: b[: len(b) // 2]),
    "no history": ("history.json", None),
}


def damage(store, name, change):
    path = store.folder(VAE.digest) / name
    if change is None:
        path.unlink()
    else:
        path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_run_is_not_done_and_is_mended(kind, store, finished):
    damage(store, *DAMAGE[kind])
    assert store.state(VAE).kind in ("damaged", "begun")
    entry = Schedule(store, JOBS).entries[VAE.digest]
    assert entry.kind == "waiting"
    if store.state(VAE).kind == "damaged":
        assert "damaged" in entry.reason
    assert work(store, VAE.digest, device="cpu") == "done"
    same_stores(store, finished, [VAE])


@pytest.mark.parametrize("kind", ["half a spec", "no spec", "half a history", "no history"])
def test_damage_of_a_run_that_is_not_scored_is_mended(kind, store, finished):
    (store.folder(VAE.digest) / "scores.json").unlink()
    damage(store, *DAMAGE[kind])
    assert work(store, VAE.digest, device="cpu") == "done"
    same_stores(store, finished, [VAE])


def test_a_run_that_is_older_than_a_training_option_goes_on(store):
    path = store.folder(VAE.digest) / "job.json"
    job = json.loads(path.read_text())
    del job["definition"]["training"]["keep"]
    path.write_text(json.dumps(job))
    store.prepare(VAE, threads=1)
    assert store.job_file(VAE.digest)["definition"] == VAE.definition
    job["definition"]["training"]["keep"] = "last"
    path.write_text(json.dumps(job))
    assert not store.job_file(VAE.digest)  # another run's: not this folder's


def test_what_a_killed_writer_left_is_removed(store):
    part = store.folder(VAE.digest) / ".spec.json.abc.part"
    part.write_text("{")
    assert store.mend(VAE.digest) == []
    assert not part.exists()


def test_a_damaged_job_file_is_written_again(store):
    (store.folder(VAE.digest) / "job.json").write_text("{")
    (store.folder(VAE.digest) / "failed.json").write_text("{")
    assert store.state(VAE).kind == "done"
    store.prepare(VAE, threads=1)
    assert store.job_file(VAE.digest)["label"] == "VAE"


# --- what is next --------------------------------------------------------------------------------


def test_a_run_begins_when_the_one_it_starts_from_is_done(tmp_path, finished):
    store = Store(tmp_path)
    schedule = Schedule(store, JOBS)
    job, claim = schedule.take(threads=1)
    assert job.digest == VAE.digest
    assert schedule.take(threads=1) is None
    store.unpack(VAE.digest, finished.pack(VAE.digest))
    assert schedule.ended(job, "killed").kind == "done"
    claim.release()
    taken = [schedule.take(threads=1), schedule.take(threads=1)]
    assert [job.row for job, _ in taken] == ["VAE+", "RME(2)"]
    assert schedule.take(threads=1) is None
    for _, claim in taken:
        claim.release()


def test_a_killed_run_is_tried_again_and_then_given_up(tmp_path):
    store = Store(tmp_path)
    schedule = Schedule(store, JOBS)
    for attempt in range(RETRIES + 1):
        assert schedule.open
        job, claim = schedule.take(threads=1)
        claim.release()
        entry = schedule.ended(job, "its worker was killed by SIGKILL")
        assert entry.attempts == attempt + 1
    assert entry.kind == "failed"
    assert "killed by SIGKILL, 3 times" in store.state(VAE).reason
    assert not schedule.open
    assert schedule.counts == {"failed": 1, "blocked": 2}
    assert "starts from VAE digits 2 split 0 restart 0, which is failed" in (
        schedule.entries[RME.digest].reason
    )
    again = Schedule(store, JOBS)
    assert again.counts == {"failed": 1, "blocked": 2}
    assert again.take(threads=1) is None
    forgiving = Schedule(store, JOBS, retry_failed=True)
    assert forgiving.counts == {"waiting": 3}
    job, claim = forgiving.take(threads=1)
    assert job.digest == VAE.digest
    assert store.state(VAE).kind == "new"
    claim.release()


def test_a_run_that_was_asked_to_stop_has_not_failed(tmp_path):
    schedule = Schedule(Store(tmp_path), JOBS)
    job, claim = schedule.take(threads=1)
    claim.release()
    for _ in range(RETRIES + 2):
        assert schedule.ended(job, "stopped", stopping=True).kind == "waiting"


def test_what_another_driver_does_is_waited_for(tmp_path, finished):
    store = Store(tmp_path)
    other, schedule = Schedule(store, JOBS), Schedule(store, JOBS)
    _, claim = other.take(threads=1)
    assert schedule.take(threads=1) is None
    assert schedule.counts == {"elsewhere": 1, "waiting": 2}
    assert schedule.open
    store.unpack(VAE.digest, finished.pack(VAE.digest))
    claim.release()
    schedule.look()
    assert schedule.entries[VAE.digest].kind == "done"
    job, claim = schedule.take(threads=1)
    assert job.row == "VAE+"
    claim.release()


def test_what_another_driver_did_meanwhile_is_not_done_again(tmp_path, finished):
    store = Store(tmp_path)
    schedule = Schedule(store, JOBS)
    for job in JOBS:
        store.unpack(job.digest, finished.pack(job.digest))
    assert schedule.take(threads=1) is None
    while schedule.open:
        assert schedule.take(threads=1) is None
    assert schedule.counts == {"done": 3}
