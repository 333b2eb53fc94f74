"""The standard VAE: one encoder gives a diagonal Gaussian in one pass."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

from recmix.methods.component import Component
from recmix.methods.method import Method
from recmix.methods.registry import register, register_component
from recmix.model.latent import LatentModel
from recmix.model.replaceable import replaceable
from recmix.posteriors import FullGaussian, Gaussian

__all__ = ["VAE", "GaussianComponent", "elbo_gradient", "encode"]


@replaceable
def encode(component: Component, x: Tensor, model: LatentModel) -> Gaussian | FullGaussian:
    """The Gaussian that a component's encoder gives for examples x (B, ...).

    The Gaussian is diagonal. It has a full covariance only if a user's own encoder returns a
    `MultivariateNormal`.
    """
    found = component.encoder(model.observed(x))
    if isinstance(found, MultivariateNormal):
        return FullGaussian(found.mean, found.scale_tril)
    return Gaussian.from_parameters(found)


@register_component
class GaussianComponent(Component):
    """A diagonal Gaussian q(z | x) = N(μ(x), diag σ²(x)), computed in one pass through the encoder."""

    kind = "gaussian"
    closed_form_entropy = True

    def forward(self, x: Tensor, model: LatentModel) -> Gaussian | FullGaussian:
        """The Gaussian q(z | x) for x (B, *shape), in one pass through the encoder."""
        return encode(self, x, model)


@register
class VAE(Method):
    """Amortised variational inference with one diagonal Gaussian.

    Training can continue from a trained VAE (option `init`). It then uses the same schedule as other
    methods that start from a trained VAE. The result is a control for these methods and is called VAE+.

    Args:
        model: p(x, z).
        encoder: gives q(z | x).

    Reference: Kingma & Welling, Auto-Encoding Variational Bayes, ICLR 2014.
    """

    name = "vae"
    title = "amortised Gaussian"
    reference = "Kingma & Welling 2014; Rezende et al. 2014"
    starts_from = None

    def __init__(self, model: LatentModel, encoder: nn.Module) -> None:
        super().__init__(model, [GaussianComponent(encoder, model)])


def elbo_gradient(
    model: LatentModel, x: Tensor, parameters: Tensor, generator: torch.Generator | None
) -> Tensor:
    """The gradient g of the ELBOs of T Gaussians per example with respect to their parameters λ.

    g = ∂/∂λ Σ_t mean_b ELBO(λ_tb) has the shape of λ, (T, B, 2 D). Each ELBO is estimated with one
    sample of z. The loss -sum(g · λ) gives the networks that compute λ the same gradient as minus this
    sum of ELBOs. It gives no gradient to the decoder, because g is a constant.

    Args:
        model: p(x, z).
        x: examples (B, *shape).
        parameters: λ = (μ, log σ²) of T Gaussians per example, (T, B, 2 D).
        generator: source of the random noise.
    """
    leaf = parameters.detach().requires_grad_()
    q = Gaussian.from_parameters(leaf)
    z, log_q = q.rsample_and_log_prob(1, generator=generator)  # (1, T, B, D)
    elbo = model.log_conditional(x, z[0]) - q.kl(model.prior, z, log_q)[0]
    return torch.autograd.grad(elbo.mean(-1).sum(), leaf)[0]
