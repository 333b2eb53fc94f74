"""Encoders and decoders for short clips (T, C, H, W): convolutions in each frame, a GRU over time.

A clip has one latent vector z. Forward-mode derivatives and second derivatives exist, see
`recmix.model.sequence_layers.GRU`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError
from recmix.model.encoder_decoder import (
    Decoder,
    Encoder,
    Shape,
    check_sizes,
    checked_shape,
)
from recmix.model.paper_networks import conv_decoder, conv_encoder
from recmix.model.sequence_layers import GRU, Places

__all__ = ["CLIP_SIDES", "EachFrame", "is_clip", "video_decoder", "video_encoder"]

CLIP_SIDES = (8, 64)
"""The smallest and the largest height or width of a frame."""
UNITS = 128
"""Default size of the GRU's state and of the hidden layer of a frame."""


def is_clip(shape: Sequence[int]) -> bool:
    """Whether examples of this shape are clips (T, C, H, W) with H and W from 8 to 64.

    >>> is_clip((10, 1, 16, 16)), is_clip((1, 28, 28)), is_clip((10, 1, 128, 128))
    (True, False, False)
    """
    return len(shape) == 4 and all(CLIP_SIDES[0] <= side <= CLIP_SIDES[1] for side in shape[2:])


class EachFrame(nn.Module):
    """Applies a network to each of the T frames of a clip: (N, T, ...) -> (N, T, ...).

    >>> EachFrame(nn.Flatten())(torch.zeros(2, 5, 1, 8, 8)).shape
    torch.Size([2, 5, 64])
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """The network's outputs (N, T, ...) for all frames of N clips x (N, T, ...)."""
        frames: Tensor = self.network(x.flatten(0, 1))
        return frames.reshape(*x.shape[:2], *frames.shape[1:])


def video_encoder(
    shape: Sequence[int], latent: int, *, units: int = UNITS, width: float = 1.0
) -> Encoder:
    """Make an encoder for clips (T, C, H, W) with sides from 8 to 64.

    It maps clips (B, T, C, H, W) to the mean and log-variance of q(z|x), (B, 2·latent). Each frame goes
    through the convolutions and the hidden layer of `conv_encoder`. A GRU reads the results in the order
    of the frames. A linear head maps the last state of the GRU to the output.

    Args:
        units: Size of the hidden layer of a frame and of the GRU's state.
        width: Multiplies the channels, the hidden layer and the state.

    >>> encoder = video_encoder((5, 1, 16, 16), 4)
    >>> encoder(torch.zeros(2, 5, 1, 16, 16)).shape, encoder.hidden
    (torch.Size([2, 8]), 128)
    """
    check_sizes(latent=latent, units=units)
    _, *frame = _checked_clip(shape)
    still = conv_encoder(frame, latent, hidden=units, width=width)
    layers = [EachFrame(still.features), GRU(still.hidden), _Last()]
    return Encoder(nn.Sequential(*layers), nn.Linear(still.hidden, 2 * latent))


def video_decoder(
    shape: Sequence[int],
    latent: int,
    output: Sequence[int] | None = None,
    *,
    units: int = UNITS,
) -> Decoder:
    """Make a decoder for clips (T, C, H, W) with sides from 8 to 64.

    It maps z (N, latent) to (N, *output). The inputs of a GRU are z and a learned vector for each frame.
    The layers of `conv_decoder` make each frame from z and from the GRU's state at this frame.

    Args:
        output: Shape of the decoder's output for one example, (k·T, C', H, W) or (k·T, C', H, W, K),
            where k is a whole number; by default the shape of the clip.
        units: Size of the GRU's state and of the hidden layer of a frame.

    >>> video_decoder((5, 1, 16, 16), 4)(torch.zeros(2, 4)).shape
    torch.Size([2, 5, 1, 16, 16])
    """
    check_sizes(latent=latent, units=units)
    clip = _checked_clip(shape)
    wanted = clip if output is None else checked_shape(output)
    copies, rest = divmod(wanted[0], clip[0])
    if len(wanted) not in (4, 5) or rest or wanted[2:4] != clip[2:]:
        raise ConfigError(
            f"an output of shape {wanted} for clips of shape {clip}: the decoder network='video' gives "
            f"({clip[0]}, channels, {clip[2]}, {clip[3]}), or that with one more axis at the end; "
            "decoder_network='mlp' gives any shape"
        )
    frame = (copies * wanted[1], *wanted[2:])
    still = conv_decoder(clip[1:], units + latent, frame, hidden=units)
    layers: list[nn.Module] = [_Unroll(latent, units, clip[0]), EachFrame(still.layers)]
    if copies > 1:
        layers += [_CopiesFirst(copies)]
    return Decoder(nn.Sequential(*layers), shape=wanted, latent=latent)


class _Last(nn.Module):
    """Selects the last of T states: (N, T, H) -> (N, H)."""

    def forward(self, states: Tensor) -> Tensor:
        return states[:, -1]


class _Unroll(nn.Module):
    """Maps z (N, D) to (N, T, H + D): for each of T frames, the state of a GRU (H) and z itself (D)."""

    def __init__(self, latent: int, hidden: int, frames: int) -> None:
        super().__init__()
        self.inputs = nn.Linear(latent, hidden)
        self.times = Places(frames, hidden, spread=1.0)
        self.recurrent = GRU(hidden)

    def forward(self, z: Tensor) -> Tensor:
        states = self.recurrent(torch.tanh(self.times(self.inputs(z)[:, None])))
        return torch.cat([states, z[:, None].expand(-1, states.shape[1], -1)], -1)


class _CopiesFirst(nn.Module):
    """Moves k groups of C channels to the time axis: (N, T, k·C, ...) -> (N, k·T, C, ...).

    The first T entries of the new axis are the first C channels of all frames, and so on.
    """

    def __init__(self, copies: int) -> None:
        super().__init__()
        self.copies = copies

    def forward(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (self.copies, -1)).transpose(1, 2).flatten(1, 2)


def _checked_clip(shape: Sequence[int]) -> Shape:
    checked = checked_shape(shape)
    if not is_clip(checked):
        raise ConfigError(
            f"examples of shape {checked}: network='video' takes clips (frames, channels, height, "
            f"width) with sides from {CLIP_SIDES[0]} to {CLIP_SIDES[1]}; network='conv' takes images, "
            "network='mlp' takes any shape"
        )
    return checked
