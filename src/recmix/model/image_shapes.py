"""Functions that check and compute the shapes of images, feature maps and decoder outputs."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from recmix.errors import ConfigError
from recmix.model.encoder_decoder import Shape, checked_shape

__all__ = ["ImageShape", "checked_image", "halvings", "image_output"]

ImageShape = tuple[int, int, int]
"""Channels, height and width of one image."""


def checked_image(shape: Sequence[int], sides: tuple[int, int], kind: str) -> ImageShape:
    """Return the shape (C, H, W) of an image; raise a `ConfigError` if a network cannot take this shape.

    Args:
        sides: the smallest and the largest height or width that the network accepts.
        kind: name of the network for the message, such as "conv".
    """
    checked = checked_shape(shape)
    if len(checked) != 3:
        raise ConfigError(
            f"examples of shape {checked}: network={kind!r} takes images of shape (channels, height, "
            "width), where a grey image has one channel; network='mlp' takes examples of any shape"
        )
    if not all(sides[0] <= side <= sides[1] for side in checked[1:]):
        raise ConfigError(
            f"images of shape {checked} (channels, height, width): network={kind!r} takes sides from "
            f"{sides[0]} to {sides[1]}; use network='mlp', which takes any shape, crop, pad or resize "
            "the images, or bring your own encoder and decoder modules"
        )
    channels, height, width = checked
    return channels, height, width


def halvings(shape: ImageShape) -> list[tuple[int, int]]:
    """List the (height, width) of an image and of all feature maps of a convolutional network.

    Each map has half the size of the map before it, rounded down. The last map is the first one whose
    shorter side is at most 4.

    >>> halvings((1, 28, 28))
    [(28, 28), (14, 14), (7, 7), (3, 3)]
    """
    sizes = [shape[1:]]
    while min(sizes[-1]) > 4:
        height, width = sizes[-1]
        sizes.append((height // 2, width // 2))
    return sizes


def image_output(
    shape: ImageShape, output: Sequence[int] | None, kind: str
) -> tuple[int, Shape, list[nn.Module]]:
    """Compute the last layers that a convolutional decoder needs for an output of a certain shape.

    An output (C', H, W) is made from C' channels. An output (C', H, W, K), such as K logits for each
    value, is made from C'·K channels.

    Args:
        shape: shape of an image.
        output: the output's shape, in one of these two forms; None means the shape of an image.
        kind: name of the network for the error message, such as "conv".

    Returns:
        The number of channels of the last convolution, the shape of the output, and the layers that must
        follow the last convolution.
    """
    wanted = shape if output is None else checked_shape(output)
    if len(wanted) not in (3, 4) or wanted[1:3] != shape[1:]:
        raise ConfigError(
            f"an output of shape {wanted} for images of shape {shape}: the decoder network={kind!r} "
            f"gives (channels, {shape[1]}, {shape[2]}), or that with one more axis at the end; "
            "decoder_network='mlp' gives any shape"
        )
    if len(wanted) == 3:
        return wanted[0], wanted, []
    return wanted[0] * wanted[3], wanted, [_LastAxis(wanted[0], wanted[3])]


class _LastAxis(nn.Module):
    """Splits C·K channels into C and K and moves K to the end: (N, C·K, H, W) -> (N, C, H, W, K)."""

    def __init__(self, channels: int, values: int) -> None:
        super().__init__()
        self.sizes = (channels, values)

    def forward(self, x: Tensor) -> Tensor:
        return x.unflatten(1, self.sizes).movedim(2, -1)
