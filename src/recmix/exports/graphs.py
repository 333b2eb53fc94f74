"""The posterior and the decoder of a trained method as functions from tensors to tensors."""

from __future__ import annotations

import copy
from typing import ClassVar

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError
from recmix.inference import Inference
from recmix.inference.gauss_newton import jacobian_needs_autograd
from recmix.methods.method import Method, fuse_networks, infer
from recmix.model.latent import LatentModel
from recmix.posteriors import Flow

__all__ = ["DecoderGraph", "Graph", "frozen", "posterior_graph"]

Shape = tuple[int | str, ...]
"""Lengths of axes; a name stands for an axis of any length."""
EXAMPLE = {"batch": 3, "samples": 5}
"""Lengths of such axes while a graph is traced."""


class Graph(nn.Module):
    """A function of tensors with the names and shapes of its inputs and outputs.

    Args:
        inputs: names and shapes of the arguments of `forward`, in order.
        outputs: names and shapes of the results, in order.
    """

    kind: ClassVar[str]
    has_derivatives = False
    """Whether the function uses automatic differentiation."""

    def __init__(self, inputs: dict[str, Shape], outputs: dict[str, Shape]) -> None:
        super().__init__()
        self.inputs = inputs
        self.outputs = outputs

    def example(self, **lengths: int) -> tuple[Tensor, ...]:
        """Example arguments in [0, 1], with these lengths of the named axes."""
        like = next(self.parameters())
        generator = torch.Generator().manual_seed(sum(lengths.values()))
        named = EXAMPLE | lengths
        shapes = [
            [named[n] if isinstance(n, str) else n for n in shape] for shape in self.inputs.values()
        ]
        return tuple(torch.rand(shape, generator=generator, dtype=like.dtype) for shape in shapes)


class DecoderGraph(Graph):
    """Latent points z (N, D) to mean images (N, C, H, W) in the range of the data."""

    kind = "decoder"

    def __init__(self, model: LatentModel) -> None:
        super().__init__({"z": ("batch", model.latent)}, {"images": ("batch", *model.shape)})
        self.model = model

    def forward(self, z: Tensor) -> Tensor:
        """The mean images."""
        return self.model.decode(z)


class PosteriorGraph(Graph):
    """Examples (B, C, H, W) in [0, 1] to the tensors that define q(z | x).

    Args:
        method: a frozen method.
        inference: how its posterior is improved.
        outputs: names and shapes of the results.
    """

    kind = "posterior"

    def __init__(self, method: Method, inference: Inference, outputs: dict[str, Shape]) -> None:
        super().__init__({"images": ("batch", *method.model.shape)}, outputs)
        self.method = method
        self.inference = inference
        self.has_derivatives = _has_derivatives(method, inference)


class GaussianGraph(PosteriorGraph):
    """A mixture of K Gaussians: log-weights (B, K), means (B, K, D) and covariances.

    Diagonal covariances are log-variances (B, K, D), full ones are Cholesky factors (B, K, D, D).
    """

    kind = "mixture of Gaussians"

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """The outputs, in order."""
        q = infer(self.method, images, self.inference)
        found = q.describe() or {}
        if "log_weights" not in found:  # one component
            found = {name: value[:, None] for name, value in found.items()}
            found["log_weights"] = torch.zeros_like(q.mean[:, :1])
        return tuple(found[name] for name in self.outputs)


class FlowGraph(PosteriorGraph):
    """A normalising flow: standard normal noise to samples with their densities."""

    kind = "flow"

    def __init__(self, method: Method, inference: Inference) -> None:
        drawn = ("samples", "batch")
        super().__init__(method, inference, {"z": (*drawn, method.model.latent), "log_q": drawn})
        self.inputs["noise"] = (*drawn, method.model.latent)

    def forward(self, images: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """z (S, B, D) and log q(z | x) (S, B), for noise (S, B, D)."""
        q = infer(self.method, images, self.inference)
        assert isinstance(q, Flow)
        start = q.base.mean + q.base.stddev * noise
        z, log_det = q.forward(start)
        return z, q.base.log_prob(start) - log_det


def _has_derivatives(method: Method, inference: Inference) -> bool:
    """Whether the posterior needs automatic differentiation. Some Jacobians are computed without it."""
    needs_jacobian = inference.refine > 0 or any(
        part.differentiates and part.uses_jacobian for part in method.components
    )
    by_gradient = any(part.differentiates and not part.uses_jacobian for part in method.components)
    return by_gradient or (needs_jacobian and jacobian_needs_autograd(method.model.decoder))


def frozen(method: Method, *, fuse: bool) -> Method:
    """A copy on the CPU that is no longer trained.

    Args:
        method: the trained method, which is not changed.
        fuse: evaluate all networks of a mixture as one, with grouped convolutions.
    """
    made = copy.deepcopy(method).to("cpu").eval().requires_grad_(False)
    made.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    if fuse:
        fuse_networks(made)
    return made


@torch.no_grad()
def posterior_graph(method: Method, inference: Inference) -> Graph:
    """The graph of a frozen method's posterior; `Posterior.describe` determines its outputs."""
    x = torch.full((2, *method.model.shape), 0.5, dtype=method.model.centre.dtype)
    q = infer(method, x, inference)
    if isinstance(found := q.describe(), dict):
        many = found.keys() if "log_weights" in found else ["log_weights", *found]
        count = len(q.components)
        shapes: dict[str, Shape] = {"log_weights": ("batch", count)}
        for name in many:
            if name != "log_weights":
                own = found[name].shape[2:] if "log_weights" in found else found[name].shape[1:]
                shapes[name] = ("batch", count, *own)
        return GaussianGraph(method, inference, shapes)
    if isinstance(q, Flow):
        return FlowGraph(method, inference)
    names = " and ".join(sorted({type(part).__name__ for part in q.components}))
    raise ConfigError(
        f"the posterior of {method.name!r} is made of {len(q.components)} x {names}, which cannot be "
        "exported: only Gaussians, mixtures of Gaussians (all diagonal or all full) and a single flow "
        "can. Use it from Python instead"
    )
