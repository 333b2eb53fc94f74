"""Grids on a Ray cluster."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from cases.grids import assert_same_results, run_jobs, training_starts, write_grid
from cases.workers import ENVIRONMENT, wait_for, worker_pids

from recmix.errors import ConfigError
from recmix.experiments.cluster import SMALL, Mailbox
from recmix.experiments.driver import run_grid
from recmix.experiments.grid import read_grid
from recmix.experiments.store import RUN_FILES, Store
from recmix.runs.files import write_bytes
from recmix.runs.folder import Run

RAY = """
import sys
from pathlib import Path
from recmix.experiments.driver import run_grid
sys.exit(run_grid(Path(sys.argv[1]), Path(sys.argv[2]), device="cpu", workers=2, ray="local"))
"""
FAST = f"""
from recmix.experiments import cluster

def do(digest, *given):  # Ray sends functions of __main__ to its workers as they are
    import os, pathlib, time
    from recmix.experiments import cluster
    from recmix.runs.folder import Run

    held, log = pathlib.Path(os.environ["TMPDIR"]) / f"hold-{{digest}}", Run.log

    def wait(run, event, **more):  # a held run stands still after its second checkpoint
        log(run, event, **more)
        while event == "epoch" and more["epoch"] >= 2 and held.exists():
            time.sleep(0.05)

    Run.log = wait
    cluster.POST_SMALL = cluster.POST_ALL = 0.1
    try:
        return cluster.do(digest, *given)
    finally:
        Run.log = log

