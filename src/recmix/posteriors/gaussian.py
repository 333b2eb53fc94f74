"""The diagonal Gaussian posterior."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from recmix.model.replaceable import fusable
from recmix.posteriors.posterior import Posterior, randn

__all__ = ["LOG_VARIANCE_RANGE", "Gaussian", "gaussian_log_prob", "precision_shares"]

LOG_2PI = math.log(2 * math.pi)
LOG_VARIANCE_RANGE = (-20.0, 20.0)
"""Log-variances are clamped to this range, so that an extreme input cannot give an infinite density."""


class Gaussian(Posterior):
    """Diagonal Gaussian q(z | x) = N(μ(x), diag σ²(x)).

    Args:
        mean: μ, (B, D).
        log_variance: log σ², (B, D).

    >>> q = Gaussian(torch.zeros(4, 2), torch.zeros(4, 2))
    >>> z, log_q = q.rsample_and_log_prob(3)
    >>> z.shape, log_q.shape
    (torch.Size([3, 4, 2]), torch.Size([3, 4]))
    """

    def __init__(self, mean: Tensor, log_variance: Tensor) -> None:
        super().__init__(mean)
        self._mean = mean
        self.log_variance = log_variance.clamp(*LOG_VARIANCE_RANGE)

    @classmethod
    def from_clamped(cls, mean: Tensor, log_variance: Tensor) -> Gaussian:
        """From a log-variance that is already in its range; computes nothing."""
        made = cls.__new__(cls)
        Posterior.__init__(made, mean)
        made._mean, made.log_variance = mean, log_variance
        return made

    @classmethod
    def from_parameters(cls, parameters: Tensor) -> Gaussian:
        """From an encoder's output (B, 2 D): means, then log-variances."""
        return cls(*parameters.chunk(2, dim=-1))

    @property
    def mean(self) -> Tensor:
        """μ, (B, D)."""
        return self._mean

    @property
    def mode(self) -> Tensor:
        """μ, (B, D)."""
        return self._mean

    @property
    def stddev(self) -> Tensor:
        """σ, (B, D)."""
        return (0.5 * self.log_variance).exp()

    @property
    def variance(self) -> Tensor:
        """σ², (B, D)."""
        return self.log_variance.exp()

    def rsample_and_log_prob(
        self, samples: int = 1, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """z = μ + σ ε (S, B, D) and its log density (S, B)."""
        noise = randn((samples, *self.mean.shape), self.mean, generator)
        return _draw(self.mean, self.log_variance, noise)

    def log_prob(self, value: Tensor) -> Tensor:
        """log N(z; μ, diag σ²): (..., B, D) -> (..., B)."""
        return gaussian_log_prob(value, self.mean, self.log_variance)

    def entropy(self) -> Tensor:
        """½ Σ (log σ² + log 2πe), (B,)."""
        return 0.5 * (self.log_variance + (LOG_2PI + 1)).sum(-1)

    def kl_to_prior(self, z: Tensor, log_q: Tensor) -> Tensor:
        """KL(q || N(0, I)) in closed form, (1, B)."""
        return _kl_to_prior(self.mean, self.log_variance)

    @property
    def can_scale(self) -> bool:
        """True: `scaled` is defined for every factor."""
        return True

    def scaled(self, factor: float | Tensor) -> Gaussian:
        """N(μ, diag 1/p) with p = 1 + (σ⁻² - 1)/f², or p = (f σ)⁻² for a factor f below 1."""
        share, rest = precision_shares(factor, 1)
        return Gaussian(self._mean, -((-self.log_variance).exp() * share + rest).log())

    def describe(self) -> dict[str, Tensor]:
        """Mean and log-variance, (B, D) each."""
        return {"means": self.mean, "log_variances": self.log_variance}

    def copy(self) -> Posterior:
        """The same density with its own tensors, copied in one operation."""
        return Gaussian.from_clamped(*torch.stack([self._mean, self.log_variance]).unbind())

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Gaussian:
        """The same density for a larger batch_shape."""
        shape = (*batch_shape, *self.event_shape)
        return Gaussian.from_clamped(self._mean.expand(shape), self.log_variance.expand(shape))


@fusable
def gaussian_log_prob(z: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
    """log N(z; μ, diag σ²), summed over the last axis of the broadcast shape."""
    squares = (z - mean).square() * (-log_variance).exp()
    return -0.5 * ((squares + log_variance).sum(-1) + z.shape[-1] * LOG_2PI)


@fusable
def _draw(mean: Tensor, log_variance: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    z = mean + (0.5 * log_variance).exp() * noise
    return z, -0.5 * ((noise.square() + log_variance).sum(-1) + noise.shape[-1] * LOG_2PI)


@fusable
def _kl_to_prior(mean: Tensor, log_variance: Tensor) -> Tensor:
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1)[None]


def precision_shares(factor: float | Tensor, axes: int) -> tuple[float | Tensor, float | Tensor]:
    """The shares (a, b) of a scaled precision a P + b I, see `Posterior.scaled`.

    Args:
        factor: one for all, or one for each example (B,).
        axes: number of axes that follow the batch axis in P.

    >>> precision_shares(2.0, 1), precision_shares(0.5, 1)
    ((0.25, 0.75), (4.0, 0.0))
    """
    if not isinstance(factor, Tensor):
        return factor**-2, max(0.0, 1 - factor**-2)
    share = factor[(..., *(None for _ in range(axes)))] ** -2
    return share, (1 - share).clamp(min=0)
