"""The diagonal Gaussian posterior."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal

from recmix.core import Posterior

__all__ = ["LOG_VARIANCE_RANGE", "Gaussian", "randn"]


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
        """Z = μ + σ ε and its density."""
        noise = randn((samples, *self.mean.shape), self.mean, generator)
        z = self.mean + self.stddev * noise
        log_q = -0.5 * (noise.square().sum(-1) + self._log_normaliser())
        return z, log_q

    def log_prob(self, z: Tensor) -> Tensor:
        """Log N(z; μ, diag σ²): (S, B, D) -> (S, B)."""
        squares = (z - self.mean).square() * (-self.log_variance).exp()
        return -0.5 * (squares.sum(-1) + self._log_normaliser())

    def _log_normaliser(self) -> Tensor:
        return self.log_variance.sum(-1) + self.mean.shape[-1] * math.log(2 * math.pi)

    def kl_to_prior(self, z: Tensor, log_q: Tensor) -> Tensor:
        """KL(q || N(0, I)) in closed form, (1, B)."""
        variance = self.log_variance.exp()
        return 0.5 * (self.mean.square() + variance - 1 - self.log_variance).sum(-1)[None]

    def as_distribution(self) -> Distribution:
        """An `Independent` `Normal`."""
        return Independent(Normal(self.mean, self.stddev), 1)  # type: ignore[no-untyped-call]


def randn(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal noise on the device and in the dtype of `like`."""
    return torch.randn(shape, generator=generator, device=like.device, dtype=like.dtype)
