"""The posterior and the decoder of a trained method as functions from tensors to tensors.

These functions are called graphs, because exporters trace them to graphs of operators.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError
from recmix.inference import Inference
from recmix.inference.gauss_newton import traceable
from recmix.inference.inference import REFINEMENT
from recmix.methods.method import Method, fuse_networks, infer
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Likelihood
from recmix.posteriors import Flow

__all__ = ["DecoderGraph", "Graph", "X", "example_values", "frozen", "posterior_graph"]

Shape = tuple[int | str, ...]
"""The shape of a tensor; a name instead of a number stands for an axis of any length."""
EXAMPLE = {"batch": 13, "samples": 5}
"""Lengths that the named axes of a shape have while a graph is traced."""
X = "examples"  # name of the tensor of examples x: the input of a posterior and the output of a decoder
COUNTS = 6  # if the data are counts, the examples for tracing have counts below this number


class Graph(nn.Module, ABC):
    """A function from tensors to tensors that can be exported.

    Args:
        inputs: {name: shape} of the arguments, in order. An axis of any length has a name in the shape.
        outputs: {name: shape} of the results, in order.
    """

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
        """The generative model p(x, z): prior, decoder and likelihood."""

    def example(self, **lengths: int) -> tuple[Tensor, ...]:
        """Make random arguments of this function, one tensor for each input, for tracing or testing.

        Args:
            **lengths: lengths of the named axes, such as ``batch=4``.
        """
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
    """The function from latent vectors z (N, D) to mean examples E[x | z], (N, ...)."""

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
        """The generative model p(x, z): prior, decoder and likelihood."""
        return self.model

    def forward(self, z: Tensor) -> Tensor:
        """Compute the mean examples E[x | z], (N, ...), of latent vectors z (N, D).

        For a categorical likelihood with K classes these are class probabilities (N, ..., K).
        """
        return self.model.decode(z)


class PosteriorGraph(Graph):
    """The function from examples x (B, ...) to the tensors that define q(z | x).

    `outputs` has the names and shapes of the tensors.
    """

    def __init__(self, method: Method, inference: Inference, outputs: dict[str, Shape]) -> None:
        super().__init__({X: ("batch", *method.model.shape)}, outputs)
        self.method = method
        self.inference = inference
        self.has_derivatives = _uses_autograd(self)

    @property
    def latent_model(self) -> LatentModel:
        """The generative model p(x, z): prior, decoder and likelihood."""
        return self.method.model


class GaussianGraph(PosteriorGraph):
    """The function from examples x (B, ...) to a posterior that is a mixture of K Gaussians.

    D is the latent dimension. The results are log-weights (B, K), means (B, K, D) and covariances.
    Diagonal covariances are given as log-variances (B, K, D), full covariances as Cholesky factors (B,
    K, D, D).
    """

    kind = "mixture of Gaussians"

    def forward(self, examples: Tensor) -> tuple[Tensor, ...]:
        """The logarithms of the mixture weights, the means and the covariances of q(z | x).

        They are in the order of `outputs`. A single Gaussian has one weight, whose logarithm is 0.
        """
        q = infer(self.method, examples, self.inference)
        found = q.describe() or {}
        if "log_weights" not in found:  # one component
            found = {name: value[:, None] for name, value in found.items()}
            found["log_weights"] = torch.zeros_like(q.mean[:, :1])
        return tuple(found[name] for name in self.outputs)


class FlowGraph(PosteriorGraph):
    """The function from examples x and standard normal noise to samples of a flow q(z | x)."""

    kind = "flow"

    def __init__(self, method: Method, inference: Inference) -> None:
        drawn = ("samples", "batch")
        super().__init__(method, inference, {"z": (*drawn, method.model.latent), "log_q": drawn})
        self.inputs["noise"] = (*drawn, method.model.latent)

    def forward(self, examples: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Compute samples z (S, B, D) and log q(z | x) (S, B) from x (B, ...) and noise (S, B, D)."""
        q = infer(self.method, examples, self.inference)
        assert isinstance(q, Flow)
        start = q.base.mean + q.base.stddev * noise
        z, log_det = q.forward(start)
        return z, q.base.log_prob(start) - log_det


def example_values(uniform: Tensor, likelihood: Likelihood) -> Tensor:
    """Convert numbers in [0, 1) to values that a likelihood accepts, in a tensor of the same shape.

    >>> from recmix.model.likelihoods import Categorical
    >>> example_values(torch.tensor([0.1, 0.6]), Categorical(4))
    tensor([0., 2.])
    """
    kind, _, classes = likelihood.requirement.partition(":")
    if kind.endswith("classes"):
        return (uniform * min(int(group.partition("*")[0] or 2) for group in classes.split("+"))).floor()
    if kind == "counts":
        return (uniform * COUNTS).floor()
    return (uniform * 255).round() / 255 if kind == "eight_bit" else uniform


def _uses_autograd(graph: PosteriorGraph) -> bool:
    """Whether automatic differentiation is used to compute the posterior."""
    saved: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    x, likelihood = graph.example()[0], graph.method.model.likelihood
    try:
        with torch.no_grad(), traceable(), hooks:
            infer(graph.method, x, graph.inference)
    except RuntimeError as error:  # torch.func does not work with the hooks
        raise ConfigError(
            f"this posterior needs the curvature of the {likelihood.name} likelihood, which cannot be "
            "exported: export the model without refinement, or another method; posterior(x) in Python "
            "works"
        ) from error
    return bool(saved)


def _check_curvature(method: Method, inference: Inference) -> None:
    """Raise a ConfigError if Gauss-Newton steps need a curvature that is estimated from samples.

    A tracer cannot record this estimate.
    """
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
    """Copy a trained method to the CPU, in evaluation mode and without gradients of parameters.

    If `fuse` is true, the copy evaluates all networks of a mixture as one network with grouped
    convolutions, where this is possible.
    """
    made = copy.deepcopy(method).to("cpu").eval().requires_grad_(False)
    made.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    if fuse:
        fuse_networks(made)
    return made


@torch.no_grad()
def posterior_graph(method: Method, inference: Inference) -> Graph:
    """Make the function from examples x to the posterior q(z | x) of a method that `frozen` returned.

    Raise a ConfigError if the posterior cannot be exported.
    """
    if not inference.traceable:
        kinds = ", ".join(how for how in REFINEMENT if replace(inference, how=how).traceable)
        raise ConfigError(
            f"a posterior with refinement of the kind {inference.how!r} cannot be exported: use another "
            f"kind ({kinds}), in Python model.refined({inference.refine}, how='gauss-newton')"
            ".export(folder), or export without refinement, model.refined(0).export(folder)"
        )
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
