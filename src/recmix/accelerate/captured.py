"""A method's posterior as a CUDA graph: the host says "again" instead of launching every kernel."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from typing import Any, NamedTuple

import torch
from torch import Tensor

from recmix.accelerate.stacked import Stacked, places, state
from recmix.methods.method import Method
from recmix.posteriors.posterior import Posterior
from recmix.runs.options import USE

__all__ = ["Captured"]

KEPT = 4
"""Shapes of batches whose graphs are kept, each with the memory that its tensors take."""
WARMUP = 3


class _Graph(NamedTuple):
    replay: torch.cuda.CUDAGraph
    x: Tensor  # where the images are put
    posterior: Posterior  # where the answer appears
    versions: list[Any]
    held: list[Any]  # what it reads; a graph that is out of date still runs, and must find it there


class Captured:
    """q(z | x) without gradients; on a GPU captured for each shape of batch that comes twice.

    These networks are small, so on a GPU a posterior is bound by the launching of its kernels; replayed
    as a graph it takes several times less. The answer is copied out of the graph and belongs to the
    caller. Parameters or buffers that have changed or were replaced, another use of the method
    (`refine`, `widen` and the like) and a training since make the graph anew. On other devices,
    for a shape that comes for the first time and for methods that cannot be captured it calls
    `method.infer`.

    Args:
        method: whose posterior.

    >>> from recmix import fit
    >>> model = fit("vae", torch.rand(16, 1, 8, 8), latent=2, epochs=1)
    >>> Captured(model.method)(torch.rand(3, 1, 8, 8)).mean.shape
    torch.Size([3, 2])
    """

    def __init__(self, method: Method) -> None:
        self.method = method
        self.failed = ""
        self._places = places([method])  # finding them takes longer than a posterior
        self._graphs: OrderedDict[tuple[object, ...], _Graph | None] = OrderedDict()

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Posterior:
        """q(z | x) for images x (B, C, H, W) on the method's device."""
        if not x.is_cuda or self.failed or self.method.training:
            return self.method.infer(x)
        key = (*x.shape, x.dtype, x.device)
        if key not in self._graphs:  # once is not often
            self._graphs[key] = None
            if len(self._graphs) > KEPT:
                self._graphs.popitem(last=False)
            return self.method.infer(x)
        graph = self._graphs[key]
        if graph is not None:  # it runs while the parameters are looked at
            graph.x.copy_(x)
            graph.replay.replay()
        versions = self._versions()
        if graph is None or graph.versions != versions:
            try:
                graph = self._capture(x, versions)
            except RuntimeError as error:
                self.failed = str(error).splitlines()[0]
                self._graphs.clear()
                torch.cuda.synchronize(x.device)
                warnings.warn(
                    f"the posterior of {self.method.name} cannot be captured as a CUDA graph "
                    f"({self.failed}): it is formed step by step",
                    stacklevel=2,
                )
                return self.method.infer(x)
            self._graphs[key] = graph
            graph.replay.replay()
        self._graphs.move_to_end(key)
        return graph.posterior.copy()

    def _versions(self) -> list[Any]:
        """What changes when the posterior may."""
        method = self.method
        use = [getattr(method, name) for name in USE]
        return [*state(self._places), *use, method.trainings]

    def _capture(self, x: Tensor, versions: list[Any]) -> _Graph:
        """The posterior of one shape of batch, recorded."""
        device = x.device
        with torch.inference_mode(False):  # else nothing could be put there later
            kept = x.clone()
        aside = torch.cuda.Stream(device)
        aside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(aside):
            for _ in range(WARMUP):
                self.method.infer(kept)
        torch.cuda.current_stream(device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device_of(x), torch.cuda.graph(graph):
            posterior = self.method.infer(kept)
        return _Graph(graph, kept, posterior, versions, self._held())

    def _held(self) -> list[Any]:
        """Parameters, buffers and the networks' copies that our own kernels read, as they are now."""
        parts = [value for part in self.method.modules() for value in vars(part).values()]
        stacks = [part.held() for part in parts if isinstance(part, Stacked)]
        return [place[name].detach() for place, name in self._places] + stacks
