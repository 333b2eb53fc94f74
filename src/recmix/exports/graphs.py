"""The posterior and the decoder of a trained method as functions from tensors to tensors."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError
from recmix.inference import Inference
from recmix.inference.gauss_newton import traceable
from recmix.methods.method import Method, fuse_networks, infer
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Likelihood
from recmix.posteriors import Flow

__all__ = ["DecoderGraph", "Graph", "X", "example_values", "frozen", "posterior_graph"]

Shape = tuple[int | str, ...]
"""Lengths of axes; a name stands for an axis of any length."""
EXAMPLE = {"batch": 3, "samples": 5}
"""Lengths of such axes while a graph is traced."""
X = "examples"
"""Name of the input of a posterior and of the output of a decoder."""
COUNTS = 6
"""Examples of counts are smaller than this while a graph is traced."""


class Graph(nn.Module, ABC):
    """A function of tensors with the names and shapes of its inputs and outputs, in order."""

    kind: ClassVar[str]
    has_derivatives = False
    """Whether the function uses automatic differentiation, which some exporters cannot trace."""

    def __init__(self, inputs: dict[str, Shape], outputs: dict[str, Shape]) -> None:
        super().__init__()
        self.inputs = inputs
        self.outputs = outputs

    @property
    @abstractmethod
    def latent_model(self) -> LatentModel:
        """p(x, z)."""

    def example(self, **lengths: int) -> tuple[Tensor, ...]:
        """Example arguments with these lengths of the named axes: examples, or numbers in [0, 1]."""
        like = self.latent_model.centre
        generator = torch.Generator().manual_seed(sum(lengths.values()))
        named = EXAMPLE | lengths
        found = []
        for name, shape in self.inputs.items():
            sides = [named[n] if isinstance(n, str) else n for n in shape]
            drawn = torch.rand(sides, generator=generator, dtype=like.dtype)
            found.append(example_values(drawn, self.latent_model.likelihood) if name == X else drawn)
        return tuple(found)


class DecoderGraph(Graph):
    """Latent points z (N, D) to mean examples E[x | z] in the range of the data."""

    kind = "decoder"

    def __init__(self, model: LatentModel) -> None:
        likelihood = type(model.likelihood)
        if likelihood.mean is Likelihood.mean:
            raise ConfigError(
                f"the {likelihood.name} likelihood ({likelihood.__name__}) estimates E[x | z] from "
                "samples, which cannot be exported: define its method `mean`"
            )
        with torch.no_grad():
            decoded = model.decode(torch.zeros(1, model.latent, dtype=model.centre.dtype))
        super().__init__({"z": ("batch", model.latent)}, {X: ("batch", *decoded.shape[1:])})
        self.model = model

    @property
    def latent_model(self) -> LatentModel:
        """p(x, z)."""
        return self.model

    def forward(self, z: Tensor) -> Tensor:
        """The mean examples; class probabilities (N, ..., K) if the likelihood is categorical."""
        return self.model.decode(z)


class PosteriorGraph(Graph):
    """Examples (B, ...) to the tensors that define the q(z | x) of a frozen method."""

    def __init__(self, method: Method, inference: Inference, outputs: dict[str, Shape]) -> None:
        super().__init__({X: ("batch", *method.model.shape)}, outputs)
        self.method = method
        self.inference = inference
        self.has_derivatives = _uses_autograd(self)

    @property
    def latent_model(self) -> LatentModel:
        """p(x, z)."""
        return self.method.model


class GaussianGraph(PosteriorGraph):
    """A mixture of K Gaussians: log-weights (B, K), means (B, K, D) and covariances.

    Diagonal covariances are log-variances (B, K, D), full ones are Cholesky factors (B, K, D, D).
    """

    kind = "mixture of Gaussians"

    def forward(self, examples: Tensor) -> tuple[Tensor, ...]:
        """The outputs, in order."""
        q = infer(self.method, examples, self.inference)
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

    def forward(self, examples: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """z (S, B, D) and log q(z | x) (S, B), for noise (S, B, D)."""
        q = infer(self.method, examples, self.inference)
        assert isinstance(q, Flow)
        start = q.base.mean + q.base.stddev * noise
        z, log_det = q.forward(start)
        return z, q.base.log_prob(start) - log_det


def example_values(uniform: Tensor, likelihood: Likelihood) -> Tensor:
    """Numbers in [0, 1) as values that a likelihood accepts.

    >>> from recmix.model.likelihoods import Categorical
    >>> example_values(torch.tensor([0.1, 0.6]), Categorical(4))
    tensor([0., 2.])
    """
    kind, _, classes = likelihood.requirement.partition(":")
    if kind.endswith("classes"):
        return (uniform * int(classes)).floor()
    if kind == "counts":
        return (uniform * COUNTS).floor()
    return (uniform * 255).round() / 255 if kind == "eight_bit" else uniform


def _uses_autograd(graph: PosteriorGraph) -> bool:
    """Whether the posterior records operations for derivatives while it is computed."""
    saved: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with torch.no_grad(), traceable(), hooks:
        infer(graph.method, graph.example()[0], graph.inference)
    return bool(saved)


def _check_curvature(method: Method, inference: Inference) -> None:
    """Refuse steps with a curvature that is estimated from samples, which a tracer cannot follow."""
    likelihood = type(method.model.likelihood)
    steps = inference.refine > 0 or any(part.uses_jacobian for part in method.components)
    blocks = likelihood.blocks is not Likelihood.blocks
    sampled = likelihood.fisher is Likelihood.fisher and (
        blocks or likelihood.precision is Likelihood.precision
    )
    if steps and sampled:
        raise ConfigError(
            f"the {likelihood.name} likelihood ({likelihood.__name__}) estimates its curvature from "
            "samples, so Gauss-Newton steps with it cannot be exported: export without refinement"
        )


def frozen(method: Method, *, fuse: bool) -> Method:
    """A copy on the CPU that is no longer trained.

    With `fuse`, all networks of a mixture are evaluated as one, with grouped convolutions.
    """
    made = copy.deepcopy(method).to("cpu").eval().requires_grad_(False)
    made.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    if fuse:
        fuse_networks(made)
    return made


@torch.no_grad()
def posterior_graph(method: Method, inference: Inference) -> Graph:
    """The graph of a frozen method's posterior; `Posterior.describe` determines its outputs."""
    _check_curvature(method, inference)
    half = torch.full((2, *method.model.shape), 0.5, dtype=method.model.centre.dtype)
    q = infer(method, example_values(half, method.model.likelihood), inference)
    if isinstance(found := q.describe(), dict):
        own = 2 if "log_weights" in found else 1  # the first axis that belongs to one component
        several = ("batch", len(q.components))
        shapes = {name: (*several, *value.shape[own:]) for name, value in found.items()}
        return GaussianGraph(method, inference, {"log_weights": several, **shapes})
    if isinstance(q, Flow):
        return FlowGraph(method, inference)
    names = " and ".join(sorted({type(part).__name__ for part in q.components}))
    raise ConfigError(
        f"the posterior of {method.name!r} is made of {len(q.components)} x {names}, which cannot be "
        "exported: only Gaussians, mixtures of Gaussians (all diagonal or all full) and a single flow "
        "can. Use it from Python instead"
    )
