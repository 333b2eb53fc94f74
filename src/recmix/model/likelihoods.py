"""Likelihoods p(x | z): the density of x given the decoder's output.

A likelihood reads images x (B, C, H, W) and decoder outputs (S, B, C, H, W), and gives nats summed
over pixels, (S, B). Any leading axes that broadcast against x are allowed.
`residual` and `precision` are the first derivative and the negative second derivative of
log p(x|z) in the decoder's output; Gauss-Newton steps are built from them.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recmix.errors import ConfigError, unknown
from recmix.model.replaceable import fusable

__all__ = ["LIKELIHOODS", "Bernoulli", "Gaussian", "Likelihood", "make_likelihood"]

PIXELS = (-3, -2, -1)


class Likelihood(nn.Module, ABC):
    """p(x|z) as a function of the decoder's output, independent over pixels.

    Attributes:
        name: Its name in options.
        centred: Whether x is given with the training mean subtracted. The model subtracts it, and adds
            it to the results of `mean` and `sample`.

    >>> bernoulli = make_likelihood("bernoulli")
    >>> bernoulli.log_prob(torch.ones(3, 1, 8, 8), torch.zeros(5, 3, 1, 8, 8)).shape
    torch.Size([5, 3])
    """

    name: ClassVar[str]
    centred: ClassVar[bool]

    @abstractmethod
    def log_prob(self, x: Tensor, decoded: Tensor) -> Tensor:
        """Nats of log p(x|z), (S, B), of images x (B, C, H, W), decoded (S, B, C, H, W)."""

    @abstractmethod
    def mean(self, decoded: Tensor) -> Tensor:
        """The mean image E[x|z], (..., C, H, W) as `decoded`."""

    @abstractmethod
    def sample(self, decoded: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """One draw x ~ p(x|z), (..., C, H, W) as `decoded`, without gradient."""

    @abstractmethod
    def residual(self, x: Tensor, decoded: Tensor) -> Tensor:
        """∂ log p(x|z) / ∂ decoded, (S, B, C, H, W)."""

    @abstractmethod
    def precision(self, decoded: Tensor) -> Tensor:
        """-∂² log p(x|z) / ∂ decoded², one weight per pixel, (..., C, H, W) as `decoded`."""


class Gaussian(Likelihood):
    """A normal density around the decoder's output, with one learned variance for all pixels.

    log p(x|z) = -½ (|x - m|²/σ² + P·(log σ² + log 2π)), for P pixel values and decoder output m.

    The variance never falls below the floor: a `log_variance` below log(floor) is reflected to the
    other side. The gradient has full strength on both sides, so the variance can leave the floor again;
    a clamp or a softplus would hold it there. Read `variance`, not the raw parameter.

    Args:
        variance: Initial σ²; the variance of the data is a good choice.
        floor: The smallest σ².

    >>> gaussian = Gaussian(0.25)
    >>> x = torch.zeros(3, 1, 8, 8)
    >>> round(gaussian.log_prob(x, x[None]).mean().item() / 64, 4)  # log 2 - ½ log 2π
    -0.2258
    """

    name = "gaussian"
    centred = True

    def __init__(self, variance: float = 1.0, *, floor: float = 1e-6) -> None:
        super().__init__()
        for option, value in (("variance", variance), ("floor", floor)):
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(
                    f"gaussian likelihood with {option}={value}: expected a positive number; "
                    "a variance of 0 means that all the images are the same"
                )
        self.initial = max(float(variance), float(floor))
        self.floor = float(floor)
        self.log_variance = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the variance to its initial value."""
        nn.init.constant_(self.log_variance, math.log(self.initial))

    @property
    def variance(self) -> Tensor:
        """σ², () and at least the floor."""
        return self._log_variance().exp()

    def _log_variance(self) -> Tensor:
        floor = math.log(self.floor)
        above = self.log_variance >= floor
        return torch.where(above, self.log_variance, 2 * floor - self.log_variance)

    def log_prob(self, x: Tensor, decoded: Tensor) -> Tensor:
        """Nats of log p(x|z), (S, B), of centred images x (B, C, H, W)."""
        return _gaussian_log_prob(x, decoded, self._log_variance())

    def mean(self, decoded: Tensor) -> Tensor:
        """The decoder's output itself."""
        return decoded

    def sample(self, decoded: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """One draw m + σ·noise, without gradient."""
        with torch.no_grad():
            noise = torch.randn(
                decoded.shape, generator=generator, dtype=decoded.dtype, device=decoded.device
            )
            return decoded + self.variance.sqrt() * noise

    def residual(self, x: Tensor, decoded: Tensor) -> Tensor:
        """(x - m)/σ², (S, B, C, H, W)."""
        return (x - decoded) * (-self._log_variance()).exp()

    def precision(self, decoded: Tensor) -> Tensor:
        """1/σ² at every pixel; one number in memory, expanded to the shape of `decoded`."""
        return (-self._log_variance()).exp().expand_as(decoded)

    def extra_repr(self) -> str:
        """The start and the floor."""
        return f"variance={self.initial}, floor={self.floor}"


@fusable
def _gaussian_log_prob(x: Tensor, decoded: Tensor, log_variance: Tensor) -> Tensor:
    # One kernel forward and one backward; (x - m)² would take two and three.
    errors = F.mse_loss(decoded, x.expand_as(decoded), reduction="none").sum(PIXELS)
    constant = math.prod(x.shape[-3:]) * (log_variance + math.log(2 * math.pi))
    return -0.5 * (errors * (-log_variance).exp() + constant)


class Bernoulli(Likelihood):
    """Binary pixels whose logits are the decoder's output l.

    log p(x|z) = Σ x·l - log(1 + eˡ). Grey pixels, x in [0, 1], are scored by the same formula.

    >>> bernoulli = Bernoulli()
    >>> x = torch.ones(3, 1, 8, 8)
    >>> round(bernoulli.log_prob(x, 0 * x[None]).mean().item() / 64, 4)  # log ½
    -0.6931
    """

    name = "bernoulli"
    centred = False

    def log_prob(self, x: Tensor, decoded: Tensor) -> Tensor:
        """Nats of log p(x|z), (S, B), of images x (B, C, H, W) in [0, 1]."""
        # Above 40, log(1 + eˡ) = l to the last digit of float64; the default 20 is not enough.
        normaliser = F.softplus(decoded, threshold=40)
        return -torch.addcmul(normaliser, x, decoded, value=-1).sum(PIXELS)

    def mean(self, decoded: Tensor) -> Tensor:
        """The probability of a white pixel, sigmoid(l)."""
        return decoded.sigmoid()

    def sample(self, decoded: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """One draw of zeros and ones, without gradient."""
        with torch.no_grad():
            return torch.bernoulli(decoded.sigmoid(), generator=generator)

    def residual(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The difference x - sigmoid(l), (S, B, C, H, W)."""
        return x - decoded.sigmoid()

    def precision(self, decoded: Tensor) -> Tensor:
        """p·(1 - p) at every pixel, p = sigmoid(l); accurate for large l of either sign."""
        return decoded.sigmoid() * (-decoded).sigmoid()


LIKELIHOODS: dict[str, type[Likelihood]] = {kind.name: kind for kind in (Gaussian, Bernoulli)}


def make_likelihood(name: str, **options: float) -> Likelihood:
    """The likelihood of that name, "gaussian" or "bernoulli", with its constructor's options.

    Raises:
        ConfigError: There is no such likelihood, or it has no such option.

    >>> make_likelihood("gaussian", variance=0.1)
    Gaussian(variance=0.1, floor=1e-06)
    """
    if name not in LIKELIHOODS:
        raise ConfigError(unknown("likelihood", name, LIKELIHOODS))
    kind = LIKELIHOODS[name]
    valid = [] if kind.__init__ is nn.Module.__init__ else list(inspect.signature(kind).parameters)
    for option in options:
        if option not in valid:
            raise ConfigError(
                unknown(f"option of the {name} likelihood", option, valid)
                if valid
                else f"the {name} likelihood has no options; remove {option!r}"
            )
    return kind(**options)
