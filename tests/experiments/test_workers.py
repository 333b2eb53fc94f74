"""Worker processes: killed at any moment, and the grid is completed with the same results."""

import contextlib
import errno
import os
import random
import re
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
import torch
from small_grid import content, do_here, grid, same_stores, starts, write_grid

import recmix
from recmix.errors import ConfigError, RunError
from recmix.experiments.driver import run_grid
from recmix.experiments.grid import read_grid
from recmix.experiments.schedule import Schedule
from recmix.experiments.store import Store
from recmix.experiments.worker import main as worker
from recmix.experiments.worker import stoppable, train_together, work
from recmix.experiments.workers import Slot, cores, make_slots

DRIVER = """
import sys
from pathlib import Path
from recmix.experiments.driver import run_grid
sys.exit(run_grid(Path(sys.argv[1]), Path(sys.argv[2]), device="cpu", workers=2))
"""
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def driver(file, folder):
    """`run_grid` in a process of its own; with one thread per worker whatever the machine."""
    command = [sys.executable, "-c", DRIVER, str(file), str(folder)]
    return subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def held_by(store, jobs):
    """Processes of the workers on these runs."""
    said = [re.search(r"process (\d+)", store.holder(job.digest)) for job in jobs]
    return [int(found[1]) for found in said if found]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks for processes in /proc")
def test_killed_at_random_moments_and_completed_with_the_same_results(tmp_path):
    """SIGKILL of the workers and then of the driver, SIGTERM of the driver, an undisturbed end."""
    file = write_grid(tmp_path, epochs=100, second=40)
    jobs = read_grid(file).jobs
    whole = do_here(tmp_path / "whole", jobs)
    store = Store(tmp_path / "killed")
    choose = random.Random(20201206)

    process = driver(file, store.root)
    wait_for(lambda: store.run(jobs[0].digest).history())
    workers = held_by(store, jobs)
    assert workers
    for pid in workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: set(held_by(store, jobs)) - set(workers))  # tried again
    time.sleep(choose.uniform(0.0, 2.0))
    workers = held_by(store, jobs)
    process.kill()
    process.communicate(timeout=60)
    wait_for(lambda: not any(map(alive, workers)) and not held_by(store, jobs))  # none is left behind

    process = driver(file, store.root)
    wait_for(lambda: held_by(store, jobs) or process.poll() is not None)
    time.sleep(choose.uniform(0.0, 1.0))
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 130, said
    assert "saved. Continue with: recmix grid" in " ".join(said.split())
    assert not held_by(store, jobs)
    assert not all(store.state(job).kind == "done" for job in jobs)

    process = driver(file, store.root)
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 0, said
    assert "3 runs: 3 done" in said
    same_stores(whole, store, jobs)


def test_two_drivers_share_the_work(tmp_path):
    file = write_grid(tmp_path, method='name = "vae"')
    jobs = read_grid(file).jobs
    both = [driver(file, tmp_path / "store") for _ in range(2)]
    for process in both:
        said = process.communicate(timeout=120)[0]
        assert process.returncode == 0, said
    store = Store(tmp_path / "store")
    for job in jobs:
        assert store.state(job).kind == "done"
        assert starts(store, job.digest) == 1


def test_a_failed_run_stops_only_what_starts_from_it(tmp_path, capsys):
    """A learning rate that no training survives, in one of two columns."""
    small = write_grid(tmp_path, method='name = "vae"')
    file = tmp_path / "failing.toml"
    column = f'data = "{tmp_path}/mine.npy"\nlatent = 3\nfirst = {{ learning_rate = 1e30 }}\n'
    file.write_text(f"{small.read_text()}[[columns]]\n{column}")
    assert run_grid(file, tmp_path / "store", device="cpu", workers=2) == 1
    shown = capsys.readouterr()
    said = " ".join(shown.out.split())
    assert "4 runs: 2 done, 1 failed, 1 blocked" in said
    assert "failed: VAE mine.npy 3 split 0 restart 0: loss is not a finite number" in said
    assert "blocked: 1 run: it starts from VAE mine.npy 3 split 0 restart 0, which is failed" in said
    assert "--retry-failed" in said
    assert "FAILED: VAE mine.npy 3" in shown.err
    store = Store(tmp_path / "store")
    kinds = {job.title: store.state(job).kind for job in read_grid(file).jobs}
    assert kinds == {
        "VAE mine.npy 2 split 0 restart 0": "done",
        "VAE+ mine.npy 2 split 0 restart 0": "done",
        "VAE mine.npy 3 split 0 restart 0": "failed",
        "VAE+ mine.npy 3 split 0 restart 0": "new",
    }
    failed = next(job for job in read_grid(file).jobs if store.state(job).kind == "failed")
    assert str(store.log(failed.digest)) in shown.out.replace("\n", "")
    assert "NonFiniteError" in store.log(failed.digest).read_text()
    # another start tries nothing again, and so takes no time
    before = {path: path.stat().st_mtime for path in store.root.glob("*/*.json")}
    assert run_grid(file, tmp_path / "store", device="cpu", workers=2) == 1
    assert {path: path.stat().st_mtime for path in store.root.glob("*/*.json")} == before


