"""The function `run_grid`: train and score all models that a TOML file describes."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

from rich.console import Console

from recmix.errors import ConfigError, DataError
from recmix.experiments.grid import Grid, check, read_grid
from recmix.experiments.job_queue import JobQueue
from recmix.experiments.local_workers import REPLICAS, make_slots, run_here
from recmix.experiments.stopping import stopping
from recmix.experiments.store import Store
from recmix.experiments.time_runs import time_runs
from recmix.experiments.time_updates import time_updates
from recmix.experiments.view import print_plan, print_status, print_summary, watching
from recmix.runs.process import given_threads

__all__ = ["run_grid"]

COMPLETE, SOME_FAILED, INTERRUPTED = 0, 1, 130


def run_grid(
    file: Path,
    store: Path,
    *,
    dry_run: bool = False,
    workers: int | None = None,
    limit_hours: float | None = None,
    ray: str | None = None,
    status: bool = False,
    data_root: Path | None = None,
    device: str = "auto",
    retry_failed: bool = False,
    timing: bool = False,
) -> int:
    """Train and score all models of a grid that are not done yet. A grid is a list of runs.

    If the environment variable OMP_NUM_THREADS is set, each worker process on this machine uses this
    number of CPU threads. Otherwise the workers share the cores equally.

    Args:
        file: the TOML file that describes the grid, see `recmix.experiments.grid`.
        store: the folder for the run folders; it is made if it does not exist.
        dry_run: only print what would be done, and how long it will take. For this, a few updates of
            each kind of run are timed.
        workers: number of worker processes; by default one per GPU, or one per core without a GPU.
        limit_hours: save and stop after this time.
        ray: ``local`` or the address of a Ray cluster that does the runs.
        status: only print the states of the runs, such as done or failed.
        data_root: folder of the data sets.
        device: ``auto``, ``cpu``, ``cuda`` and so on.
        retry_failed: try the runs again that failed before.
        timing: only measure the inference times of finished runs, one after the other.

    Returns:
        The exit status: 0 if all runs are done, 1 if some failed, 130 if the work was stopped.
    """
    if limit_hours is not None and not limit_hours > 0:
        raise ConfigError(f"limit_hours must be positive, got {limit_hours}")
    out, err = Console(), Console(stderr=True)
    place = Store(store)
    grid = read_grid(Path(file))
    place.grid_file(grid.name)  # refuses a name that cannot be a file name
    place.check_format()
    queue = JobQueue(place, grid.jobs, retry_failed=retry_failed)
    if status:
        print_status(grid, queue, out)
        return COMPLETE
    if timing:
        finished = [entry.job for entry in queue.of_kind("done")]
        time_runs(place, finished, device=device, data_root=data_root, console=err)
        out.print(f"timed {len(finished)} finished runs, one after the other", highlight=False)
        return COMPLETE
    check(entry.job for entry in queue.of_kind("waiting"))
    threads = given_threads()
    slots = make_slots(workers, device, threads) if ray is None else []
    if dry_run:
        on_gpu = any(slot.gpu is not None for slot in slots)
        timed = time_updates(
            [entry.job for entry in queue.of_kind("waiting")],
            grid.jobs,
            device=device,
            data_root=data_root,
            threads=slots[0].threads if slots else 1,
            replicas=REPLICAS if on_gpu else 1,
            report=lambda line: err.print(f"timed {line}", highlight=False),
        )
        print_plan(grid, queue, workers or len(slots) or 1, out, data_root, timed)
        return COMPLETE
    place.keep(grid)
    began = time.monotonic()
    with stopping(limit_hours) as stop:
        if ray is None:
            _fetch(grid, queue, data_root, err)
            with watching(grid, queue, len(slots), err) as watcher:
                run_here(queue, slots, device=device, data_root=data_root, watcher=watcher, stop=stop)
        else:
            from recmix.experiments.cluster import run_on_ray

            run_on_ray(
                grid,
                queue,
                address=ray,
                workers=workers,
                device=device,
                data_root=data_root,
                console=err,
                stop=stop,
            )
    counts = queue.counts
    complete = not queue.open and not counts["running"]
    given = {"workers": workers, "ray": ray, "data-root": data_root, "limit-hours": limit_hours}
    given["threads"] = threads if ray is None else None
    given |= {"device": None if device == "auto" else device}
    options = [f"--{name}={value}" for name, value in given.items() if value is not None]
    print_summary(
        queue,
        out,
        stopped="" if complete else stop.why,
        seconds=time.monotonic() - began,
        command=shlex.join(["recmix", "grid", str(file), "--store", str(store), *options]),
    )
    if not complete:
        return INTERRUPTED
    return SOME_FAILED if counts["failed"] or counts["blocked"] else COMPLETE


def _fetch(grid: Grid, queue: JobQueue, root: Path | None, console: Console) -> None:
    """Download missing data sets before the runs start.

    If a data set cannot be downloaded, its runs get the state ``blocked`` and are not started.
    """
    from recmix.data import inventory, load

    wanted = {entry.job.column["data"] for entry in queue.of_kind("waiting")}
    for entry in inventory(root):
        if entry.name in wanted and not entry.usable:
            console.print(f"fetching {entry.name}", highlight=False)
            try:
                load(entry.name, root)
            except DataError as error:
                jobs = [job for job in grid.jobs if job.column["data"] == entry.name]
                queue.block(jobs, f"its data are not available: {error}")
