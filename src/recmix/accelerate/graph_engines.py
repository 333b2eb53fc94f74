"""Classes that run training steps by replaying CUDA graphs: `GraphEngine` and `CompileEngine`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from recmix.accelerate.capture import no_host_sync, recover_generators
from recmix.accelerate.fusion import fusing
from recmix.training.engines import ENGINES, Engine
from recmix.training.job import Job

__all__ = ["CompileEngine", "GraphEngine"]

WARMUP = 3
"""Warm-up steps before a capture, in which libraries select their kernels. Their changes are undone."""


class GraphEngine(Engine):
    """Runs one training step of each model by replaying a single CUDA graph.

    A job is the training of one model. Each job's step is captured on its own CUDA stream, so the
    graph has one branch per job. The device can run the branches in parallel, because a single
    small network uses little of the device.

    Args:
        jobs: the jobs to train together. The models and the data of all jobs are on one CUDA device.
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
                    job.meter.step.zero_()
                    with no_host_sync():
                        job.step()
                main.wait_stream(stream)
        finally:
            torch.cuda.synchronize(device)
            for job, kept in zip(self.jobs, before, strict=True):
                _restore(job, kept)
        for job in self.jobs:
            self.graph.register_generator_state(job.generator)
        try:
            self._capture(streams)
        except RuntimeError:
            recover_generators(device, *(job.generator for job in self.jobs))
            for job, kept in zip(self.jobs, before, strict=True):
                _restore(job, kept)
            raise

    def _capture(self, streams: Sequence[torch.cuda.Stream]) -> None:
        """Record one training step of each job, each on its own stream."""
        with torch.cuda.graph(self.graph):
            main = torch.cuda.current_stream(self.jobs[0].device)
            for job, stream in zip(self.jobs, streams, strict=True):
                stream.wait_stream(main)
                with torch.cuda.stream(stream):
                    job.step()
            for stream in streams:
                main.wait_stream(stream)

    def step(self) -> None:
        """Do one training step for every model, by replaying the CUDA graph."""
        self.graph.replay()


class CompileEngine(GraphEngine):
    """Runs training steps as a CUDA graph, with networks and functions compiled into fewer kernels.

    Compilation takes about a minute at the start. It is worth this time for many epochs, or for
    many models that are trained together.
    """

    name = "compile"

    def __init__(self, jobs: Sequence[Job]) -> None:
        with warnings.catch_warnings():  # torch's compiler warns about its own internals
            warnings.simplefilter("ignore")
            with fusing(), _compiled([net for job in jobs for net in job.method.networks()]):
                super().__init__(jobs)


@contextmanager
def _compiled(networks: Sequence[nn.Module]) -> Iterator[None]:
    """Context in which these networks, when called, run code compiled by `torch.compile`."""
    for network in networks:
        network.compile()
    try:
        yield
    finally:
        for network in networks:
            network._compiled_call_impl = None


def _snapshot(job: Job) -> dict[str, Any]:
    """Copy everything that a training step of the job changes, for `_restore`.

    These are the weights, the optimisers' states, the averaged weights, the random state and the
    metrics.
    """
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
    """Restore a job's state from a copy made by `_snapshot`.

    The values are written into the existing tensors, because the captured graph reads these
    tensors.
    """
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


ENGINES |= {"graph": GraphEngine, "compile": CompileEngine}
