"""The store: claims, states, damaged files; and the queue: which run is next."""

import json
import signal
import subprocess
import sys

import pytest
from cases.grids import assert_same_results, grid, results, run_jobs, training_starts, write_grid

import recmix
from recmix.errors import RunError
from recmix.experiments.driver import run_grid
from recmix.experiments.job_queue import RETRIES, JobQueue
from recmix.experiments.store import Store
from recmix.experiments.worker import work
from recmix.runs.files import write_json

JOBS = grid().jobs
VAE, PLUS, RME = JOBS


@pytest.fixture
def store(tmp_path):
    """A store with the VAE."""
    return run_jobs(tmp_path / "store", [VAE])


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["..", "../x", "/etc", "", "a" * 15, "A" * 16, "0" * 16 + "/..", "."])
def test_run_names_outside_the_store_are_refused(tmp_path, name):
    store = Store(tmp_path / "store")
    for call in (store.folder, store.claim, store.job_file, store.failure, store.repair, store.holder):
        with pytest.raises(RunError, match="not the name of a run"):
            call(name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["..", "../x", "a/b", "", ".hidden", "/etc/x", "-x"])
def test_grid_names_outside_the_store_are_refused(tmp_path, name):
    with pytest.raises(RunError, match="not the name of a grid"):
        Store(tmp_path).grid_file(name)


@pytest.mark.parametrize("name", ["../spec.json", "/etc/passwd", "other.txt", "lock", "x/spec.json"])
def test_file_names_outside_the_run_are_refused(tmp_path, name):
    with pytest.raises(RunError, match="not the name of a file of a run"):
        Store(tmp_path).unpack(VAE.digest, {name: b""})


def test_a_file_is_not_a_store(tmp_path):
    (tmp_path / "store").write_text("")
    with pytest.raises(RunError, match="could not make the folder"):
        Store(tmp_path / "store").keep(grid())


@pytest.mark.parametrize(("number", "message"), [(1, "reads format 2"), (3, "newer than this version")])
def test_a_store_of_another_format_is_refused(tmp_path, number, message):
    write_json(tmp_path / "grid-other.json", {"format": number})
    with pytest.raises(RunError, match=rf"grid-other.json\) has format {number}.*{message}"):
        run_grid(write_grid(tmp_path), tmp_path, dry_run=True, device="cpu")
    write_json(tmp_path / "grid-other.json", {"format": 2})
    assert run_grid(tmp_path / "small.toml", tmp_path, dry_run=True, device="cpu") == 0


# --- what is written -----------------------------------------------------------------------------


def test_files_of_a_finished_grid(finished):
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


def test_a_finished_run_is_not_trained_again(store):
    before = results(store, VAE.digest)
    assert work(store, VAE.digest, device="cpu") == "done"
    assert results(store, VAE.digest) == before
    assert training_starts(store, VAE.digest) == 1


def test_more_scores_need_no_more_training(store):
    more = grid(protocol={"splits": 1, "restarts": 1, "samples": [3, 4]}).jobs[0]
    assert more.digest == VAE.digest
    assert store.state(more).kind == "begun"
    assert "test/4" in store.state(more).reason
    store.prepare(more, threads=1)
    assert work(store, more.digest, device="cpu") == "done"
    assert store.state(more).kind == "done"
    assert store.state(VAE).kind == "done"
    assert training_starts(store, VAE.digest) == 1
    store.prepare(VAE, threads=1)
    assert store.job_file(VAE.digest)["evaluate"] == ["test/3", "val/3", "test/4"]  # old scores stay


def test_a_run_keeps_its_number_of_threads(store):
    store.prepare(VAE, threads=7)
    assert store.job_file(VAE.digest)["threads"] == 1
    store.prepare(PLUS, threads=7)
    store.prepare(PLUS, threads=3)  # not begun yet
    assert store.job_file(PLUS.digest)["threads"] == 3


