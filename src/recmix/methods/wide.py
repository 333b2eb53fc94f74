"""A VAE with two encoders, whose outputs are added."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from recmix.methods.component import Component
from recmix.methods.method import Method
from recmix.methods.registry import register, register_component
from recmix.model.latent import LatentModel
from recmix.model.networks import Encoder
from recmix.model.similar_encoder import similar_encoder
from recmix.posteriors import Gaussian

__all__ = ["WIDTH", "WideComponent", "WideVAE"]

WIDTH = 2.0
"""Default factor by which the layer sizes of a second encoder or of a corrector are multiplied."""


@register_component
class WideComponent(Component):
    """A Gaussian whose parameters are the sum of two encoders' outputs: (μ, log σ²) = e(x) + w(x).

    Before training w(x) = 0, so the first encoder e alone gives the density. Both encoders read only x,
    so they can run in parallel.

    The constructor's options are those of `WideVAE`.
    """

    kind = "wide"
    setting = "width"
    closed_form_entropy = True

    def __init__(self, encoder: nn.Module, model: LatentModel, *, width: float = WIDTH) -> None:
        super().__init__(encoder, model)
        self.second = similar_encoder(encoder, model, width)
        nn.init.zeros_(self.second.head.weight)
        nn.init.zeros_(self.second.head.bias)

    def extra_networks(self) -> list[nn.Module]:
        """The second encoder w, in a list."""
        return [self.second]

    def forward(self, x: Tensor, model: LatentModel) -> Gaussian:
        """The Gaussian q(z | x) for x (B, *shape), with the parameters e(x) + w(x)."""
        return Gaussian.from_parameters(
            self.encoder(model.observed(x)) + self.second(self._input(x, model))
        )

    def _input(self, x: Tensor, model: LatentModel) -> Any:
        """Convert examples x to the input of the second encoder.

        If both encoders have the same kind of layers, both get the same input. Otherwise the second
        encoder gets standardised examples.
        """
        alike = isinstance(self.encoder, Encoder) and (
            type(self.second.features) is type(self.encoder.features)
        )
        return model.observed(x) if alike else model.standardised(x)


@register
class WideVAE(Method):
    """A VAE with a second encoder, as a control for methods that add parameters.

    The outputs of the given encoder and the second encoder are added. Before training the output of the
    second encoder is 0.

    Args:
        model: p(x, z).
        encoder: the given encoder; the output of the second one is added to its output.
        width: factor of the layer sizes of the second encoder. For tokens and graphs, 1 gives the sizes
            of the given encoder. For all other x, 1 gives the sizes of the library's default encoder for
            this shape. These can be smaller than those of the given encoder.

    Reference: a control of this library.
    """

    name = "wide"
    title = "wider encoder"
    reference = "this library"
    setting = "width"

    def __init__(self, model: LatentModel, encoder: nn.Module, *, width: float = WIDTH) -> None:
        super().__init__(model, [WideComponent(encoder, model, width=width)])
