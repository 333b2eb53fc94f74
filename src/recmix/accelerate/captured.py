"""A posterior as a CUDA graph: one replay instead of launching every kernel."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from recmix.accelerate.stacked import places, state
from recmix.accelerate.stacked_posteriors import stacks_of
from recmix.inference import Inference
from recmix.methods.method import Method, infer, infer_no_grad
from recmix.posteriors import Posterior

__all__ = ["Captured", "replay"]

KEPT = 4
"""Graphs that are kept per method; each holds the memory of its tensors."""
WARMUP = 3


class _Graph(NamedTuple):
    replay: torch.cuda.CUDAGraph
    x: Tensor  # input
    posterior: Posterior  # output
    versions: list[Any]
    held: list[Any]  # tensors that the graph reads; an outdated graph still runs and must find them


class Captured:
    """q(z | x) without gradients; on a GPU captured for each batch shape that occurs twice.

    These networks are small, so on a GPU a posterior is bound by launching its kernels. Replayed as a
    graph it takes several times less. The result is copied out of the graph and belongs to the caller.
    A graph is captured again when a parameter or buffer has changed or was replaced, or after training.
    Otherwise, for a shape that occurs for the first time and for methods that cannot be captured, it
    calls `recmix.methods.method.infer`.

    Args:
        method: the method whose posterior is captured.
        inference: how the posterior is improved.
    """

    def __init__(self, method: Method, inference: Inference) -> None:
        self.inference = inference
        self.failed = ""
        self._places = places([method])  # finding them takes longer than a posterior
        self._graphs: OrderedDict[tuple[object, ...], _Graph | None] = OrderedDict()

    @torch.no_grad()
    def __call__(self, method: Method, x: Tensor) -> Posterior:
        """q(z | x) for x (B, C, H, W) on the method's device."""
        if not x.is_cuda or self.failed or method.training:
            return infer(method, x, self.inference)
        key = (*x.shape, x.dtype, x.device)
        if key not in self._graphs:  # capture only a shape that occurs twice
            self._graphs[key] = None
            if len(self._graphs) > KEPT:
                self._graphs.popitem(last=False)
            return infer(method, x, self.inference)
        graph = self._graphs[key]
        if graph is not None:  # it runs while the parameters are checked
            graph.x.copy_(x)
            graph.replay.replay()
        versions = [*state(self._places), method.trainings]
        if graph is None or graph.versions != versions:
            try:
                graph = self._capture(method, x, versions)
            except RuntimeError as error:
                self.failed = str(error).splitlines()[0]
                self._graphs.clear()
                torch.cuda.synchronize(x.device)
                warnings.warn(
                    f"the posterior of {method.name} cannot be captured as a CUDA graph "
                    f"({self.failed}): it is computed without one",
                    stacklevel=2,
                )
                return infer(method, x, self.inference)
            self._graphs[key] = graph
            graph.replay.replay()
        self._graphs.move_to_end(key)
        return graph.posterior.copy()

    def _capture(self, method: Method, x: Tensor, versions: list[Any]) -> _Graph:
        """Record the posterior of one batch shape."""
        device = x.device
        with torch.inference_mode(False):  # a tensor made in inference mode cannot be overwritten later
            kept = x.clone()
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(WARMUP):
                infer(method, kept, self.inference)
        torch.cuda.current_stream(device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device_of(x), torch.cuda.graph(graph):
            posterior = infer(method, kept, self.inference)
        return _Graph(graph, kept, posterior, versions, self._held(method))

    def _held(self, method: Method) -> list[Any]:
        """The present parameters, buffers and packed weights, which the graph reads."""
        stacks = [stack.held() for part in method.modules() for stack in stacks_of(part)]
        return [place[name].detach() for place, name in self._places] + stacks


_captured: WeakKeyDictionary[Method, dict[Inference, Captured]] = WeakKeyDictionary()


@infer_no_grad.register
def replay(method: Method, x: Tensor, inference: Inference) -> Posterior:
    """On a GPU: replay the posterior as a CUDA graph."""
    if not x.is_cuda:
        return NotImplemented
    known = _captured.get(method)
    if known is None:
        known = _captured[method] = {}
    captured = known.get(inference)
    if captured is None:
        captured = known[inference] = Captured(method, inference)
    return captured(method, x)
