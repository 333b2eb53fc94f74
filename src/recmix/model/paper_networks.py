"""Convolutional encoders and decoders of the paper, and fully connected networks of the same size.

Reference: Kim and Pavlovic, Recursive Inference for Variational Autoencoders, NeurIPS 2020, supplement,
tables of network architectures.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import nn

from recmix.errors import ConfigError
from recmix.model.encoder_decoder import (
    Decoder,
    Encoder,
    check_sizes,
    parameter_count,
    scaled,
)
from recmix.model.image_shapes import ImageShape, checked_image, halvings, image_output

__all__ = ["SIDES", "conv_decoder", "conv_encoder", "dense_decoder", "dense_encoder"]

SIDES = (8, 128)
"""The smallest and the largest height or width of an image."""
LEAK = 0.01
TWIN_TOLERANCE = 0.03
"""Largest relative difference between the parameter counts of `dense` and `conv` networks."""


def conv_encoder(
    shape: Sequence[int], latent: int, *, hidden: int | None = None, width: float = 1.0
) -> Encoder:
    """Make the convolutional encoder of Kim and Pavlovic (2020), for images with sides from 8 to 128.

    It maps images (B, C, H, W) to the mean and log-variance of q(z|x), (B, 2·latent). 4x4 convolutions
    (stride 2, padding 1) halve the image, rounding down, while its shorter side exceeds 4: 28 -> 14 -> 7
    -> 3. The first two convolutions have 32 channels, the others 64. A hidden layer and a linear head
    follow. LeakyReLU(0.01) is applied after every layer except the head.

    Args:
        hidden: Size of the hidden layer; by default 256 for images of at most 1024 values, else 512.
        width: Multiplies the channels and the hidden layer.

    >>> encoder = conv_encoder((1, 28, 28), 20)
    >>> encoder(torch.zeros(2, 1, 28, 28)).shape, encoder.hidden
    (torch.Size([2, 40]), 256)
    """
    check_sizes(latent=latent)
    image = checked_image(shape, SIDES, "conv")
    hidden = scaled(_hidden_size(image, hidden), width)
    sizes = halvings(image)
    channels = [image[0], *(scaled(n, width) for n in _channels(sizes))]
    layers: list[nn.Module] = []
    for before, after in pairwise(channels):
        layers += [nn.Conv2d(before, after, 4, stride=2, padding=1), nn.LeakyReLU(LEAK)]
    layers += [nn.Flatten(), nn.Linear(channels[-1] * math.prod(sizes[-1]), hidden)]
    layers += [nn.LeakyReLU(LEAK)]
    return Encoder(nn.Sequential(*layers), nn.Linear(hidden, 2 * latent))


def conv_decoder(
    shape: Sequence[int],
    latent: int,
    output: Sequence[int] | None = None,
    *,
    hidden: int | None = None,
) -> Decoder:
    """Make the convolutional decoder of Kim and Pavlovic (2020), for images with sides from 8 to 128.

    It maps z (N, latent) to (N, *output). It has the layers of `conv_encoder` in reverse order, with
    ReLU: two linear layers, then 4x4 transposed convolutions (stride 2, padding 1). Where the encoder
    rounded down, an output padding of 1 restores the odd size (3 -> 7 -> 14 -> 28).

    Args:
        output: Shape of the decoder's output for one example, (C', H, W) or (C', H, W, K); by default
            the shape of the image.
        hidden: Size of the hidden layer, as in `conv_encoder`.

    >>> conv_decoder((1, 28, 28), 20)(torch.zeros(2, 20)).shape
    torch.Size([2, 1, 28, 28])
    """
    check_sizes(latent=latent)
    image = checked_image(shape, SIDES, "conv")
    last, wanted, end = image_output(image, output, "conv")
    hidden = _hidden_size(image, hidden)
    sizes = halvings(image)[::-1]
    channels = [*_channels(sizes)[::-1], last]
    smallest = (channels[0], *sizes[0])
    layers: list[nn.Module] = [nn.Linear(latent, hidden), nn.ReLU()]
    layers += [nn.Linear(hidden, math.prod(smallest)), nn.ReLU(), nn.Unflatten(1, smallest)]
    for (c_in, c_out), ((h_in, w_in), (h_out, w_out)) in zip(
        pairwise(channels), pairwise(sizes), strict=True
    ):
        extra = (h_out - 2 * h_in, w_out - 2 * w_in)
        layers += [
            nn.ConvTranspose2d(c_in, c_out, 4, stride=2, padding=1, output_padding=extra),
            nn.ReLU(),
        ]
    return Decoder(nn.Sequential(*layers[:-1], *end), shape=wanted, latent=latent)


def dense_encoder(
    shape: Sequence[int], latent: int, *, hidden: int | None = None, width: float = 1.0
) -> Encoder:
    """Make a fully connected encoder with as many parameters as `conv_encoder` (within 3 %).

    The arguments are those of the `conv_encoder` to match. The network has two hidden layers with
    LeakyReLU(0.01). Their sizes are chosen in two steps. In the first step both layers have the same
    size, the largest with which the network has no more parameters than `conv_encoder`. In the second
    step the layer farther from the image is enlarged until the numbers of parameters match.

    >>> dense = dense_encoder((1, 28, 28), 20)
    >>> dense.features
    Sequential(
      (0): Flatten(start_dim=1, end_dim=-1)
      (1): Linear(in_features=784, out_features=202, bias=True)
      (2): LeakyReLU(negative_slope=0.01)
      (3): Linear(in_features=202, out_features=202, bias=True)
      (4): LeakyReLU(negative_slope=0.01)
    )
    >>> parameter_count(dense), parameter_count(conv_encoder((1, 28, 28), 20))
    (207696, 207784)
    """
    checked_image(shape, SIDES, "dense")
    with torch.device("meta"):
        twin = conv_encoder(shape, latent, hidden=hidden, width=width)
    pixels = math.prod(shape)
    near, far = _twin_widths(lambda near, far: _chain_count(pixels, near, far, 2 * latent), twin, shape)
    features = nn.Sequential(
        nn.Flatten(),
        nn.Linear(pixels, near),
        nn.LeakyReLU(LEAK),
        nn.Linear(near, far),
        nn.LeakyReLU(LEAK),
    )
    return Encoder(features, nn.Linear(far, 2 * latent))


def dense_decoder(
    shape: Sequence[int],
    latent: int,
    output: Sequence[int] | None = None,
    *,
    hidden: int | None = None,
) -> Decoder:
    """Make a fully connected decoder with as many parameters as `conv_decoder` (within 3 %).

    The arguments are those of the `conv_decoder` to match. The network has two hidden layers with ReLU.

    >>> dense_decoder((1, 28, 28), 20)(torch.zeros(2, 20)).shape
    torch.Size([2, 1, 28, 28])
    """
    checked_image(shape, SIDES, "dense")
    with torch.device("meta"):
        twin = conv_decoder(shape, latent, output, hidden=hidden)
    values = math.prod(twin.shape)
    near, far = _twin_widths(lambda near, far: _chain_count(latent, far, near, values), twin, twin.shape)
    layers = nn.Sequential(
        nn.Linear(latent, far),
        nn.ReLU(),
        nn.Linear(far, near),
        nn.ReLU(),
        nn.Linear(near, values),
        nn.Unflatten(1, twin.shape),
    )
    return Decoder(layers, shape=twin.shape, latent=latent)


def _hidden_size(shape: ImageShape, hidden: int | None) -> int:
    if hidden is None:
        return 256 if math.prod(shape) <= 1024 else 512
    check_sizes(hidden=hidden)
    return hidden


def _channels(sizes: Sequence[object]) -> list[int]:
    """The number of channels after each convolution.

    `sizes` holds the sizes of the image and of all feature maps, as `halvings` returns them.
    """
    return [32 if layer < 2 else 64 for layer in range(len(sizes) - 1)]


def _chain_count(*sizes: int) -> int:
    """The number of parameters of a chain of linear layers that map from each size to the next one."""
    return sum((before + 1) * after for before, after in pairwise(sizes))


def _twin_widths(
    count: Callable[[int, int], int], twin: nn.Module, shape: Sequence[int]
) -> tuple[int, int]:
    """Choose the sizes of two hidden layers so that a network has as many parameters as `twin`.

    Args:
        count: gives the number of parameters for the sizes of the layer next to the image and of the
            other hidden layer.
        twin: the convolutional network to match.
        shape: a shape that the error message names.

    Returns:
        The size of the layer next to the image, and the size of the other hidden layer.

    Raises:
        ConfigError: If no sizes give about the same number of parameters.
    """
    target = parameter_count(twin)
    near = bisect_right(range(target + 1), target, key=lambda width: count(width, width)) - 1
    if near >= 1:
        base, step = count(near, near), count(near, near + 1) - count(near, near)
        far = near + round((target - base) / step)
        if abs(count(near, far) - target) <= TWIN_TOLERANCE * target:
            return near, far
    raise ConfigError(
        f"no fully connected network for images of shape {tuple(shape)} has about the {target} "
        f"parameters of its convolutional twin: one hidden unit next to the image takes "
        f"{math.prod(shape)}; use kind 'conv' or bring your own module"
    )
