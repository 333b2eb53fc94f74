"""Networks that compute features of two tensors, such as an example and a residual."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recmix.model.encoder_decoder import Shape, checked_shape
from recmix.model.networks import default_network, make_encoder
from recmix.model.sequence_networks import TokenFeatures

__all__ = ["PairFeatures", "TokenPairFeatures", "one_hot"]


class PairFeatures(nn.Sequential):
    """A network that computes features (B, hidden) of examples (B, *shape) and a second tensor.

    If examples are images or clips, and the second tensor differs from them only in the number of
    channels, or has one more axis at the end, both are concatenated along the channels. The layers are
    then those of `conv_encoder` or `video_encoder`. Otherwise the values of both tensors are
    concatenated to one vector, and the layers are those of `mlp_encoder`.

    Args:
        shape: Shape of an example.
        other: Shape of the second tensor for one example. The tensor is, for example, a decoder output
            (C', H, W) or (C', H, W, K).
        latent: Dimension of z of the encoder whose layers are used.
        width: Multiplies the sizes of the layers.
        groups: For graphs, two pairs (number of values, number of classes): one pair for the nodes, one
            for the edges. The classes of an example are then converted to one-hot vectors. Empty for
            other data.

    >>> features = PairFeatures((1, 8, 8), (2, 8, 8), 5)
    >>> features(torch.zeros(3, 1, 8, 8), torch.zeros(3, 2, 8, 8)).shape
    torch.Size([3, 256])
    >>> PairFeatures((13,), (13, 2), 5)(torch.zeros(3, 13), torch.zeros(3, 13, 2)).shape
    torch.Size([3, 512])
    """

    def __init__(
        self,
        shape: Sequence[int],
        other: Sequence[int],
        latent: int,
        *,
        width: float = 1.0,
        groups: tuple[tuple[int, int], ...] = (),
    ) -> None:
        if groups:
            shape = (sum(math.prod(group) for group in groups),)
        example, second = checked_shape(shape), checked_shape(other)
        channels = _channel_axis(example, second)
        joined: Shape
        if channels is not None:
            own = math.prod(second[channels:]) // math.prod(example[channels + 1 :])
            joined = (*example[:channels], example[channels] + own, *example[channels + 1 :])
        else:
            joined = (math.prod(example) + math.prod(second),)
        encoder = make_encoder("auto", joined, latent, width=width)
        super().__init__(*encoder.features.children())
        self.hidden = encoder.hidden
        self._axes = len(example)
        self._channels, self._groups = channels, groups

    def forward(self, x: Tensor, other: Tensor) -> Tensor:  # type: ignore[override]
        """The features (B, hidden) of examples x (B, *shape) and the second tensor (B, *other)."""
        if self._groups:
            x = torch.cat([part.flatten(1) for part in one_hot(x, self._groups)], 1)
        if self._channels is None:
            joined = torch.cat([x.flatten(1), other.flatten(1)], 1)
        else:
            axis = 1 + self._channels
            if other.ndim == self._axes + 2:  # (B, ..., C', H, W, K) -> (B, ..., C'·K, H, W)
                other = other.movedim(-1, axis + 1).flatten(axis, axis + 1)
            joined = torch.cat([x, other], axis)
        return super().forward(joined)


def _channel_axis(shape: Shape, other: Shape) -> int | None:
    """The channel axis along which tensors of shape `shape` and `other` can be concatenated, or None.

    The shapes are those of one example. `other` may have one more axis at the end.
    """
    channels = {"conv": 0, "video": 1}.get(default_network(shape))
    if channels is None or len(other) - len(shape) not in (0, 1):
        return None
    rest = channels + 1
    alike = other[:channels] == shape[:channels] and other[rest : len(shape)] == shape[rest:]
    return channels if alike else None


class TokenPairFeatures(nn.Module):
    """A network that computes features (B, hidden) of tokens x (B, T) and a second tensor.

    The second tensor is (B, T, K), with K numbers for each position, or (B, F). A linear layer maps it
    to the size of the hidden states, and the result is added to the embedded tokens. Positions that
    hold padding are ignored.

    Args:
        features: A network that computes features of tokens. Its layers are used.
        other: Shape of the second tensor for one example, (T, K) or (F,).

    >>> from recmix.model.sequence_networks import GRUFeatures
    >>> pair = TokenPairFeatures(GRUFeatures(5, 10, units=8), (5, 10))
    >>> pair(torch.zeros(3, 5), torch.zeros(3, 5, 10)).shape
    torch.Size([3, 8])
    """

    def __init__(self, features: TokenFeatures, other: Sequence[int]) -> None:
        super().__init__()
        self.features, self.hidden = features, features.units
        wanted = checked_shape(other)
        self._by_position = len(wanted) == 2 and wanted[0] == features.length
        self.project = nn.Linear(wanted[1] if self._by_position else math.prod(wanted), self.hidden)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        """The features (B, hidden) of tokens x (B, T) and the second tensor (B, *other)."""
        more = self.project(other if self._by_position else other.flatten(1)[:, None])
        return self.features(x, more)


def one_hot(x: Tensor, groups: tuple[tuple[int, int], ...]) -> list[Tensor]:
    """Convert class numbers to one-hot vectors (B, values, classes), separately for each group.

    Groups are, for example, the nodes and the edges of a graph. Padding gives zeros.

    Args:
        x: class numbers (B, number of values of all groups); values below 0 are padding.
        groups: for each group, the pair (number of values, number of classes).
    """
    found = []
    for values, (_, classes) in zip(x.split([size for size, _ in groups], -1), groups, strict=True):
        kinds = torch.arange(classes, device=x.device, dtype=x.dtype)
        found.append((values[..., None] == kinds).to(x.dtype))
    return found
