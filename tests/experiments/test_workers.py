"""Worker processes: killed at any moment, a grid is completed with the same results."""

import contextlib
import errno
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
import torch
from cases.commands import call
from cases.grids import assert_same_results, content, grid, run_jobs, training_starts, write_grid
from cases.workers import ENVIRONMENT, wait_for, worker_pids

from recmix.errors import ConfigError, RunError
from recmix.experiments.driver import run_grid
from recmix.experiments.grid import read_grid
from recmix.experiments.job_queue import JobQueue
from recmix.experiments.local_workers import Slot, make_slots
from recmix.experiments.store import Store
from recmix.experiments.worker import main as worker
from recmix.experiments.worker import sigterm_interrupts, train_together, work
from recmix.runs.process import cores

DRIVER = """
import os, sys
from pathlib import Path
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])  # one thread for each of two workers
from recmix.experiments.driver import run_grid
sys.exit(run_grid(Path(sys.argv[1]), Path(sys.argv[2]), device="cpu", workers=2))
"""


def driver(file, folder):
    """`run_grid` in a process of its own, with one thread per worker on any machine."""
    command = [sys.executable, "-c", DRIVER, str(file), str(folder)]
    return subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks for processes in /proc")
def test_a_grid_killed_at_random_moments_gives_the_same_results(tmp_path):
    """SIGKILL of the workers, then of the driver; SIGTERM of the driver; then no interruption."""
    file = write_grid(tmp_path, epochs=12, second=8)
    jobs = read_grid(file).jobs
    whole = run_jobs(tmp_path / "whole", jobs)
    store = Store(tmp_path / "killed")
    choose = random.Random(20201206)

    process = driver(file, store.root)
    wait_for(lambda: store.run(jobs[0].digest).history())
    workers = worker_pids(store, jobs)
    assert workers
    for pid in workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: set(worker_pids(store, jobs)) - set(workers))  # they are started again
    time.sleep(choose.uniform(0.0, 1.0))
    workers = worker_pids(store, jobs)
    process.kill()
    process.communicate(timeout=60)
    wait_for(lambda: not any(map(alive, workers)) and not worker_pids(store, jobs))  # no process is left

    process = driver(file, store.root)
    wait_for(lambda: worker_pids(store, jobs) or process.poll() is not None)
    time.sleep(choose.uniform(0.0, 0.5))
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 130, said
    assert "saved. Continue with: recmix grid" in " ".join(said.split())
    assert not worker_pids(store, jobs)
    assert not all(store.state(job).kind == "done" for job in jobs)

    process = driver(file, store.root)
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 0, said
    assert "3 runs: 3 done" in said
    assert_same_results(whole, store, jobs)


def test_two_drivers_share_the_runs(tmp_path):
    file = write_grid(tmp_path, method='name = "vae"')
    jobs = read_grid(file).jobs
    both = [driver(file, tmp_path / "store") for _ in range(2)]
    for process in both:
        said = process.communicate(timeout=120)[0]
        assert process.returncode == 0, said
    store = Store(tmp_path / "store")
    for job in jobs:
        assert store.state(job).kind == "done"
        assert training_starts(store, job.digest) == 1


def test_a_failed_run_blocks_only_runs_that_start_from_it(tmp_path, capsys):
    """The learning rate is too large in one of two columns."""
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
    # the second time nothing is tried again
    before = {path: path.stat().st_mtime for path in store.root.glob("*/*.json")}
    assert run_grid(file, tmp_path / "store", device="cpu", workers=2) == 1
    assert {path: path.stat().st_mtime for path in store.root.glob("*/*.json")} == before


def test_the_time_limit_stops_a_grid(tmp_path, capsys):
    file = write_grid(tmp_path)
    assert run_grid(file, tmp_path / "store", device="cpu", limit_hours=1e-9) == 130
    said = " ".join(capsys.readouterr().out.split())
    assert "3 runs: 0 done, 3 waiting" in said
    assert "stopped by the limit of 1e-09 hours" in said
    with pytest.raises(ConfigError, match="limit_hours must be positive"):
        run_grid(file, tmp_path / "store", limit_hours=0)


