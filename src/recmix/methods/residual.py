"""Residual corrections: networks that improve a posterior from the error of its reconstruction.

The first posterior q_0 comes from the encoder. Then, a few times, the decoder reconstructs x from the
posterior mean. A network, the corrector c_t, takes x, the residual r_t and the current posterior, and
gives a better posterior:

    r_t = x - E[x | z = μ_{t-1}],    λ_t = λ_{t-1} + c_t(x, r_t, λ_{t-1}),    λ = (μ, log σ²).

Computing the posterior takes only forward passes of decoder and corrector. Derivatives are computed only
if the option `whitened` is on.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError
from recmix.inference import Inference
from recmix.inference.gauss_newton import make_log_joint
from recmix.inference.learned import gaussian_at
from recmix.inference.restarts import best_restart, repeated, restart_scales
from recmix.methods.component import Component
from recmix.methods.gates import token_classes
from recmix.methods.method import TEACHER_SAMPLES, Method
from recmix.methods.registry import register, register_component
from recmix.methods.vae import GaussianComponent, elbo_gradient
from recmix.methods.wide import WIDTH
from recmix.model.latent import LatentModel
from recmix.model.pair_features import PairFeatures, TokenPairFeatures
from recmix.model.similar_encoder import token_features
from recmix.objectives import elbo
from recmix.posteriors import Gaussian, Posterior
from recmix.posteriors.gaussian import LOG_VARIANCE_RANGE

__all__ = [
    "CorrectionComponent",
    "Corrector",
    "ResidualComponent",
    "ResidualVAE",
    "whitened_gradient",
]

MAX_CORRECTIONS = 8


class Corrector(nn.Module):
    """A network c(x, r, μ, log σ²) that gives a change of the posterior's (μ, log σ²), (B, 2 D).

    r = x - E[x | z = μ] is the residual of the reconstruction. For images and video clips, a
    convolutional network takes x and r as channels. For tokens, a linear function of r is added to the
    embedded tokens. For all other x, a fully connected network takes x and r as one vector. The features
    from this network and (μ, log σ²) are the input of two linear layers. The last layer is zero before
    training, so the change is zero then.

    Args:
        model: gives the shapes of x and z.
        width: factor of the layer sizes. For tokens, 1 gives the sizes of `like`. For all other x, 1
            gives the sizes of the library's default network for this shape.
        whitened: whether the linear layers also see the gradient of log p(x, z), scaled by the local
            covariance, see `whitened_gradient`.
        like: the encoder of the first posterior. For tokens, the corrector has the same kind of layers.
    """

    features: PairFeatures | TokenPairFeatures

    def __init__(
        self,
        model: LatentModel,
        *,
        width: float = WIDTH,
        whitened: bool = False,
        like: nn.Module | None = None,
    ) -> None:
        super().__init__()
        output = model.likelihood.output_shape(model.shape)
        if (tokens := token_features(like, model, width)) is not None:
            self.features = TokenPairFeatures(tokens, output)
        else:
            classes = token_classes(like)
            groups = classes if isinstance(classes, tuple) else ()
            self.features = PairFeatures(model.shape, output, model.latent, width=width, groups=groups)
        self.whitened = whitened
        hidden = self.features.hidden
        self.joint = nn.Linear(hidden + (3 if whitened else 2) * model.latent, hidden)
        self.head = nn.Linear(hidden, 2 * model.latent)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(
        self,
        example: Tensor,
        residual: Tensor,
        parameters: Tensor,
        gradient: Tensor | None = None,
    ) -> Tensor:
        """The change of the posterior's parameters (μ, log σ²), (B, 2 D).

        Args:
            example: examples x (B, *shape).
            residual: residuals (B, *output), with the shape of the decoder's output.
            parameters: (μ, log σ²) before the correction, (B, 2 D).
            gradient: the result of `whitened_gradient` at μ, (B, D); only with the option `whitened`.
        """
        seen = [self.features(example, residual), parameters, *([] if gradient is None else [gradient])]
        hidden = nn.functional.leaky_relu(self.joint(torch.cat(seen, -1)), 0.01)
        change: Tensor = self.head(hidden)
        return change


def corrected(
    model: LatentModel,
    corrector: Corrector,
    x: Tensor,
    parameters: Tensor,
    decoded: Tensor | None = None,
) -> Tensor:
    """The posterior's parameters (μ, log σ²) after one correction, (B, 2 D).

    The decoder's output is treated as a constant: no gradient flows through it.

    Args:
        model: p(x, z).
        corrector: the network that gives the change.
        x: examples (B, *shape).
        parameters: (μ, log σ²) before the correction, (B, 2 D).
        decoded: the decoder's output for μ, if it is already known.
    """
    with torch.no_grad():
        if decoded is None:
            decoded = model.decoder(parameters.chunk(2, dim=-1)[0])
        example = model.observed(x)
        # In units of the noise, so that a residual has the same size in every model.
        weight = model.likelihood.mean_precision(example, decoded).clamp(min=1e-12)
        weight = weight.view(-1, *(1 for _ in decoded.shape[1:]))
        residual = model.likelihood.residual(example, decoded) * weight.rsqrt()
        gradient = None
        if corrector.whitened:
            gradient = whitened_gradient(model, x, parameters.chunk(2, dim=-1)[0])
    change: Tensor = corrector(model.standardised(x), residual, parameters, gradient)
    return parameters + change


def whitened_gradient(model: LatentModel, x: Tensor, z: Tensor) -> Tensor:
    """The gradient g of log p(x, z) at z (B, D), scaled by the local covariance: asinh(Lᵀ g), (B, D).

    L is the factor of the covariance L Lᵀ that the model's curvature network gives at z. A Newton step
    to the mode of p(z | x) is about L Lᵀ g, so Lᵀ g is this step in units of L. asinh makes large values
    smaller. The result carries no gradient. A model without a curvature network raises a ConfigError.
    """
    if model.curvature is None:
        raise ConfigError(
            "whitened = true needs a model with a curvature network: start from a run of the method "
            "curvature (init)"
        )
    with torch.no_grad():
        _, gradient = make_log_joint(model, x, z.dtype).gradient(z.detach())
        return gaussian_at(model, z).multiply_transposed(gradient).asinh()


@register_component
class ResidualComponent(Component):
    """A Gaussian from the encoder, corrected a few times by looking at the residual.

    The residual is x minus its reconstruction from the posterior mean. Before training, q(z | x) is
    the encoder's own Gaussian.

    The constructor's options are those of `ResidualVAE`.
    """

    kind = "residual"
    setting = "corrections"
    feed_forward = True
    closed_form_entropy = True

    def __init__(
        self,
        encoder: nn.Module,
        model: LatentModel,
        *,
        corrections: int = 3,
        shared: bool = True,
        width: float = WIDTH,
        whitened: bool = False,
    ) -> None:
        super().__init__(encoder, model)
        if not 1 <= corrections <= MAX_CORRECTIONS:
            raise ConfigError(
                f"corrections must be 1 to {MAX_CORRECTIONS}, got {corrections}; without any "
                "correction use the method 'vae'"
            )
        self.corrections = corrections
        self.steps_per_example = corrections if whitened else 0
        first = Corrector(model, width=width, whitened=whitened, like=encoder)
        others = [copy.deepcopy(first) for _ in range(0 if shared else corrections - 1)]
        self.correctors = nn.ModuleList([first, *others])

    @classmethod
    def for_recursion(
        cls, encoder: nn.Module, model: LatentModel, count: int, setting: int | None = None
    ) -> list[Component]:
        """Make the components of a recursive mixture: a Gaussian from the encoder, then corrections.

        The first component is a Gaussian from a copy of the encoder. Each later component makes one
        correction of the Gaussian of the component before it.

        Args:
            encoder: the encoder that is copied.
            model: gives the shapes of x and z.
            count: number of components.
            setting: must be None; any other value raises a ConfigError.
        """
        if setting is not None:
            raise ConfigError(
                "residual components of a recursion correct one another once each: leave "
                f"component_setting out, got {setting}"
            )
        first = GaussianComponent(copy.deepcopy(encoder), model)
        return [first, *(CorrectionComponent(model, like=encoder) for _ in range(count - 1))]

    def extra_networks(self) -> list[nn.Module]:
        """The networks that correct the posterior."""
        return list(self.correctors)

    def corrector(self, t: int) -> Corrector:
        """The network that makes correction t, counted from 0."""
        found: Any = self.correctors[t % len(self.correctors)]
        return found

    def iterates(self, x: Tensor, model: LatentModel, *, detach: bool = False) -> list[Tensor]:
        """The parameters (μ, log σ²) of the posterior after 0, 1, … T corrections, (B, 2 D) each.

        If `detach` is True, each correction treats its input (μ, log σ²) as a constant. Then the ELBO
        after a correction trains only the corrector of this correction.
        """
        found = [self.encoder(model.observed(x))]
        for t in range(self.corrections):
            before = found[-1].detach() if detach else found[-1]
            found.append(corrected(model, self.corrector(t), x, before))
        return found

    def forward(self, x: Tensor, model: LatentModel) -> Gaussian:
        """The Gaussian q(z | x) after the last correction, for examples x (B, *shape)."""
        return Gaussian.from_parameters(self.iterates(x, model)[-1])

    @torch.no_grad()
    def restarted(self, x: Tensor, model: LatentModel, restarts: int) -> Gaussian:
        """Correct from several starting points; keep the best posterior found for each example.

        The starting points are the encoder's mean times each of `restart_scales`. The posteriors after
        0, 1, … corrections are compared by Laplace's estimate of log p(x). Up to a constant it is
        log p(x, μ) + ½ Σ log σ². This takes one decoder pass more than `forward`, and each pass computes
        `restarts` times as many examples.
        """
        mean, log_variance = self.encoder(model.observed(x)).chunk(2, dim=-1)
        now = torch.cat([torch.cat([s * mean, log_variance], -1) for s in restart_scales(restarts)])
        many = repeated(x, restarts)
        observed = model.observed(many)
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
                now = corrected(model, self.corrector(t), many, now, decoded)
        return Gaussian.from_parameters(best_restart(best_score, best, restarts))


class CorrectionComponent(Component):
    """A mixture component whose Gaussian is a correction of the previous component's Gaussian.

    A `Corrector` network takes x, the residual of the reconstruction, and (μ, log σ²) of the previous
    component. It gives a change, which is added to these (μ, log σ²).

    Args:
        model: gives the shapes of x and z.
        width: factor of the layer sizes of the corrector, see `Corrector`.
        like: the encoder of the first component. For tokens, the corrector has the same kind of layers.
    """

    kind = "correction"
    corrects = True
    feed_forward = True
    closed_form_entropy = True

    def __init__(
        self, model: LatentModel, *, width: float = WIDTH, like: nn.Module | None = None
    ) -> None:
        super().__init__(Corrector(model, width=width, like=like), model)

    def forward(self, x: Tensor, model: LatentModel, before: Posterior | None = None) -> Gaussian:
        """The Gaussian after one correction of `before`, the Gaussian of the previous component.

        No gradient flows to `before`. If `before` is None or not a Gaussian, raise a ConfigError.
        """
        if not isinstance(before, Gaussian):
            raise ConfigError(f"a correction needs the Gaussian that it corrects, got {before!r}")
        parameters = torch.cat([before.mean, before.log_variance], -1).detach()
        corrector: Any = self.encoder
        return Gaussian.from_parameters(corrected(model, corrector, x, parameters))


@register
class ResidualVAE(Method):
    """A VAE whose Gaussian is corrected a few times by looking at the residual.

    The residual is x minus its reconstruction from the posterior mean. Each corrector is trained on the
    ELBO of the posterior after its own correction. The decoder maximises the ELBO of the posterior after
    the last correction.

    Args:
        model: p(x, z).
        encoder: gives the first posterior.
        corrections: number of corrections, 1 to 8.
        shared: whether all corrections use the same corrector network.
        width: factor of the layer sizes of a corrector. For tokens, 1 gives the sizes of the given
            encoder. For all other x, 1 gives the sizes of the library's default network for this shape.
        whitened: whether the correctors also see the gradient of log p(x, z), scaled by the covariance
            that a curvature network gives.

    Reference: this library; compare Marino et al., Iterative Amortized Inference, ICML 2018.
    """

    name = "residual"
    title = "residual corrections"
    reference = "this library"
    setting = "corrections"
    can_restart = True

    def __init__(
        self,
        model: LatentModel,
        encoder: nn.Module,
        *,
        corrections: int = 3,
        shared: bool = True,
        width: float = WIDTH,
        whitened: bool = False,
    ) -> None:
        part = ResidualComponent(
            encoder, model, corrections=corrections, shared=shared, width=width, whitened=whitened
        )
        super().__init__(model, [part])

    @property
    def _part(self) -> ResidualComponent:
        part: Any = self.components[0]
        return part

    def restarted(self, x: Tensor, restarts: int) -> Gaussian:
        """The best Gaussian q(z | x) of each example, see `ResidualComponent.restarted`."""
        return self._part.restarted(x, self.model, restarts)

    def loss(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """The training loss, a scalar, averaged over the batch.

        The value is minus the ELBO after the last correction. Its gradient trains the decoder and the
        last corrector. Gradients of the earlier ELBOs are added for the other networks: the ELBO before
        the first correction trains the encoder, and the ELBO after each correction trains the corrector
        of this correction. A corrector that all corrections share gets the sum of their gradients.
        """
        *early, last = self._part.iterates(x, self.model, detach=True)
        loss = -elbo(self.model, x, Gaussian.from_parameters(last), generator=generator).mean()
        if not last.requires_grad:
            return loss
        parameters = torch.stack(early)  # (T, B, 2 D)
        own = (parameters * elbo_gradient(self.model, x, parameters, generator)).sum()
        return loss - (own - own.detach())

    def distillation(self, x: Tensor, teacher: Inference, generator: torch.Generator | None) -> Tensor:
        """The distillation loss, a scalar: Σ_t KL(q* || q_t) up to a constant, averaged over the batch.

        q_t is the posterior after t corrections, for t = 0 … T. q* is the posterior q_T refined with the
        settings `teacher`.
        """
        iterates = torch.stack(self._part.iterates(x, self.model, detach=True))  # (T + 1, B, 2 D)
        with torch.no_grad():
            best = teacher.for_training(self.model, x, Gaussian.from_parameters(iterates[-1]))
            z, _ = best.rsample_and_log_prob(TEACHER_SAMPLES, generator=generator)
        log_q = Gaussian.from_parameters(iterates).log_prob(z[:, None])  # (S, T + 1, B)
        return -log_q.mean((0, -1)).sum()
