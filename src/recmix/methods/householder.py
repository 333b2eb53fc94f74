"""The Householder flow (HF): a Gaussian with a full covariance, by reflections that depend on x."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recmix.methods.component import Component
from recmix.methods.method import Method
from recmix.methods.registry import register, register_component
from recmix.model.latent import LatentModel
from recmix.model.networks import encode_with_features, feature_size
from recmix.posteriors import Gaussian, Reflected
from recmix.posteriors.flow import Reflections, check_flows, unit

__all__ = ["HouseholderComponent", "HouseholderFlow", "HouseholderVectors"]


class HouseholderVectors(nn.Module):
    """Linear layers that compute the Householder vectors v_1 … v_T of a flow from features of x.

    v_1 is linear in the features, and v_{t+1} is linear in v_t. Before training all weights are 0, and
    the bias of layer t is e_t, the unit vector of axis t of the latent space. So v_t = e_t for every x.
    If T > D, the axes are used again from axis 1.

    Args:
        features: F, the number of features of x.
        latent: D, the latent dimension.
        flows: T, the number of vectors.

    >>> HouseholderVectors(5, 3, 2)(torch.zeros(4, 5))[1][0].detach()
    tensor([0., 1., 0.])
    """

    def __init__(self, features: int, latent: int, flows: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, latent)
        self.later = nn.ModuleList(nn.Linear(latent, latent) for _ in range(flows - 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set all weights to 0 and the bias of layer t to the unit vector e_t, so that v_t = e_t."""
        for t, layer in enumerate((self.first, *self.later)):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
            nn.init.ones_(layer.bias[t % len(layer.bias)])

    def forward(self, features: Tensor) -> list[Tensor]:
        """The vectors v_1 … v_T, (B, D) each, computed from features of x (B, F)."""
        found = [self.first(features)]
        for layer in self.later:
            found.append(layer(found[-1]))
        return found


@register_component
class HouseholderComponent(Component):
    """A Gaussian encoder followed by Householder reflections: a Gaussian with a full covariance.

    The constructor's options are those of `HouseholderFlow`.
    """

    kind = "householder"
    setting = "flows"
    closed_form_entropy = True
    signs: Tensor

    def __init__(self, encoder: nn.Module, model: LatentModel, *, flows: int = 2) -> None:
        super().__init__(encoder, model)
        check_flows("hf", flows, model.latent)
        self.vectors = HouseholderVectors(feature_size(encoder, model.latent), model.latent, flows)
        # Before training, each reflection flips the sign of one axis.
        reflected = torch.arange(flows).remainder(model.latent).bincount(minlength=model.latent)
        self.register_buffer("signs", 1.0 - 2.0 * reflected.remainder(2), persistent=False)

    def forward(self, x: Tensor, model: LatentModel) -> Reflected:
        """q(z | x) for x (B, *shape): the encoder's Gaussian, reflected by vectors computed from x."""
        features, output = encode_with_features(self.encoder, model.observed(x))
        mean, log_variance = output.chunk(2, -1)
        units = [unit(v) for v in self.vectors(features)]
        return Reflected(Gaussian(self.signs * mean, log_variance), Reflections(units))


@register
class HouseholderFlow(Method):
    """A Gaussian with a full covariance: a diagonal Gaussian followed by T Householder reflections.

    z_0 ~ N(S μ(x), diag σ²(x)), then z_t = (I - 2 v_t v_tᵀ / |v_t|²) z_{t-1} for t = 1 … T. The vector
    v_1 is linear in the encoder's features, and v_{t+1} is linear in v_t. Let H be the product of the
    reflections. Then q(z | x) = N(H S μ, H diag σ² Hᵀ). Its density needs no determinant. Its KL to the
    prior equals the KL of N(μ, diag σ²).

    S is a fixed diagonal matrix of signs ±1. It is not in the paper. No reflection is the identity, so
    without S the decoder of a trained VAE would get a mirrored z. Before training, each v_t is an axis
    of the latent space. Then H only changes signs, and S changes them back, so an untrained flow gives
    exactly the Gaussian of the VAE's encoder. The family of densities is the same as without S, because
    an encoder could learn S.

    Args:
        model: p(x, z).
        encoder: gives μ, log σ² and the features.
        flows: number of reflections T, 1 or more; the paper uses 1, 2, 4 and 8.

    Reference: Tomczak & Welling, Improving Variational Auto-Encoders using Householder Flow, 2016.
    """

    name = "hf"
    title = "Householder flow"
    reference = "Tomczak & Welling 2016"
    setting = "flows"
    tried = (1, 2, 4, 8)

    def __init__(self, model: LatentModel, encoder: nn.Module, *, flows: int = 2) -> None:
        super().__init__(model, [HouseholderComponent(encoder, model, flows=flows)])
