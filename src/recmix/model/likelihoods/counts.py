"""Likelihoods for counts: Poisson, negative binomial, zero-inflated, and multinomial."""

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
        """Nats of log p(x|z), (S, B), of counts x (B, *event)."""
        return sum_event(x * decoded - decoded.exp() - torch.lgamma(x + 1), x)

    def mean(self, decoded: Tensor) -> Tensor:
        """The rate eˡ."""
        return decoded.exp()

    def sample(self, decoded: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """One draw of counts, without gradient."""
        with torch.no_grad():
            return torch.poisson(decoded.exp(), generator=generator)

    def residual(self, x: Tensor, decoded: Tensor) -> Tensor:
        """x - eˡ."""
        return x - decoded.exp()

    def precision(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The rate eˡ."""
        return decoded.exp()


@register_likelihood("negative-binomial")
class NegativeBinomial(Likelihood):
    """Counts with mean μ and variance μ + μ²/θ; log μ is the decoder's output, θ one per value.

    With `library`, the decoder's output is the log of each value's share, and μ is the share times the
    total count of the example. The total is then given and not modelled.

    Args:
        shape: of an example.
        inverse_dispersion: initial θ of all values.
        library: whether the total count of x scales μ.

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
        """Whether the name describes it: without `library`."""
        return not self.library

    @classmethod
    def for_data(cls, shape: Shape, *, variance: float = 1.0, classes: int = 0) -> Likelihood:
        """One θ per value of an example."""
        return cls(shape)

    def log_prob(self, x: Tensor, decoded: Tensor) -> Tensor:
        """Nats of log p(x|z), (S, B), of counts x (B, *event)."""
        return sum_event(self._log_terms(x, decoded), x)

    def mean(self, decoded: Tensor) -> Tensor:
        """μ; with `library`, the share of each value."""
        return decoded.exp()

    def sample(self, decoded: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """One draw of counts, without gradient: Poisson with a gamma-distributed rate."""
        with torch.no_grad():
            theta = self._log_theta().exp().expand_as(decoded)
            rate = torch._standard_gamma(theta, generator=generator) * decoded.exp() / theta
            return torch.poisson(rate, generator=generator)

    def residual(self, x: Tensor, decoded: Tensor) -> Tensor:
        """(x - μ)·θ / (θ + μ)."""
        mean = self._log_mean(x, decoded).exp()
        theta = self._log_theta().exp()
        return (x - mean) * theta / (theta + mean)

    def precision(self, x: Tensor, decoded: Tensor) -> Tensor:
        """μ·θ / (θ + μ)."""
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
        """log p of each count."""
        log_mean, log_theta = self._log_mean(x, decoded), self._log_theta()
        theta = log_theta.exp()
        log_sum = torch.logaddexp(log_theta, log_mean)
        constant = torch.lgamma(x + theta) - torch.lgamma(theta) - torch.lgamma(x + 1)
        return constant + theta * (log_theta - log_sum) + x * (log_mean - log_sum)


@register_likelihood("zero-inflated-negative-binomial")
class ZeroInflatedNegativeBinomial(NegativeBinomial):
    """A negative binomial mixed with additional zeros.

    The first axis of the decoder's output is twice that of x: log μ first, then the logits of an
    additional zero.

    Args:
        shape: of an example.
        inverse_dispersion: initial θ of all values.
        library: as for `NegativeBinomial`.

    >>> ZeroInflatedNegativeBinomial((5,)).output_shape((5,))
    (10,)
    """

    def __init__(self, shape: Shape, inverse_dispersion: float = 1.0, *, library: bool = False) -> None:
        super().__init__(shape, inverse_dispersion, library=library)
        self.axis = -len(shape)

    def output_shape(self, shape: Shape) -> Shape:
        """Log-means and logits of an additional zero: twice the first axis."""
        return (2 * shape[0], *shape[1:])

    def log_prob(self, x: Tensor, decoded: Tensor) -> Tensor:
        """Nats of log p(x|z), (S, B), of counts x (B, *event)."""
        level, logit = decoded.chunk(2, dim=self.axis)
        counted = self._log_terms(x, level) - F.softplus(logit)  # log p(not an additional zero) + log NB
        added = logit - F.softplus(logit)
        return sum_event(torch.where(x == 0, torch.logaddexp(counted, added), counted), x)

    def mean(self, decoded: Tensor) -> Tensor:
        """μ times the probability that the zero is not added."""
        level, logit = decoded.chunk(2, dim=self.axis)
        return level.exp() * torch.sigmoid(-logit)

    def sample(self, decoded: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """One draw of counts, without gradient."""
        with torch.no_grad():
            level, logit = decoded.chunk(2, dim=self.axis)
            kept = torch.bernoulli(torch.sigmoid(-logit), generator=generator)
            return kept * super().sample(level, generator)

    def residual(self, x: Tensor, decoded: Tensor) -> Tensor:
        """∂ log p(x | z) / ∂ decoded, by autograd."""
        return Likelihood.residual(self, x, decoded)

    def precision(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The diagonal of the Fisher information in the decoder's output (log μ and logits)."""
        of_mean, _, of_logit = self._information(x, decoded)
        return torch.cat([of_mean, of_logit], dim=self.axis)

    def fisher(self, x: Tensor, decoded: Tensor, vectors: Tensor) -> Tensor:
        """The Fisher information, a 2 by 2 matrix for each count, times vectors (B, P, D)."""
        of_mean, both, of_logit = (p.flatten(1)[..., None] for p in self._information(x, decoded))
        one, two = vectors.chunk(2, dim=1)
        return torch.cat([of_mean * one + both * two, both * one + of_logit * two], dim=1)

    def _information(self, x: Tensor, decoded: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The entries of each count's Fisher information: log-mean, mixed, logit."""
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

    log p(x|z) = log N! - Σ log x_k! + Σ x_k log softmax(l)_k. N is given and not modelled.

    Args:
        coefficient: whether log N! - Σ log x_k! is included. Without it the result is the density of
            the words in one order, as perplexities of topic models are defined.

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
        """Whether the name describes it: with the coefficient."""
        return self.coefficient

    def log_prob(self, x: Tensor, decoded: Tensor) -> Tensor:
        """Nats of log p(x|z), (S, B), of counts x (B, *event)."""
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
        """The probability of each word, for vectors (..., F)."""
        return (decoded / self.noise).softmax(-1)

    def sample(self, decoded: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """One word for each example, as a one-hot count (..., F), without gradient."""
        with torch.no_grad():
            flat = self.mean(decoded).flatten(0, -2)
            drawn = torch.multinomial(flat, 1, generator=generator)
            return torch.zeros_like(flat).scatter_(-1, drawn, 1.0).view_as(decoded)

    def residual(self, x: Tensor, decoded: Tensor) -> Tensor:
        """x - N·softmax(l)."""
        return (x - total(x) * self.mean(decoded)) / self.noise

    def precision(self, x: Tensor, decoded: Tensor) -> Tensor:
        """N·p·(1 - p)."""
        p = self.mean(decoded)
        return total(x) * p * (1 - p) / self.noise**2

    def fisher(self, x: Tensor, decoded: Tensor, vectors: Tensor) -> Tensor:
        """N·(diag(p) - p pᵀ) times vectors (B, P, D)."""
        p = self.mean(decoded)[..., None]
        weighted = p * (vectors - (p * vectors).sum(1, keepdim=True))
        return total(x)[..., None] * weighted / self.noise**2


def total(x: Tensor) -> Tensor:
    """The sum of each example (B, *event), with its axes kept: (B, 1, ...)."""
    return x.sum(tuple(range(1 - x.ndim, 0)), keepdim=True)