def test_a_job_file_with_another_definition_is_refused(store):
    path = store.folder(VAE.digest) / "job.json"
    found = json.loads(path.read_text())
    write_json(path, found | {"definition": found["definition"] | {"split": 3}})
    assert store.job_file(VAE.digest) == {}  # of another run
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


def hold(store):
    command = [sys.executable, "-c", HOLD, str(store.root), VAE.digest]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_only_one_process_can_hold_a_run(tmp_path):
    store = Store(tmp_path)
    many = [hold(store) for _ in range(4)]
    said = [process.stdout.readline().strip() for process in many]
    assert sorted(said) == ["mine", "taken", "taken", "taken"]
    holder = many[said.index("mine")]
    assert store.claim(VAE.digest) is None
    assert str(holder.pid) in store.holder(VAE.digest)
    holder.send_signal(signal.SIGKILL)  # a killed process frees its run
    for process in many:
        process.wait()
        process.stdout.close()
    assert store.holder(VAE.digest) == ""
    claim = store.claim(VAE.digest)
    assert store.claim(VAE.digest) is None  # not twice in one process either
    claim.release()
    claim.release()
    assert store.holder(VAE.digest) == ""


def test_a_child_process_inherits_a_claim(tmp_path):
    store = Store(tmp_path)
    claim = store.claim(VAE.digest)
    child = subprocess.Popen(["sleep", "60"], pass_fds=[claim.descriptor])
    claim.release()
    assert store.claim(VAE.digest) is None
    child.kill()
    child.wait()
    assert store.holder(VAE.digest) == ""


# --- failures and damage -------------------------------------------------------------------------


def test_a_failed_run_has_a_reason(tmp_path):
    """The learning rate is too large."""
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
def test_a_damaged_run_is_repaired(kind, store, finished):
    damage(store, *DAMAGE[kind])
    assert store.state(VAE).kind in ("damaged", "begun")
    entry = JobQueue(store, JOBS).entries[VAE.digest]
    assert entry.kind == "waiting"
    if store.state(VAE).kind == "damaged":
        assert "damaged" in entry.reason
    assert work(store, VAE.digest, device="cpu") == "done"
    assert_same_results(store, finished, [VAE])


@pytest.mark.parametrize("kind", ["half a spec", "no spec", "half a history", "no history"])
def test_a_damaged_run_without_scores_is_repaired(kind, store, finished):
    (store.folder(VAE.digest) / "scores.json").unlink()
    damage(store, *DAMAGE[kind])
    assert work(store, VAE.digest, device="cpu") == "done"
    assert_same_results(store, finished, [VAE])


def test_one_changed_byte_of_a_checkpoint_is_repaired(store, finished):
    """The file can be opened; only its digest shows the damage. Without repair the run would fail."""
    folder = store.folder(VAE.digest)
    (folder / "status.json").unlink()
    recmix.fit("vae", "digits", epochs=1, latent=2, out=folder / "x", progress=False, device="cpu")
    content = bytearray((folder / "x" / "checkpoint.safetensors").read_bytes())
    content[-100] ^= 1
    (folder / "checkpoint.safetensors").write_bytes(content)
    assert any("SHA-256" in message for message in store.repair(VAE.digest))
    assert work(store, VAE.digest, device="cpu") == "done"
    assert_same_results(store, finished, [VAE])


def test_partly_written_files_are_removed(store):
    part = store.folder(VAE.digest) / ".spec.json.abc.part"
    part.write_text("{")
    assert store.repair(VAE.digest) == []
    assert not part.exists()


def test_a_damaged_job_file_is_replaced(store):
    (store.folder(VAE.digest) / "job.json").write_text("{")
    (store.folder(VAE.digest) / "failed.json").write_text("{")
    assert store.state(VAE).kind == "done"
    store.prepare(VAE, threads=1)
    assert store.job_file(VAE.digest)["label"] == "VAE"