def test_a_run_fails_if_its_worker_cannot_start(tmp_path, capsys, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(subprocess, "Popen", full)
    assert run_grid(write_grid(tmp_path), tmp_path / "store", device="cpu", workers=2) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "could not be started (Cannot allocate memory), 3 times" in said
    assert "3 runs: 0 done, 1 failed, 2 blocked" in said


def test_runs_without_data_are_blocked(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("RECMIX_OFFLINE", "1")
    file = write_grid(tmp_path, data="celeba")
    assert run_grid(file, tmp_path / "store", device="cpu", data_root=tmp_path) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "3 runs: 0 done, 3 blocked" in said
    assert "its data are not available" in said
    assert not list((tmp_path / "store").glob("*/failed.json"))  # with the data, they can start


def test_a_worker_does_a_list_of_runs(tmp_path):
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
        with pytest.raises(RunError, match="another process works on"):
            worker(arguments)
        claim.release()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_stopped_worker_saves(tmp_path):
    """The pipe from its driver is closed during training."""
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


def test_runs_of_one_kind_are_trained_together(tmp_path):
    """As on a GPU; on a CPU the runs of one worker are trained one after the other."""
    methods = [{"name": "rme", "order": [2, 3]}]
    jobs = grid(protocol={"splits": 2, "restarts": 1, "samples": [3]}, methods=methods).jobs
    store = Store(tmp_path)
    queue = JobQueue(store, jobs)
    rounds = []
    before = signal.getsignal(signal.SIGTERM)
    try:
        while taken := queue.take(1):
            together = [taken]
            while more := queue.take(1, like=taken.job):
                together.append(more)
            for entry in together:
                entry.claim.release()
            rounds.append(sorted(entry.job.row for entry in together))
            worker([str(tmp_path), *(entry.job.digest for entry in together), "--device", "cpu"])
            for entry in together:
                queue.ended(entry, "")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ["VAE", "VAE"] in rounds
    assert ["RME(2)", "RME(2)", "RME(3)", "RME(3)"] in rounds
    kinds = {job.row: store.state(job).kind for job in jobs}
    assert kinds["VAE"] == kinds["RME(2)"] == kinds["RME(3)"] == "done"


@pytest.mark.parametrize(
    ("variable", "flags", "expected"),
    [
        ("3", [], 3),
        ("3", ["--threads", 5], 5),
        ("", [], max(1, cores() // 2)),
        ("0", [], max(1, cores() // 2)),
    ],
)
def test_each_worker_gets_the_number_of_threads_that_was_given(
    tmp_path, monkeypatch, capsys, variable, flags, expected
):
    started = []

    def start(command, *, env, **_):
        started.append(env["OMP_NUM_THREADS"])
        raise OSError(errno.EAGAIN, "not started in this test")

    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    monkeypatch.setattr(subprocess, "Popen", start)
    file, store = write_grid(tmp_path), tmp_path / "store"
    assert call("grid", file, "--store", store, "--workers", 2, "--device", "cpu", *flags) == 1
    assert set(started) == {str(expected)}
    assert Store(store).job_file(read_grid(file).jobs[0].digest)["threads"] == expected


def test_the_command_that_continues_a_grid_has_the_threads(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert run_grid(write_grid(tmp_path), tmp_path / "store", device="cpu", limit_hours=1e-9) == 130
    assert "--threads=3" in capsys.readouterr().out


def test_slots_for_workers(monkeypatch):
    assert make_slots(None, "cpu") == [Slot(1)] * cores()
    assert make_slots(1, "cpu") == [Slot(cores())]
    assert make_slots(2, "cpu", 7) == [Slot(7)] * 2
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


def test_any_exception_after_sigterm_is_an_interruption(tmp_path, monkeypatch):
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
        raise RecursionError("half of a library")  # an interrupted import may raise anything

    for stop, end in ((True, "interrupted"), (False, "failed")):
        monkeypatch.setattr("recmix.experiments.worker._request", partial(broken, stop=stop))
        with sigterm_interrupts() as stopped:
            together = train_together(store, [job.digest], stopped=stopped)
            assert (together, work(store, job.digest, stopped=stopped)) == (end, end)
        assert bool(store.failure(job.digest)) == (end == "failed")


def test_times_of_finished_runs_are_measured_again(tmp_path, capsys):
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
