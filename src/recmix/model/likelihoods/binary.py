"""The Bernoulli likelihood, for binary values."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from recmix.model.likelihoods.likelihood import Likelihood, register_likelihood, sum_event

__all__ = ["Bernoulli", "ProbabilityBernoulli"]

LIMITS = (1e-6, 1 - 1e-6)
"""Probabilities are clamped to this range."""


@register_likelihood("bernoulli")
class Bernoulli(Likelihood):
    """A likelihood of binary values. The decoder's output l holds their logits.

    log p(x|z) = Σ x·l - log(1 + eˡ). Values of x between 0 and 1 are allowed; the formula is the same.

    >>> bernoulli = Bernoulli()
    >>> x = torch.ones(3, 1, 8, 8)
    >>> round(bernoulli.log_prob(x, 0 * x[None]).mean().item() / 64, 4)  # log ½
    -0.6931
    """

    values = "unit"
    can_temper = True

    def log_prob(self, x: Tensor, decoded: Tensor) -> Tensor:
        """log p(x | z), (S, B), for x (B, *event) in [0, 1] and logits (S, B, *event).

        S is the number of samples of z for each example.
        """
        # Above 40, log(1 + eˡ) = l to the last digit of float64; the default 20 is not enough.
        logits = self._logits(decoded)
        normaliser = F.softplus(logits, threshold=40)
        return -sum_event(torch.addcmul(normaliser, x, logits, value=-1), x)

    def mean(self, decoded: Tensor) -> Tensor:
        """The probability of the value 1, sigmoid(l / τ), for logits l. τ is the temperature `noise`."""
        return self._logits(decoded).sigmoid()

    def sample(self, decoded: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw zeros and ones for the logits `decoded`, in the same shape and without gradient."""
        with torch.no_grad():
            return torch.bernoulli(self.mean(decoded), generator=generator)

    def residual(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The derivative of log p(x | z) with respect to the logits l: (x - sigmoid(l / τ)) / τ.

        τ is the temperature `noise`.
        """
        found = x - self.mean(decoded)
        return found if self.noise == 1 else found / self.noise

    def precision(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The diagonal of the Fisher information with respect to the logits l: p·(1 - p) / τ².

        p = sigmoid(l / τ) is the probability of the value 1, and τ the temperature `noise`. The result
        is accurate for very large positive and negative l.
        """
        logits = self._logits(decoded)
        found = logits.sigmoid() * (-logits).sigmoid()
        return found if self.noise == 1 else found / self.noise**2

    def _logits(self, decoded: Tensor) -> Tensor:
        return decoded if self.noise == 1 else decoded / self.noise


@register_likelihood("bernoulli-probabilities")
class ProbabilityBernoulli(Likelihood):
    """A likelihood of binary values. The decoder's output is the probability p of 1, not a logit.

    This class is for decoders that were trained with a sigmoid at the end. Otherwise prefer `Bernoulli`
    with logits, which has no rounding errors for p near 0 or 1. Here log p(x|z) uses p clamped to
    [1e-6, 1 - 1e-6].

    >>> ProbabilityBernoulli().log_prob(torch.ones(1, 2), torch.full((1, 2), 0.5))  # 2 log ½
    tensor([-1.3863])
    """

    values = "unit"

    def log_prob(self, x: Tensor, decoded: Tensor) -> Tensor:
        """log p(x | z), (S, B), for x (B, *event) in [0, 1] and probabilities (S, B, *event).

        S is the number of samples of z for each example.
        """
        p = decoded.clamp(*LIMITS)
        return sum_event(x * p.log() + (1 - x) * (-p).log1p(), x)

    def mean(self, decoded: Tensor) -> Tensor:
        """The probability of the value 1, which is the decoder's output."""
        return decoded

    def sample(self, decoded: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw zeros and ones for the probabilities `decoded`, in the same shape, without gradient."""
        with torch.no_grad():
            return torch.bernoulli(decoded.clamp(0, 1), generator=generator)

    def residual(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The derivative of log p(x | z) with respect to the probability p: (x - p) / (p·(1 - p)).

        The derivative is 0 where p is outside [1e-6, 1 - 1e-6], because `log_prob` clamps p.
        """
        p = decoded.clamp(*LIMITS)
        return (x - p) / (p * (1 - p)) * (p == decoded)

    def precision(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The diagonal of the Fisher information with respect to the probability p: 1 / (p·(1 - p)).

        The result is 0 where p is outside [1e-6, 1 - 1e-6], because `log_prob` clamps p.
        """
        p = decoded.clamp(*LIMITS)
        return (p == decoded) / (p * (1 - p))