def test_a_limit_of_hours_stops_before_it_begins(tmp_path, capsys):
    file = write_grid(tmp_path)
    assert run_grid(file, tmp_path / "store", device="cpu", limit_hours=1e-9) == 130
    said = " ".join(capsys.readouterr().out.split())
    assert "3 runs: 0 done, 3 waiting" in said
    assert "stopped by the limit of 1e-09 hours" in said
    with pytest.raises(ConfigError, match="limit_hours must be positive"):
        run_grid(file, tmp_path / "store", limit_hours=0)


def test_a_worker_that_cannot_be_started_is_a_failed_run(tmp_path, capsys, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(subprocess, "Popen", full)
    assert run_grid(write_grid(tmp_path), tmp_path / "store", device="cpu", workers=2) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "could not be started (Cannot allocate memory), 3 times" in said
    assert "3 runs: 0 done, 1 failed, 2 blocked" in said


def test_runs_whose_data_cannot_be_had_are_left_out(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("RECMIX_OFFLINE", "1")
    file = write_grid(tmp_path, data="celeba")
    assert run_grid(file, tmp_path / "store", device="cpu", data_root=tmp_path) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "3 runs: 0 done, 3 blocked" in said
    assert "its data cannot be had" in said
    assert not list((tmp_path / "store").glob("*/failed.json"))  # once they are there, it goes on


def test_a_worker_by_hand_takes_a_list(tmp_path):
    jobs = grid().jobs
    store = Store(tmp_path)
    store.prepare(jobs[0], threads=1)
    store.prepare(jobs[1], threads=1)
    before = signal.getsignal(signal.SIGTERM)
    try:
        arguments = [str(tmp_path), jobs[0].digest, jobs[1].digest, "--device", "cpu"]
        assert worker(arguments) == 0
        assert [store.state(job).kind for job in jobs] == ["done", "done", "new"]
        claim = store.claim(jobs[0].digest)
        with pytest.raises(RunError, match="somebody works on"):
            worker(arguments)
        claim.release()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_worker_that_is_asked_to_stop_saves(tmp_path):
    """The pipe from its driver closes while it trains."""
    job = grid(**{**content(), "budget": {"first": {"epochs": 5000, "patience": 0}}}).jobs[0]
    store = Store(tmp_path)
    store.prepare(job, threads=1)
    command = [sys.executable, "-m", "recmix.experiments.worker", str(tmp_path), job.digest]
    command += ["--driven", "--device", "cpu"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env=ENVIRONMENT)
    wait_for(lambda: store.run(job.digest).history() or process.poll() is not None)
    process.stdin.close()
    assert process.wait(timeout=60) == 130, store.log(job.digest).read_text()
    assert store.run(job.digest).status()["status"] == "interrupted"
    assert "interrupted: stopped by SIGTERM" in store.log(job.digest).read_text()
    assert store.state(job).kind == "begun"


def test_runs_of_one_kind_are_taken_and_trained_together(tmp_path):
    """What a worker on a GPU does; without one they are trained in turn, and failures stay apart."""
    methods = [{"name": "rme", "order": [2, 3]}]
    jobs = grid(protocol={"splits": 2, "restarts": 1, "samples": [3]}, methods=methods).jobs
    store = Store(tmp_path)
    schedule = Schedule(store, jobs)
    rounds = []
    before = signal.getsignal(signal.SIGTERM)
    try:
        while taken := schedule.take(1):
            together = [taken]
            while more := schedule.take(1, like=taken[0]):
                together.append(more)
            for _, claim in together:
                claim.release()
            rounds.append(sorted(job.row for job, _ in together))
            worker([str(tmp_path), *(job.digest for job, _ in together), "--device", "cpu"])
            for job, _ in together:
                schedule.ended(job, "")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ["VAE", "VAE"] in rounds
    assert ["RME(2)", "RME(2)", "RME(3)", "RME(3)"] in rounds
    kinds = {job.row: store.state(job).kind for job in jobs}
    assert kinds["VAE"] == kinds["RME(2)"] == kinds["RME(3)"] == "done"


def test_places_for_workers(monkeypatch):
    assert make_slots(None, "cpu") == [Slot(1)] * cores()
    assert make_slots(1, "cpu") == [Slot(cores())]
    assert make_slots(100 * cores(), "cpu") == [Slot(1)] * (100 * cores())
    with pytest.raises(ConfigError, match="workers must be positive"):
        make_slots(0, "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [slot.gpu for slot in make_slots()] == ["0", "1"]
    assert [slot.gpu for slot in make_slots(4)] == ["0", "1", "0", "1"]
    assert [slot.gpu for slot in make_slots(None, "cuda:1")] == ["1"]
    assert make_slots(None, "cpu")[0].gpu is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5a")
    assert [slot.gpu for slot in make_slots()] == ["3", "GPU-5a"]


def test_a_run_that_is_broken_off_has_not_failed_whatever_is_raised(tmp_path, monkeypatch):
    (job, *_) = grid(protocol={"splits": 1, "restarts": 1, "samples": [3]}).jobs
    store = Store(tmp_path)
    store.prepare(job, threads=1)

    def broken(*_, stop):
        try:
            if stop:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(5)
        except KeyboardInterrupt:
            pass
        raise RecursionError("half of a library")  # as importing one may end that was broken off

    for stop, end in ((True, "interrupted"), (False, "failed")):
        monkeypatch.setattr("recmix.experiments.worker._request", partial(broken, stop=stop))
        with stoppable() as stopped:
            together = train_together(store, [job.digest], stopped=stopped)
            assert (together, work(store, job.digest, stopped=stopped)) == (end, end)
        assert bool(store.failure(job.digest)) == (end == "failed")


def test_a_chain_of_rows_is_trained_and_scored_refined(tmp_path):
    methods = [
        {"name": "vae", "label": "DECODER", "after": "VAE", "refine": 1},
        {"name": "vae", "label": "CHAIN", "after": "DECODER", "moves": "encoder", "refined": [2]},
        {"name": "vae", "continued": True, "refined": [2], "calibrated": True},
    ]
    jobs = grid(protocol={"splits": 1, "restarts": 1, "samples": [3]}, methods=methods).jobs
    store = Store(tmp_path)
    schedule = Schedule(store, jobs)
    while taken := schedule.take(1):
        job, claim = taken
        claim.release()
        assert work(store, job.digest, device="cpu") == "done"
        schedule.ended(job, "")
    scores = {job.row: store.run(job.digest).scores() for job in jobs}
    assert {"test/3", "test/3/refine 2"} <= scores["CHAIN"].keys()
    assert scores["CHAIN"]["test/3/refine 2"]["elbo"] > scores["CHAIN"]["test/3"]["elbo"]
    assert {"test/3/calibrated", "test/3/refine 2/calibrated"} <= scores["VAE+"].keys()
    assert scores["VAE+"]["test/3"]["widen"] == 1.0
    data = recmix.data.load("digits", None, 0)
    (plus,) = [store.folder(job.digest) for job in jobs if job.row == "VAE+"]
    expected = recmix.load(plus).calibrated(data.x_val, 3).spec.training.widen
    assert scores["VAE+"]["test/3/calibrated"]["widen"] == expected


def test_finished_runs_are_timed_again_one_after_the_other(tmp_path, capsys):
    method = 'name = "vae"\nrefined = [1]\ncalibrated = true\ncontinued = true'
    file, folder = (
        write_grid(tmp_path, method=f'name = "vae"\n[[methods]]\n{method}'),
        tmp_path / "store",
    )
    assert run_grid(file, folder, device="cpu", workers=2, timing=True) == 0
    assert "timed 0 finished runs" in capsys.readouterr().out
    assert run_grid(file, folder, device="cpu", workers=2) == 0
    jobs = read_grid(file).jobs
    before = {job.digest: Store(folder).run(job.digest).scores() for job in jobs}
    assert run_grid(file, folder, device="cpu", timing=True) == 0
    assert "timed 2 finished runs" in capsys.readouterr().out
    for job in jobs:
        for key, now in Store(folder).run(job.digest).scores().items():
            was = before[job.digest][key]
            assert now.get("alone", False) is key.startswith("test/")
            assert "alone" not in was
            changed = ("milliseconds", "alone", "passes")
            if "passes" in now:
                assert len(now["passes"]) == 5
                assert now["milliseconds"] == pytest.approx(sum(now["passes"]) / 5)
            assert {k: v for k, v in now.items() if k not in changed} == {
                k: v for k, v in was.items() if k not in changed
            }
