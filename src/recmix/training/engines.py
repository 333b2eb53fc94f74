"""Engines: how the batches of one or several trainings run on the device.

Methods do not know about engines. ``eager`` calls each job's step in turn. `recmix.accelerate` adds
``graph`` (all steps as one CUDA graph) and ``compile``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch

from recmix.training.job import Job

__all__ = ["ENGINES", "Eager", "Engine", "pick_engine"]


class Engine(ABC):
    """Runs one step of several jobs at a time.

    Args:
        jobs: trained together; each has begun its epoch.
    """

    name: ClassVar[str]

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = list(jobs)

    @abstractmethod
    def step(self) -> None:
        """One batch of every job."""


class Eager(Engine):
    """Runs every step as it is written."""

    name = "eager"

    def step(self) -> None:
        """One batch of every job, in turn."""
        for job in self.jobs:
            job.step()


ENGINES: dict[str, type[Engine]] = {"eager": Eager}
FALLBACKS = {"auto": ("graph",), "graph": ("graph",), "compile": ("compile", "graph")}
"""Engines to try for each name, before eager."""


def pick_engine(name: str, jobs: Sequence[Job]) -> tuple[Engine, str]:
    """The engine of this name for these jobs, and a sentence that says which one runs and why.

    Args:
        name: ``auto``, ``eager``, ``graph`` or ``compile``; where capture is impossible eager is used.
        jobs: trained together; each has begun its epoch.
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
            torch.cuda.synchronize()
        else:
            count = f"{len(jobs)} in one CUDA graph"
            return made, f"{tried} engine, {count}" + (f" ({why})" if why else "")
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
