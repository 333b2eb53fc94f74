"""A network that computes features of two tensors, such as an example and a residual."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recmix.model.encoder_decoder import Shape, checked_shape
from recmix.model.networks import default_network, make_encoder

__all__ = ["PairFeatures"]


class PairFeatures(nn.Sequential):
    """A network that computes features (B, hidden) of an example (B, *shape) and another tensor.

    For images the network has the convolutions and the hidden layer of the paper's encoder. The
    other tensor (B, *other) is added as further channels: C' channels for the shape (C', H, W), or
    C'·K channels for (C', H, W, K). If the shapes do not fit together, or the example is not an
    image, the values of both tensors form one vector, and the network is fully connected.

    Args:
        shape: Shape of the example.
        other: Shape of the other tensor, for example of the decoder's output.
        latent: Dimension of z of the encoder whose layers are used. It does not change the number
            of features.
        width: Multiplies the channels and the hidden layers.

    Attributes:
        hidden: Number of features.

    >>> features = PairFeatures((1, 8, 8), (2, 8, 8), 5)
    >>> features(torch.zeros(3, 1, 8, 8), torch.zeros(3, 2, 8, 8)).shape
    torch.Size([3, 256])
    >>> PairFeatures((13,), (13, 2), 5)(torch.zeros(3, 13), torch.zeros(3, 13, 2)).shape
    torch.Size([3, 512])
    """

    def __init__(
        self, shape: Sequence[int], other: Sequence[int], latent: int, *, width: float = 1.0
    ) -> None:
        example, second = checked_shape(shape), checked_shape(other)
        as_images = _fit_together(example, second)
        joined: Shape
        if as_images:
            joined = (example[0] + math.prod(second) // math.prod(second[1:3]), *example[1:])
        else:
            joined = (math.prod(example) + math.prod(second),)
        encoder = make_encoder("auto", joined, latent, width=width)
        super().__init__(*encoder.features.children())
        self.hidden = encoder.hidden
        self._as_images = as_images

    def forward(self, x: Tensor, other: Tensor) -> Tensor:  # type: ignore[override]
        """The features (B, hidden) of x (B, *shape) and the other tensor (B, *other)."""
        if not self._as_images:
            joined = torch.cat([x.flatten(1), other.flatten(1)], 1)
        elif other.ndim == 5:  # (B, C', H, W, K) -> (B, C'·K, H, W)
            joined = torch.cat([x, other.movedim(-1, 2).flatten(1, 2)], 1)
        else:
            joined = torch.cat([x, other], 1)
        features: Tensor = super().forward(joined)
        return features


def _fit_together(shape: Shape, other: Shape) -> bool:
    """Whether a tensor of shape `other` can give further channels to an image of shape `shape`."""
    image = default_network(shape) == "conv"
    return image and len(other) in (3, 4) and other[1:3] == shape[1:]
