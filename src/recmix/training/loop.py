"""The training loop: trains one or many models, shows progress, saves checkpoints, handles signals."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

from recmix.errors import ConfigError, NonFiniteError
from recmix.runs.folder import Run
from recmix.runs.training_options import Training
from recmix.training.engines import Engine, pick_engine
from recmix.training.faults import faults, same_noise
from recmix.training.freed_memory import keep_freed_memory
from recmix.training.job import Job, stop_all
from recmix.training.progress import Report, watch

__all__ = ["train"]

CHECK_EVERY = 100
"""On a GPU, number of batches between two checks that all metrics are finite. Each check makes the CPU
wait for the GPU."""


def train(
    jobs: Sequence[Job], *, engine: str = "auto", progress: bool | None = None
) -> list[NonFiniteError | None]:
    """Train several models together, and load the best weights into each model.

    Trainings with the same number of batches per epoch run side by side, batch by batch. If one ends or
    fails, the others continue.

    Args:
        jobs: the trainings. More than one is useful only on a GPU.
        engine: how training steps run, see `recmix.training.engines.pick_engine`.
        progress: whether to show the progress, see `recmix.training.progress.watch`.

    Returns:
        For each job, the error that ended it, or None if it succeeded.
    """
    on_cpu = any(job.device.type == "cpu" for job in jobs)
    with faults(jobs), keep_freed_memory() if on_cpu else nullcontext():
        return _train(jobs, engine, progress)


def _train(jobs: Sequence[Job], engine: str, progress: bool | None) -> list[NonFiniteError | None]:
    failures: dict[int, NonFiniteError] = {}
    for job in jobs:
        job.start()
    with _stop_signals() as stop, ExitStack() as stack:
        boards = {id(j): stack.enter_context(_tensorboard(j.out, j.training)) for j in jobs}
        title = jobs[0].title if len(jobs) == 1 else f"{len(jobs)} trainings"
        epochs, done = max(j.epochs for j in jobs), min(j.state.epoch for j in jobs)
        together_with = jobs[0].world
        shown = progress if together_with.writer else False
        report = stack.enter_context(watch(title, epochs, done=done, unit="epoch", show=shown))
        running: Engine | None = None
        while active := [j for j in jobs if j.active and id(j) not in failures]:
            began = time.monotonic()
            together = _in_step(active)
            for job in together:
                job.begin_epoch()
            with same_noise(together):
                if running is None or running.jobs != together:
                    running, why = pick_engine(engine, together)
                    _say(together, why, shown)
                failures |= _epoch(running, stop, report)
            ended = [job for job in together if id(job) not in failures]
            validations = [job.validation() for job in ended]  # all start before the first is read
            for job, validation in zip(ended, validations, strict=True):
                boards[id(job)](job.end_epoch(validation))
            due = [j for j in ended if not j.state.epoch % j.training.checkpoint_every or not j.active]
            _save(due, seconds=round(time.monotonic() - began, 4))
            _show(report, together)
            if together_with.any(bool(stop)) and (left := [j for j in jobs if j.active]):
                stop_all(left, _reason(stop))
    for job in jobs:
        if id(job) not in failures:
            job.finish()
    return [failures.get(id(job)) for job in jobs]


def _in_step(active: list[Job]) -> list[Job]:
    """Choose the jobs that train together in the next epoch.

    They have the same device and number of batches per epoch. A job that was resumed in the middle
    of an epoch first finishes this epoch alone.
    """
    first = active[0]
    if middle := next((j for j in active if j.state.step), None):
        return [middle]
    return [j for j in active if j.steps == first.steps and j.device == first.device]


def _epoch(running: Engine, stop: list[str], report: Report) -> dict[int, NonFiniteError]:
    """Train the jobs of the engine `running` for one epoch, or for the rest of an epoch.

    Args:
        stop: the signals received so far, such as ``SIGTERM``. If there are any, the jobs are saved and
            Interrupted is raised after the present batch; with several processes, after the epoch.
        report: the function that shows the progress.

    Returns:
        {id(job): error} of the jobs that failed.
    """
    jobs = running.jobs
    first, on_cpu = jobs[0], jobs[0].device.type == "cpu"
    failures: dict[int, NonFiniteError] = {}
    for number in range(first.state.step, first.steps):
        running.step()
        for job in jobs:
            job.state.step = number + 1
        report(first.state.epoch + (number + 1) / first.steps)
        if on_cpu or (number + 1) % CHECK_EVERY == 0 or number + 1 == first.steps:
            failures |= _failed([j for j in jobs if id(j) not in failures], alone=len(jobs) == 1)
        alone = first.world.size == 1  # several processes must stop together, after the epoch
        if stop and alone:
            stop_all([j for j in jobs if id(j) not in failures], _reason(stop))
    return failures


def _save(jobs: list[Job], *, seconds: float) -> None:
    """Write the checkpoints of several jobs in parallel, because most of the time is disk access."""
    if len(jobs) < 2:
        for job in jobs:
            job.save(seconds=seconds)
        return
    with ThreadPoolExecutor(len(jobs)) as pool:
        for _ in pool.map(lambda job: job.save(seconds=seconds), jobs):
            pass  # an error of any of them is raised here


def _reason(stop: list[str]) -> str:
    return stop[0] if stop else "another process"


def _failed(jobs: list[Job], *, alone: bool) -> dict[int, NonFiniteError]:
    found = {}
    for job in jobs:
        try:
            job.check()
        except NonFiniteError as error:
            if alone:
                raise
            found[id(job)] = error
    return found


def _say(jobs: list[Job], why: str, show: bool | None) -> None:
    """Log which engine trains the jobs, and why. Print it in a terminal, unless `show` is False."""
    for job in jobs:
        if job.out:
            job.out.log("engine", engine=why)
    usual = why.startswith("eager engine: a graph needs")
    if show is not False and not usual and sys.stderr.isatty():
        print(why, file=sys.stderr)


def _show(report: Report, jobs: list[Job]) -> None:
    state = max((job.state for job in jobs), key=lambda s: s.best_score)
    if state.history:
        bound = state.history[-1]["val_iwae"]
        why = f", stopped: {state.stopped} (patience)" if state.stopped else ""
        report(state.epoch, f"validation {bound:.2f}, best {state.best_score:.2f}{why}")


@contextmanager
def _stop_signals() -> Iterator[list[str]]:
    """Catch SIGINT and SIGTERM while the context is open.

    The context yields an empty list. The first signal adds its name to this list. The second signal
    raises KeyboardInterrupt at once. Outside the main thread, no signal is caught.
    """
    caught: list[str] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    def handler(number: int, frame: Any) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append("Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name)

    before = {s: signal.signal(s, handler) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def _tensorboard(run: Run | None, training: Training) -> Iterator[Any]:
    """Context that yields a function, which writes the metrics of one epoch to TensorBoard.

    If the option `tensorboard` is off or there is no run folder, the function does nothing.
    """
    if not (run and training.tensorboard):
        yield lambda row: None
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError("tensorboard is not installed: pip install 'recmix[track]'") from error
    writer = SummaryWriter(str(run.folder / "tensorboard"))

    def write(row: dict[str, float]) -> None:
        for name, value in row.items():
            writer.add_scalar(name, value, row["epoch"])

    try:
        yield write
    finally:
        writer.close()
