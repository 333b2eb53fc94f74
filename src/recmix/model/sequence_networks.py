"""Encoders and decoders of sequences of tokens: transformers and gated recurrent units.

Tokens are whole numbers, stored as floats (B, T), for B sequences of T positions. Negative numbers
are padding: they have no influence on an encoder. The decoders are not autoregressive: all positions
are computed from z at once. For autoregressive models see `recmix.model.likelihoods.Autoregressive`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError
from recmix.model.encoder_decoder import (
    Decoder,
    Encoder,
    check_shares,
    check_sizes,
    checked_shape,
    scaled,
)
from recmix.model.graph_networks import GraphFeatures
from recmix.model.normalisation import LayerNorm
from recmix.model.sequence_layers import GRU, Places, TransformerBlock, checked_units

__all__ = [
    "GRUFeatures",
    "TokenFeatures",
    "TransformerFeatures",
    "gru_decoder",
    "gru_encoder",
    "transformer_decoder",
    "transformer_encoder",
]

MIX = 8
"""Number of values that a decoder computes from z for each position, with weights of its own."""


class TokenFeatures(nn.Module, ABC):
    """Base class of networks that compute features (B, U) of sequences of tokens x (B, T).

    The features are the mean of the hidden states over all tokens. Padding (values below 0) has no
    influence on them. The options are those of `transformer_encoder`.

    Args:
        length: T, the number of positions.
        classes: the number of different tokens.
        units: U, the size of hidden states.
    """

    def __init__(
        self,
        length: int,
        classes: int,
        *,
        units: int = 128,
        heads: int = 4,
        blocks: int = 2,
        dropout: float = 0.0,
        activation: str = "gelu",
    ) -> None:
        super().__init__()
        check_sizes(blocks=blocks)
        check_shares(dropout=dropout)
        if classes < 2:
            raise ConfigError(f"classes={classes}: expected at least 2, the number of different tokens")
        self.heads, self.blocks, self.dropout, self.activation = heads, blocks, dropout, activation
        self.length, self.classes, self.units = length, classes, units
        self.tokens = nn.Embedding(classes, units)
        self.places = Places(length, units)
        self.layers = nn.ModuleList(self._layer() for _ in range(blocks))
        self.norm = LayerNorm(units)

    @abstractmethod
    def _layer(self) -> nn.Module:
        """A new layer (B, T, U) -> (B, T, U)."""

    @abstractmethod
    def _run(self, h: Tensor, padding: Tensor) -> Tensor:
        """Apply all layers to hidden states h: (B, T, U) -> (B, T, U).

        `padding` (B, T) is True at positions that hold padding.
        """

    def forward(self, x: Tensor, more: Tensor | None = None) -> Tensor:
        """The features (B, U) of tokens x (B, T), whose values below 0 are padding.

        Args:
            x: token numbers, (B, T), or (B, ...) with T values for each sequence.
            more: a tensor that is added to the embedded tokens, (B, T, U) or (B, 1, U); None adds
                nothing.
        """
        x = x.flatten(1)
        present = (x >= 0)[..., None]
        h = self.places(self.tokens(x.clamp(min=0).long()))
        if more is not None:
            h = h + more
        h = self._run(h * present, x < 0) * present
        return self.norm(h.sum(1) / present.sum(1).clamp(min=1))

    def wider(self, width: float) -> Self:
        """Make a network of the same kind with new weights and `width` times as many units."""
        units = max(1, round(scaled(self.units, width) / self.heads)) * self.heads
        return type(self)(
            self.length,
            self.classes,
            units=units,
            heads=self.heads,
            blocks=self.blocks,
            dropout=self.dropout,
            activation=self.activation,
        )


class TransformerFeatures(TokenFeatures):
    """A transformer that computes features (B, units) of sequences of tokens (B, T).

    The arguments are those of `TokenFeatures`.

    >>> TransformerFeatures(5, 10, units=8)(torch.tensor([[1.0, 9.0, 0.0, -1.0, -1.0]])).shape
    torch.Size([1, 8])
    """

    def _layer(self) -> nn.Module:
        return TransformerBlock(
            self.units, self.heads, dropout=self.dropout, activation=self.activation, fused=True
        )

    def _run(self, h: Tensor, padding: Tensor) -> Tensor:
        # A row without any token sees all positions: a softmax over none is not a number.
        unseen = padding & ~padding.all(-1, keepdim=True)
        for layer in self.layers:
            h = layer(h, unseen[:, None])
        return h


class GRUFeatures(TokenFeatures):
    """Recurrent layers that compute features (B, units) of sequences of tokens (B, T).

    Every second layer reads the tokens from the last to the first. Each layer has a residual connection.
    The arguments are those of `TokenFeatures`.

    >>> GRUFeatures(5, 10, units=8)(torch.tensor([[1.0, 9.0, 0.0, -1.0, -1.0]])).shape
    torch.Size([1, 8])
    """

    def _layer(self) -> nn.Module:
        return GRU(self.units, fused=True)

    def _run(self, h: Tensor, padding: Tensor) -> Tensor:
        steps = torch.arange(self.length, device=h.device)
        end = torch.where(padding, 0, steps + 1).amax(-1, keepdim=True)  # (B, 1)
        backwards = torch.where(steps < end, end - 1 - steps, steps)[..., None].expand_as(h)
        drop = nn.functional.dropout
        for number, layer in enumerate(self.layers):
            change = layer(h.gather(1, backwards) if number % 2 else h)
            if number % 2:
                change = change.gather(1, backwards)
            h = h + drop(change, self.dropout, self.training)
        return h


def transformer_encoder(
    shape: Sequence[int],
    latent: int,
    *,
    classes: int,
    units: int = 128,
    heads: int = 4,
    blocks: int = 2,
    dropout: float = 0.0,
    activation: str = "gelu",
    width: float = 1.0,
) -> Encoder:
    """Make a transformer encoder of tokens: attention, then the mean over the tokens.

    It maps tokens (B, T) to the mean and log-variance of q(z|x), (B, 2·latent). Values below 0 are
    padding.

    Args:
        classes: the number of different tokens.
        units: Size of the hidden states.
        heads: Number of attention heads; it divides `units`.
        blocks: Number of transformer blocks.
        dropout: Share of hidden values that are set to zero in training mode.
        activation: relu, leaky_relu, elu, silu, gelu or tanh.
        width: Multiplies `units`.

    >>> encoder = transformer_encoder((5,), 2, classes=10, units=8)
    >>> encoder(torch.tensor([[1.0, 9.0, 0.0, -1.0, -1.0]])).shape, encoder.hidden
    (torch.Size([1, 4]), 8)
    """
    features = TransformerFeatures(
        math.prod(checked_shape(shape)),
        classes,
        units=units,
        heads=heads,
        blocks=blocks,
        dropout=dropout,
        activation=activation,
    )
    return token_encoder(features, latent, width)


def gru_encoder(
    shape: Sequence[int],
    latent: int,
    *,
    classes: int,
    units: int = 128,
    blocks: int = 2,
    dropout: float = 0.0,
    width: float = 1.0,
) -> Encoder:
    """Make a recurrent encoder of tokens: GRU layers, then the mean of their states over the tokens.

    It maps tokens (B, T) to the mean and log-variance of q(z|x), (B, 2·latent). Every second layer reads
    the tokens backwards. The options are those of `transformer_encoder`.

    >>> gru_encoder((5,), 2, classes=10, units=8)(torch.zeros(3, 5)).shape
    torch.Size([3, 4])
    """
    features = GRUFeatures(
        math.prod(checked_shape(shape)), classes, units=units, heads=1, blocks=blocks, dropout=dropout
    )
    return token_encoder(features, latent, width)


def token_encoder(features: TokenFeatures | GraphFeatures, latent: int, width: float = 1.0) -> Encoder:
    """Make an encoder of tokens or graphs from a feature network and a new linear head.

    If `width` is not 1, `features` is replaced by a new network with `width` times as many units.
    """
    check_sizes(latent=latent)
    made = features if width == 1 else features.wider(width)
    return Encoder(made, nn.Linear(made.units, 2 * latent))


class _Sequence(nn.Module):
    """Maps z (N, D) to hidden states (N, T, U), with which a decoder begins.

    The hidden state of a position is the sum of a linear function of z that all positions share, a
    linear function of z for this position, and a position embedding.
    """

    def __init__(self, latent: int, length: int, units: int) -> None:
        super().__init__()
        self.length = length
        self.everywhere = nn.Linear(latent, units)
        self.mix, self.widen = nn.Linear(latent, length * MIX), nn.Linear(MIX, units)
        self.places = Places(length, units, spread=0.5)

    def forward(self, z: Tensor) -> Tensor:
        own = self.widen(self.mix(z).unflatten(-1, (self.length, MIX)))
        return self.places(self.everywhere(z)[:, None] + own)


class _Recurrent(nn.Module):
    """GRU layers with residual connections, (N, T, U) -> (N, T, U).

    Every second layer reads the positions backwards.
    """

    def __init__(self, units: int, blocks: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(GRU(units) for _ in range(blocks))
        check_shares(dropout=dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, h: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            change = layer(h.flip(1)).flip(1) if number % 2 else layer(h)
            h = h + self.dropout(change)
        return h


def transformer_decoder(
    shape: Sequence[int],
    latent: int,
    output: Sequence[int] | None = None,
    *,
    units: int = 128,
    heads: int = 4,
    blocks: int = 2,
    dropout: float = 0.0,
    activation: str = "gelu",
) -> Decoder:
    """Make a transformer decoder: z (N, latent) -> (N, T, K), such as K logits for each of T positions.

    Every position gets z, and all positions are computed at once. If `output` has only one axis, there
    are no positions, and the decoder is a fully connected network with one hidden layer. The likelihood
    ``autoregressive`` needs such an output, which is one context vector. The other options are those of
    `transformer_encoder`.

    Args:
        output: Shape of the decoder's output for one example; by default the shape of the example.

    >>> transformer_decoder((5,), 2, (5, 10), units=8)(torch.zeros(3, 2)).shape
    torch.Size([3, 5, 10])
    """
    layers = [
        TransformerBlock(units, heads, dropout=dropout, activation=activation) for _ in range(blocks)
    ]
    return _token_decoder(shape, latent, output, checked_units(units, heads), layers)


def gru_decoder(
    shape: Sequence[int],
    latent: int,
    output: Sequence[int] | None = None,
    *,
    units: int = 128,
    blocks: int = 2,
    dropout: float = 0.0,
) -> Decoder:
    """Make a recurrent decoder: z (N, latent) -> (N, T, K), such as K logits for each of T positions.

    Every position gets z. Every second layer reads the positions backwards. The arguments are those of
    `transformer_decoder`.

    >>> gru_decoder((5,), 2, (5, 10), units=8)(torch.zeros(3, 2)).shape
    torch.Size([3, 5, 10])
    """
    layers = [_Recurrent(checked_units(units, 1), blocks, dropout)]
    return _token_decoder(shape, latent, output, units, layers)


def _token_decoder(
    shape: Sequence[int],
    latent: int,
    output: Sequence[int] | None,
    units: int,
    layers: Sequence[nn.Module],
) -> Decoder:
    check_sizes(latent=latent)
    wanted = checked_shape(shape if output is None else output)
    if len(wanted) == 1:
        found = [nn.Linear(latent, units), nn.GELU(), nn.Linear(units, wanted[0])]
        return Decoder(nn.Sequential(*found), shape=wanted, latent=latent)
    head: list[nn.Module] = [LayerNorm(units), nn.Linear(units, wanted[-1])]
    if len(wanted) > 2:
        head += [nn.Unflatten(1, wanted[:-1])]
    start = _Sequence(latent, math.prod(wanted[:-1]), units)
    return Decoder(nn.Sequential(start, *layers, *head), shape=wanted, latent=latent)
