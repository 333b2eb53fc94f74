"""The diagonal Gaussian posterior."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal

from recmix.accelerate.fusion import fusible
from recmix.posteriors.posterior import Posterior

__all__ = ["LOG_VARIANCE_RANGE", "Gaussian", "gaussian_log_prob", "randn", "shares"]


LOG_2PI = math.log(2 * math.pi)
LOG_VARIANCE_RANGE = (-20.0, 20.0)
"""Log-variances are kept in here, so that an extreme input cannot make a density infinite."""


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
        self._mean = mean
        self.log_variance = log_variance.clamp(*LOG_VARIANCE_RANGE)

    @classmethod
    def clamped(cls, mean: Tensor, log_variance: Tensor) -> Gaussian:
        """From a log-variance that is known to be in its range: nothing is computed."""
        made = cls.__new__(cls)
        made._mean, made.log_variance = mean, log_variance
        return made

    @classmethod
    def from_parameters(cls, parameters: Tensor) -> Gaussian:
        """From an encoder's output (B, 2 D): means, then log-variances."""
        return cls(*parameters.chunk(2, dim=-1))

    def widened(self, factor: float | Tensor) -> Gaussian:
        """N(μ, diag 1 / p) with p = 1 + (σ⁻² - 1) / f²; (f σ)⁻² where f < 1."""
        share, rest = shares(factor, 1)
        return Gaussian(self._mean, -((-self.log_variance).exp() * share + rest).log())

    def copy(self) -> Posterior:
        """The same density in tensors of its own, copied at once."""
        return Gaussian.clamped(*torch.stack([self._mean, self.log_variance]).unbind())

    @property
    def mean(self) -> Tensor:
        """μ, (B, D)."""
        return self._mean

    @property
    def stddev(self) -> Tensor:
        """σ, (B, D)."""
        return (0.5 * self.log_variance).exp()

    def rsample_and_log_prob(
        self, samples: int = 1, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """z = μ + σ ε and its density."""
        noise = randn((samples, *self.mean.shape), self.mean, generator)
        return _draw(self.mean, self.log_variance, noise)

    def log_prob(self, z: Tensor) -> Tensor:
        """log N(z; μ, diag σ²): (S, B, D) -> (S, B)."""
        return gaussian_log_prob(z, self.mean, self.log_variance)

    def kl_to_prior(self, z: Tensor, log_q: Tensor) -> Tensor:
        """KL(q || N(0, I)) in closed form, (1, B)."""
        return _kl_to_prior(self.mean, self.log_variance)

    def as_distribution(self) -> Distribution:
        """An `Independent` `Normal`."""
        return Independent(Normal(self.mean, self.stddev), 1)  # type: ignore[no-untyped-call]


@fusible
def gaussian_log_prob(z: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
    """log N(z; μ, diag σ²), summed over the last axis of what the three broadcast to."""
    squares = (z - mean).square() * (-log_variance).exp()
    return -0.5 * ((squares + log_variance).sum(-1) + z.shape[-1] * LOG_2PI)


@fusible
def _draw(mean: Tensor, log_variance: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    z = mean + (0.5 * log_variance).exp() * noise
    return z, -0.5 * ((noise.square() + log_variance).sum(-1) + noise.shape[-1] * LOG_2PI)


@fusible
def _kl_to_prior(mean: Tensor, log_variance: Tensor) -> Tensor:
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1)[None]


def shares(factor: float | Tensor, axes: int) -> tuple[float | Tensor, float | Tensor]:
    """The factor of a precision, and of the prior's that is added, in `Posterior.widened`.

    Args:
        factor: one for all, or one for each example (B,).
        axes: how many follow that of examples.

    >>> shares(2.0, 1), shares(0.5, 1)
    ((0.25, 0.75), (4.0, 0.0))
    """
    if not isinstance(factor, Tensor):
        return factor**-2, max(0.0, 1 - factor**-2)
    share = factor.view(-1, *(1 for _ in range(axes))) ** -2
    return share, (1 - share).clamp(min=0)


def randn(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal noise on the device and in the dtype of `like`."""
    return torch.randn(shape, generator=generator, device=like.device, dtype=like.dtype)
