"""The Bernoulli likelihood, for binary values."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from recmix.model.likelihoods.likelihood import Likelihood, register_likelihood, sum_event

__all__ = ["Bernoulli", "ProbabilityBernoulli"]

LIMITS = (1e-6, 1 - 1e-6)
"""Probabilities are kept within these."""


@register_likelihood("bernoulli")
class Bernoulli(Likelihood):
    """Binary values whose logits are the decoder's output l.

    log p(x|z) = Σ x·l - log(1 + eˡ). Values between 0 and 1 are scored by the same formula.

    >>> bernoulli = Bernoulli()
    >>> x = torch.ones(3, 1, 8, 8)
    >>> round(bernoulli.log_prob(x, 0 * x[None]).mean().item() / 64, 4)  # log ½
    -0.6931
    """

    values = "unit"
    can_temper = True

    def log_prob(self, x: Tensor, decoded: Tensor) -> Tensor:
        """log p(x | z) in nats, (S, B), for S samples of z.

        Args:
            x: examples (B, *event) with values in [0, 1].
            decoded: logits l, (S, B, *event).
        """
        # Above 40, log(1 + eˡ) = l to the last digit of float64; the default 20 is not enough.
        logits = self._logits(decoded)
        normaliser = F.softplus(logits, threshold=40)
        return -sum_event(torch.addcmul(normaliser, x, logits, value=-1), x)

    def mean(self, decoded: Tensor) -> Tensor:
        """E[x | z], the probability of the value 1: sigmoid(l) of the logits l in `decoded`."""
        return self._logits(decoded).sigmoid()

    def sample(self, decoded: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """One draw x of zeros and ones, in the shape of the logits `decoded`, without gradient."""
        with torch.no_grad():
            return torch.bernoulli(self.mean(decoded), generator=generator)

    def residual(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The derivative of log p(x | z) with respect to the logits l: x - sigmoid(l).

        The result has the shape of `decoded`, which holds the logits l.
        """
        found = x - self.mean(decoded)
        return found if self.noise == 1 else found / self.noise

    def precision(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The diagonal of the Fisher information of p(x | z) with respect to the logits l.

        It is p·(1 - p) for each value, with p = sigmoid(l). The computation is accurate for very
        large positive and negative l.
        """
        logits = self._logits(decoded)
        found = logits.sigmoid() * (-logits).sigmoid()
        return found if self.noise == 1 else found / self.noise**2

    def _logits(self, decoded: Tensor) -> Tensor:
        return decoded if self.noise == 1 else decoded / self.noise


@register_likelihood("bernoulli-probabilities")
class ProbabilityBernoulli(Likelihood):
    """Binary values. The decoder's output is their probability p, not a logit.

    This class is for decoders that were trained with a sigmoid at the end. Otherwise prefer
    `Bernoulli` with logits, which has no rounding errors for p near 0 or 1. Here log p(x|z) uses p
    clamped to `LIMITS`.

    >>> ProbabilityBernoulli().log_prob(torch.ones(1, 2), torch.full((1, 2), 0.5))  # 2 log ½
    tensor([-1.3863])
    """

    values = "unit"

    def log_prob(self, x: Tensor, decoded: Tensor) -> Tensor:
        """log p(x | z) in nats, (S, B), for S samples of z.

        Args:
            x: examples (B, *event) with values in [0, 1].
            decoded: probabilities p, (S, B, *event).
        """
        p = decoded.clamp(*LIMITS)
        return sum_event(x * p.log() + (1 - x) * (-p).log1p(), x)

    def mean(self, decoded: Tensor) -> Tensor:
        """E[x | z], the probability of the value 1: the decoder's output itself."""
        return decoded

    def sample(self, decoded: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """One draw x of zeros and ones for the probabilities `decoded`, without gradient."""
        with torch.no_grad():
            return torch.bernoulli(decoded.clamp(0, 1), generator=generator)

    def residual(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The derivative of log p(x | z) with respect to the probabilities p in `decoded`.

        It is (x - p) / (p·(1 - p)) for each value. Where p is outside `LIMITS`, it is clamped and
        the derivative is 0.
        """
        p = decoded.clamp(*LIMITS)
        return (x - p) / (p * (1 - p)) * (p == decoded)

    def precision(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The diagonal of the Fisher information of p(x | z) with respect to the probabilities p.

        It is 1 / (p·(1 - p)) for each value. Where p is outside `LIMITS`, it is clamped and the
        result is 0.
        """
        p = decoded.clamp(*LIMITS)
        return (p == decoded) / (p * (1 - p))
