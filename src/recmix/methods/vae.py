"""The standard VAE: one encoder gives a diagonal Gaussian in one pass."""

from __future__ import annotations

from torch import Tensor, nn

from recmix.core import Component, LatentModel, Method, register, register_component
from recmix.posteriors import Gaussian

__all__ = ["VAE", "GaussianComponent"]


@register_component
class GaussianComponent(Component):
    """q(z | x) = N(μ(x), diag σ²(x)), in one pass through the encoder."""

    kind = "gaussian"

    def forward(self, x: Tensor, model: LatentModel) -> Gaussian:
        """One pass through the encoder."""
        return Gaussian.from_parameters(self.encoder(model.centred(x)))


@register
class VAE(Method):
    """Amortised variational inference with one diagonal Gaussian.

    Continued from a trained VAE (`init`) under the second-stage schedule it is the control VAE+.

    Reference: Kingma & Welling, Auto-Encoding Variational Bayes, ICLR 2014.
    """

    name = "vae"
    title = "amortised Gaussian"
    reference = "Kingma & Welling 2014; Rezende et al. 2014"
    second_stage = False

    def __init__(self, model: LatentModel, encoder: nn.Module) -> None:
        super().__init__(model, [GaussianComponent(encoder, model)])
