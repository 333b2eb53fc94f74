"""A wider encoder beside the given one: what a single look can do, at the price of parameters."""

from __future__ import annotations

from torch import Tensor, nn

from recmix.methods.component import Component
from recmix.methods.registry import register_component
from recmix.model.latent import LatentModel
from recmix.model.networks import conv_encoder
from recmix.posteriors import Gaussian

__all__ = ["WIDTH", "WideComponent"]

WIDTH = 2.0
"""An added network's width in units of the paper's encoder."""


@register_component
class WideComponent(Component):
    """A Gaussian whose parameters are the sum of two encoders' outputs, (μ, log σ²) = e(x) + w(x).

    As it starts w is zero, and q(z | x) is the encoder's own: a trained VAE can be widened. Nothing is
    looked at twice: both see the image alone and can run at the same time.

    Args:
        encoder: e.
        model: for the shapes.
        width: of w, in units of the paper's encoder.
    """

    kind = "wide"
    setting = "width"

    def __init__(self, encoder: nn.Module, model: LatentModel, *, width: float = WIDTH) -> None:
        super().__init__(encoder, model)
        self.beside = conv_encoder(model.shape, model.latent, width=width)
        nn.init.zeros_(self.beside.head.weight)
        nn.init.zeros_(self.beside.head.bias)

    def forward(self, x: Tensor, model: LatentModel) -> Gaussian:
        """One pass through both."""
        image = model.centred(x)
        return Gaussian.from_parameters(self.encoder(image) + self.beside(image))
