"""The discretised mixture of logistics, for images with 8 bits per value."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from recmix.errors import ConfigError
from recmix.model.likelihoods.likelihood import Likelihood, Shape, register_likelihood

__all__ = ["LogisticMixture"]

COMPONENTS = 10
"""Default number of mixture components."""
LEAST_LOG_SCALE = -7.0
"""Smallest log-scale of a logistic distribution, after x is scaled to [-1, 1]."""


@register_likelihood("logistic-mixture")
class LogisticMixture(Likelihood):
    """A likelihood of 8-bit images: each pixel has a mixture of discretised logistic distributions.

    A value is k / 255, for k from 0 to 255.

    All channels of a pixel share the mixing weights. With three channels, the mean of green depends
    linearly on red, and the mean of blue depends linearly on red and green. The probability of a value
    is the mass of the logistic in an interval of width 1/255 around it; the first and the last interval
    extend to infinity. So p(x|z) is a discrete distribution, and `bits_per_dimension` gives the length
    of a code for x.

    For M components, the channels of the decoder's output are: M logits, then M means for each channel,
    then M log-scales for each channel, and with three channels 3 M coefficients of the linear
    dependence.

    Args:
        shape: (C, H, W) with C of 1 or 3.
        components: M, the number of mixture components.

    Reference: Salimans et al., PixelCNN++, ICLR 2017.

    >>> likelihood = LogisticMixture((1, 8, 8), 5)
    >>> likelihood.output_shape((1, 8, 8))
    (15, 8, 8)
    """

    values = "eight_bit"
    can_temper = True

    def __init__(self, shape: Shape, components: int = COMPONENTS) -> None:
        super().__init__()
        if len(shape) != 3 or shape[0] not in (1, 3):
            raise ConfigError(
                f"logistic-mixture likelihood for examples of shape {tuple(shape)}: expected images "
                "(C, H, W) with 1 or 3 channels; for other data use gaussian or categorical"
            )
        if components < 1:
            raise ConfigError(
                f"logistic-mixture likelihood with components={components}: expected at least 1"
            )
        self.channels = shape[0]
        self.components = components

    @property
    def named(self) -> bool:
        """Whether a saved model can store this likelihood by its name: for the default `components`."""
        return self.components == COMPONENTS

    def output_shape(self, shape: Shape) -> Shape:
        """The shape of the decoder's output, (n, H, W): n mixture parameters for each pixel.

        For M components, n is 3 M for one channel and 10 M for three channels.
        """
        each = 3 if self.channels == 1 else 10
        return (each * self.components, *shape[1:])

    def log_prob(self, x: Tensor, decoded: Tensor) -> Tensor:
        """log p(x | z), (S, B), for images x (B, C, H, W) and decoder outputs (S, B, n, H, W).

        S is the number of samples of z for each image. `output_shape` defines n.
        """
        logits, means, log_scales, coefficients = self._parts(decoded)
        value = 2 * x - 1  # in [-1, 1]
        means = self._conditional_means(value[..., None, :, :], means, coefficients)
        inverse = (-log_scales).exp()
        centred = value[..., None, :, :] - means  # (..., C, M, H, W)
        upper, lower = inverse * (centred + 1 / 255), inverse * (centred - 1 / 255)
        inside = (upper.sigmoid() - lower.sigmoid()).clamp(min=1e-12).log()
        middle = inverse * centred
        narrow = (
            middle - log_scales - 2 * F.softplus(middle) - 4.848116364
        )  # log(127.5): density x width
        mass = torch.where(inside > -11.5, inside, narrow)  # 1e-5, where the difference loses digits
        black, white = upper - F.softplus(upper), -F.softplus(lower)
        at_ends = torch.where(value[..., None, :, :] > 0.999, white, mass)
        mass = torch.where(value[..., None, :, :] < -0.999, black, at_ends)
        by_component = mass.sum(-4) + logits.log_softmax(-3)  # (..., M, H, W)
        return by_component.logsumexp(-3).sum((-2, -1))

    def mean(self, decoded: Tensor) -> Tensor:
        """The mean images (..., C, H, W) for decoder outputs (..., n, H, W), with values in [0, 1].

        This is the mean of the continuous logistic distributions. The rounding of x to k / 255 is
        ignored.
        """
        logits, means, _, coefficients = self._parts(decoded)
        weights = logits.softmax(-3)[..., None, :, :, :]
        if self.channels == 3:
            red, green, blue = means.unbind(-4)
            one, two, three = coefficients.unbind(-4)
            green = green + one * red
            means = torch.stack([red, green, blue + two * red + three * green], -4)
        return (((weights * means).sum(-3) + 1) / 2).clamp(0, 1)

    def sample(self, decoded: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw one image (..., C, H, W) for each decoder output (..., n, H, W), without gradient."""
        with torch.no_grad():
            logits, means, log_scales, coefficients = self._parts(decoded)
            gumbel = -(-_uniform(logits, generator).log()).log()
            chosen = (logits + gumbel).argmax(-3, keepdim=True)  # (..., 1, H, W)

            def of_chosen(values: Tensor) -> Tensor:  # (..., C, M, H, W) -> (..., C, H, W)
                index = chosen[..., None, :, :, :].expand(*values.shape[:-3], 1, *values.shape[-2:])
                return values.gather(-3, index).squeeze(-3)

            mean, log_scale, slope = (of_chosen(part) for part in (means, log_scales, coefficients))
            u = _uniform(mean, generator)
            noise = log_scale.exp() * (u.log() - (-u).log1p())
            drawn = [(mean[..., 0, :, :] + noise[..., 0, :, :]).clamp(-1, 1)]
            if self.channels == 3:
                red = drawn[0]
                green = mean[..., 1, :, :] + slope[..., 0, :, :] * red + noise[..., 1, :, :]
                green = green.clamp(-1, 1)
                blue = mean[..., 2, :, :] + slope[..., 1, :, :] * red + slope[..., 2, :, :] * green
                drawn += [green, (blue + noise[..., 2, :, :]).clamp(-1, 1)]
            return ((torch.stack(drawn, -3) + 1) * 127.5).round() / 255

    def blocks(self, values: Tensor) -> Tensor:
        """Put the n outputs of each pixel side by side: (S, B, n, H, W) -> (S, B, H·W, n).

        The curvature has a block for each pixel, because outputs of one pixel depend on each other.
        """
        return values.flatten(3).mT

    def unblock(self, values: Tensor, output: Shape) -> Tensor:
        """Bring the result of `blocks` back into the shape of images: (S, B, H·W, n) -> (S, B, n, H, W).

        `output` is (n, H, W).
        """
        return values.mT.reshape(*values.shape[:2], *output)

    def _parts(self, decoded: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Split the decoder's output into the parameters of the mixture.

        These are the logits (..., M, H, W), and the means, log-scales and coefficients, (..., C, M, H,
        W) each. With one channel, the coefficients are 0.
        """
        count, channels = self.components, self.channels
        logits = decoded[..., :count, :, :]
        rest = decoded[..., count:, :, :].unflatten(-3, (-1, channels, count))
        means, log_scales = rest[..., 0, :, :, :, :], rest[..., 1, :, :, :, :]
        slopes = rest[..., 2, :, :, :, :].tanh() if channels == 3 else torch.zeros_like(means)
        wider = math.log(self.noise)
        return logits, means, log_scales.clamp(min=LEAST_LOG_SCALE) + wider, slopes

    def _conditional_means(self, given: Tensor, means: Tensor, coefficients: Tensor) -> Tensor:
        """The mean of each channel given the channels before it, (..., C, M, H, W).

        `given` holds the values of x, scaled to [-1, 1].
        """
        if self.channels == 1:
            return means
        red, green, blue = means.unbind(-4)
        one, two, three = coefficients.unbind(-4)
        first, second = given[..., 0, :, :, :], given[..., 1, :, :, :]
        green = green + one * first
        blue = blue + two * first + three * second
        return torch.stack([red.expand_as(green), green, blue], -4)


def _uniform(like: Tensor, generator: torch.Generator | None) -> Tensor:
    drawn = torch.rand(like.shape, generator=generator, dtype=like.dtype, device=like.device)
    return drawn.clamp(1e-5, 1 - 1e-5)
