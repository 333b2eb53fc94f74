"""The standard VAE: one encoder gives a diagonal Gaussian in one pass."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from recmix.accelerate.stacked import StackedEncoders
from recmix.methods.component import Component
from recmix.methods.method import LESSONS, Method
from recmix.methods.registry import register, register_component
from recmix.methods.residual import ResidualComponent
from recmix.methods.wide import WIDTH, WideComponent
from recmix.model.latent import LatentModel
from recmix.posteriors import Gaussian
from recmix.posteriors.posterior import Posterior

__all__ = ["VAE", "GaussianComponent", "elbo_gradient"]


@register_component
class GaussianComponent(Component):
    """q(z | x) = N(μ(x), diag σ²(x)), in one pass through the encoder."""

    kind = "gaussian"

    def __init__(self, encoder: nn.Module, model: LatentModel) -> None:
        super().__init__(encoder, model)
        self._alone = StackedEncoders([encoder], only_kernels=True)

    def train(self, mode: bool = True) -> GaussianComponent:
        """As ever; the kernels' copy of the encoder is made anew after a training."""
        if mode:
            self._alone.drop()
        super().train(mode)
        return self

    def forward(self, x: Tensor, model: LatentModel) -> Posterior:
        """One pass through the encoder."""
        return self.encoded(x, model)

    def encoded(self, x: Tensor, model: LatentModel) -> Gaussian:
        """What the encoder says of x: where no gradient is wanted, by our own kernels if they can."""
        if x.is_cuda and not torch.is_grad_enabled() and not self.training:
            alone = self._alone.gaussians(x, model.shift)
            if alone is not None:
                return Gaussian.clamped(alone.mean[0], alone.log_variance[0])
        return Gaussian.from_parameters(self.encoder(model.centred(x)))


@register
class VAE(Method):
    """Amortised variational inference with one diagonal Gaussian.

    Continued from a trained VAE (`init`) under the second-stage schedule it is the control VAE+.

    With residual corrections the Gaussian comes from a chain: encoder, then decoder and corrector in
    turn (see `recmix.methods.residual`). Every link climbs its own ELBO, given what the one before it
    found; the decoder climbs that of the last.

    Args:
        model: p(x, z).
        encoder: gives q(z | x), or its first guess.
        component: ``gaussian``, ``wide`` for a wider encoder beside the given one, or ``residual`` for
            corrections by the residual.
        corrections: how many, 1 to 8.
        shared: one corrector for all corrections, or one for each.
        width: of the wider encoder or of a corrector, in units of the paper's encoder.

    Reference: Kingma & Welling, Auto-Encoding Variational Bayes, ICLR 2014.
    """

    name = "vae"
    title = "amortised Gaussian"
    reference = "Kingma & Welling 2014; Rezende et al. 2014"
    second_stage = False

    def __init__(
        self,
        model: LatentModel,
        encoder: nn.Module,
        *,
        component: Literal["gaussian", "wide", "residual"] = "gaussian",
        corrections: int = 3,
        shared: bool = True,
        width: float = WIDTH,
    ) -> None:
        if component == "residual":
            chain = ResidualComponent(
                encoder, model, corrections=corrections, shared=shared, width=width
            )
            super().__init__(model, [chain])
        elif component == "wide":
            super().__init__(model, [WideComponent(encoder, model, width=width)])
        else:
            super().__init__(model, [GaussianComponent(encoder, model)])

    def networks(self) -> list[nn.Module]:
        """Those beside the encoder, too."""
        part, more = self.components[0], []
        if isinstance(part, ResidualComponent):
            more = list(part.correctors)
        elif isinstance(part, WideComponent):
            more = [part.beside]
        return super().networks() + more

    def loss(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Minus the ELBO; the gradient of a chain is that of the ELBOs of all its links."""
        part = self.components[0]
        if not isinstance(part, ResidualComponent):
            return super().loss(x, generator=generator)
        *early, last = part.chain(x, self.model, apart=True)
        q = Gaussian.from_parameters(last)
        z, log_q = q.rsample_and_log_prob(1, generator=generator)
        elbo = (self.model.log_conditional(x, z) - q.kl_to_prior(z, log_q)).mean()
        if not last.requires_grad:
            return -elbo
        parameters = torch.stack(early)  # (T, B, 2 D)
        own = (parameters * elbo_gradient(self.model, x, parameters, generator)).sum()
        return -elbo - (own - own.detach())

    def distillation(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """KL(q* || q) but for a constant; of a chain summed over its links, q* being the last one's."""
        part = self.components[0]
        if not isinstance(part, ResidualComponent):
            return super().distillation(x, generator)
        links = torch.stack(part.chain(x, self.model, apart=True))  # (T + 1, B, 2 D)
        with torch.no_grad():
            best = self.teacher(x, Gaussian.from_parameters(links[-1]))
            z, _ = best.rsample_and_log_prob(LESSONS, generator=generator)
        log_q = Gaussian.from_parameters(links).log_prob(z[:, None])  # (LESSONS, T + 1, B)
        return -log_q.mean((0, -1)).sum()


def elbo_gradient(
    model: LatentModel, x: Tensor, parameters: Tensor, generator: torch.Generator | None
) -> Tensor:
    """∂/∂λ of Σ_t of the batch's mean one-sample ELBO, for Gaussians λ = `parameters` (T, B, 2 D).

    Its product with `parameters` stands for these ELBOs in a loss: the same derivative in what made the
    parameters, and none in the decoder.
    """
    leaf = parameters.detach().requires_grad_()
    q = Gaussian.from_parameters(leaf)
    z, log_q = q.rsample_and_log_prob(1, generator=generator)  # (1, T, B, D)
    elbo = model.log_conditional(x, z[0]) - q.kl_to_prior(z, log_q)[0]
    return torch.autograd.grad(elbo.mean(-1).sum(), leaf)[0]
