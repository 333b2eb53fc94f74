"""The runs of a grid on a Ray cluster, without a file system that all machines share.

The driver holds the claims and the store. A run is a Ray task: it receives the files of the run it
starts from and those of its own that there are, works in a folder of its machine, and returns its
files. On the way it posts them to a mailbox from time to time, so that the store has its last
checkpoint when a machine is lost; that is why the driver, and not Ray, begins a lost run again: from
there. Data sets are found on each machine by RECMIX_DATA there, or under `data_root`.
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
from pathlib import Path
from typing import Any

from rich.console import Console

from recmix.errors import ConfigError, RunError
from recmix.experiments.grid import Grid, Job
from recmix.experiments.schedule import Schedule
from recmix.experiments.stopping import Stop
from recmix.experiments.store import FOLLOWS_THE_RUN, Claim, Store
from recmix.experiments.view import Watcher, watching
from recmix.experiments.worker import stoppable, work, written_to

__all__ = ["Mailbox", "run_on_ray"]

POLL = 0.5
"""Seconds between two looks at the cluster."""
POST_SMALL = 3.0
"""Seconds between two posts of a run's history, for the view."""
POST_ALL = 60.0
"""Seconds between two posts of a run's checkpoint."""
GRACE = 120.0
"""Seconds that runs have to save before they are given up."""
AHEAD = 2
"""Runs given to the cluster for each place there is, so that none is idle."""
SMALL = ("spec.json", "history.json", "log.txt", "log.jsonl")
"""Posted often. Not the status: it never comes without the weights that it speaks of."""
START = ("spec.json", "status.json", "history.json", "weights.safetensors")
"""What a run needs of the one it starts from."""

Files = dict[str, bytes]


class Mailbox:
    """Where running tasks leave files and learn whether to stop; one for all, beside the driver."""

    def __init__(self) -> None:
        self.stopped = False
        self.files: dict[str, Files] = {}

    def post(self, digest: str, files: Files) -> bool:
        """Leave files of a run; returns whether it is to stop."""
        self.files.setdefault(digest, {}).update(files)
        return self.stopped

    def collect(self) -> dict[str, Files]:
        """Take what has been left."""
        found, self.files = self.files, {}
        return found

    def stop(self) -> None:
        """Let all runs save and stop."""
        self.stopped = True


def run_on_ray(
    grid: Grid,
    schedule: Schedule,
    *,
    address: str,
    workers: int | None = None,
    device: str = "auto",
    data_root: Path | None = None,
    console: Console,
    stop: Stop,
) -> None:
    """Do the runs of a schedule on a Ray cluster, until all are done or `stop` is set.

    Args:
        grid: whose runs they are.
        schedule: the runs.
        address: of the cluster, or ``local`` for one on this machine.
        workers: how many runs at a time, if not as many as there are GPUs or cores.
        device: as in `recmix.runs.options.Training`.
        data_root: folder of the data sets on every machine; by default RECMIX_DATA there.
        console: for the view.
        stop: when to stop.
    """
    with _connected(address, workers) as ray:
        gpus = int(ray.cluster_resources().get("GPU", 0)) if device != "cpu" else 0
        places = gpus or int(ray.cluster_resources().get("CPU", 1))
        places = min(places, workers or places)
        beside = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            node_id=ray.get_runtime_context().get_node_id(), soft=True
        )
        mailbox = ray.remote(Mailbox).options(num_cpus=0, scheduling_strategy=beside).remote()
        task = ray.remote(do).options(num_cpus=1, num_gpus=1 if gpus else 0, max_retries=0)
        starts: dict[str, Any] = {}
        root = None if data_root is None else str(data_root)

        def submit(job: Job) -> Any:
            store = schedule.store
            if job.depends is not None and job.depends not in starts:
                starts[job.depends] = ray.put(store.pack(job.depends, START))
            start = None if job.depends is None else starts[job.depends]
            files = ray.put(store.pack(job.digest))
            return task.remote(job.digest, job.depends, files, start, device, root, mailbox)

        try:
            with watching(grid, schedule, places, console) as watcher:
                _drive(ray, schedule, submit, mailbox, AHEAD * places, watcher, stop)
        except ray.exceptions.RayError as error:
            raise RunError(
                f"the Ray cluster {address!r} was lost ({error}); what came back is in "
                f"{schedule.store.root}: start the grid again"
            ) from error


