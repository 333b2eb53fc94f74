"""Residual convolutional encoders and decoders for images, larger than the `conv` networks.

At each resolution there are a few residual blocks x + c(x). The last convolution of c starts at zero, so
that a new network is nearly linear and trains stably at large learning rates. With group normalisation,
the output for one example does not depend on the other examples of the batch. So Jacobians and
forward-mode differentiation work in training and in evaluation mode.

References: He et al., Identity Mappings in Deep Residual Networks, ECCV 2016 (blocks); Wu & He, Group
Normalization, ECCV 2018; Zhang et al., Fixup Initialization, ICLR 2019 (zero start).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError
from recmix.model.encoder_decoder import Decoder, Encoder, check_sizes, scaled
from recmix.model.image_shapes import checked_image, halvings, image_output
from recmix.model.mlp import make_activation

__all__ = ["ResidualBlock", "resnet_decoder", "resnet_encoder"]

SIDES = (8, 256)
"""The smallest and the largest height or width of an image."""
WIDTHS = (32, 64, 128)
"""Channels at each resolution, by default."""
BLOCKS = 2
"""Residual blocks at each resolution, by default."""
HIDDEN = 256
"""Size of the layer between the smallest feature map and z, by default."""
LAST_GAIN = 0.1
"""Factor of the initial weights of a decoder's last convolution.