cluster.do, cluster.POLL = do, 0.1
{RAY}"""

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")


@needs_ray
def test_ray_gives_the_same_results_as_local_workers(tmp_path):
    """In a process of its own, because Ray changes signal handlers and leaves threads."""
    file = write_grid(tmp_path, method='name = "hf"\nlearning_rate = [1e-4, 1e30]')
    jobs = read_grid(file).jobs
    good = [job for job in jobs if "1e+30" not in job.label]
    whole = run_jobs(tmp_path / "whole", good)
    command = [sys.executable, "-c", RAY, str(file), str(tmp_path / "ray")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1, done.stderr
    store = Store(tmp_path / "ray")
    assert_same_results(whole, store, good)
    assert "4 runs: 3 done, 1 failed" in done.stdout
    (bad,) = [job for job in jobs if job not in good]
    assert "not a finite number" in store.state(bad).reason
    assert "NonFiniteError" in store.log(bad.digest).read_text()
    for job in jobs:
        assert not store.holder(job.digest)
    for job in good:
        assert "epoch 1/1" in store.log(job.digest).read_text()
        assert not store.run(job.digest).checkpoint.exists()


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """A grid of two runs, and the store that it should give."""
    folder = tmp_path_factory.mktemp("reference")
    file = write_grid(folder, method='name = "vae"', epochs=4, second="4, patience = 0")
    jobs = read_grid(file).jobs
    return file, jobs, run_jobs(folder / "whole", jobs)


@contextlib.contextmanager
def driver(file, folder, held=None):
    """A driver of Ray workers that send files often and train in `folder`/scratch.

    The run `held` stands still after its second checkpoint while its file in `folder`/scratch exists.
    """
    (folder / "scratch").mkdir(exist_ok=True)
    if held is not None:
        hold(folder, held).touch()
    places = {"TMPDIR": str(folder / "scratch"), "RAY_TMPDIR": tempfile.gettempdir()}
    command = [sys.executable, "-c", FAST, str(file), str(folder / "store")]
    with (folder / "said.txt").open("w") as said:
        process = subprocess.Popen(
            command, env={**ENVIRONMENT, **places}, stdout=said, stderr=subprocess.STDOUT
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def hold(folder, job):
    return folder / "scratch" / f"hold-{job.digest}"


def ended(process, folder):
    """The output of a driver that has ended."""
    process.wait(timeout=120)
    return (folder / "said.txt").read_text()


def trainers(folder):
    """Ids of the processes that train in `folder`/scratch: their output goes to a log there."""
    found = []
    for output in Path("/proc").glob("[0-9]*/fd/1"):
        with contextlib.suppress(OSError):
            if os.readlink(output).startswith(f"{folder}/scratch/"):
                found.append(int(output.parts[2]))
    return found


@needs_ray
@needs_proc
def test_a_run_continues_from_its_checkpoint_after_its_ray_worker_is_killed(tmp_path, reference):
    file, jobs, whole = reference
    store = Store(tmp_path / "store")
    run = store.run(jobs[0].digest)
    with driver(file, tmp_path, held=jobs[0]) as process:
        wait_for(lambda: run.checkpoint.exists() or process.poll() is not None)
        (worker,) = trainers(tmp_path)
        os.kill(worker, signal.SIGKILL)
        hold(tmp_path, jobs[0]).unlink()
        said = ended(process, tmp_path)
    assert process.returncode == 0, said
    assert f"not done: {jobs[0].title}: its Ray worker was lost" in said
    assert "2 runs: 2 done" in said
    assert_same_results(whole, store, jobs)
    assert [training_starts(store, job.digest) for job in jobs] == [2, 1]
    events = map(json.loads, (run.folder / "log.jsonl").read_text().splitlines())
    assert [event["epoch"] > 0 for event in events if event["event"] == "start"] == [False, True]


@needs_ray
@needs_proc
def test_another_driver_completes_a_grid_after_the_first_is_killed(tmp_path, reference):
    file, jobs, whole = reference
    store = Store(tmp_path / "store")
    second = store.run(jobs[1].digest)
    with driver(file, tmp_path, held=jobs[1]) as process:
        wait_for(lambda: second.checkpoint.exists() or process.poll() is not None)
        assert trainers(tmp_path)
        process.kill()
        process.wait()
        hold(tmp_path, jobs[1]).unlink()
    assert not worker_pids(store, jobs)
    left = {path: path.read_bytes() for path in store.root.rglob("*.*")}
    wait_for(lambda: not trainers(tmp_path))
    assert {path: path.read_bytes() for path in store.root.rglob("*.*")} == left
    with driver(file, tmp_path) as process:
        said = ended(process, tmp_path)
    assert process.returncode == 0, said
    assert f"begun: {jobs[0].title}" not in said
    assert_same_results(whole, store, jobs)
    assert [training_starts(store, job.digest) for job in jobs] == [1, 2]


class Lost(BaseException):
    """A power failure: nothing catches it."""


def test_a_run_gives_the_same_result_whichever_files_were_received(tmp_path, monkeypatch):
    """The store has an early checkpoint; then some of the files of the trained run are written."""
    job = read_grid(write_grid(tmp_path, epochs=4)).jobs[0]
    whole = run_jobs(tmp_path / "whole", [job])
    kept, log = Store(tmp_path / "early"), Run.log

    def fail_early(run, event, **more):
        log(run, event, **more)
        if event == "epoch":
            raise Lost

    with monkeypatch.context() as patch, pytest.raises(Lost):
        patch.setattr(Run, "log", fail_early)
        run_jobs(kept.root, [job])
    early = kept.pack(job.digest)
    assert early["weights.safetensors"] != whole.run(job.digest).weights.read_bytes()
    for names in (SMALL, RUN_FILES):
        files = whole.pack(job.digest, names)
        for number in range(1, len(files) + 1):
            store = Store(tmp_path / f"{len(files)}-{number}")
            store.unpack(job.digest, early)
            with monkeypatch.context() as patch, contextlib.suppress(Lost):
                patch.setattr("recmix.experiments.store.write_bytes", write_only(number))
                store.unpack(job.digest, files)
            if store.state(job).kind != "done":
                run_jobs(store.root, [job])
            assert_same_results(whole, store, [job])


def write_only(number):
    """`write_bytes` that works this many times."""
    left = iter(range(number))

    def write(path, content):
        if next(left, None) is None:
            raise Lost
        write_bytes(path, content)

    return write


def test_an_error_says_that_ray_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"ray is not installed: pip install 'recmix\[cluster\]'"):
        run_grid(write_grid(tmp_path), tmp_path / "store", device="cpu", ray="local")


def test_the_mailbox_keeps_the_latest_files_and_stops_runs():
    box = Mailbox()
    assert box.post("a", {"history.json": b"1", "log.txt": b"x"}) is False
    box.post("a", {"history.json": b"2"})
    box.post("b", {})
    assert box.collect() == {"a": {"history.json": b"2", "log.txt": b"x"}, "b": {}}
    assert box.collect() == {}
    box.stop()
    assert box.post("a", {}) is True
