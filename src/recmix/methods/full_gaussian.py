"""The amortised full Gaussian: one encoder gives a mean and a full covariance in one pass."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recmix.methods.component import Component
from recmix.methods.method import Method
from recmix.methods.registry import register, register_component
from recmix.model.latent import LatentModel
from recmix.model.networks import encode_with_features, feature_size
from recmix.posteriors import FullGaussian, Gaussian

__all__ = ["FullComponent", "FullGaussianVAE"]


@register_component
class FullComponent(Component):
    """q(z | x) = N(μ(x), Σ(x)) with Σ = L diag(σ²) Lᵀ and L(x) lower triangular with unit diagonal.

    The encoder gives μ and log σ². A further linear layer on the encoder's features gives the entries of
    L below the diagonal. This layer is zero before training, so the first density is the encoder's
    diagonal Gaussian.
    """

    kind = "full"
    closed_form_entropy = True

    def __init__(self, encoder: nn.Module, model: LatentModel) -> None:
        super().__init__(encoder, model)
        self.latent = model.latent
        below = self.latent * (self.latent - 1) // 2
        # With one latent dimension there is nothing below the diagonal.
        self.below = nn.Linear(feature_size(encoder, self.latent), below) if below else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the linear layer to zero, so that q(z | x) is the encoder's diagonal Gaussian."""
        if self.below is not None:
            nn.init.zeros_(self.below.weight)
            nn.init.zeros_(self.below.bias)

    def forward(self, x: Tensor, model: LatentModel) -> FullGaussian:
        """The full Gaussian q(z | x) for x (B, *shape), in one pass through the encoder."""
        example = model.observed(x.to(model.centre.dtype))
        features, parameters = encode_with_features(self.encoder, example)
        diagonal = Gaussian.from_parameters(parameters)
        if self.below is None:
            return FullGaussian(diagonal.mean, diagonal.stddev[..., None])
        rows, columns = torch.tril_indices(self.latent, self.latent, -1, device=x.device)
        unit = torch.diag_embed(torch.ones_like(diagonal.mean))
        unit[:, rows, columns] = self.below(features)
        return FullGaussian(diagonal.mean, unit * diagonal.stddev[:, None, :])


@register
class FullGaussianVAE(Method):
    """Amortised inference with a full covariance: q(z | x) = N(μ(x), L(x) diag σ²(x) L(x)ᵀ).

    L(x) is lower triangular with unit diagonal. One encoder pass gives μ, σ² and L. The gain over the
    VAE shows what a diagonal covariance costs. The remaining gap to a full Gaussian that is optimised
    separately for each example shows what amortisation costs.

    Reference: Kingma & Welling, An Introduction to Variational Autoencoders, 2019, section 2.5.1.
    """

    name = "full"
    title = "amortised full Gaussian"
    reference = "Kingma & Welling 2019"

    def __init__(self, model: LatentModel, encoder: nn.Module) -> None:
        super().__init__(model, [FullComponent(encoder, model)])
