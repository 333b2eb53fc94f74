"""The diagonal Gaussian posterior."""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor

from recmix.model.replaceable import fusable
from recmix.posteriors.posterior import AnyGaussian, Posterior

__all__ = ["LOG_VARIANCE_RANGE", "Gaussian", "gaussian_log_prob", "precision_shares"]

LOG_2PI = math.log(2 * math.pi)
LOG_VARIANCE_RANGE = (-20.0, 20.0)
"""Log-variances are clamped to this range, so that extreme network outputs give finite densities."""


class Gaussian(AnyGaussian):
    """Diagonal Gaussian q(z | x) = N(μ(x), diag σ²(x)).

    Args:
        mean: μ, (B, D).
        log_variance: log σ², (B, D), or a tensor that is broadcast with the mean.

    >>> q = Gaussian(torch.zeros(4, 2), torch.zeros(4, 2))
    >>> z, log_q = q.rsample_and_log_prob(3)
    >>> z.shape, log_q.shape
    (torch.Size([3, 4, 2]), torch.Size([3, 4]))
    """

    def __init__(self, mean: Tensor, log_variance: Tensor) -> None:
        if mean.shape != log_variance.shape:
            mean, log_variance = torch.broadcast_tensors(mean, log_variance)
        super().__init__(mean)
        self.log_variance = log_variance.clamp(*LOG_VARIANCE_RANGE)

    @classmethod
    def from_clamped(cls, mean: Tensor, log_variance: Tensor) -> Self:
        """Make a Gaussian from a mean and a log-variance that already lies in `LOG_VARIANCE_RANGE`."""
        made = cls.__new__(cls)
        AnyGaussian.__init__(made, mean)
        made.log_variance = log_variance
        return made

    @classmethod
    def from_parameters(cls, parameters: Tensor) -> Gaussian:
        """Make a Gaussian from an encoder's output (B, 2 D): D means, then D log-variances."""
        return cls(*parameters.chunk(2, dim=-1))

    @property
    def stddev(self) -> Tensor:
        """The standard deviations σ, (B, D)."""
        return (0.5 * self.log_variance).exp()

    @property
    def variance(self) -> Tensor:
        """The variances σ², (B, D)."""
        return self.log_variance.exp()

    def from_noise(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Points z = μ + σ ε, (S, B, D), and log q(z), (S, B), from standard normal ε (S, B, D)."""
        return _draw(self.mean, self.log_variance, noise)

    def log_prob(self, value: Tensor) -> Tensor:
        """log q(z | x), (..., B), for latent points z (..., B, D)."""
        return gaussian_log_prob(value, self.mean, self.log_variance)

    def entropy(self) -> Tensor:
        """The entropy ½ Σ_d (log σ_d² + log 2πe), (B,)."""
        return 0.5 * (self.log_variance + (LOG_2PI + 1)).sum(-1)

    def kl_to_prior(self, z: Tensor, log_q: Tensor) -> Tensor:
        """KL(q || N(0, I)) in closed form, (1, B). Arguments are not used."""
        return _kl_to_prior(self.mean, self.log_variance)

    def kl_by_dimension(self) -> Tensor:
        """The contribution of each latent dimension to KL(q || N(0, I)), (B, D)."""
        return 0.5 * (self.mean.square() + self.variance - 1 - self.log_variance)

    def scaled(self, factor: float | Tensor) -> Gaussian:
        """A wider or narrower Gaussian with the same mean, see `Posterior.scaled`.

        If `factor` is at most 1, it multiplies the standard deviations. If it is above 1, the variances
        move towards 1, the variance of the prior N(0, I), and never cross it.
        """
        share, rest = precision_shares(factor, 1)
        return Gaussian(self._mean, -((-self.log_variance).exp() * share + rest).log())

    def describe(self) -> dict[str, Tensor]:
        """The tensors that define the density, (B, D): ``{"means": μ, "log_variances": log σ²}``."""
        return {"means": self.mean, "log_variances": self.log_variance}

    def copy(self) -> Posterior:
        """The same density with copies of the mean and the log-variance."""
        return Gaussian.from_clamped(*torch.stack([self._mean, self.log_variance]).unbind())

    def parts_of(self, other: Gaussian) -> list[Tensor]:
        """The mean and the log-variance of the diagonal Gaussian `other`, (B, D) each.

        This object's own values are not used, see `AnyGaussian.parts_of`.
        """
        return [other.mean, other.log_variance]

    def from_parts(self, *parts: Tensor) -> Self:
        """Make a Gaussian from a mean and a log-variance, (B, D) each, without clamping."""
        return self.from_clamped(*parts)


@fusable
def gaussian_log_prob(z: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
    """log N(z; μ, diag σ²), (...), for z, μ and log σ² (..., D). The shapes are broadcast."""
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
    """The numbers a and b with which `Posterior.scaled` replaces a precision P by a·P + b·I.

    For f = `factor`, a = 1/f² and b = max(0, 1 - 1/f²).

    Args:
        factor: f, one number, or one for each example (B,). For a tensor, a and b broadcast with P.
        axes: number of axes of P after the batch axis: 1 for a diagonal, 2 for a matrix.

    >>> precision_shares(2.0, 1), precision_shares(0.5, 1)
    ((0.25, 0.75), (4.0, 0.0))
    """
    if not isinstance(factor, Tensor):
        return factor**-2, max(0.0, 1 - factor**-2)
    share = factor[(..., *(None for _ in range(axes)))] ** -2
    return share, (1 - share).clamp(min=0)