# --- the queue -----------------------------------------------------------------------------------


def test_a_run_waits_for_the_run_it_starts_from(tmp_path, finished):
    store = Store(tmp_path)
    queue = JobQueue(store, JOBS)
    first = queue.take(threads=1)
    assert first.job.digest == VAE.digest
    assert queue.take(threads=1) is None
    store.unpack(VAE.digest, finished.pack(VAE.digest))
    assert queue.ended(first, "killed").kind == "done"
    assert store.holder(VAE.digest) == ""
    taken = [queue.take(threads=1), queue.take(threads=1)]
    assert [entry.job.row for entry in taken] == ["VAE+", "RME(2)"]
    assert queue.take(threads=1) is None
    for entry in taken:
        entry.claim.release()


def test_a_killed_run_is_tried_again_a_few_times(tmp_path):
    store = Store(tmp_path)
    queue = JobQueue(store, JOBS)
    for attempt in range(RETRIES + 1):
        assert queue.open
        entry = queue.ended(queue.take(threads=1), "its worker was killed by SIGKILL")
        assert entry.attempts == attempt + 1
    assert entry.kind == "failed"
    assert "killed by SIGKILL, 3 times" in store.state(VAE).reason
    assert not queue.open
    assert queue.counts == {"failed": 1, "blocked": 2}
    assert "starts from VAE digits 2 split 0 restart 0, which is failed" in (
        queue.entries[RME.digest].reason
    )
    again = JobQueue(store, JOBS)
    assert again.counts == {"failed": 1, "blocked": 2}
    assert again.take(threads=1) is None
    retrying = JobQueue(store, JOBS, retry_failed=True)
    assert retrying.counts == {"waiting": 3}
    entry = retrying.take(threads=1)
    assert entry.job.digest == VAE.digest
    assert store.state(VAE).kind == "new"
    entry.claim.release()


def test_a_stopped_run_has_not_failed(tmp_path):
    queue = JobQueue(Store(tmp_path), JOBS)
    entry = queue.take(threads=1)
    for _ in range(RETRIES + 2):
        assert queue.ended(entry, "stopped", stopping=True).kind == "waiting"


def test_runs_of_another_driver_are_waited_for(tmp_path, finished):
    store = Store(tmp_path)
    other, queue = JobQueue(store, JOBS), JobQueue(store, JOBS)
    taken = other.take(threads=1)
    assert queue.take(threads=1) is None
    assert queue.counts == {"elsewhere": 1, "waiting": 2}
    assert queue.open
    store.unpack(VAE.digest, finished.pack(VAE.digest))
    taken.claim.release()
    queue.look()
    assert queue.entries[VAE.digest].kind == "done"
    taken = queue.take(threads=1)
    assert taken.job.row == "VAE+"
    taken.claim.release()


def test_runs_finished_by_another_driver_are_not_repeated(tmp_path, finished):
    store = Store(tmp_path)
    queue = JobQueue(store, JOBS)
    for job in JOBS:
        store.unpack(job.digest, finished.pack(job.digest))
    assert queue.take(threads=1) is None
    while queue.open:
        assert queue.take(threads=1) is None
    assert queue.counts == {"done": 3}


def test_done_run_with_a_damaged_vocabulary_starts_again(tmp_path):
    texts = [f"{animal} {verb}" for animal in "abcd" for verb in "efgh"]
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    column = {"data": str(tmp_path / "texts.txt"), "latent": 2, "units": 8, "blocks": 1}
    first = {"epochs": 1}
    jobs = grid(
        columns=[column], methods=[{"name": "vae"}], budget={"first": first, "second": first}
    ).jobs
    store = run_jobs(tmp_path / "store", jobs[:1])
    (store.folder(jobs[0].digest) / "vocabulary.json").write_text("{")
    assert "it starts again: it needs vocabulary.json" in store.repair(jobs[0].digest)
