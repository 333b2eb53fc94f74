"""Do the runs of a grid on a Ray cluster. The machines need no shared file system.

Each run is a Ray task. The task gets the earlier files of its run and of the run that it starts from,
works in a local folder, and returns its files. While it works, it sends its files to a `Mailbox` from
time to time. So the driver (the process of `recmix grid`) has a recent checkpoint if a machine is lost,
and starts the run again from there. Each machine finds data sets in the folder that its environment
variable RECMIX_DATA names, or in `data_root`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console

from recmix.errors import ConfigError, RunError
from recmix.experiments.grid import Grid, GridJob
from recmix.experiments.job_queue import JobQueue, QueuedJob
from recmix.experiments.stopping import Stop
from recmix.experiments.store import RUN_FILES, Store
from recmix.experiments.view import Watcher, watching
from recmix.experiments.worker import output_to, sigterm_interrupts, work

__all__ = ["Mailbox", "run_on_ray"]

POLL = 0.5  # seconds between two checks of the cluster
POST_SMALL = 3.0  # seconds between two messages with a run's history, for the view
POST_ALL = 60.0  # seconds between two messages with a run's checkpoint
GRACE = 120.0  # seconds that runs have to save before they are cancelled
AHEAD = 2  # tasks submitted per place in the cluster, so that no place is idle
SMALL = ("spec.json", "history.json", "log.txt", "log.jsonl")
"""Files that are sent often. The status is not one of them: it must not arrive before the weights."""
START = ("spec.json", "status.json", "history.json", "weights.safetensors")
"""Files of a trained run that are sent to a run that starts from its model."""

Files = dict[str, bytes]


class Mailbox:
    """A Ray actor that receives files of the runs in progress, and can tell the runs to stop."""

    def __init__(self) -> None:
        self.stopped = False
        self.files: dict[str, Files] = {}

    def post(self, digest: str, files: Files) -> bool:
        """Receive files {name: content} of a run, and return whether the run must stop.

        `digest` is the name of the run.
        """
        self.files.setdefault(digest, {}).update(files)
        return self.stopped

    def collect(self) -> dict[str, Files]:
        """Return the files received since the last call, as {name of the run: {file name: content}}."""
        found, self.files = self.files, {}
        return found

    def stop(self) -> None:
        """Tell each run to save its state and stop. A run is told when it next sends files."""
        self.stopped = True


def run_on_ray(
    grid: Grid,
    queue: JobQueue,
    *,
    address: str,
    workers: int | None = None,
    device: str = "auto",
    data_root: Path | None = None,
    console: Console,
    stop: Stop,
) -> None:
    """Do the runs of a queue on a Ray cluster, until no run is left or `stop` is true.

    Args:
        address: address of the Ray cluster, or ``local`` for a new one on this machine.
        workers: largest number of runs at a time; by default one per GPU, or one per core without a GPU.
        data_root: folder of the data sets on each machine.
    """
    with _connected(address, workers) as ray:
        gpus = int(ray.cluster_resources().get("GPU", 0)) if device != "cpu" else 0
        places = gpus or int(ray.cluster_resources().get("CPU", 1))
        places = min(places, workers or places)
        next_to_driver = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            node_id=ray.get_runtime_context().get_node_id(), soft=True
        )
        mailbox = ray.remote(Mailbox).options(num_cpus=0, scheduling_strategy=next_to_driver).remote()
        task = ray.remote(do).options(num_cpus=1, num_gpus=1 if gpus else 0, max_retries=0)

        @cache
        def start_of(digest: str | None) -> Any:
            return None if digest is None else ray.put(queue.store.pack(digest, START))

        def submit(job: GridJob) -> Any:
            files, start = ray.put(queue.store.pack(job.digest)), start_of(job.depends)
            return task.remote(job.digest, job.depends, files, start, device, data_root, mailbox)

        try:
            with watching(grid, queue, places, console) as watcher:
                _drive(ray, queue, submit, mailbox, AHEAD * places, watcher, stop)
        except ray.exceptions.RayError as error:
            raise RunError(
                f"the connection to the Ray cluster {address!r} was lost ({error}); results so far are "
                f"in {queue.store.root}: start the grid again"
            ) from error


def _drive(
    ray: Any,
    queue: JobQueue,
    submit: Callable[[GridJob], Any],
    mailbox: Any,
    most: int,
    watcher: Watcher,
    stop: Stop,
) -> None:
    """Submit at most `most` runs at a time as Ray tasks, and store the files that they return.

    `submit` submits one run and returns the Ray object of its result.
    """
    running: dict[Any, QueuedJob] = {}
    asked = 0.0
    try:
        while True:
            queue.look()
            while len(running) < most and not stop and (taken := queue.take(threads=1)):
                taken.claim.note(pid=os.getpid(), where="ray")
                running[submit(taken.job)] = taken
                watcher.began(taken)
            if stop and not asked:
                asked = time.monotonic()
                mailbox.stop.remote()
            if not running and (stop or not queue.open):
                return
            ended = ray.wait(list(running), timeout=POLL)[0] if running else []
            if not running:
                time.sleep(POLL)
            for digest, files in ray.get(mailbox.collect.remote()).items():
                if any(entry.job.digest == digest for entry in running.values()):
                    queue.store.unpack(digest, files)
            for reference in ended:
                entry = running.pop(reference)
                how = _receive(ray, queue.store, entry.job, reference)
                watcher.ended(queue.ended(entry, how, stopping=bool(stop)))
            if stop.at_once or (asked and time.monotonic() - asked > GRACE):
                return
            watcher.tick()
    finally:
        for reference, entry in running.items():
            ray.cancel(reference, force=True)
            entry.claim.release()


def _receive(ray: Any, store: Store, job: GridJob, reference: Any) -> str:
    """Store the files that the Ray task of a run returned.

    Return the reason, in words, that is shown if the run turns out not to be finished. `reference` is
    the Ray object of the task's result.
    """
    try:
        files = ray.get(reference)
    except ray.exceptions.RayError as error:
        first = str(error).strip().splitlines()[0]
        return f"its Ray worker was lost ({type(error).__name__}: {first})"
    store.unpack(job.digest, files)
    if "scores.json" in files and "checkpoint.safetensors" not in files:
        store.run(job.digest).checkpoint.unlink(missing_ok=True)
    return "its Ray worker left no result"


def do(
    digest: str,
    depends: str | None,
    files: Files,
    start: Files | None,
    device: str,
    data_root: Path | None,
    mailbox: Any,
) -> Files:
    """Train and score one run in a temporary folder, and return its files {name: content}.

    Ray calls this function as a task. The files are sent to the `mailbox` while the run is in progress.

    Args:
        digest: name of the run, a hash of its definition.
        depends: name of the run whose trained model is the initial model; None for random weights.
        files: earlier files of the run, such as its checkpoint, {name: content}.
        start: files of the run `depends`, {name: content}.
    """
    if _ray().get(mailbox.post.remote(digest, {})):
        return {}  # stopped before it started
    with tempfile.TemporaryDirectory(prefix="recmix-") as scratch:
        store = Store(scratch)
        store.unpack(digest, files)
        if depends is not None and start is not None:
            store.unpack(depends, start)
        with output_to(store.log(digest)), _posting(store, digest, mailbox) as stopped:
            work(store, digest, device=device, data_root=data_root, stopped=stopped)
        return store.pack(digest)


@contextlib.contextmanager
def _posting(store: Store, digest: str, mailbox: Any) -> Iterator[threading.Event]:
    """Context in which a thread sends the files of a run to the Ray actor `Mailbox` from time to time.

    If the actor answers that the run must stop, SIGTERM is sent to this process, and the event that the
    context yields is set.
    """
    ray, over = _ray(), threading.Event()

    def post() -> None:
        last, sent = time.monotonic(), 0.0
        while not over.wait(POST_SMALL):
            names: tuple[str, ...] = SMALL
            if time.monotonic() - last > POST_ALL and _checkpoint_time(store, digest) != sent:
                last, sent, names = time.monotonic(), _checkpoint_time(store, digest), RUN_FILES
            if ray.get(mailbox.post.remote(digest, store.pack(digest, names))):
                os.kill(os.getpid(), signal.SIGTERM)
                return

    with sigterm_interrupts() as stopped:
        thread = threading.Thread(target=post, daemon=True)
        thread.start()
        try:
            yield stopped
        finally:
            over.set()
            thread.join()


def _checkpoint_time(store: Store, digest: str) -> float:
    """Return the time at which the checkpoint of a run was written, or 0 if there is none."""
    with contextlib.suppress(OSError):
        return store.run(digest).checkpoint.stat().st_mtime
    return 0.0


def _ray() -> Any:
    try:
        importlib.import_module("ray.util.scheduling_strategies")
        return importlib.import_module("ray")
    except ImportError as error:
        raise ConfigError("ray is not installed: pip install 'recmix[cluster]'") from error


@contextlib.contextmanager
def _connected(address: str, workers: int | None) -> Iterator[Any]:
    """Connect to a Ray cluster and yield the module ray; disconnect at the end."""
    ray = _ray()
    quiet = {"logging_level": "ERROR", "log_to_driver": False, "configure_logging": False}
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        if address == "local":
            ray.init(num_cpus=workers, include_dashboard=False, **quiet)
        else:
            ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(f"cannot connect to the Ray cluster {address!r}: {error}") from error
    for number, handler in before.items():  # Ray replaces the handler of SIGTERM
        signal.signal(number, handler)
    try:
        yield ray
    finally:
        ray.shutdown()
