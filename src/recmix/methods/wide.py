"""A second, wider encoder added to the given one: more parameters in one pass."""

from __future__ import annotations

from torch import Tensor, nn

from recmix.methods.component import Component
from recmix.methods.method import Method
from recmix.methods.registry import register, register_component
from recmix.model.latent import LatentModel
from recmix.model.networks import conv_encoder
from recmix.posteriors import Gaussian

__all__ = ["WIDTH", "WideComponent", "WideVAE"]

WIDTH = 2.0
"""Default width of an added network, in units of the paper's encoder."""


@register_component
class WideComponent(Component):
    """A Gaussian whose parameters are the sum of two encoders: (μ, log σ²) = e(x) + w(x).

    w starts at zero, so the density starts as that of e. Both see only x and can run in parallel.

    Args:
        encoder: e.
        model: gives the shapes.
        width: of w, in units of the paper's encoder.
    """

    kind = "wide"
    setting = "width"
    closed_form_entropy = True

    def __init__(self, encoder: nn.Module, model: LatentModel, *, width: float = WIDTH) -> None:
        super().__init__(encoder, model)
        self.second = conv_encoder(model.shape, model.latent, width=width)
        nn.init.zeros_(self.second.head.weight)
        nn.init.zeros_(self.second.head.bias)

    def extra_networks(self) -> list[nn.Module]:
        """The second encoder."""
        return [self.second]

    def forward(self, x: Tensor, model: LatentModel) -> Gaussian:
        """One pass through both encoders."""
        example = model.centred(x)
        return Gaussian.from_parameters(self.encoder(example) + self.second(example))


@register
class WideVAE(Method):
    """A VAE with a second, wider encoder: the control for methods that add parameters.

    Args:
        model: p(x, z).
        encoder: the given encoder; the second one is added to its output.
        width: of the second encoder, in units of the paper's encoder.

    Reference: a control of this library.
    """

    name = "wide"
    title = "wider encoder"
    reference = "this library"
    setting = "width"

    def __init__(self, model: LatentModel, encoder: nn.Module, *, width: float = WIDTH) -> None:
        super().__init__(model, [WideComponent(encoder, model, width=width)])
