"""The variational Laplace autoencoder (VLAE): up to the mode, then a Gaussian with its curvature."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError
from recmix.inference.gauss_newton import DAMPING
from recmix.inference.refinement import check_decoder_has_jacobian, laplace
from recmix.methods.method import Method
from recmix.methods.registry import register, register_component
from recmix.methods.vae import GaussianComponent, elbo_gradient
from recmix.model.latent import LatentModel
from recmix.posteriors.full import FullGaussian

__all__ = ["VLAE", "LaplaceComponent"]


@register_component
class LaplaceComponent(GaussianComponent):
    """q(z | x) = N(z*, H⁻¹): z* after Gauss-Newton steps from the encoder's mean, H the curvature there.

    The steps are damped and never lower log p(x, z); see `recmix.inference.gauss_newton`. They need D
    forward-mode tangents of the decoder, so any decoder will do, a convolutional one included.

    The decoder's parameters receive gradients, see `recmix.inference.refinement.laplace`.

    The encoder receives none: where the climb ends does not depend on where it begins, except by not
    yet having arrived. A gradient taken through the steps, or straight through as if they were the
    identity, points somewhere all the same; followed, it drives the encoder away for good. `VLAE`
    trains it on an objective of its own; as a component of a mixture it stays as it was.

    Args:
        encoder: its mean is where the climb begins.
        model: for the shapes.
        steps: number of Gauss-Newton steps, at least 1.
        damping: λ of the first step, in units of the prior's precision.
    """

    kind = "laplace"
    setting = "steps"
    teachable = False

    def __init__(
        self, encoder: nn.Module, model: LatentModel, *, steps: int = 2, damping: float = DAMPING
    ) -> None:
        super().__init__(encoder, model)
        if steps < 1:
            raise ConfigError(
                f"steps is the number of Gauss-Newton steps, at least 1 (the paper's: 1, 2, 4, 8); "
                f"got {steps}. Without steps the method is the VAE"
            )
        if not (math.isfinite(damping) and damping > 0):
            raise ConfigError(f"damping must be a positive number, got {damping}; try {DAMPING}")
        check_decoder_has_jacobian(model)
        self.steps = steps
        self.damping = damping

    def parameters_at(self, x: Tensor, model: LatentModel) -> Tensor:
        """The encoder's own mean and log-variance, (B, 2 D), in the model's number format."""
        output: Tensor = self.encoder(model.centred(x.to(model.centre.dtype)))
        return output

    def forward(self, x: Tensor, model: LatentModel) -> FullGaussian:
        """One pass through the encoder, then the climb."""
        with torch.no_grad():
            start = self.encoded(x.to(model.centre.dtype), model).mean
        return self.refine(x, start, model)

    def refine(self, x: Tensor, start: Tensor, model: LatentModel) -> FullGaussian:
        """The Laplace posterior at the end of a climb from `start` (B, D)."""
        return laplace(model, x, start, steps=self.steps, damping=self.damping)


@register
class VLAE(Method):
    """Laplace's approximation in the loop: q(z | x) = N(z*, H⁻¹), H = Jᵀ W J + I at the mode z*.

    z* is reached from the encoder's mean by steps (H + λ I) δ = Jᵀ r - z on the linearised decoder. The
    first of them is exact where decoder and likelihood are linear and Gaussian, and then the ELBO is
    log p(x).

    The decoder climbs the ELBO of N(z*, H⁻¹), with a gradient that sees mode and curvature move (see
    `LaplaceComponent`); the encoder climbs the ELBO of its own N(μ, diag σ²), so that it keeps giving
    good places to begin and remains an encoder that other methods can start from. Neither sees the
    other's objective. Tried on MNIST against this (20 dimensions, 2 steps, 450 batches at 5e-4 from a
    VAE, where it gains 20 nats): a decoder that takes mode and curvature for constants gains 14, one
    that also climbs the encoder's objective 17; an encoder trained through the steps loses 150, and one
    trained straight through them diverges.

    `loss` has the value of minus the refined ELBO; the encoder's objective adds to its gradient alone.
    A step differentiates D tangents of the decoder: its memory is that of a batch D + 1 times as large.

    Args:
        model: p(x, z).
        encoder: its mean is where the climb begins.
        steps: number of Gauss-Newton steps, at least 1.
        damping: λ of the first step, in units of the prior's precision.

    Reference: Park et al., Variational Laplace Autoencoders, ICML 2019.
    """

    name = "vlae"
    title = "variational Laplace"
    reference = "Park et al. 2019"
    setting = "steps"
    tried = (1, 2, 4, 8)

    def __init__(
        self, model: LatentModel, encoder: nn.Module, *, steps: int = 2, damping: float = DAMPING
    ) -> None:
        super().__init__(model, [LaplaceComponent(encoder, model, steps=steps, damping=damping)])

    def networks(self) -> list[nn.Module]:
        """Not the decoder: its tangents are not to be had from compiled code."""
        return super().networks()[1:]

    def loss(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Minus the refined ELBO, averaged over the batch; its gradient also trains the encoder."""
        x = x.to(self.model.centre.dtype)
        component: LaplaceComponent = self.components[0]  # type: ignore[assignment]
        parameters = component.parameters_at(x, self.model)
        q = component.refine(x, parameters.detach().chunk(2, dim=-1)[0], self.model)
        z, log_q = q.rsample_and_log_prob(1, generator=generator)
        elbo = (self.model.log_conditional(x, z) - q.kl_to_prior(z, log_q)).mean()
        if not parameters.requires_grad:
            return -elbo
        own = (parameters * elbo_gradient(self.model, x, parameters[None], generator)[0]).sum()
        return -elbo - (own - own.detach())
