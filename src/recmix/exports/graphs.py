"""The posterior and the decoder of a trained method as functions from tensors to tensors."""

from __future__ import annotations

import copy
from typing import ClassVar

import torch
from torch import Tensor, nn

from recmix.accelerate.stacked import Stacked
from recmix.accelerate.tangents import chain
from recmix.errors import ConfigError
from recmix.methods.laplace import LaplaceComponent
from recmix.methods.method import Method
from recmix.methods.semi_amortised import SemiAmortisedComponent
from recmix.model.latent import LatentModel
from recmix.posteriors import Gaussian, Mixture
from recmix.posteriors.flow import Flow, Reflected
from recmix.posteriors.full import FullGaussian
from recmix.posteriors.posterior import Posterior

__all__ = ["DecoderGraph", "Graph", "frozen", "posterior_graph"]

Shape = tuple[int | str, ...]
"""Lengths of axes; a word names an axis of any length."""
EXAMPLE = {"batch": 3, "samples": 5}
"""Lengths that such axes have while a graph is traced."""


class Graph(nn.Module):
    """A function of tensors that says the names and shapes of what goes in and what comes out.

    Args:
        inputs: names and shapes of the arguments of `forward`, in order.
        outputs: names and shapes of the results, in order.
    """

    kind: ClassVar[str]
    has_derivatives = False
    """Whether the function calls for automatic differentiation on its way."""

    def __init__(self, inputs: dict[str, Shape], outputs: dict[str, Shape]) -> None:
        super().__init__()
        self.inputs = inputs
        self.outputs = outputs

    def example(self, **lengths: int) -> tuple[Tensor, ...]:
        """Arguments to try it with, in [0, 1]; axes of any length have these, or the usual ones."""
        like = next(self.parameters())
        generator = torch.Generator().manual_seed(sum(lengths.values()))
        named = EXAMPLE | lengths
        shapes = [
            [named[n] if isinstance(n, str) else n for n in shape] for shape in self.inputs.values()
        ]
        return tuple(torch.rand(shape, generator=generator, dtype=like.dtype) for shape in shapes)


class DecoderGraph(Graph):
    """Latent points z (N, D) to mean images (N, C, H, W) in the data's own range."""

    kind = "decoder"

    def __init__(self, model: LatentModel) -> None:
        super().__init__({"z": ("batch", model.latent)}, {"images": ("batch", *model.shape)})
        self.model = model

    def forward(self, z: Tensor) -> Tensor:
        """The mean images."""
        return self.model.decode(z)


class _PosteriorGraph(Graph):
    """Images (B, C, H, W) in [0, 1] to what defines q(z | x)."""

    def __init__(self, method: Method, outputs: dict[str, Shape]) -> None:
        super().__init__({"images": ("batch", *method.model.shape)}, outputs)
        self.method = method
        parts = list(method.modules())
        climbs = bool(method.refine) or any(isinstance(part, LaplaceComponent) for part in parts)
        # The tangents of a plain chain of layers are themselves plain operations.
        self.has_derivatives = any(isinstance(part, SemiAmortisedComponent) for part in parts) or (
            climbs and chain(method.model.decoder) is None
        )

    def parts(self, images: Tensor) -> tuple[Tensor, list[Posterior]]:
        """log α (B, K), and the components."""
        q = self.method.infer(images)
        if isinstance(q, Mixture):
            return q.log_weights, q.components
        return torch.zeros_like(q.mean[:, :1]), [q]


class DiagonalGraph(_PosteriorGraph):
    """A mixture of K diagonal Gaussians: log-weights, means, log-variances."""

    kind = "mixture of diagonal Gaussians"

    def __init__(self, method: Method, components: int) -> None:
        each = ("batch", components, method.model.latent)
        shapes: dict[str, Shape] = {"log_weights": each[:2], "means": each, "log_variances": each}
        super().__init__(method, shapes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """log α (B, K), μ (B, K, D), log σ² (B, K, D)."""
        log_weights, parts = self.parts(images)
        variances = [q.log_variance for q in parts if isinstance(q, Gaussian)]
        return log_weights, torch.stack([q.mean for q in parts], 1), torch.stack(variances, 1)


class FullGraph(_PosteriorGraph):
    """A mixture of K Gaussians with full covariances: log-weights, means, Cholesky factors."""

    kind = "mixture of full Gaussians"

    def __init__(self, method: Method, components: int) -> None:
        each = ("batch", components, method.model.latent)
        factor = (*each, method.model.latent)
        super().__init__(method, {"log_weights": each[:2], "means": each, "scale_tril": factor})

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """log α (B, K), μ (B, K, D), L (B, K, D, D) with Σ = L Lᵀ."""
        log_weights, parts = self.parts(images)
        factors = [q.scale_tril for q in parts if isinstance(q, FullGaussian | Reflected)]
        return log_weights, torch.stack([q.mean for q in parts], 1), torch.stack(factors, 1)


class FlowGraph(_PosteriorGraph):
    """A normalising flow, which has no list of parameters: standard normal noise to samples of it."""

    kind = "flow"

    def __init__(self, method: Method) -> None:
        drawn = ("samples", "batch")
        super().__init__(method, {"z": (*drawn, method.model.latent), "log_q": drawn})
        self.inputs["noise"] = (*drawn, method.model.latent)

    def forward(self, images: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Z (S, B, D) and log q(z | x) (S, B), for noise (S, B, D)."""
        q = self.method.infer(images)
        assert isinstance(q, Flow)
        start = q.base.mean + q.base.stddev * noise
        z, log_det = q.forward(start)
        return z, q.base.log_prob(start) - log_det


def frozen(method: Method, *, fuse: bool) -> Method:
    """A copy on the CPU that no longer learns.

    Args:
        method: the trained one, which stays as it is.
        fuse: evaluate all networks of a mixture as one, with grouped convolutions.
    """
    made = copy.deepcopy(method).to("cpu").eval().requires_grad_(False)
    made.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    if fuse:
        x = torch.zeros(2, *made.model.shape, dtype=made.model.centre.dtype)
        for stack in vars(made).values():
            if isinstance(stack, Stacked) and stack.networks:
                stack.fix(x)
    return made


@torch.no_grad()
def posterior_graph(method: Method) -> Graph:
    """The graph of a frozen method's posterior, by the kind of density it gives."""
    q = method.infer(torch.full((2, *method.model.shape), 0.5, dtype=method.model.centre.dtype))
    parts = q.components if isinstance(q, Mixture) else [q]
    if all(isinstance(part, Gaussian) for part in parts):
        return DiagonalGraph(method, len(parts))
    if all(isinstance(part, FullGaussian | Reflected) for part in parts):
        return FullGraph(method, len(parts))
    if isinstance(q, Flow):
        return FlowGraph(method)
    names = " and ".join(sorted({type(part).__name__ for part in parts}))
    raise ConfigError(
        f"the posterior of {method.name!r} is made of {len(parts)} x {names}, which has no form to "
        "export: only Gaussians, mixtures of Gaussians (diagonal or full) and a single flow have one. "
        "Use it from Python instead"
    )
