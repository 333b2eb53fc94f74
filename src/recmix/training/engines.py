"""Engines: how the batch updates of one or many trainings are carried out on the device.

Methods know nothing of them. `eager` calls every job's step in turn. `graph` captures one step of all
its jobs as a CUDA graph, each job a branch of its own, and replays it: the images are gathered, the
parameters moved and the metrics summed on the device, and the host only says "again".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from recmix.accelerate.fusion import fusing
from recmix.training.job import Job

__all__ = ["Compiled", "Eager", "Engine", "Graph", "pick_engine"]

WARMUP = 3
"""Steps taken, and taken back, before a capture: libraries choose their kernels in them."""


class Engine(ABC):
    """Carries out one step of several jobs at a time.

    Args:
        jobs: trained together; each has its epoch begun.
    """

    name: str

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = list(jobs)

    @abstractmethod
    def step(self) -> None:
        """One batch of every job."""


class Eager(Engine):
    """Every step as it is written."""

    name = "eager"

    def step(self) -> None:
        """One batch of every job, in turn."""
        for job in self.jobs:
            job.step()


class Graph(Engine):
    """One step of all jobs as a CUDA graph.

    The jobs' steps are captured on streams of their own, so that the graph has a branch for each and
    the device may run them side by side: a single small network leaves most of it idle.

    Args:
        jobs: all on one CUDA device, with images that live there.
    """

    name = "graph"

    def __init__(self, jobs: Sequence[Job]) -> None:
        super().__init__(jobs)
        device = self.jobs[0].device
        self.graph = torch.cuda.CUDAGraph()
        streams = [torch.cuda.Stream(device) for _ in self.jobs]
        before = [_snapshot(job) for job in self.jobs]
        main = torch.cuda.current_stream(device)
        try:
            for job, stream in zip(self.jobs, streams, strict=True):
                stream.wait_stream(main)
                with torch.cuda.stream(stream):
                    for _ in range(WARMUP):
                        job.meter.step.zero_()
                        job.step()
                main.wait_stream(stream)
        finally:
            torch.cuda.synchronize(device)
            for job, kept in zip(self.jobs, before, strict=True):
                _restore(job, kept)
        for job in self.jobs:
            self.graph.register_generator_state(job.generator)
        with torch.cuda.graph(self.graph):
            main = torch.cuda.current_stream(device)
            for job, stream in zip(self.jobs, streams, strict=True):
                stream.wait_stream(main)
                with torch.cuda.stream(stream):
                    job.step()
            for stream in streams:
                main.wait_stream(stream)

    def step(self) -> None:
        """Replay the graph."""
        self.graph.replay()


class Compiled(Graph):
    """The graph, with the networks and the small arithmetic around them compiled into fewer kernels.

    It takes a minute or so to begin, and pays where many epochs or many replicas follow.
    """

    name = "compile"

    def __init__(self, jobs: Sequence[Job]) -> None:
        with fusing(), _compiled([net for job in jobs for net in job.method.networks()]):
            super().__init__(jobs)


@contextmanager
def _compiled(networks: Sequence[nn.Module]) -> Iterator[None]:
    """In here, calling these networks calls their compiled forms."""
    for network in networks:
        network.compile()
    try:
        yield
    finally:
        for network in networks:
            network._compiled_call_impl = None


def pick_engine(name: str, jobs: Sequence[Job]) -> tuple[Engine, str]:
    """The engine of this name for these jobs, and a sentence that says which one it is and why.

    Args:
        name: ``auto``, ``eager``, ``graph`` or ``compile``; where a capture is impossible the eager
            engine serves.
        jobs: trained together; each has its epoch begun.
    """
    if name == "eager":
        return Eager(jobs), "eager engine, as asked"
    why = _cannot_capture(jobs)
    if why is not None:
        return Eager(jobs), f"eager engine: {why}"
    for engine in (Compiled, Graph) if name == "compile" else (Graph,):
        try:
            made = engine(jobs)
        except RuntimeError as error:
            why = f"{engine.name} engine failed: {str(error).splitlines()[0]}"
            torch.cuda.synchronize()
        else:
            count = f"{len(jobs)} in one CUDA graph"
            return made, f"{engine.name} engine, {count}" + (f" ({why})" if why else "")
    return Eager(jobs), f"eager engine: {why}"


def _cannot_capture(jobs: Sequence[Job]) -> str | None:
    if any(job.device.type != "cuda" for job in jobs):
        return "a graph needs a CUDA device"
    if any(job.world.size > 1 for job in jobs):
        return "gradients are averaged between processes"
    if any(not job.batches.resident for job in jobs):
        return "the images are streamed, not on the device"
    return None


def _snapshot(job: Job) -> dict[str, Any]:
    """Everything a step changes, copied."""
    slots = {
        (name, p): {k: v.clone() for k, v in optimizer.state[p].items() if isinstance(v, Tensor)}
        for name, optimizer in job.optimizers.items()
        for group in optimizer.param_groups
        for p in group["params"]
        if p in optimizer.state
    }
    return {
        "method": {k: v.clone() for k, v in job.method.state_dict().items()},
        "slots": slots,
        "average": {k: v.clone() for k, v in job.averages.items()},
        "generator": job.generator.get_state(),
        "step": job.meter.step.clone(),
        "sums": job.meter.totals(),
    }


@torch.no_grad()
def _restore(job: Job, kept: dict[str, Any]) -> None:
    """Put it back, in place: the tensors themselves must stay the ones a graph knows."""
    for key, value in job.method.state_dict().items():
        value.copy_(kept["method"][key])
    for key, value in job.averages.items():
        value.copy_(kept["average"][key])
    for name, optimizer in job.optimizers.items():
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad = None
                before = kept["slots"].get((name, p), {})
                for slot, value in optimizer.state[p].items():
                    if slot in before:
                        value.copy_(before[slot])
                    else:
                        value.zero_()
    job.generator.set_state(kept["generator"])
    names = job.meter.names
    job.meter.begin(int(kept["step"]), kept["sums"] or dict.fromkeys(names, 0.0))
