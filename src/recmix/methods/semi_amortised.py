"""The semi-amortised VAE (SA): gradient steps for each example from the encoder's output."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError
from recmix.methods.component import Component
from recmix.methods.method import Method
from recmix.methods.registry import register, register_component
from recmix.model.latent import LatentModel
from recmix.posteriors import Gaussian

__all__ = ["SemiAmortised", "SemiAmortisedComponent", "tune_step_size"]

NOISE_SEED = 20180710
"""Seed of the inner steps' noise, which is the same in every process."""
TUNING_SEED = 20180711
TUNING_BATCH = 500


SHARES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
"""Step sizes that are tried in tuning, as fractions of the option `step_size`."""


@register_component
class SemiAmortisedComponent(Component):
    """q(z | x) = N(μ, diag σ²) after gradient ascent from the encoder's output.

    λ = (μ, log σ²) starts at the encoder's output and moves by

        v <- momentum · v + ∇_λ ELBO(x; λ),    λ <- λ + step_size · v.

    The gradient belongs to the ELBO of one example, not to a mean over the batch. So neither the batch
    size nor the other examples change the result.

    If the prior is the standard normal, the KL in this ELBO is exact. The expectation of log p(x | z) is
    estimated at the points μ ± σ·s, where s is a vector of signs ±1. Signs have the mean, the variance
    and the third moment of normal noise. Each s is used together with -s, in the same step or the next.
    All s are drawn once from a fixed seed and are the same for all examples. So the posterior depends on
    x alone, and computing it twice gives the same result. The training loss does not use these s: it
    draws normal noise for the last λ.

    In training mode, with gradients enabled and `first_order` off, the steps are differentiated: encoder
    and decoder receive the total derivative of the last ELBO. Otherwise the change of λ by the steps is
    treated as a constant, and the encoder receives the gradient with respect to the last λ. Under
    `torch.no_grad` the steps are made too, and the result carries no gradient.

    The constructor's options are those of `SemiAmortised`, without `tune`.
    """

    kind = "sa"
    setting = "steps"
    closed_form_entropy = True

    noise: Tensor

    def __init__(
        self,
        encoder: nn.Module,
        model: LatentModel,
        *,
        steps: int = 4,
        step_size: float = 1e-3,
        momentum: float = 0.0,
        clip: float = 0.0,
        first_order: bool = False,
        samples: int = 1,
    ) -> None:
        super().__init__(encoder, model)
        if steps < 1:
            raise ConfigError(
                f"steps is the number of gradient steps, at least 1 (the paper's: 1, 2, 4, 8); "
                f"got {steps}. Without steps the method is the VAE"
            )
        if samples < 1:
            raise ConfigError(f"samples per gradient step must be at least 1, got {samples}")
        if not 0 <= momentum < 1:
            raise ConfigError(f"momentum must lie in [0, 1), got {momentum}; the original's is 0.5")
        if not clip >= 0:
            raise ConfigError(f"clip is a gradient norm, or 0 for none; got {clip}")
        self.steps = self.steps_per_example = steps
        self.step_size = _checked_step_size(step_size)
        self.momentum = momentum
        self.clip = clip
        self.first_order = first_order
        noise = _paired_signs(steps * samples, model.latent).view(steps, samples, 1, model.latent)
        # Not part of the weights, so that weights fit any number of steps.
        self.register_buffer("noise", noise.to(model.centre), persistent=False)

    def get_extra_state(self) -> Tensor:
        """The step size. It is stored with the weights, because it may have been tuned."""
        return torch.tensor(self.step_size, dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """Set the step size to `state`, a value that `get_extra_state` returned."""
        self.step_size = float(state)

    def forward(self, x: Tensor, model: LatentModel) -> Gaussian:
        """The Gaussian q(z | x) after the gradient steps, for examples x (B, *shape)."""
        x = x.to(model.centre.dtype)
        start: Tensor = self.encoder(model.observed(x))
        unrolled = self.training and not self.first_order and torch.is_grad_enabled()
        if unrolled:
            if not start.requires_grad:  # a frozen encoder: the decoder's gradient needs the steps
                start = start.detach().requires_grad_()
            return Gaussian.from_parameters(self._ascend(x, start, model, create_graph=True))
        refined = self._ascend(x, start.detach(), model, create_graph=False)
        # The encoder receives the gradient of the last parameters.
        return Gaussian.from_parameters(start + (refined - start).detach())

    def inner_elbo(self, x: Tensor, parameters: Tensor, model: LatentModel, step: int) -> Tensor:
        """The ELBO of each example, (B,), which a gradient step increases.

        Args:
            x: examples (B, *shape).
            parameters: λ = (μ, log σ²), (B, 2 D).
            model: p(x, z).
            step: index of the step, from 0. Each step has its own fixed noise.
        """
        q = Gaussian.from_parameters(parameters)
        z = q.mean + q.stddev * self.noise[step % len(self.noise)]  # (S, B, D)
        # The closed form for a standard normal prior does not read log q(z).
        log_q = z[..., 0] if model.prior.standard else q.log_prob(z)
        return model.log_conditional(x, z).mean(0) - q.kl(model.prior, z, log_q).mean(0)

    def _ascend(self, x: Tensor, start: Tensor, model: LatentModel, *, create_graph: bool) -> Tensor:
        parameters, velocity = start, torch.zeros_like(start)
        for step in range(self.steps):
            with torch.enable_grad():
                if not create_graph:
                    parameters = parameters.detach().requires_grad_()
                elbo = self.inner_elbo(x, parameters, model, step).sum()
                (gradient,) = torch.autograd.grad(elbo, parameters, create_graph=create_graph)
            if self.clip:
                gradient = _clipped(gradient, self.clip)
            velocity = self.momentum * velocity + gradient
            parameters = parameters + self.step_size * velocity
        return parameters


@register
class SemiAmortised(Method):
    """Semi-amortised inference: gradient steps on each example's ELBO, starting at the encoder's output.

    A step is λ <- λ + η ∇_λ ELBO(x; λ), where λ = (μ, log σ²) are the parameters of the posterior and
    η is the step size. Encoder and decoder are trained on the ELBO after the last step, with gradients
    through the steps. The original makes 20 steps with momentum 0.5 and clips the gradient. The
    comparison of Kim & Pavlovic (2020) makes 1 to 8 plain steps with η = 1e-3.

    If curvature times step size is above 2, the steps overshoot. So if the option `tune` is on, the
    option `step_size` is only an upper limit. `tune_step_size` then selects this or a smaller step size
    on validation data, before training continues from a trained VAE.

    Args:
        model: p(x, z).
        encoder: gives the starting point.
        steps: number of gradient steps, at least 1.
        step_size: η, the factor of the gradient in each step. With `tune` it is the largest that is
            tried.
        tune: choose the step size on validation data before training continues from a trained model.
        momentum: share of the previous step that is added to each step, in [0, 1).
        clip: largest norm of one example's gradient; 0: no limit.
        first_order: do not differentiate the steps; cheaper, but not the whole gradient.
        samples: noise vectors in each step, at least 1.

    Reference: Kim et al., Semi-Amortized Variational Autoencoders, ICML 2018.
    """

    name = "sa"
    title = "semi-amortised"
    reference = "Kim et al. 2018"
    setting = "steps"
    tried = (1, 2, 4, 8)

    def __init__(
        self,
        model: LatentModel,
        encoder: nn.Module,
        *,
        steps: int = 4,
        step_size: float = 1e-3,
        tune: bool = True,
        momentum: float = 0.0,
        clip: float = 0.0,
        first_order: bool = False,
        samples: int = 1,
    ) -> None:
        component = SemiAmortisedComponent(
            encoder,
            model,
            steps=steps,
            step_size=step_size,
            momentum=momentum,
            clip=clip,
            first_order=first_order,
            samples=samples,
        )
        super().__init__(model, [component])
        self.tune = tune

    def prepare(self, x: Tensor) -> None:
        """If `tune` is on, choose the step size on validation examples x (N, *shape)."""
        if self.tune:
            part: Any = self.components[0]
            tune_step_size(self, x, [part.step_size * share for share in SHARES])

    def loss(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Minus the ELBO after the gradient steps, averaged over the batch, a scalar."""
        return super().loss(x.to(self.model.centre.dtype), generator=generator)


@torch.no_grad()
def tune_step_size(method: Method, x_val: Tensor, grid: Iterable[float]) -> float:
    """Find the step size with the highest ELBO, set it in all components, and return it.

    The ELBO is computed after the gradient steps and averaged over the validation examples. Every step
    size is evaluated with the same noise. An ELBO that is not finite counts as the lowest.

    Args:
        method: a method with components of kind ``sa`` (semi-amortised).
        x_val: validation examples (N, *shape) on the model's device.
        grid: step sizes to try. If several have the same ELBO, the first of them is used.

    Raises:
        ConfigError: no component is semi-amortised, the grid is empty or invalid, or no ELBO is finite.
    """
    parts = [part for part in method.components if isinstance(part, SemiAmortisedComponent)]
    if not parts:
        raise ConfigError(f"method {method.name!r} has no semi-amortised component, so no step size")
    candidates = [_checked_step_size(size) for size in grid]
    if not candidates:
        raise ConfigError("the grid of step sizes is empty: give at least one, such as [1e-4, 1e-3]")
    before = [part.step_size for part in parts]
    scores = []
    for size in candidates:
        for part in parts:
            part.step_size = size
        scores.append(_mean_elbo(method, x_val))
    best = max(range(len(candidates)), key=lambda i: scores[i])
    if scores[best] == -math.inf:
        for part, size in zip(parts, before, strict=True):
            part.step_size = size
        raise ConfigError(
            f"no step size of {candidates} gave a finite ELBO; the old one is kept: try smaller ones"
        )
    for part in parts:
        part.step_size = candidates[best]
    return candidates[best]


def _mean_elbo(method: Method, x_val: Tensor) -> float:
    """The mean ELBO of the examples, from one sample of z each with a fixed seed; -inf if not finite."""
    model, dtype = method.model, method.model.centre.dtype
    generator = torch.Generator(x_val.device).manual_seed(TUNING_SEED)
    total = 0.0
    for x in x_val.to(dtype).split(TUNING_BATCH):
        q = method.posterior(x)
        z, log_q = q.rsample_and_log_prob(1, generator=generator)
        total += float((model.log_conditional(x, z) - q.kl(model.prior, z, log_q)).double().sum())
    return total / len(x_val) if math.isfinite(total) else -math.inf


def _checked_step_size(step_size: float) -> float:
    if not (math.isfinite(step_size) and step_size > 0):
        raise ConfigError(f"step_size must be a positive number, got {step_size}; the paper's is 1e-3")
    return step_size


def _clipped(gradient: Tensor, largest: float) -> Tensor:
    """Scale down each example's gradient (B, N) whose norm exceeds `largest` to this norm."""
    # The square root has no derivative at zero; the smallest number keeps it finite.
    tiny = torch.finfo(gradient.dtype).tiny
    norm = gradient.square().sum(-1, keepdim=True).clamp_min(tiny).sqrt()
    return gradient * (largest / norm).clamp_max(1.0)


def _paired_signs(count: int, latent: int) -> Tensor:
    """Random signs -1 and 1, (count, D); every second row is the negative of the row before it."""
    generator = torch.Generator().manual_seed(NOISE_SEED)
    signs = torch.randint(0, 2, ((count + 1) // 2, latent), generator=generator) * 2 - 1
    return torch.stack([signs, -signs], 1).flatten(0, 1)[:count]
