"""Residual corrections: networks that improve a posterior from the residual of its reconstruction.

q_0 comes from the encoder. Then, a few times, the decoder reconstructs x from the mean, and a corrector
that sees x, the residual and the posterior so far gives a better posterior:

    r_t = x - E[x | z = μ_{t-1}],    λ_t = λ_{t-1} + c_t(x, r_t, λ_{t-1}),    λ = (μ, log σ²).

Decoder and corrector run forward only. Nothing is differentiated when the posterior is used.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError
from recmix.inference import Inference
from recmix.inference.refinement import best_restart, restart_scales
from recmix.methods.component import Component
from recmix.methods.method import TEACHER_SAMPLES, Method
from recmix.methods.registry import register, register_component
from recmix.methods.vae import GaussianComponent, elbo_gradient
from recmix.methods.wide import WIDTH
from recmix.model.latent import LatentModel
from recmix.model.pair_features import PairFeatures
from recmix.posteriors import Gaussian, Posterior
from recmix.posteriors.gaussian import LOG_VARIANCE_RANGE

__all__ = ["CorrectionComponent", "Corrector", "ResidualComponent", "ResidualVAE"]

MAX_CORRECTIONS = 8


class Corrector(nn.Module):
    """c(x, r, μ, log σ²) -> changes of (μ, log σ²), (B, 2 D); zero before training.

    For images, the convolutions of the paper's encoder see x and the residual as channels. Two linear
    layers then also see the parameters of the posterior so far.

    Args:
        model: gives the shapes.
        width: of its layers, in units of the paper's encoder.
    """

    def __init__(self, model: LatentModel, *, width: float = WIDTH) -> None:
        super().__init__()
        output = model.likelihood.output_shape(model.shape)
        self.features = PairFeatures(model.shape, output, model.latent, width=width)
        hidden = self.features.hidden
        self.joint = nn.Linear(hidden + 2 * model.latent, hidden)
        self.head = nn.Linear(hidden, 2 * model.latent)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, example: Tensor, residual: Tensor, parameters: Tensor) -> Tensor:
        """The change of `parameters` (B, 2 D) for examples (B, *shape) and residuals (B, *output)."""
        seen = self.features(example, residual)
        hidden = nn.functional.leaky_relu(self.joint(torch.cat([seen, parameters], -1)), 0.01)
        change: Tensor = self.head(hidden)
        return change


def corrected(
    model: LatentModel,
    corrector: Corrector,
    x: Tensor,
    parameters: Tensor,
    decoded: Tensor | None = None,
) -> Tensor:
    """(μ, log σ²) after one correction, (B, 2 D); the decoder's output carries no gradient.

    Args:
        model: p(x, z).
        corrector: gives the change.
        x: examples (B, C, H, W).
        parameters: (μ, log σ²) before.
        decoded: the decoder's output for μ, if it is known.
    """
    with torch.no_grad():
        if decoded is None:
            decoded = model.decoder(parameters.chunk(2, dim=-1)[0])
        example = model.observed(x)
        # In units of the noise, so that a residual has the same size in every model.
        weight = model.likelihood.precision(example, decoded)
        weight = weight.mean(tuple(range(1, weight.ndim)), keepdim=True).clamp(min=1e-12)
        residual = model.likelihood.residual(example, decoded) * weight.rsqrt()
    change: Tensor = corrector(model.standardised(x), residual, parameters)
    return parameters + change


@register_component
class ResidualComponent(Component):
    """A Gaussian from the encoder, corrected a few times by looking at the residual.

    Before training, q(z | x) is the encoder's own.

    Args:
        encoder: gives the first posterior.
        model: gives the shapes.
        corrections: how many, 1 to 8.
        shared: one corrector for all corrections, or one for each.
        width: of the correctors, in units of the paper's encoder.
    """

    kind = "residual"
    setting = "corrections"
    closed_form_entropy = True

    def __init__(
        self,
        encoder: nn.Module,
        model: LatentModel,
        *,
        corrections: int = 3,
        shared: bool = True,
        width: float = WIDTH,
    ) -> None:
        super().__init__(encoder, model)
        if not 1 <= corrections <= MAX_CORRECTIONS:
            raise ConfigError(
                f"corrections must be 1 to {MAX_CORRECTIONS}, got {corrections}; without any "
                "correction use the method 'vae'"
            )
        self.corrections = corrections
        first = Corrector(model, width=width)
        others = [copy.deepcopy(first) for _ in range(0 if shared else corrections - 1)]
        self.correctors = nn.ModuleList([first, *others])

    @classmethod
    def for_recursion(
        cls, encoder: nn.Module, model: LatentModel, count: int, setting: int | None = None
    ) -> list[Component]:
        """A Gaussian component, then components that each correct the previous one."""
        if setting is not None:
            raise ConfigError(
                "residual components of a recursion correct one another once each: leave "
                f"component_setting out, got {setting}"
            )
        first = GaussianComponent(copy.deepcopy(encoder), model)
        return [first, *(CorrectionComponent(model) for _ in range(count - 1))]

    def extra_networks(self) -> list[nn.Module]:
        """The correctors."""
        return list(self.correctors)

    def corrector(self, t: int) -> Corrector:
        """The corrector of correction t."""
        found: Any = self.correctors[t % len(self.correctors)]
        return found

    def iterates(self, x: Tensor, model: LatentModel, *, detach: bool = False) -> list[Tensor]:
        """(μ_t, log σ_t²) for t = 0 … corrections, (B, 2 D) each.

        Args:
            x: examples (B, C, H, W).
            model: p(x, z).
            detach: each iterate carries gradients to its own corrector only.
        """
        found = [self.encoder(model.observed(x))]
        for t in range(self.corrections):
            before = found[-1].detach() if detach else found[-1]
            found.append(corrected(model, self.corrector(t), x, before))
        return found

    def forward(self, x: Tensor, model: LatentModel) -> Gaussian:
        """The last iterate."""
        return Gaussian.from_parameters(self.iterates(x, model)[-1])

    @torch.no_grad()
    def restarted(self, x: Tensor, model: LatentModel, restarts: int) -> Gaussian:
        """The best iterate, for each example, of several sequences of corrections.

        Iterates are compared by Laplace's estimate of log p(x), log p(x, μ) + ½ Σ log σ². The decoder's
        output is known for all iterates but the last, and nothing is differentiated.

        Args:
            x: examples (B, C, H, W).
            model: p(x, z).
            restarts: sequences for each example; they start at the encoder's mean times each of
                `restart_scales`.
        """
        mean, log_variance = self.encoder(model.observed(x)).chunk(2, dim=-1)
        now = torch.cat([torch.cat([s * mean, log_variance], -1) for s in restart_scales(restarts)])
        repeated = x.repeat(restarts, *(1 for _ in model.shape))
        observed = model.observed(repeated)
        best, best_score = now, torch.full_like(now[:, 0], -torch.inf)
        for t in range(self.corrections + 1):
            at, width = now.chunk(2, dim=-1)
            decoded = model.decoder(at)
            score = model.log_density(observed, decoded[None])[0]
            score = score + model.prior.log_prob(at) + 0.5 * width.clamp(*LOG_VARIANCE_RANGE).sum(-1)
            better = score > best_score  # false where the score is not a number
            best = torch.where(better[:, None], now, best)
            best_score = torch.where(better, score, best_score)
            if t < self.corrections:
                now = corrected(model, self.corrector(t), repeated, now, decoded)
        return Gaussian.from_parameters(best_restart(best_score, best, restarts))


class CorrectionComponent(Component):
    """A Gaussian that corrects the component before it, in a mixture.

    Args:
        model: gives the shapes.
        width: of the corrector, in units of the paper's encoder.
    """

    kind = "correction"
    corrects = True
    closed_form_entropy = True

    def __init__(self, model: LatentModel, *, width: float = WIDTH) -> None:
        super().__init__(Corrector(model, width=width), model)

    def forward(self, x: Tensor, model: LatentModel, before: Posterior | None = None) -> Gaussian:
        """Correct `before` once; no gradient flows to `before`."""
        if not isinstance(before, Gaussian):
            raise ConfigError(f"a correction needs the Gaussian that it corrects, got {before!r}")
        parameters = torch.cat([before.mean, before.log_variance], -1).detach()
        corrector: Any = self.encoder
        return Gaussian.from_parameters(corrected(model, corrector, x, parameters))


@register
class ResidualVAE(Method):
    """A VAE whose Gaussian is corrected a few times by looking at the residual.

    Every iterate maximises its own ELBO, given the iterate before it. The decoder maximises the ELBO of
    the last iterate.

    Args:
        model: p(x, z).
        encoder: gives the first posterior.
        corrections: how many, 1 to 8.
        shared: one corrector for all corrections, or one for each.
        width: of a corrector, in units of the paper's encoder.

    Reference: this library; compare Marino et al., Iterative Amortized Inference, ICML 2018.
    """

    name = "residual"
    title = "residual corrections"
    reference = "this library"
    setting = "corrections"
    can_restart = True
    feed_forward = True

    def __init__(
        self,
        model: LatentModel,
        encoder: nn.Module,
        *,
        corrections: int = 3,
        shared: bool = True,
        width: float = WIDTH,
    ) -> None:
        part = ResidualComponent(encoder, model, corrections=corrections, shared=shared, width=width)
        super().__init__(model, [part])

    @property
    def _part(self) -> ResidualComponent:
        part: Any = self.components[0]
        return part

    def restarted(self, x: Tensor, restarts: int) -> Gaussian:
        """The best iterate of several sequences of corrections, see `ResidualComponent.restarted`."""
        return self._part.restarted(x, self.model, restarts)

    def loss(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Minus the last iterate's ELBO; its gradient is that of the ELBOs of all iterates."""
        *early, last = self._part.iterates(x, self.model, detach=True)
        q = Gaussian.from_parameters(last)
        z, log_q = q.rsample_and_log_prob(1, generator=generator)
        elbo = (self.model.log_conditional(x, z) - self.model.kl(q, z, log_q)).mean()
        if not last.requires_grad:
            return -elbo
        parameters = torch.stack(early)  # (T, B, 2 D)
        own = (parameters * elbo_gradient(self.model, x, parameters, generator)).sum()
        return -elbo - (own - own.detach())

    def distillation(self, x: Tensor, teacher: Inference, generator: torch.Generator | None) -> Tensor:
        """KL(q* || q_t) up to a constant, summed over all iterates; q* is the last one refined."""
        iterates = torch.stack(self._part.iterates(x, self.model, detach=True))  # (T + 1, B, 2 D)
        with torch.no_grad():
            best = teacher(self.model, x, Gaussian.from_parameters(iterates[-1]))
            z, _ = best.rsample_and_log_prob(TEACHER_SAMPLES, generator=generator)
        log_q = Gaussian.from_parameters(iterates).log_prob(z[:, None])  # (S, T + 1, B)
        return -log_q.mean((0, -1)).sum()
