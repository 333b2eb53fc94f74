"""Start worker processes on this machine for the runs of a grid: one per GPU, or one per core.

On a CPU each run has a process of its own, so that a crash of one run cannot harm another. On a GPU a
process trains several runs with the same method label and data at once. The driver, the process that
starts the workers, locks a file for each run, and the workers inherit these locks. The standard input of
a worker is a pipe from the driver. When the pipe is closed, because the driver closes it or has ended,
the worker saves its runs and stops.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from recmix.errors import ConfigError
from recmix.experiments.job_queue import JobQueue, QueuedJob
from recmix.experiments.stopping import Stop
from recmix.experiments.store import Store
from recmix.experiments.view import Watcher
from recmix.runs.process import THREADS, cores

__all__ = ["Slot", "make_slots", "run_here"]

POLL = 0.1  # seconds between two checks of the workers
REPLICAS = 16  # runs of one kind that a worker on a GPU trains at once: one run uses little of a GPU
GRACE = 120.0  # seconds that a worker has to save before it is killed


@dataclass(frozen=True)
class Slot:
    """What one worker process may use of this machine."""

    threads: int  # number of CPU threads
    gpu: str | None = None  # its GPU, as a value of CUDA_VISIBLE_DEVICES; None for the CPU


def make_slots(
    workers: int | None = None, device: str = "auto", threads: int | None = None
) -> list[Slot]:
    """Divide the cores and GPUs of this machine among worker processes; return one `Slot` for each.

    Args:
        workers: number of worker processes; by default one per GPU, or one per core without a GPU.
        device: ``auto``, ``cpu``, ``cuda`` and so on.
        threads: number of CPU threads of each worker; by default the cores are divided equally.

    >>> [slot.threads for slot in make_slots(1, "cpu")] == [cores()]
    True
    """
    if workers is not None and workers < 1:
        raise ConfigError(f"workers must be positive, got {workers}")
    gpus = _gpus(device)
    count = workers or len(gpus) or cores()
    threads = threads or max(1, cores() // count)
    return [Slot(threads, gpus[i % len(gpus)] if gpus else None) for i in range(count)]


def run_here(
    queue: JobQueue,
    slots: Sequence[Slot],
    *,
    device: str = "auto",
    data_root: Path | None = None,
    watcher: Watcher,
    stop: Stop,
) -> None:
    """Do the runs of a queue in worker processes of this machine, one for each slot.

    A slot says how many CPU threads and which GPU, if any, one worker uses. `device` is used by workers
    whose slot has no GPU. The function returns when no run is left that can be started, or when `stop`
    is true and the runs in progress are saved.
    """
    running: list[_Worker] = []
    free = list(slots)
    asked = 0.0
    try:
        while True:
            for worker in [w for w in running if w.process.poll() is not None]:
                running.remove(worker)
                free.append(worker.slot)
                worker.ask_to_stop()
                for entry in worker.entries:
                    watcher.ended(queue.ended(entry, worker.end(), stopping=bool(stop)))
            queue.look()
            while free and not stop and (together := _take(queue, free[0])):
                try:
                    running.append(_start(queue.store, together, free[0], device, data_root))
                except OSError as error:
                    how = f"its worker could not be started ({error.strerror})"
                    for entry in together:
                        watcher.ended(queue.ended(entry, how))
                    continue
                free.pop(0)
                for entry in together:
                    watcher.began(entry)
            if stop and not asked:
                asked = time.monotonic()
                for worker in running:
                    worker.ask_to_stop()
            if stop.at_once or (asked and time.monotonic() - asked > GRACE):
                for worker in running:
                    worker.process.kill()
            if not running and (stop or not queue.open):
                return
            watcher.tick()
            time.sleep(POLL)
    finally:
        for worker in running:
            worker.ask_to_stop()
            for entry in worker.entries:
                entry.claim.release()


def _take(queue: JobQueue, slot: Slot) -> list[QueuedJob]:
    """Lock the next run, and on a GPU further runs that can be trained together with it.

    The result has at most `REPLICAS` runs. It is empty if no run can start now.
    """
    together: list[QueuedJob] = []
    most = 1 if slot.gpu is None else REPLICAS
    while len(together) < most:
        taken = queue.take(slot.threads, like=together[0].job if together else None)
        if taken is None:
            break
        together.append(taken)
    return together


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    slot: Slot
    entries: list[QueuedJob]

    def ask_to_stop(self) -> None:
        """Close the pipe to the worker. The worker then saves its runs and ends."""
        if self.process.stdin:
            self.process.stdin.close()

    def end(self) -> str:
        """Say in words how the worker's process ended."""
        status = self.process.returncode
        if status < 0:
            return f"its worker was killed by {signal.Signals(-status).name}"
        return f"its worker ended with status {status} and left no result"


def _start(
    store: Store, entries: list[QueuedJob], slot: Slot, device: str, data_root: Path | None
) -> _Worker:
    """Start a worker process that does these runs.

    Args:
        store: the folder with the run folders.
        entries: the runs.
        slot: the CPU threads of the worker and, if it has one, its GPU.
        device: the device on which a worker without a GPU in its slot trains, such as ``cpu``. A worker
            with a GPU always trains on this GPU.
        data_root: folder of the named data sets; None for the default folder.
    """
    environment = {**os.environ, THREADS: str(slot.threads)}
    if slot.gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"], device = slot.gpu, "cuda"
    command = [sys.executable, "-m", "recmix.experiments.worker", str(store.root.resolve())]
    command += [*(entry.job.digest for entry in entries), "--driven", "--device", device]
    if data_root is not None:
        command += ["--data-root", str(data_root)]
    with store.log(entries[0].job.digest).open("a") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=environment,
            pass_fds=[entry.claim.descriptor for entry in entries],
            start_new_session=True,  # Ctrl-C in the terminal goes to the driver only
        )
    for entry in entries:
        entry.claim.note(pid=process.pid)
    return _Worker(process, slot, entries)


def _gpus(device: str) -> list[str]:
    """Return the GPUs for the worker processes, each as a value of CUDA_VISIBLE_DEVICES.

    Without a GPU for `device`, the result is empty.
    """
    if device == "cpu":
        return []
    import torch

    from recmix.training.build import pick_device

    wanted = pick_device(device)
    if wanted.type != "cuda":
        return []
    shown = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name.strip() for name in shown.split(",") if name.strip()]
    names = names or [str(i) for i in range(torch.cuda.device_count())]
    return names if wanted.index is None else [names[wanted.index]]
