"""The variational Laplace autoencoder (VLAE): Gauss-Newton to the posterior's mode, then its curvature."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recmix.core import Component, LatentModel, Method, register, register_component
from recmix.gauss_newton import climb, damped_step
from recmix.posteriors.full import FullGaussian
from recmix.posteriors.gaussian import Gaussian

__all__ = ["VLAE", "LaplaceComponent"]


@register_component
class LaplaceComponent(Component):
    kind = "laplace"
    setting = "steps"

    def __init__(
        self, encoder: nn.Module, model: LatentModel, *, steps: int = 2, damping: float = 10.0
    ) -> None:
        super().__init__(encoder, model)
        self.steps = steps
        self.damping = damping

    def guess(self, x: Tensor, model: LatentModel) -> Gaussian:
        return Gaussian.from_parameters(self.encoder(model.centred(x.to(model.centre.dtype))))

    def forward(self, x: Tensor, model: LatentModel) -> FullGaussian:
        return self.refine(x, self.guess(x, model).mean, model)

    def refine(self, x: Tensor, start: Tensor, model: LatentModel) -> FullGaussian:
        z, at = climb(model, x, start, steps=self.steps, damping=self.damping)
        if torch.is_grad_enabled():
            step = damped_step(at.gradient, at.precision.detach(), torch.zeros_like(z[:, 0]))
            z = z + (step - step.detach()) + (start - start.detach())
        return FullGaussian.from_precision(z, at.precision)


@register
class VLAE(Method):
    name = "vlae"
    title = "variational Laplace"
    reference = "Park et al. 2019"
    setting = "steps"

    def __init__(
        self, model: LatentModel, encoder: nn.Module, *, steps: int = 2, damping: float = 10.0
    ) -> None:
        super().__init__(model, [LaplaceComponent(encoder, model, steps=steps, damping=damping)])