def _drive(
    ray: Any,
    schedule: Schedule,
    submit: Callable[[Job], Any],
    mailbox: Any,
    most: int,
    watcher: Watcher,
    stop: Stop,
) -> None:
    """Submit what can begin, keep what comes back."""
    running: dict[Any, tuple[Job, Claim]] = {}
    asked = 0.0
    try:
        while True:
            schedule.look()
            while len(running) < most and not stop and (taken := schedule.take(threads=1)):
                job, claim = taken
                claim.note(pid=os.getpid(), where="ray")
                running[submit(job)] = taken
                watcher.began(schedule.entries[job.digest])
            if stop and not asked:
                asked = time.monotonic()
                mailbox.stop.remote()
            if not running and (stop or not schedule.open):
                return
            if running:
                ended, _ = ray.wait(list(running), timeout=POLL)
            else:
                ended = []
                time.sleep(POLL)
            for digest, files in ray.get(mailbox.collect.remote()).items():
                if any(job.digest == digest for job, _ in running.values()):
                    schedule.store.unpack(digest, files)
            for reference in ended:
                job, claim = running.pop(reference)
                how = _received(ray, schedule.store, job, reference)
                watcher.ended(schedule.ended(job, how, stopping=bool(stop)))
                claim.release()
            if stop.at_once or (asked and time.monotonic() - asked > GRACE):
                return
            watcher.tick()
    finally:
        for reference, (_, claim) in running.items():
            ray.cancel(reference, force=True)
            claim.release()


def _received(ray: Any, store: Store, job: Job, reference: Any) -> str:
    """Put a task's files into the store; returns what went wrong, in words."""
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
    data_root: str | None,
    mailbox: Any,
) -> Files:
    """The task: one run in a folder of this machine. Returns the run's files."""
    if _ray().get(mailbox.post.remote(digest, {})):
        return {}  # asked to stop before it began
    with tempfile.TemporaryDirectory(prefix="recmix-") as scratch:
        store = Store(scratch)
        store.unpack(digest, files)
        if depends is not None and start is not None:
            store.unpack(depends, start)
        root = None if data_root is None else Path(data_root)
        with written_to(store.log(digest)), _posting(store, digest, mailbox) as stopped:
            work(store, digest, device=device, data_root=root, stopped=stopped)
        return store.pack(digest)


@contextlib.contextmanager
def _posting(store: Store, digest: str, mailbox: Any) -> Iterator[threading.Event]:
    """Post the run's files now and then, and ask the run to save and stop when the mailbox says so."""
    ray, over = _ray(), threading.Event()

    def post() -> None:
        last, sent = time.monotonic(), 0.0
        while not over.wait(POST_SMALL):
            names: tuple[str, ...] = SMALL
            if time.monotonic() - last > POST_ALL and _age(store, digest) != sent:
                last, sent, names = time.monotonic(), _age(store, digest), FOLLOWS_THE_RUN
            if ray.get(mailbox.post.remote(digest, store.pack(digest, names))):
                os.kill(os.getpid(), signal.SIGTERM)
                return

    with stoppable() as stopped:
        thread = threading.Thread(target=post, daemon=True)
        thread.start()
        try:
            yield stopped
        finally:
            over.set()
            thread.join()


def _age(store: Store, digest: str) -> float:
    """When the checkpoint was written."""
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
    """Ray, connected to a cluster."""
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
    for number, handler in before.items():  # Ray takes SIGTERM for itself
        signal.signal(number, handler)
    try:
        yield ray
    finally:
        ray.shutdown()
