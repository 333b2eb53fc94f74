"""The central objects: a latent model p(x, z), a posterior q(z | x), a method that learns both."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError
from recmix.model.latent import standard_normal

__all__ = ["WIDEST", "Posterior", "tilted"]


WIDEST = 8.0
"""What `tilted` gives is not above this, nor below its inverse."""


class Posterior(ABC):
    """q(z | x) for one batch of B examples: it can sample and score.

    A subclass is a plain object around tensors that carry gradients to the networks that made them.
    """

    @abstractmethod
    def rsample_and_log_prob(
        self, samples: int = 1, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Reparameterised samples z (S, B, D) and their log-densities log_q (S, B)."""

    @abstractmethod
    def log_prob(self, z: Tensor) -> Tensor:
        """log q(z | x): (S, B, D) -> (S, B)."""

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """The posterior mean, (B, D)."""

    @property
    def weights(self) -> Tensor:
        """Mixing weights (B, K), rows sum to 1; a posterior that is no mixture has K = 1."""
        return torch.ones_like(self.mean[:, :1])

    def kl_to_prior(self, z: Tensor, log_q: Tensor) -> Tensor:
        """KL(q || N(0, I)), (S, B): here the estimate from samples; exact where a closed form exists."""
        return log_q - standard_normal(z)

    def widened(self, factor: float | Tensor) -> Posterior:
        """The same about the same mean, wider by a factor, or by one for each example (B,).

        Wider means: what the precision has beyond the prior's is divided by factor². So where the image
        says much the standard deviations are `factor` times as large, and where it says nothing the
        prior's width stays; nothing gets wider than the prior by it, and what is wider than the prior
        comes nearer to it. Below 1, all standard deviations are multiplied by the factor.
        """
        raise ConfigError(
            f"{type(self).__name__} has no standard deviations to widen: only Gaussians and mixtures "
            "of them can be calibrated"
        )

    def copy(self) -> Posterior:
        """The same density in tensors of its own."""
        copied: Posterior = _copied(self)
        return copied

    def as_distribution(self) -> torch.distributions.Distribution:
        """The same density as a `torch.distributions` object: batch_shape (B,), event_shape (D,)."""
        raise ConfigError(
            f"{type(self).__name__} is not a plain torch distribution: "
            "use rsample_and_log_prob and log_prob instead"
        )


def _copied(value: Any) -> Any:
    """A posterior, or a part of one, with its tensors copied; networks are shared."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, list | tuple):
        parts = [_copied(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, nn.Module) or not hasattr(value, "__dict__") or callable(value):
        return value
    made = copy.copy(value)
    vars(made).update({name: _copied(part) for name, part in vars(value).items()})
    return made


def tilted(factor: float, tilt: float, worse: Tensor) -> Tensor:
    """Factors of widths (B,) for images whose log p(x, mean) is so many nats worse than usual.

    >>> tilted(2.0, 0.1, torch.tensor([0.0, 1.0, -1.0, 1e9]))
    tensor([2.0000, 2.2103, 1.8097, 8.0000])
    """
    return (math.log(factor) + tilt * worse).clamp(-math.log(WIDEST), math.log(WIDEST)).exp()
