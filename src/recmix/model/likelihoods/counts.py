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
    """A likelihood of counts. The decoder's output l holds the logarithms of their Poisson rates.

    log p(x|z) = Σ x·l - eˡ - log x!

    >>> round(Poisson().log_prob(torch.zeros(1, 3), torch.zeros(1, 3)).item(), 4)
    -3.0
    """

    values = "counts"

    def log_prob(self, x: Tensor, decoded: Tensor) -> Tensor:
        """log p(x | z), (S, B), for counts x (B, *event) and log-rates (S, B, *event).

        S is the number of samples of z for each example.
        """
        return sum_event(x * decoded - decoded.exp() - torch.lgamma(x + 1), x)

    def mean(self, decoded: Tensor) -> Tensor:
        """E[x | z], the rate eˡ, for log-rates l. Both have the same shape."""
        return decoded.exp()

    def sample(self, decoded: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw one count for each log-rate in `decoded`, with the same shape and without gradient."""
        with torch.no_grad():
            return torch.poisson(decoded.exp(), generator=generator)

    def residual(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The derivative of log p(x | z) with respect to the log-rates l: x - eˡ."""
        return x - decoded.exp()

    def precision(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The diagonal of the Fisher information with respect to the log-rates l: the rate eˡ."""
        return decoded.exp()


@register_likelihood("negative-binomial")
class NegativeBinomial(Likelihood):
    """A negative binomial likelihood of counts, with mean μ and variance μ + μ²/θ.

    log μ is the decoder's output. θ, the inverse dispersion, is a learned parameter with the shape of an
    example. It is the same for all examples.

    If `library` is True, the decoder's output is the logarithm of each value's share of the total count
    of the example. μ is the share times this total. The total is taken from x and is not modelled.

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
        """Whether a saved model can store this likelihood by its name: only if `library` is False."""
        return not self.library

    def log_prob(self, x: Tensor, decoded: Tensor) -> Tensor:
        """log p(x | z), (S, B), for counts x (B, *event) and decoder outputs (S, B, *event).

        S is the number of samples of z for each example. The outputs are log-means, or logarithms of
        shares of the total count if `library` is True.
        """
        return sum_event(self._log_terms(x, decoded), x)

    def mean(self, decoded: Tensor) -> Tensor:
        """E[x | z] = exp(decoded), or each value's share of the total count if `library` is True."""
        return decoded.exp()

    def sample(self, decoded: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw one count for each value of `decoded`: a Poisson draw whose rate is a gamma draw.

        The mean of the count is that of the method `mean`. So if `library` is True, the mean total
        count of an example is the sum of the shares.
        """
        with torch.no_grad():
            theta = self._log_theta().exp().expand_as(decoded)
            rate = torch._standard_gamma(theta, generator=generator) * decoded.exp() / theta
            return torch.poisson(rate, generator=generator)

    def residual(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The derivative of log p(x | z) with respect to log μ: (x - μ)·θ / (θ + μ), (B, *event).

        μ is the mean of each count, and θ its inverse dispersion.
        """
        mean = self._log_mean(x, decoded).exp()
        theta = self._log_theta().exp()
        return (x - mean) * theta / (theta + mean)

    def precision(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The diagonal of the Fisher information with respect to log μ: μ·θ / (θ + μ), (B, *event).

        μ is the mean of each count, and θ its inverse dispersion.
        """
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
    """A negative binomial likelihood of counts with additional zeros.

    Each count is 0 with some probability, and otherwise a draw from the negative binomial. The first
    axis of the decoder's output is twice as long as the first axis of x. The first half is log μ, the
    logarithm of the mean of the negative binomial. The second half holds the logits of the probability
    of an additional zero.

    Args:
        shape: shape of an example.
        inverse_dispersion: initial value of the inverse dispersion θ of every value.
        library: whether μ is proportional to the total count of x, as in `NegativeBinomial`.

    >>> ZeroInflatedNegativeBinomial((5,)).output_shape((5,))
    (10,)
    """

    def __init__(self, shape: Shape, inverse_dispersion: float = 1.0, *, library: bool = False) -> None:
        super().__init__(shape, inverse_dispersion, library=library)
        self.axis = -len(shape)

    def output_shape(self, shape: Shape) -> Shape:
        """The shape of the decoder's output. Its first axis is twice as long as that of an example."""
        return (2 * shape[0], *shape[1:])

    def log_prob(self, x: Tensor, decoded: Tensor) -> Tensor:
        """log p(x | z), (S, B), for counts x (B, *event) and decoder outputs (S, B, *output)."""
        level, logit = decoded.chunk(2, dim=self.axis)
        counted = self._log_terms(x, level) - F.softplus(logit)  # log p(not an additional zero) + log NB
        added = logit - F.softplus(logit)
        return sum_event(torch.where(x == 0, torch.logaddexp(counted, added), counted), x)

    def mean(self, decoded: Tensor) -> Tensor:
        """E[x | z], (..., *event): μ times the probability that there is no additional zero.

        If `library` is True, the share of the total count replaces μ.
        """
        level, logit = decoded.chunk(2, dim=self.axis)
        return level.exp() * torch.sigmoid(-logit)

    def sample(self, decoded: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw counts (..., *event), without gradient, for decoder outputs (..., *output)."""
        with torch.no_grad():
            level, logit = decoded.chunk(2, dim=self.axis)
            kept = torch.bernoulli(torch.sigmoid(-logit), generator=generator)
            return kept * super().sample(level, generator)

    def residual(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The derivative of log p(x | z), (B, *output), by automatic differentiation."""
        return Likelihood.residual(self, x, decoded)

    def precision(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The diagonal of the Fisher information with respect to the decoder's output, (B, *output)."""
        of_mean, _, of_logit = self._information(x, decoded)
        return torch.cat([of_mean, of_logit], dim=self.axis)

    def fisher(self, x: Tensor, decoded: Tensor, vectors: Tensor) -> Tensor:
        """The Fisher information of P decoder outputs times `vectors` (B, P, D): (B, P, D).

        The Fisher information has one 2 by 2 block for each count. The rows of a block belong to log μ
        and to the logit of an additional zero.
        """
        of_mean, both, of_logit = (p.flatten(1)[..., None] for p in self._information(x, decoded))
        one, two = vectors.chunk(2, dim=1)
        return torch.cat([of_mean * one + both * two, both * one + of_logit * two], dim=1)

    def _information(self, x: Tensor, decoded: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The three different entries of each count's 2 by 2 Fisher information, (B, *event) each.

        The first entry is the diagonal entry for log μ, the second the off-diagonal entry, and the third
        the diagonal entry for the logit of an additional zero.
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
    """A likelihood of bags of words: N words drawn from softmax(l), where N is the total count of x.

    log p(x|z) = log N! - Σ log x_k! + Σ x_k log softmax(l)_k, where x_k is the count of word k and l is
    the decoder's output. N is taken from x and is not modelled.

    Args:
        coefficient: whether log N! - Σ log x_k! is included. Without it the result is the log
            probability of the words in one given order. The perplexity of topic models is computed from
            this.

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
        """Whether a saved model can store this likelihood by its name: only if `coefficient` is True."""
        return self.coefficient

    def log_prob(self, x: Tensor, decoded: Tensor) -> Tensor:
        """log p(x | z), (S, B), for counts x (B, F) of F words and logits (S, B, F).

        S is the number of samples of z for each example. Raise a `ConfigError` if x has another number
        of axes.
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
        """The probabilities of the F words, softmax(l / τ), (..., F), for logits l.

        τ is the temperature `noise`.
        """
        return (decoded / self.noise).softmax(-1)

    def sample(self, decoded: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw a single word for each vector of logits, as a one-hot vector: (..., F) -> (..., F).

        Its total count is 1, because the model does not define the total count of an example.
        """
        with torch.no_grad():
            flat = self.mean(decoded).flatten(0, -2)
            drawn = torch.multinomial(flat, 1, generator=generator)
            return torch.zeros_like(flat).scatter_(-1, drawn, 1.0).view_as(decoded)

    def residual(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The derivative of log p(x | z) with respect to the logits: (x - N·p) / τ, (B, F).

        N is the total count of an example, p are the probabilities of the F words, and τ is the
        temperature `noise`.
        """
        return (x - total(x) * self.mean(decoded)) / self.noise

    def precision(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The diagonal of the Fisher information with respect to the logits: N·p·(1 - p) / τ², (B, F).

        N is the total count of an example, p are the probabilities of the F words, and τ is the
        temperature `noise`.
        """
        p = self.mean(decoded)
        return total(x) * p * (1 - p) / self.noise**2

    def fisher(self, x: Tensor, decoded: Tensor, vectors: Tensor) -> Tensor:
        """The Fisher information N·(diag(p) - p pᵀ) / τ² times `vectors` (B, F, D): (B, F, D).

        N is the total count of an example, p are the probabilities of the F words, and τ is the
        temperature `noise`.
        """
        p = self.mean(decoded)[..., None]
        weighted = p * (vectors - (p * vectors).sum(1, keepdim=True))
        return total(x)[..., None] * weighted / self.noise**2


def total(x: Tensor) -> Tensor:
    """The sum of all values of each example x (B, *event). The axes are kept with size 1."""
    return x.sum(tuple(range(1 - x.ndim, 0)), keepdim=True)
