"""Compute a posterior by replaying a CUDA graph, instead of launching every kernel separately."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from recmix.accelerate.capture import no_host_sync, recover_generators
from recmix.accelerate.stacked import places, state
from recmix.accelerate.stacked_posteriors import stacks_of
from recmix.inference import Inference
from recmix.methods.method import Method, infer, infer_no_grad
from recmix.posteriors import Posterior

__all__ = ["Captured", "replay"]

KEPT = 4
"""Largest number of graphs that are kept for a method with one `Inference`.

A graph keeps the memory of its tensors. The graphs of all inferences are kept as long as the method.
"""
WARMUP = 3


class _Graph(NamedTuple):
    replay: torch.cuda.CUDAGraph
    x: Tensor  # input
    posterior: Posterior  # output
    versions: list[Any]
    held: list[Any]  # tensors that the graph reads; an outdated graph still runs and must find them


class Captured:
    """Computes q(z | x) without gradients; on a GPU by replaying a CUDA graph.

    The networks are small, so on a GPU most of the time is spent on launching kernels. Replaying a graph
    is several times faster. Each shape of x has its own graph. The graph is captured when the shape
    occurs for the second time. It is captured again after training, or when a parameter or buffer was
    changed or replaced. The returned posterior is a copy, so the next replay does not overwrite it.

    `recmix.methods.method.infer` is called without a graph in four cases: on a CPU, in training mode,
    when a shape occurs for the first time, and for methods that cannot be captured.

    Args:
        method: the method whose posterior is computed.
        inference: settings that say how the posterior is refined and calibrated.
    """

    def __init__(self, method: Method, inference: Inference) -> None:
        self.inference = inference
        self.failed = ""
        self._places = places([method])  # finding them takes longer than a posterior
        self._graphs: OrderedDict[tuple[object, ...], _Graph | None] = OrderedDict()

    @torch.no_grad()
    def __call__(self, method: Method, x: Tensor) -> Posterior:
        """Compute q(z | x), refined and calibrated, for examples x (B, ...) on the method's device."""
        if not x.is_cuda or self.failed or method.training:
            return infer(method, x, self.inference)
        key = (*x.shape, x.dtype, x.device)
        if key not in self._graphs:  # capture only a shape that occurs twice
            self._graphs[key] = None
            if len(self._graphs) > KEPT:
                self._graphs.popitem(last=False)
            return infer(method, x, self.inference)
        graph = self._graphs[key]
        if graph is not None:  # the GPU works while the parameters are checked
            graph.x.copy_(x)
            graph.replay.replay()
            found = graph.posterior.copy()
        versions = [*state(self._places), method.trainings]
        if graph is None or graph.versions != versions:
            try:
                graph = self._capture(method, x, versions)
            except RuntimeError as error:
                self.failed = str(error).splitlines()[0]
                self._graphs.clear()
                torch.cuda.synchronize(x.device)
                recover_generators(x.device)
                warnings.warn(
                    f"the posterior of {method.name} cannot be captured as a CUDA graph "
                    f"({self.failed}): it is computed without one",
                    stacklevel=2,
                )
                return infer(method, x, self.inference)
            self._graphs[key] = graph
            graph.replay.replay()
            found = graph.posterior.copy()
        self._graphs.move_to_end(key)
        return found

    def _capture(self, method: Method, x: Tensor, versions: list[Any]) -> _Graph:
        """Capture a CUDA graph that computes the posterior of batches with the shape of x.

        `versions` are the version numbers of the parameters now. They are stored with the graph: if they
        differ later, a parameter has changed and the graph is outdated.
        """
        device = x.device
        with torch.inference_mode(False):  # a tensor made in inference mode cannot be overwritten later
            kept = x.clone()
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(WARMUP):
                infer(method, kept, self.inference)
            with no_host_sync():
                infer(method, kept, self.inference)
        torch.cuda.current_stream(device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device_of(x), torch.cuda.graph(graph):
            posterior = infer(method, kept, self.inference)
        return _Graph(graph, kept, posterior, versions, self._held(method))

    def _held(self, method: Method) -> list[Any]:
        """The tensors that a captured graph reads: parameters, buffers and packed weights."""
        stacks = [stack.held() for part in method.modules() for stack in stacks_of(part)]
        return [place[name].detach() for place, name in self._places] + stacks


_captured: WeakKeyDictionary[Method, dict[Inference, Captured]] = WeakKeyDictionary()


@infer_no_grad.register_for_gpu
def replay(method: Method, x: Tensor, inference: Inference) -> Posterior:
    """GPU version of `infer_no_grad`: from the second batch of a shape on, replay a CUDA graph.

    Where no graph can be captured, the posterior is computed without one. The function returns
    NotImplemented if x is not on a GPU.
    """
    if not x.is_cuda:
        return NotImplemented
    known = _captured.get(method)
    if known is None:
        known = _captured[method] = {}
    captured = known.get(inference)
    if captured is None:
        captured = known[inference] = Captured(method, inference)
    return captured(method, x)