It keeps the outputs of an untrained decoder small. With larger outputs, training would ignore z.
"""
GROUPS = 8
"""Largest number of groups into which the channels are divided for normalisation."""


class ResidualBlock(nn.Module):
    """A residual block x + c(x) for feature maps x (N, C, H, W), where c has two 3x3 convolutions.

    The weights of the last convolution are initially zero, so a new block returns x.

    >>> x = torch.rand(2, 16, 7, 7)
    >>> torch.equal(ResidualBlock(16)(x), x)
    True
    """

    def __init__(self, channels: int, activation: str = "silu") -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *_normalised(channels, activation),
            _Convolution(channels, channels),
            *_normalised(channels, activation),
            _Convolution(channels, channels, gain=0),
        )

    def forward(self, x: Tensor) -> Tensor:
        """x + c(x), (N, C, H, W), for a feature map x (N, C, H, W)."""
        change: Tensor = self.layers(x)
        return x + change


def resnet_encoder(
    shape: Sequence[int],
    latent: int,
    *,
    widths: Sequence[int] = WIDTHS,
    blocks: int = BLOCKS,
    activation: str = "silu",
    hidden: int = HIDDEN,
    width: float = 1.0,
) -> Encoder:
    """Make a residual convolutional encoder, for images with sides from 8 to 256.

    It maps images (B, C, H, W) to the mean and log-variance of q(z|x), (B, 2·latent). It begins with
    residual blocks at the resolution of the image. 4x4 convolutions (stride 2) halve the image while its
    shorter side exceeds 4; residual blocks follow each of these convolutions. At the end are a hidden
    layer and a linear head.

    Args:
        widths: Channels at each resolution, beginning with the resolution of the image. If there are
            more resolutions than numbers, the last number is used for the rest.
        blocks: Number of residual blocks at each resolution.
        activation: relu, leaky_relu, elu, silu, gelu or tanh.
        hidden: Size of the hidden layer.
        width: Multiplies the channels and the hidden layer.

    >>> encoder = resnet_encoder((1, 28, 28), 20)
    >>> encoder(torch.zeros(2, 1, 28, 28)).shape, encoder.hidden
    (torch.Size([2, 40]), 256)
    """
    check_sizes(latent=latent, blocks=blocks, hidden=hidden)
    image = checked_image(shape, SIDES, "resnet")
    sizes = halvings(image)
    channels = [scaled(n, width) for n in _channels(widths, len(sizes))]
    hidden = scaled(hidden, width)
    layers: list[nn.Module] = [_Convolution(image[0], channels[0])]
    layers += _stage(channels[0], blocks, activation)
    for before, after in pairwise(channels):
        layers += [_Convolution(before, after, 4, stride=2)]
        layers += _stage(after, blocks, activation)
    layers += [*_normalised(channels[-1], activation), nn.Flatten()]
    layers += [nn.Linear(channels[-1] * math.prod(sizes[-1]), hidden), make_activation(activation)]
    return Encoder(nn.Sequential(*layers), nn.Linear(hidden, 2 * latent))


def resnet_decoder(
    shape: Sequence[int],
    latent: int,
    output: Sequence[int] | None = None,
    *,
    widths: Sequence[int] = WIDTHS,
    blocks: int = BLOCKS,
    activation: str = "silu",
    hidden: int = HIDDEN,
) -> Decoder:
    """Make a residual decoder: the sizes, channels and blocks of `resnet_encoder` in reverse order.

    It maps z (N, latent) to (N, *output). Each higher resolution is reached by repeating pixels,
    followed by a 3x3 convolution. The other options are those of `resnet_encoder`.

    Args:
        output: Shape of the decoder's output for one example, (C', H, W) or (C', H, W, K); by default
            the shape of the image.

    >>> resnet_decoder((1, 28, 28), 20)(torch.zeros(2, 20)).shape
    torch.Size([2, 1, 28, 28])
    """
    check_sizes(latent=latent, blocks=blocks, hidden=hidden)
    image = checked_image(shape, SIDES, "resnet")
    last, wanted, end = image_output(image, output, "resnet")
    sizes = halvings(image)[::-1]
    channels = _channels(widths, len(sizes))[::-1]
    smallest = (channels[0], *sizes[0])
    layers: list[nn.Module] = [nn.Linear(latent, hidden)]
    layers += [make_activation(activation), nn.Linear(hidden, math.prod(smallest))]
    layers += [nn.Unflatten(1, smallest), *_stage(channels[0], blocks, activation)]
    for (before, after), size in zip(pairwise(channels), sizes[1:], strict=True):
        layers += [nn.Upsample(size, mode="nearest"), _Convolution(before, after)]
        layers += _stage(after, blocks, activation)
    layers += [*_normalised(channels[-1], activation), _Convolution(channels[-1], last, gain=LAST_GAIN)]
    return Decoder(nn.Sequential(*layers, *end), shape=wanted, latent=latent)


class _Convolution(nn.Conv2d):
    """A convolution whose random initial weights are multiplied by `gain`.

    With a gain of 1, the outputs have about the same standard deviation as the inputs.
    """

    def __init__(
        self, before: int, after: int, kernel: int = 3, *, stride: int = 1, gain: float = 1.0
    ) -> None:
        self.gain = gain  # the constructor of nn.Conv2d calls reset_parameters
        super().__init__(before, after, kernel, stride=stride, padding=1)

    def reset_parameters(self) -> None:
        nn.init.kaiming_normal_(self.weight, nonlinearity="linear")
        with torch.no_grad():
            self.weight.mul_(self.gain)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class _GroupNorm(nn.GroupNorm):
    """Group normalisation whose forward-mode derivatives also work in channels-last format."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.contiguous())


def _normalised(channels: int, activation: str) -> list[nn.Module]:
    groups = max(n for n in range(1, GROUPS + 1) if channels % n == 0)
    return [_GroupNorm(groups, channels), make_activation(activation)]


def _stage(channels: int, blocks: int, activation: str) -> list[nn.Module]:
    return [ResidualBlock(channels, activation) for _ in range(blocks)]


def _channels(widths: Sequence[int], resolutions: int) -> list[int]:
    """List the number of channels at each of `resolutions` resolutions.

    If `widths` has fewer numbers, its last number is repeated. Raise a `ConfigError` if a number is not
    valid.
    """
    if isinstance(widths, str) or not widths or not all(isinstance(n, int) and n >= 1 for n in widths):
        raise ConfigError(
            f"widths={widths!r}: expected whole numbers of at least 1, the channels at each resolution "
            "from the image's to the smallest, such as (32, 64, 128)"
        )
    return [widths[min(k, len(widths) - 1)] for k in range(resolutions)]
