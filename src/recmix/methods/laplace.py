"""The variational Laplace autoencoder (VLAE): Gauss-Newton steps to the mode of p(z | x).

The curvature at the mode then gives the covariance of a Gaussian posterior.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError
from recmix.inference.gauss_newton import DAMPING, check_decoder_has_jacobian
from recmix.inference.refinement import laplace
from recmix.methods.method import Method
from recmix.methods.registry import register, register_component
from recmix.methods.vae import GaussianComponent, elbo_gradient, encode
from recmix.model.latent import LatentModel
from recmix.posteriors import FullGaussian

__all__ = ["VLAE", "LaplaceComponent"]


@register_component
class LaplaceComponent(GaussianComponent):
    """q(z | x) = N(z*, H⁻¹): z* after Gauss-Newton steps from the encoder's mean, H the curvature there.

    The steps are damped and never lower log p(x, z), see `recmix.inference.gauss_newton`. The decoder's
    parameters receive gradients, see `recmix.inference.refinement.laplace`.

    The encoder receives none. The mode does not depend on the starting point, except that the steps may
    not have reached it. A gradient through the steps, or straight through them as if they were the
    identity, is not zero, but training with it makes the starting points worse. `VLAE` trains the
    encoder on its own ELBO. As a component of a mixture the encoder is not trained.

    Args:
        encoder: its mean is the starting point.
        model: gives the shapes.
        steps: number of Gauss-Newton steps, at least 1.
        damping: λ of the first step, in units of the prior's precision.
    """

    kind = "laplace"
    setting = "steps"
    can_be_distilled = False
    differentiates = True
    uses_jacobian = True

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
        self.steps = self.steps_per_example = steps
        self.damping = damping

    def parameters_at(self, x: Tensor, model: LatentModel) -> Tensor:
        """The encoder's own mean and log-variance, (B, 2 D), in the model's dtype."""
        output: Tensor = self.encoder(model.observed(x.to(model.centre.dtype)))
        return output

    def forward(self, x: Tensor, model: LatentModel) -> FullGaussian:  # type: ignore[override]
        """The Laplace posterior of x (B, C, H, W), by steps from the encoder's mean."""
        with torch.no_grad():
            start = encode(self, x.to(model.centre.dtype), model).mean
        return self.refine(x, start, model)

    def refine(self, x: Tensor, start: Tensor, model: LatentModel) -> FullGaussian:
        """The Laplace posterior of x after Gauss-Newton steps from the points `start` (B, D)."""
        return laplace(model, x, start, steps=self.steps, damping=self.damping)


@register
class VLAE(Method):
    """A Laplace approximation in the loop: q(z | x) = N(z*, H⁻¹), H = Jᵀ W J + I at the mode z*.

    Gauss-Newton steps δ with (H + λ I) δ = Jᵀ r - z lead from the encoder's mean to z*. J is the
    decoder's Jacobian. r is the gradient of log p(x | z) with respect to the decoder's output, and W its
    Fisher information with respect to this output. λ is a damping. If the decoder is linear and the
    likelihood Gaussian, the first step is exact and the ELBO is log p(x).

    The decoder maximises the ELBO of N(z*, H⁻¹); its gradient includes the change of z* and H (see
    `LaplaceComponent`). The encoder maximises the ELBO of its own N(μ, diag σ²), so that it keeps giving
    good starting points and remains an encoder that other methods can start from. On MNIST (20
    dimensions, 2 steps, 450 batches at 5e-4 from a VAE) this gains 20 nats. Alternatives: a decoder that
    treats mode and curvature as constants gains 14, one that also maximises the encoder's objective 17;
    an encoder trained through the steps loses 150, and one trained straight through them diverges.

    `loss` has the value of minus the refined ELBO; the encoder's objective adds only to its gradient.
    A training step differentiates D tangents of the decoder and needs the memory of a batch D + 1 times
    as large.

    Args:
        model: p(x, z).
        encoder: its mean is the starting point.
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
        """The networks that an engine may compile: all but the decoder.

        Compiled code gives no tangents, which the Gauss-Newton steps need from the decoder.
        """
        return super().networks()[1:]

    def loss(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Minus the refined ELBO, averaged over the batch; its gradient also trains the encoder."""
        x = x.to(self.model.centre.dtype)
        component: Any = self.components[0]
        parameters = component.parameters_at(x, self.model)
        q = component.refine(x, parameters.detach().chunk(2, dim=-1)[0], self.model)
        z, log_q = q.rsample_and_log_prob(1, generator=generator)
        elbo = (self.model.log_conditional(x, z) - self.model.kl(q, z, log_q)).mean()
        if not parameters.requires_grad:
            return -elbo
        own = (parameters * elbo_gradient(self.model, x, parameters[None], generator)[0]).sum()
        return -elbo - (own - own.detach())
