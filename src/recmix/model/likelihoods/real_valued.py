"""Gaussian likelihoods, for real-valued data."""

from __future__ import annotations

import math
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recmix.errors import ConfigError
from recmix.model.likelihoods.likelihood import (
    Likelihood,
    Shape,
    register_likelihood,
    sum_event,
)
from recmix.model.replaceable import fusable

__all__ = ["DecodedGaussian", "FeatureGaussian", "Gaussian"]

FLOOR = 1e-6
"""Default of the smallest variance of `Gaussian` and `FeatureGaussian`."""
DECODED_FLOOR = 1e-4
"""Default of the smallest variance of `DecodedGaussian`."""


@register_likelihood("gaussian")
class Gaussian(Likelihood):
    """A Gaussian likelihood: the decoder's output is the mean, and all values share one variance.

    log p(x|z) = -½ (|x - m|²/σ² + P·(log σ² + log 2π)), where m is the decoder's output and P the number
    of values of x.

    The variance never falls below the floor. If the parameter `log_variance` lies below log(floor) by a
    distance d, log(floor) + d is used. So the gradient has full strength on both sides, and the variance
    can leave the floor again. Read the property `variance`, not the parameter.

    Args:
        variance: Initial σ²; the variance of the data is a good choice.
        floor: The smallest σ².
        learned: Whether training changes σ².

    >>> gaussian = Gaussian(0.25)
    >>> x = torch.zeros(3, 1, 8, 8)
    >>> round(gaussian.log_prob(x, x[None]).mean().item() / 64, 4)  # log 2 - ½ log 2π
    -0.2258
    """

    centred = True
    can_temper = True

    def __init__(self, variance: float = 1.0, *, floor: float = FLOOR, learned: bool = True) -> None:
        super().__init__()
        for option, value in (("variance", variance), ("floor", floor)):
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(
                    f"gaussian likelihood with {option}={value}: expected a positive number; "
                    "a variance of 0 means that all the examples are the same"
                )
        self.initial = max(float(variance), float(floor))
        self.floor = float(floor)
        self.log_variance: Tensor = nn.Parameter(torch.empty(()))
        self._start(learned)

    def _start(self, learned: bool) -> None:
        self.reset_parameters()
        if not learned:
            self.fix(self.initial)

    @property
    def named(self) -> bool:
        """True for the default floor: then a saved model can store this likelihood by its name."""
        return self.floor == FLOOR

    @property
    def learned(self) -> bool:
        """Whether training changes the variance σ²."""
        return "log_variance" in self._parameters

    def reset_parameters(self) -> None:
        """Set the variance to its initial value."""
        nn.init.constant_(self.log_variance, math.log(self.initial))

    def fix(self, variance: float) -> None:
        """Set the variance of all values to a constant, at least the floor, that is not trained."""
        if variance < 0.99 * self.floor:
            warnings.warn(
                f"the variance {variance:g} is below the smallest one, {self.floor:g}, which is used: "
                "multiply the data by a factor",
                stacklevel=2,
            )
        self.initial = max(variance, self.floor)
        fixed = self.log_variance.detach().clone()
        self._parameters.pop("log_variance", None)
        self.register_buffer("log_variance", fixed)
        self.reset_parameters()

    @property
    def variance(self) -> Tensor:
        """The variance σ²: one number. In `FeatureGaussian` it has the shape of an example."""
        return self._log_variance().exp()

    def _log_variance(self) -> Tensor:
        floor = math.log(self.floor)
        above = self.log_variance >= floor
        found = torch.where(above, self.log_variance, 2 * floor - self.log_variance)
        return found if self.noise == 1 else found + math.log(self.noise)

    def log_prob(self, x: Tensor, decoded: Tensor) -> Tensor:
        """log p(x | z), (S, B), for examples x (B, *event) and means m (S, B, *event).

        S is the number of samples of z for each example.
        """
        return _gaussian_log_prob(x, decoded, self._log_variance())

    def mean(self, decoded: Tensor) -> Tensor:
        """E[x | z], which is the decoder's output."""
        return decoded

    def sample(self, decoded: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw x = m + σ·noise for the means m in `decoded`, in the same shape, without gradient."""
        with torch.no_grad():
            noise = torch.randn(
                decoded.shape, generator=generator, dtype=decoded.dtype, device=decoded.device
            )
            return decoded + self.variance.sqrt() * noise

    def residual(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The derivative of log p(x | z) with respect to the means m in `decoded`: (x - m)/σ²."""
        return (x - decoded) * (-self._log_variance()).exp()

    def precision(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The diagonal of the Fisher information with respect to the means: 1/σ², (B, *event)."""
        return (-self._log_variance()).exp().expand_as(decoded)

    def extra_repr(self) -> str:
        """The initial variance and the floor, shown when the module is printed."""
        return f"variance={self.initial}, floor={self.floor}"


@fusable
def _gaussian_log_prob(x: Tensor, decoded: Tensor, log_variance: Tensor) -> Tensor:
    # One kernel forward and one backward; (x - m)² would take two and three.
    errors = sum_event(F.mse_loss(decoded, x.expand_as(decoded), reduction="none"), x)
    constant = math.prod(x.shape[1:]) * (log_variance + math.log(2 * math.pi))
    return -0.5 * (errors * (-log_variance).exp() + constant)


@register_likelihood("gaussian-features")
class FeatureGaussian(Gaussian):
    """A Gaussian likelihood: the decoder's output is the mean, and each value has its own variance.

    Args:
        shape: Shape of an example.
        variance: Initial σ² of all values.
        floor: The smallest σ².
        learned: Whether training changes σ².

    >>> FeatureGaussian((3,)).variance.shape
    torch.Size([3])
    """

    def __init__(
        self, shape: Shape, variance: float = 1.0, *, floor: float = FLOOR, learned: bool = True
    ) -> None:
        super().__init__(variance, floor=floor)
        self.log_variance = nn.Parameter(torch.empty(tuple(shape)))
        self._start(learned)

    def log_prob(self, x: Tensor, decoded: Tensor) -> Tensor:
        """log p(x | z), (S, B), for examples x (B, *event) and means m (S, B, *event).

        S is the number of samples of z for each example.
        """
        log_variance = self._log_variance()
        errors = (x - decoded).square() * (-log_variance).exp()
        return -0.5 * sum_event(errors + log_variance + math.log(2 * math.pi), x)


@register_likelihood("gaussian-decoded")
class DecodedGaussian(Likelihood):
    """A Gaussian likelihood whose means and log-variances are both given by the decoder.

    The first axis of the decoder's output is twice as long as the first axis of x. The first half holds
    the means m. The second half holds values l, which give the variances σ² = floor + eˡ.

    Args:
        shape: Shape of an example.
        floor: The smallest σ².

    >>> DecodedGaussian((3, 8, 8)).output_shape((3, 8, 8))
    (6, 8, 8)
    """

    centred = True
    can_temper = True

    def __init__(self, shape: Shape, *, floor: float = DECODED_FLOOR) -> None:
        super().__init__()
        if not (math.isfinite(floor) and floor > 0):
            raise ConfigError(
                f"gaussian-decoded likelihood with floor={floor}: expected a positive number"
            )
        self.floor = float(floor)
        self.axis = -len(shape)

    @property
    def named(self) -> bool:
        """True for the default floor: then a saved model can store this likelihood by its name."""
        return self.floor == DECODED_FLOOR

    def output_shape(self, shape: Shape) -> Shape:
        """The shape of the decoder's output. Its first axis is twice as long as that of an example."""
        return (2 * shape[0], *shape[1:])

    def log_prob(self, x: Tensor, decoded: Tensor) -> Tensor:
        """log p(x | z), (S, B), for examples x (B, *event) and decoder outputs (S, B, *output).

        S is the number of samples of z for each example.
        """
        mean, variance, _ = self._parts(decoded)
        terms = (x - mean).square() / variance + variance.log() + math.log(2 * math.pi)
        return -0.5 * sum_event(terms, x)

    def mean(self, decoded: Tensor) -> Tensor:
        """E[x | z], (..., *event), the first half of the decoder's output (..., *output)."""
        return decoded.chunk(2, dim=self.axis)[0]

    def sample(self, decoded: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw x = m + σ·noise, (..., *event), for decoder outputs (..., *output), without gradient."""
        with torch.no_grad():
            mean, variance, _ = self._parts(decoded)
            noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
            return mean + variance.sqrt() * noise

    def precision(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The diagonal of the Fisher information with respect to the decoder's output (m, l).

        It is 1/σ² for the means m and ½ (d log σ² / dl)² for the values l, where σ² = `noise`·(floor +
        eˡ). All other entries of the Fisher information are 0.
        """
        _, variance, share = self._parts(decoded)
        return torch.cat([1 / variance, 0.5 * share.square()], dim=self.axis)

    def _parts(self, decoded: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The means m, the variances `noise`·(floor + eˡ), and d log σ² / dl = eˡ / (floor + eˡ)."""
        mean, level = decoded.chunk(2, dim=self.axis)
        total = level.exp() + self.floor
        return mean, self.noise * total, level.exp() / total
