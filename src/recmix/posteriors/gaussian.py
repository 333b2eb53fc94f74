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
        """A Gaussian whose log-variance is already within `LOG_VARIANCE_RANGE` and is not clamped.

        Args:
            mean: μ, (B, D).
            log_variance: log σ², (B, D).
        """
        made = cls.__new__(cls)
        Posterior.__init__(made, mean)
        made._mean, made.log_variance = mean, log_variance
        return made

    @classmethod
    def from_parameters(cls, parameters: Tensor) -> Gaussian:
        """A Gaussian from an encoder's output (B, 2 D): D means, then D log-variances."""
        return cls(*parameters.chunk(2, dim=-1))

    @property
    def mean(self) -> Tensor:
        """The mean μ, (B, D)."""
        return self._mean

    @property
    def mode(self) -> Tensor:
        """The mode, which equals the mean μ, (B, D)."""
        return self._mean

    @property
    def stddev(self) -> Tensor:
        """The standard deviations σ, (B, D)."""
        return (0.5 * self.log_variance).exp()

    @property
    def variance(self) -> Tensor:
        """The variances σ², (B, D)."""
        return self.log_variance.exp()

    def rsample_and_log_prob(
        self, samples: int = 1, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """S reparameterised samples z = μ + σ ε, (S, B, D), and their log densities, (S, B)."""
        return self.from_noise(randn((samples, *self.mean.shape), self.mean, generator))

    def from_noise(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """The points z = μ + σ ε, (S, B, D), for noise ε (S, B or 1, D); and log densities, (S, B)."""
        return _draw(self.mean, self.log_variance, noise)

    def log_prob(self, value: Tensor) -> Tensor:
        """log N(z; μ, diag σ²), (..., B), for latent points z (..., B, D)."""
        return gaussian_log_prob(value, self.mean, self.log_variance)

    def entropy(self) -> Tensor:
        """The entropy ½ Σ_d (log σ_d² + log 2πe), summed over the latent dimensions, (B,)."""
        return 0.5 * (self.log_variance + (LOG_2PI + 1)).sum(-1)

    def kl_to_prior(self, z: Tensor, log_q: Tensor) -> Tensor:
        """KL(q || N(0, I)) in closed form, (1, B); the arguments z and log_q are not used."""
        return _kl_to_prior(self.mean, self.log_variance)

    def kl_by_dimension(self) -> Tensor:
        """KL(q || N(0, I)) of each latent dimension, (B, D)."""
        return 0.5 * (self.mean.square() + self.variance - 1 - self.log_variance)

    @property
    def can_scale(self) -> bool:
        """True: `scaled` works for every factor."""
        return True

    def scaled(self, factor: float | Tensor) -> Gaussian:
        """The same mean, with standard deviations multiplied by about f = `factor`.

        The new precision is 1 + (σ⁻² - 1)/f² for f above 1, so a σ below that of the prior N(0, I)
        stays below it, and (f σ)⁻² for f below 1.

        Args:
            factor: f, one number, or one for each example (B,).
        """
        share, rest = precision_shares(factor, 1)
        return Gaussian(self._mean, -((-self.log_variance).exp() * share + rest).log())

    def describe(self) -> dict[str, Tensor]:
        """The tensors that define the density: mean and log-variance, (B, D) each."""
        return {"means": self.mean, "log_variances": self.log_variance}

    def copy(self) -> Posterior:
        """The same density with copies of its tensors, made in one operation."""
        return Gaussian.from_clamped(*torch.stack([self._mean, self.log_variance]).unbind())

    def split(self, count: int) -> list[Gaussian]:
        """Split the batch of examples into `count` posteriors of equal batch size."""
        pairs = (t.unflatten(0, (count, -1)).unbind() for t in (self._mean, self.log_variance))
        return [Gaussian.from_clamped(*pair) for pair in zip(*pairs, strict=True)]

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Gaussian:
        """The same density for a larger batch_shape."""
        shape = (*batch_shape, *self.event_shape)
        return Gaussian.from_clamped(self._mean.expand(shape), self.log_variance.expand(shape))


@fusable
def gaussian_log_prob(z: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
    """log N(z; μ, diag σ²), summed over the last axis. The arguments are broadcast.

    Args:
        z: latent points (..., D).
        mean: μ, (..., D).
        log_variance: log σ², (..., D).
    """
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
    """The coefficients (a, b) of the scaled precision a P + b I, where P is the old precision.

    Scaling multiplies the standard deviations of a Gaussian by `factor`, see `Posterior.scaled`.

    Args:
        factor: one number, or one for each example (B,).
        axes: number of axes of P after the batch axis: 1 for a diagonal, 2 for a matrix.

    >>> precision_shares(2.0, 1), precision_shares(0.5, 1)
    ((0.25, 0.75), (4.0, 0.0))
    """
    if not isinstance(factor, Tensor):
        return factor**-2, max(0.0, 1 - factor**-2)
    share = factor[(..., *(None for _ in range(axes)))] ** -2
    return share, (1 - share).clamp(min=0)
