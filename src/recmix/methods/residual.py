"""Residual recursion: an encoder that looks at what the one before it failed to explain.

q_0 comes from the encoder. Then, again and again, the decoder shows what the mean explains, and a
corrector that sees the image, the residual and the posterior so far gives a better one:

    r_t = x - E[x | z = μ_{t-1}],    λ_t = λ_{t-1} + c_t(x, r_t, λ_{t-1}),    λ = (μ, log σ²).

Decoder and corrector run forward only: nothing is differentiated when it is used.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError
from recmix.inference.refinement import highest, scales
from recmix.methods.component import Component
from recmix.methods.registry import register_component
from recmix.methods.wide import WIDTH
from recmix.model.latent import LatentModel, standard_normal
from recmix.model.likelihoods import PIXELS
from recmix.model.networks import conv_encoder
from recmix.posteriors import Gaussian
from recmix.posteriors.gaussian import LOG_VARIANCE_RANGE
from recmix.posteriors.posterior import Posterior

__all__ = ["CorrectionComponent", "Corrector", "ResidualComponent"]

MAX_CORRECTIONS = 8


class Corrector(nn.Module):
    """c(x, r, μ, log σ²) -> changes of (μ, log σ²), (B, 2 D); zero before it is trained.

    The convolutions of the paper's encoder over image and residual side by side, then two layers that
    also see the parameters of the posterior so far.

    Args:
        model: for the shapes.
        width: of its layers, in units of the paper's encoder.
    """

    def __init__(self, model: LatentModel, *, width: float = WIDTH) -> None:
        super().__init__()
        channels, height, side = model.shape
        eyes = conv_encoder((2 * channels, height, side), model.latent, width=width)
        self.features = eyes.features
        self.joint = nn.Linear(eyes.hidden + 2 * model.latent, eyes.hidden)
        self.head = nn.Linear(eyes.hidden, 2 * model.latent)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, image: Tensor, residual: Tensor, parameters: Tensor) -> Tensor:
        """The change of `parameters` (B, 2 D) for images and residuals (B, C, H, W)."""
        seen = self.features(torch.cat([image, residual], 1))
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
    """(μ, log σ²) after one correction, (B, 2 D); what the decoder shows carries no gradient.

    Args:
        model: p(x, z).
        corrector: what corrects.
        x: images.
        parameters: (μ, log σ²) before.
        decoded: what the decoder shows for μ, if that is known.
    """
    with torch.no_grad():
        if decoded is None:
            decoded = model.decoder(parameters.chunk(2, dim=-1)[0])
        image = model.centred(x)
        # In units of the noise: an unexplained pixel counts the same in every model.
        weight = model.likelihood.precision(decoded).mean(PIXELS, keepdim=True)
        residual = model.likelihood.residual(image, decoded) * weight.rsqrt()
    change: Tensor = corrector(image, residual, parameters)
    return parameters + change


@register_component
class ResidualComponent(Component):
    """A Gaussian from the encoder, corrected a few times by looking at the residual.

    As it starts, q(z | x) is the encoder's own. Where it is used, it may begin from several points on
    the ray through the encoder's mean; then the best link of all chains counts (`best`).

    Args:
        encoder: gives the first posterior.
        model: for the shapes.
        corrections: how often, 1 to 8.
        shared: one corrector for all of them, or one for each.
        width: of the correctors, in units of the paper's encoder.
    """

    kind = "residual"
    setting = "corrections"
    several = True

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
                f"corrections is how often the residual is looked at, 1 to {MAX_CORRECTIONS}; "
                f"got {corrections}. Without any, use the gaussian component"
            )
        self.corrections = corrections
        first = Corrector(model, width=width)
        others = [copy.deepcopy(first) for _ in range(0 if shared else corrections - 1)]
        self.correctors = nn.ModuleList([first, *others])

    def chain(self, x: Tensor, model: LatentModel, *, apart: bool = False) -> list[Tensor]:
        """(μ_t, log σ_t²) for t = 0 … corrections, (B, 2 D) each.

        Args:
            x: images.
            model: p(x, z).
            apart: each carries gradients to its own corrector only, not to those before it.
        """
        found = [self.encoder(model.centred(x))]
        for t in range(self.corrections):
            corrector: Corrector = self.correctors[t % len(self.correctors)]  # type: ignore[assignment]
            before = found[-1].detach() if apart else found[-1]
            found.append(corrected(model, corrector, x, before))
        return found

    def forward(self, x: Tensor, model: LatentModel) -> Gaussian:
        """Encoder, then decoder and corrector in turn."""
        return Gaussian.from_parameters(self.chain(x, model)[-1])

    @torch.no_grad()
    def best(self, x: Tensor, model: LatentModel, starts: int) -> Gaussian:
        """The best link, for each image, of chains from several starts, which go on together.

        It is the one that says most of log p(x) by Laplace's estimate, log p(x, μ) + ½ Σ log σ². The
        decoder has shown all links but the last ones already, and nothing is differentiated.

        Args:
            x: images (B, C, H, W).
            model: p(x, z).
            starts: chains for each image: from the encoder's mean times each of `scales`.
        """
        mean, log_variance = self.encoder(model.centred(x)).chunk(2, dim=-1)
        now = torch.cat([torch.cat([s * mean, log_variance], -1) for s in scales(starts)])
        images = x.repeat(starts, *(1 for _ in model.shape))
        shown = model.centred(images)
        best, most = now, torch.full_like(now[:, 0], -torch.inf)
        for t in range(self.corrections + 1):
            at, width = now.chunk(2, dim=-1)
            decoded = model.decoder(at)
            told = model.likelihood.log_prob(shown, decoded[None])[0]
            told = told + standard_normal(at) + 0.5 * width.clamp(*LOG_VARIANCE_RANGE).sum(-1)
            better = told > most  # false where it is not a number
            best, most = torch.where(better[:, None], now, best), torch.where(better, told, most)
            if t < self.corrections:
                corrector: Corrector = self.correctors[t % len(self.correctors)]  # type: ignore[assignment]
                now = corrected(model, corrector, images, now, decoded)
        return Gaussian.from_parameters(highest(most, best, starts))


class CorrectionComponent(Component):
    """A Gaussian that corrects the component before it: for those of a mixture after the first.

    Args:
        model: for the shapes.
        width: of the corrector, in units of the paper's encoder.
    """

    kind = "correction"
    sees_before = True

    def __init__(self, model: LatentModel, *, width: float = WIDTH) -> None:
        super().__init__(Corrector(model, width=width), model)

    def forward(self, x: Tensor, model: LatentModel, before: Posterior | None = None) -> Gaussian:
        """`before`, whose gradient is not followed, corrected once."""
        if not isinstance(before, Gaussian):
            raise ConfigError("a correction needs the Gaussian that it corrects")
        parameters = torch.cat([before.mean, before.log_variance], -1).detach()
        corrector: Corrector = self.encoder  # type: ignore[assignment]
        return Gaussian.from_parameters(corrected(model, corrector, x, parameters))
