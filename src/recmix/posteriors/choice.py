"""Combine two posteriors: for each example of a batch, take the first or the second."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from recmix.posteriors.full import FullGaussian
from recmix.posteriors.gaussian import Gaussian
from recmix.posteriors.low_rank import LowRankGaussian
from recmix.posteriors.mixture import Mixture
from recmix.posteriors.posterior import Posterior

__all__ = ["Choice", "choose"]


def choose(which: Tensor, first: Posterior, second: Posterior) -> Posterior:
    """Combine two posteriors: `first` for some examples and `second` for the others.

    Two Gaussians give a Gaussian. Two mixtures of K Gaussians give a mixture of K Gaussians. Other pairs
    give a `Choice`.

    Args:
        which: booleans (B,). True takes `first`, False takes `second`.
        first: a posterior for B examples.
        second: another posterior for the same examples.

    >>> one, two = (Gaussian(torch.full((2, 3), m), torch.zeros(2, 3)) for m in (1.0, 2.0))
    >>> choose(torch.tensor([True, False]), one, two).mean[:, 0]
    tensor([1., 2.])
    """
    if isinstance(first, Mixture) and isinstance(second, Mixture):
        components = zip(first.components, second.components, strict=False)
        parts = [choose(which, *pair) for pair in components]
        same = len(first.components) == len(second.components)
        if same and not any(isinstance(part, Choice) for part in parts):
            weights = torch.where(which[:, None], first.log_weights, second.log_weights)
            return Mixture(parts, weights)
    kinds = type(first), type(second)
    for kind in (Gaussian, FullGaussian, LowRankGaussian):
        if kind in kinds and set(kinds) <= {kind, Gaussian}:
            of_kind: list[Any] = [q for q in (first, second) if isinstance(q, kind)]
            like = max(of_kind, key=lambda q: q.parts_of(q)[-1].shape[-1])  # of the larger rank
            pairs = zip(like.parts_of(first), like.parts_of(second), strict=True)
            return like.from_parts(*(_pick(which, one, two, one.dim() - 1) for one, two in pairs))
    return Choice(which, first, second)


def _pick(which: Tensor, first: Tensor, second: Tensor, after: int = 0) -> Tensor:
    """Take the entries of `first` where `which` (B,) is True, and the entries of `second` elsewhere.

    In both tensors the batch axis is followed by `after` more axes; axes before it are allowed.
    """
    return torch.where(which.view(-1, *(1 for _ in range(after))), first, second)


class Choice(Posterior):
    """A posterior that is, for each example, one of two given posteriors.

    `which`, (B,), is True for the examples whose posterior is `first`.
    """

    def __init__(self, which: Tensor, first: Posterior, second: Posterior) -> None:
        super().__init__(first.mean)
        self.which, self.first, self.second = which, first, second

    @property
    def mean(self) -> Tensor:
        """The mean of the posterior that is chosen for each example, (B, D)."""
        return _pick(self.which, self.first.mean, self.second.mean, 1)

    @property
    def variance(self) -> Tensor:
        """The variance of the posterior that is chosen for each example, (B, D)."""
        return _pick(self.which, self.first.variance, self.second.variance, 1)

    def entropy(self) -> Tensor:
        """The entropy of the posterior that is chosen for each example, (B,)."""
        return _pick(self.which, self.first.entropy(), self.second.entropy())

    def log_prob(self, value: Tensor) -> Tensor:
        """log q(z | x), (..., B), for latent points z (..., B, D)."""
        return _pick(self.which, self.first.log_prob(value), self.second.log_prob(value))

    def rsample_and_log_prob(
        self, samples: int = 1, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """S = `samples` reparameterised samples z, (S, B, D), and their log densities, (S, B)."""
        one, log_one = self.first.rsample_and_log_prob(samples, generator=generator)
        two, log_two = self.second.rsample_and_log_prob(samples, generator=generator)
        return _pick(self.which, one, two, 1), _pick(self.which, log_one, log_two)

    @property
    def can_scale(self) -> bool:
        """Whether both posteriors can be scaled."""
        return self.first.can_scale and self.second.can_scale

    def scaled(self, factor: float | Tensor) -> Choice:
        """A `Choice` between the two scaled posteriors, see `Posterior.scaled`. `which` is unchanged."""
        return Choice(self.which, self.first.scaled(factor), self.second.scaled(factor))
