"""Time a few training updates of each kind of run of a grid, before any run is started.

Runs are of one kind if they have the same method and setting, data and model. For each kind, one model
with random weights is made on the device of the workers. Nothing is written.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from recmix.errors import DataError
from recmix.experiments.grid import GridJob
from recmix.runs.scores import ScoreKey

if TYPE_CHECKING:
    from recmix.data import Data
    from recmix.training.build import Trained
    from recmix.training.job import Job
    from recmix.training.plan import Plan

__all__ = ["Kind", "Timed", "kind_of", "time_updates"]

Kind = tuple[str, str]  # equal for runs with the same method, setting, data and model

UPDATES = 5  # number of timed updates
SCORED = {"cpu": 20, "cuda": 500}
"""{kind of device: number of examples}: the bounds of so many examples are computed and timed.

From this the time of validation and of all scores is estimated.
"""


class Timed(NamedTuple):
    """How long a run of one kind takes."""

    name: str  # method, data and latent dimension, in words
    runs: int  # number of runs of this kind that are not done
    update: float  # seconds of one training update of one run
    run: float  # seconds of one run with all its epochs and scores, without calibration


def kind_of(job: GridJob) -> Kind:
    """Return a value that is equal for runs with the same method, setting, data and model."""
    return job.row, json.dumps(job.column, sort_keys=True)


def time_updates(
    waiting: Sequence[GridJob],
    jobs: Sequence[GridJob],
    *,
    device: str = "auto",
    data_root: Path | None = None,
    threads: int = 1,
    replicas: int = 1,
    report: Callable[[str], None] = lambda line: None,
) -> dict[Kind, Timed]:
    """Estimate the time of the runs of a grid that are not done, from a few updates of each kind.

    Runs of one kind have the same method, setting, data and model. For each kind a few training updates
    are timed, and the bounds of a few examples. A kind is left out if its data are missing, or if its
    number of mixture components is chosen in training.

    Args:
        waiting: the runs that are not done. Only their kinds are timed.
        jobs: all runs of the grid. A run in `waiting` may start from one of them.
        threads: CPU threads of a worker process.
        replicas: largest number of runs of one kind that a worker process trains at once.
        report: function that is called with a line of text for each timed kind.
    """
    import torch

    kinds: dict[Kind, list[GridJob]] = {}
    for job in waiting:
        kinds.setdefault(kind_of(job), []).append(job)
    by_digest = {job.digest: job for job in jobs}
    found: dict[Kind, Timed] = {}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for kind, alike in kinds.items():
            with contextlib.suppress(DataError):
                timed = _time(alike, by_digest, device, data_root, min(replicas, len(alike)))
                if timed is not None:
                    found[kind] = timed
                    report(f"{timed.name}: {1e3 * timed.update:.3g} ms per update")
    finally:
        torch.set_num_threads(before)
    return found


def _time(
    alike: list[GridJob],
    jobs: Mapping[str, GridJob],
    device: str,
    data_root: Path | None,
    replicas: int,
) -> Timed | None:
    """Time a few training updates and bounds of one kind of run.

    `alike` are the runs of this kind, and `replicas` is how many of them are trained at once. `jobs` is
    {name of a run: run} for all runs of the grid. Return None if the number of mixture components is
    chosen in training.
    """
    import torch

    from recmix.data import load
    from recmix.training.engines import pick_engine

    first = alike[0]
    of = first.definition
    data = load(root=data_root, seed=of["split"], download=False, **of["data"])
    plans = [_plan(first, jobs, data, device) for _ in range(replicas)]
    if plans[0].chooses_order:
        return None
    trainings = [plan.job() for plan in plans]
    for training in trainings:
        training.begin_epoch()
    engine, _ = pick_engine(trainings[0].training.engine, trainings)
    steps = trainings[0].steps
    counted = min(UPDATES, max(1, steps - 1))

    def wait() -> None:
        if trainings[0].device.type == "cuda":
            torch.cuda.synchronize(trainings[0].device)

    if steps > 1:
        engine.step()  # the first one is slower
    wait()
    began = time.perf_counter()
    for _ in range(counted):
        engine.step()
    wait()
    update = (time.perf_counter() - began) / counted / replicas
    validation, scores = _scoring(first, trainings[0], data, wait)
    epochs = of["training"]["epochs"]
    name = f"{first.row} {Path(first.column['data']).name} {first.column['latent']}"
    return Timed(name, len(alike), update, epochs * (steps * update + validation) + scores)


def _plan(job: GridJob, jobs: Mapping[str, GridJob], data: Data, device: str) -> Plan:
    """Return the plan (all that is needed to train) of a run.

    If the run starts from the trained model of another run in `jobs`, random weights are used here
    instead.
    """
    from recmix.training.build import Trained
    from recmix.training.curvature_request import without_curvature_name
    from recmix.training.plan import make_plan

    init: Trained | None = None
    if job.depends is not None:
        before = _plan(jobs[job.depends], jobs, data, device)
        init = Trained(before.method.eval(), before.spec)
    of = job.definition
    request = {"method": of["method"], "data": data, "init": init, "device": device}
    request |= {**of["model"], **of["options"], **of["training"], **of["inference"], **job.extra}
    return make_plan(**without_curvature_name(request))


def _scoring(job: GridJob, training: Job, data: Data, wait: Callable[[], None]) -> tuple[float, float]:
    """Estimate the seconds of one validation, and the seconds of all scores of a run.

    Bounds of a few examples are timed. `wait` waits until the device has finished.
    """
    import torch

    from recmix.evaluation.bounds import bounds

    method = training.method.eval()
    x = torch.as_tensor(data.x_val[: SCORED.get(training.device.type, 20)]).to(method.model.centre)

    def per_example(samples: int, inference: Any) -> float:
        bounds(method, x, inference, samples=1)  # the first call is slower
        wait()
        began = time.perf_counter()
        bounds(method, x, inference, samples=samples)
        wait()
        return (time.perf_counter() - began) / len(x)

    validation = per_example(training.training.validation_samples, training.objective.inference)
    total = 0.0
    for key in map(ScoreKey.parse, job.evaluate):
        if key is not None:
            examples = data.x_val if key.part == "val" or data.x_test is None else data.x_test
            total += len(examples) * per_example(key.samples, key.inference)
    return validation * len(data.x_val), total
