"""Train several models, each after the model that it starts from.

A model whose number of mixture components is chosen automatically (``order = "auto"``) is trained
last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recmix.errors import ConfigError, Interrupted, NonFiniteError, OutOfMemory
from recmix.training.build import Trained
from recmix.training.choices import print_choices
from recmix.training.curvature_request import without_curvature_name
from recmix.training.faults import deterministic
from recmix.training.job import Job
from recmix.training.loop import train
from recmix.training.order import choose_order
from recmix.training.plan import Plan, make_plan
from recmix.training.world import world

__all__ = ["train_models"]


def train_models(requests: Sequence[dict[str, Any]], *, progress: bool | None = None) -> list[Trained]:
    """Train many models: on a GPU all at once in one process, on a CPU one after the other.

    Each model has its own data, random order of the examples and random generator. So the result is
    the same as if each model were trained alone.

    Args:
        requests: for each model, a dict of keyword arguments of `recmix.fit`, including ``method``
            and ``data``.

    Returns:
        The trained models, in the order of `requests`.

    Raises:
        NonFiniteError: if a training failed. It is raised after the other trainings are done.
    """
    if any("progress" in request for request in requests):
        raise ConfigError("progress is for all trainings together: give it to fit_many, not to one")
    world()  # sets the GPU of this process, before a model is made on it
    plans = [make_plan(**without_curvature_name(request)) for request in requests]
    print_choices(plans, progress)
    return _train_plans(plans, progress)


def _train_plans(plans: Sequence[Plan], progress: bool | None) -> list[Trained]:
    for plan in plans:
        plan.claim_folder()
    plans_left = [plan for plan in plans if plan.finished is None]
    waiting = [plan for plan in plans_left if plan.first]
    if waiting:
        try:
            starts = _train_plans([plan.first for plan in waiting if plan.first], progress)
        except (Interrupted, OutOfMemory) as stop:
            raise _name_whole_run(stop, waiting) from None
        for plan, start in zip(waiting, starts, strict=True):
            plan.init = start
    jobs = {id(plan): plan.job() for plan in plans_left if not plan.chooses_order}
    failures: list[NonFiniteError | None] = []
    for group in _by_device(list(jobs.values())):
        failures += train(group, engine=group[0].training.engine, progress=progress)
    for plan in plans_left:
        if plan.chooses_order:
            try:
                plan.finished = _with_order(plan, progress)
            except NonFiniteError as error:
                failures.append(error)
    for failure in failures:
        if failure is not None:
            raise failure
    for plan in plans_left:
        if plan.finished is None:
            run, job = plan.request.run, jobs[id(plan)]
            plan.finished = Trained(
                plan.method.eval(),
                plan.spec,
                job.state.history,
                run.folder if run else None,
                plan.data.vocabulary,
                job.outcome,
            )
    return [plan.finished for plan in plans if plan.finished]


def _with_order(plan: Plan, progress: bool | None) -> Trained:
    """Choose the number of mixture components, and return the mixture with this number."""
    assert plan.init is not None
    with deterministic(plan.spec.training.deterministic):
        found = choose_order(
            plan.spec,
            plan.data,
            plan.init,
            method=type(plan.method),
            run=plan.request.run,
            resume=plan.request.resume,
            train_models=train_models,
            progress=progress,
        )
    plan.method.start_from(found.method)  # it may hold the user's own modules
    return found


def _by_device(jobs: list[Job]) -> list[list[Job]]:
    """Group the jobs that train together.

    They have the same GPU, the same engine and the same option `deterministic`. Each job on a CPU is a
    group of its own.
    """
    groups: dict[Any, list[Job]] = {}
    for job in jobs:
        of = job.training
        together = job.device, of.engine, of.deterministic
        groups.setdefault(together if job.device.type == "cuda" else id(job), []).append(job)
    return list(groups.values())


def _name_whole_run(
    stop: Interrupted | OutOfMemory, waiting: Sequence[Plan]
) -> Interrupted | OutOfMemory:
    """Return the error `stop` with a message that names the folders of the whole runs.

    A whole run trains an initial model first, in a folder inside its own folder. Each whole run is also
    marked as interrupted or failed.

    Args:
        stop: the error that ended the training of the initial models. Its message names their folders.
        waiting: the plans of the whole runs.
    """
    message, status = str(stop), "interrupted" if isinstance(stop, Interrupted) else "failed"
    for plan in waiting:
        run, first = plan.request.run, plan.first and plan.first.request.run
        if run and first:
            run.set_status(status, epoch=0, reason="during the model it starts from")
            message = message.replace(f"{first.folder}", f"{run.folder}")
    return type(stop)(message)
