"""Likelihoods for counts: Poisson, negative binomial (also zero-inflated) and multinomial."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recmix.errors import ConfigError
from recmix.model.likelihoods.likelihood import Likelihood, Shape, register_likelihood, sum_event

__all__ = ["Multinomial", "NegativeBinomial", "Poisson", "ZeroInflatedNegativeBinomial"]


@register_likelihood("poisson")
class Poisson(Likelihood):
    """Counts whose log-rates are the decoder's output l.

    log p(x|z) = Σ x·l - eˡ - log x!

    >>> round(Poisson().log_prob(torch.zeros(1, 3), torch.zeros(1, 3)).item(), 4)
    -3.0
    """

    values = "counts"

    def log_prob(self, x: Tensor, decoded: Tensor) -> Tensor:
        """log p(x | z) in nats, (S, B), for S samples of z.

        Args:
            x: counts (B, *event).
            decoded: log-rates l, (S, B, *event).
        """
        return sum_event(x * decoded - decoded.exp() - torch.lgamma(x + 1), x)

    def mean(self, decoded: Tensor) -> Tensor:
        """E[x | z], the rate eˡ for the log-rates l in `decoded`."""
        return decoded.exp()

    def sample(self, decoded: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """One draw x of counts for the log-rates `decoded`, without gradient."""
        with torch.no_grad():
            return torch.poisson(decoded.exp(), generator=generator)

    def residual(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The derivative of log p(x | z) with respect to the log-rates l in `decoded`: x - eˡ."""
        return x - decoded.exp()

    def precision(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The diagonal of the Fisher information with respect to the log-rates l: the rate eˡ."""
        return decoded.exp()


@register_likelihood("negative-binomial")
class NegativeBinomial(Likelihood):
    """Counts with mean μ and variance μ + μ²/θ; log μ is the decoder's output, θ one per value.

    θ is a learned parameter. It has the shape of an example and is the same for all examples.

    If `library` is True, the decoder's output is the logarithm of each value's share of the total
    count of the example, and μ is the share times this total. The total is then taken from x and is
    not modelled.

    Args:
        shape: shape of an example.
        inverse_dispersion: initial value of every θ.
        library: whether μ is proportional to the total count of x.

    >>> NegativeBinomial((3,)).log_prob(torch.zeros(2, 3), torch.zeros(2, 3))  # 3 log ½
    tensor([-2.0794, -2.0794], grad_fn=<SumBackward1>)
    """

    values = "counts"
    can_temper = True

    def __init__(self, shape: Shape, inverse_dispersion: float = 1.0, *, library: bool = False) -> None:
        super().__init__()
        start = torch.full(tuple(shape), float(inverse_dispersion)).log()
        self.log_inverse_dispersion = nn.Parameter(start)
        self.library = library

    @property
    def named(self) -> bool:
        """Whether its name and weights are enough to store it: True unless `library` is on."""
        return not self.library

    @classmethod
    def for_data(cls, shape: Shape, *, variance: float = 1.0, classes: int = 0) -> Likelihood:
        """A new negative binomial likelihood with one θ for each value of an example."""
        return cls(shape)

    def log_prob(self, x: Tensor, decoded: Tensor) -> Tensor:
        """log p(x | z) in nats, (S, B), for S samples of z.

        Args:
            x: counts (B, *event).
            decoded: log μ, or the log-shares if `library` is on, (S, B, *event).
        """
        return sum_event(self._log_terms(x, decoded), x)

    def mean(self, decoded: Tensor) -> Tensor:
        """The mean μ; if `library` is on, each value's share of the total count instead."""
        return decoded.exp()

    def sample(self, decoded: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """One draw x of counts, without gradient: a Poisson draw with a gamma-distributed rate."""
        with torch.no_grad():
            theta = self._log_theta().exp().expand_as(decoded)
            rate = torch._standard_gamma(theta, generator=generator) * decoded.exp() / theta
            return torch.poisson(rate, generator=generator)

    def residual(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The derivative of log p(x | z) with respect to log μ: (x - μ)·θ / (θ + μ)."""
        mean = self._log_mean(x, decoded).exp()
        theta = self._log_theta().exp()
        return (x - mean) * theta / (theta + mean)

    def precision(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The diagonal of the Fisher information with respect to log μ: μ·θ / (θ + μ)."""
        mean = self._log_mean(x, decoded).exp()
        theta = self._log_theta().exp()
        return mean * theta / (theta + mean)

    def _log_theta(self) -> Tensor:
        level: Tensor = self.log_inverse_dispersion
        return level if self.noise == 1 else level - math.log(self.noise)

    def _log_mean(self, x: Tensor, decoded: Tensor) -> Tensor:
        if not self.library:
            return decoded
        return decoded + total(x).clamp(min=1e-8).log()

    def _log_terms(self, x: Tensor, decoded: Tensor) -> Tensor:
        """log p(x | z) of each single count, before the sum over the counts of an example."""
        log_mean, log_theta = self._log_mean(x, decoded), self._log_theta()
        theta = log_theta.exp()
        log_sum = torch.logaddexp(log_theta, log_mean)
        constant = torch.lgamma(x + theta) - torch.lgamma(theta) - torch.lgamma(x + 1)
        return constant + theta * (log_theta - log_sum) + x * (log_mean - log_sum)


@register_likelihood("zero-inflated-negative-binomial")
class ZeroInflatedNegativeBinomial(NegativeBinomial):
    """A negative binomial mixed with additional zeros.

    Each count is 0 with some probability, and otherwise a draw from the negative binomial. The
    first axis of the decoder's output is twice that of x: log μ comes first, then the logits of an
    additional zero.

    Args:
        shape: shape of an example.
        inverse_dispersion: initial value of every θ, as for `NegativeBinomial`.
        library: whether μ is proportional to the total count of x, as for `NegativeBinomial`.

    >>> ZeroInflatedNegativeBinomial((5,)).output_shape((5,))
    (10,)
    """

    def __init__(self, shape: Shape, inverse_dispersion: float = 1.0, *, library: bool = False) -> None:
        super().__init__(shape, inverse_dispersion, library=library)
        self.axis = -len(shape)

    def output_shape(self, shape: Shape) -> Shape:
        """The shape of the decoder's output: that of an example with a first axis twice as long.

        The first half holds log μ, the second half the logits of an additional zero.
        """
        return (2 * shape[0], *shape[1:])

    def log_prob(self, x: Tensor, decoded: Tensor) -> Tensor:
        """log p(x | z) in nats, (S, B), for S samples of z.

        Args:
            x: counts (B, *event).
            decoded: log μ and the logits of an additional zero, (S, B, *output).
        """
        level, logit = decoded.chunk(2, dim=self.axis)
        counted = self._log_terms(x, level) - F.softplus(logit)  # log p(not an additional zero) + log NB
        added = logit - F.softplus(logit)
        return sum_event(torch.where(x == 0, torch.logaddexp(counted, added), counted), x)

    def mean(self, decoded: Tensor) -> Tensor:
        """E[x | z]: μ times the probability that no additional zero replaces the count."""
        level, logit = decoded.chunk(2, dim=self.axis)
        return level.exp() * torch.sigmoid(-logit)

    def sample(self, decoded: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """One draw of counts, without gradient."""
        with torch.no_grad():
            level, logit = decoded.chunk(2, dim=self.axis)
            kept = torch.bernoulli(torch.sigmoid(-logit), generator=generator)
            return kept * super().sample(level, generator)

    def residual(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The derivative of log p(x | z) with respect to `decoded`, by autograd."""
        return Likelihood.residual(self, x, decoded)

    def precision(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The diagonal of the Fisher information with respect to log μ and the zero logits.

        The result has the shape of `decoded`, (B, *output).
        """
        of_mean, _, of_logit = self._information(x, decoded)
        return torch.cat([of_mean, of_logit], dim=self.axis)

    def fisher(self, x: Tensor, decoded: Tensor, vectors: Tensor) -> Tensor:
        """The Fisher information with respect to the decoder's output, times `vectors`.

        For each count it is a 2 by 2 matrix, for its log μ and its logit of an additional zero.

        Args:
            x: counts (B, *event); only their total is read, if `library` is on.
            decoded: decoder outputs (B, *output).
            vectors: column vectors (B, P, D), where P is the number of outputs for one example.
        """
        of_mean, both, of_logit = (p.flatten(1)[..., None] for p in self._information(x, decoded))
        one, two = vectors.chunk(2, dim=1)
        return torch.cat([of_mean * one + both * two, both * one + of_logit * two], dim=1)

    def _information(self, x: Tensor, decoded: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The three entries of each count's 2 by 2 Fisher information, each (B, *event).

        They are the entry of log μ, the off-diagonal entry, and the entry of the logit of a zero.
        """
        level, logit = decoded.chunk(2, dim=self.axis)
        mean, theta = self._log_mean(x, level).exp(), self._log_theta().exp()
        added, counted = logit.sigmoid(), torch.sigmoid(-logit)
        zero = (theta * (theta.log() - (theta + mean).log())).exp()  # p(0) of the negative binomial
        any_zero = added + counted * zero
        weight = mean * theta / (theta + mean)  # of the negative binomial; its score at 0 is -weight
        of_mean = counted * (weight - zero * weight**2) + (counted * zero * weight) ** 2 / any_zero
        both = -added * counted * zero * weight * (1 + counted * (1 - zero) / any_zero)
        of_logit = counted * (1 - zero) * added**2 + (added * counted * (1 - zero)) ** 2 / any_zero
        return of_mean, both, of_logit


@register_likelihood("multinomial")
class Multinomial(Likelihood):
    """Bags of words: N draws from softmax(l), where N is the total count of the example.

    log p(x|z) = log N! - Σ log x_k! + Σ x_k log softmax(l)_k, where x_k is the count of word k and
    l is the decoder's output. N is taken from x and is not modelled.

    Args:
        coefficient: whether log N! - Σ log x_k! is included. Without it the result is the log
            probability of the words in one given order, which is used to compute perplexities of
            topic models.

    >>> words = torch.tensor([[2.0, 1.0, 0.0]])
    >>> round(Multinomial(coefficient=False).log_prob(words, torch.zeros(1, 3)).item(), 4)  # 3 log ⅓
    -3.2958
    """

    values = "counts"
    can_temper = True

    def __init__(self, *, coefficient: bool = True) -> None:
        super().__init__()
        self.coefficient = coefficient

    @property
    def named(self) -> bool:
        """Whether its name is enough to store it: True if `coefficient` is True."""
        return self.coefficient

    def log_prob(self, x: Tensor, decoded: Tensor) -> Tensor:
        """log p(x | z) in nats, (S, B), for S samples of z.

        Args:
            x: word counts (B, F) for F words.
            decoded: logits l, (S, B, F).
        """
        if x.ndim != 2:
            raise ConfigError(
                "the multinomial likelihood is for vectors of counts (B, F), got x of shape "
                f"{tuple(x.shape)}: flatten the examples"
            )
        log_p = (decoded / self.noise).log_softmax(-1)
        found: Tensor = (x * log_p).sum(-1)
        if self.coefficient:
            found = found + torch.lgamma(x.sum(-1) + 1) - torch.lgamma(x + 1).sum(-1)
        return found

    def mean(self, decoded: Tensor) -> Tensor:
        """The probability of each of the F words, softmax(l), for logits l (..., F)."""
        return (decoded / self.noise).softmax(-1)

    def sample(self, decoded: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """One drawn word for each example, as a one-hot vector (..., F), without gradient."""
        with torch.no_grad():
            flat = self.mean(decoded).flatten(0, -2)
            drawn = torch.multinomial(flat, 1, generator=generator)
            return torch.zeros_like(flat).scatter_(-1, drawn, 1.0).view_as(decoded)

    def residual(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The derivative of log p(x | z) with respect to the logits l: x - N·softmax(l), (B, F)."""
        return (x - total(x) * self.mean(decoded)) / self.noise

    def precision(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The diagonal of the Fisher information with respect to the logits l, (B, F).

        It is N·p·(1 - p) with p = softmax(l) and the total count N of each example.
        """
        p = self.mean(decoded)
        return total(x) * p * (1 - p) / self.noise**2

    def fisher(self, x: Tensor, decoded: Tensor, vectors: Tensor) -> Tensor:
        """The Fisher information N·(diag(p) - p pᵀ) with respect to the logits l, times `vectors`.

        Args:
            x: word counts (B, F); only the total count N of each example is read.
            decoded: logits l, (B, F), with p = softmax(l).
            vectors: column vectors (B, F, D).
        """
        p = self.mean(decoded)[..., None]
        weighted = p * (vectors - (p * vectors).sum(1, keepdim=True))
        return total(x)[..., None] * weighted / self.noise**2


def total(x: Tensor) -> Tensor:
    """The sum of all values of each example x (B, *event), with the axes kept: (B, 1, ...)."""
    return x.sum(tuple(range(1 - x.ndim, 0)), keepdim=True)
