"""Engines: classes that run the training steps of one or several models on the device.

A `Job` is the training of one model. ``eager`` calls the step of each job in turn. The package
`recmix.accelerate` adds ``graph`` (the steps of all jobs as one CUDA graph) and ``compile``. The
code of a method does not depend on the engine.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch

from recmix.training.job import Job

__all__ = ["ENGINES", "Eager", "Engine", "pick_engine"]


class Engine(ABC):
    """Trains several models side by side: each call of `step` trains every model on its next batch.

    Args:
        jobs: the trainings, one for each model. `Job.begin_epoch` has been called for each.
    """

    name: ClassVar[str]

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = list(jobs)

    @abstractmethod
    def step(self) -> None:
        """Do one training step for every model, with the next batch of its own data."""


class Eager(Engine):
    """Calls the training step of each model directly, without a CUDA graph or compilation."""

    name = "eager"

    def step(self) -> None:
        """Do one training step for every model, one model after the other."""
        for job in self.jobs:
            job.step()


ENGINES: dict[str, type[Engine]] = {"eager": Eager}
FALLBACKS = {"auto": ("graph",), "graph": ("graph",), "compile": ("compile", "graph")}
"""{value of the option `engine`: engines to try, in this order}. If all fail, ``eager`` is used."""


def pick_engine(name: str, jobs: Sequence[Job]) -> tuple[Engine, str]:
    """Make an engine, which runs the training steps of several models, and explain the choice.

    Args:
        name: ``auto``, ``eager``, ``graph`` or ``compile``. Where the steps cannot be captured in a
            CUDA graph, the eager engine is used instead.
        jobs: the trainings that run together, one for each model. `Job.begin_epoch` has been
            called for each.

    Returns:
        The engine, and a short text that says which engine it is and why.
    """
    if name == "eager":
        return Eager(jobs), "eager engine, as requested"
    why = _cannot_capture(jobs)
    if why is not None:
        return Eager(jobs), f"eager engine: {why}"
    for tried in FALLBACKS[name]:
        try:
            made = ENGINES[tried](jobs)
        except RuntimeError as error:
            why = f"{tried} engine failed: {str(error).splitlines()[0]}"
            if name != "auto":
                warnings.warn(f"{why}. Another engine is used instead", stacklevel=2)
            torch.cuda.synchronize()
        else:
            count = f"{len(jobs)} in one CUDA graph"
            return made, f"{tried} engine, {count}" + (f" ({why})" if why else "")
        torch.cuda.empty_cache()  # another engine may need the memory, which the error no longer holds
    return Eager(jobs), f"eager engine: {why}"


def _cannot_capture(jobs: Sequence[Job]) -> str | None:
    if any(job.device.type != "cuda" for job in jobs):
        return "a graph needs a CUDA device"
    if "graph" not in ENGINES:
        return "recmix.accelerate is not installed"
    if any(job.world.size > 1 for job in jobs):
        return "gradients are averaged between processes"
    if any(not job.batches.resident for job in jobs):
        return "the data are streamed, not on the device"
    return None
