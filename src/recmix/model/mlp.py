"""Fully connected encoders and decoders for examples of any shape, with hidden layers of any sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from recmix.errors import ConfigError, unknown
from recmix.model.encoder_decoder import (
    Decoder,
    Encoder,
    check_shares,
    check_sizes,
    checked_shape,
    scaled,
)
from recmix.model.normalisation import LayerNorm

__all__ = ["ACTIVATIONS", "NORMALISATIONS", "make_activation", "mlp_decoder", "mlp_encoder"]

WIDTHS = (512, 512)
"""Sizes of the hidden layers, by default."""
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
}
NORMALISATIONS: dict[str, type[LayerNorm | nn.BatchNorm1d] | None] = {
    "none": None,
    "layer": LayerNorm,
    "batch": nn.BatchNorm1d,
}


def mlp_encoder(
    shape: Sequence[int],
    latent: int,
    *,
    widths: Sequence[int] = WIDTHS,
    activation: str = "relu",
    normalisation: str = "none",
    dropout: float = 0.0,
    width: float = 1.0,
) -> Encoder:
    """Make a fully connected encoder for examples of any shape, with hidden layers of any sizes.

    It maps examples (B, *shape) to the mean and log-variance of q(z|x), (B, 2·latent).

    Args:
        widths: Sizes of the hidden layers, in the order from the example to z. If it is empty, the
            encoder is linear.
        activation: relu, leaky_relu, elu, silu, gelu or tanh.
        normalisation: none, layer or batch. It is applied before each activation. With batch
            normalisation, the output for an example depends on the rest of its batch in training mode.
        dropout: Share of hidden units that are set to zero in training mode.
        width: Multiplies the sizes of the hidden layers.

    >>> import torch
    >>> encoder = mlp_encoder((13,), 2, widths=(64, 32))
    >>> encoder(torch.zeros(5, 13)).shape, encoder.hidden
    (torch.Size([5, 4]), 32)
    """
    check_sizes(latent=latent)
    sizes = [math.prod(checked_shape(shape)), *(scaled(n, width) for n in _checked_widths(widths))]
    hidden = _hidden_layers(sizes, activation, normalisation, dropout)
    head = nn.Linear(sizes[-1], 2 * latent)
    return Encoder(nn.Sequential(nn.Flatten(), *hidden), head)


def mlp_decoder(
    shape: Sequence[int],
    latent: int,
    output: Sequence[int] | None = None,
    *,
    widths: Sequence[int] = WIDTHS,
    activation: str = "relu",
    normalisation: str = "none",
    dropout: float = 0.0,
) -> Decoder:
    """Make a fully connected decoder: the hidden layers of `mlp_encoder` in reverse order.

    It maps z (N, latent) to (N, *output). The other options are those of `mlp_encoder`. A decoder has a
    Jacobian for each example only if its output for one z does not depend on the rest of the batch.
    With batch normalisation, this is true in evaluation mode, but not in training mode.

    Args:
        output: Shape of the decoder's output for one example; by default the shape of the example.
        widths: Sizes of the hidden layers, in the order from the example to z. So the size of the last
            hidden layer comes first.

    >>> import torch
    >>> mlp_decoder((13,), 2, (13, 2), widths=(64, 32))(torch.zeros(5, 2)).shape
    torch.Size([5, 13, 2])
    """
    check_sizes(latent=latent)
    wanted = checked_shape(shape if output is None else output)
    sizes = [latent, *_checked_widths(widths)[::-1]]
    layers = _hidden_layers(sizes, activation, normalisation, dropout)
    layers += [nn.Linear(sizes[-1], math.prod(wanted))]
    if len(wanted) > 1:
        layers += [nn.Unflatten(1, wanted)]
    return Decoder(nn.Sequential(*layers), shape=wanted, latent=latent)


def make_activation(name: str) -> nn.Module:
    """The activation layer of this name, which is a key of `ACTIVATIONS`."""
    if name not in ACTIVATIONS:
        raise ConfigError(unknown("activation", name, ACTIVATIONS))
    return ACTIVATIONS[name]()


def _hidden_layers(
    sizes: Sequence[int], activation: str, normalisation: str, dropout: float
) -> list[nn.Module]:
    if normalisation not in NORMALISATIONS:
        raise ConfigError(unknown("normalisation", normalisation, NORMALISATIONS))
    check_shares(dropout=dropout)
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after)]
        if normalise := NORMALISATIONS[normalisation]:
            layers += [normalise(after)]
        layers += [make_activation(activation)]
        if dropout:
            layers += [nn.Dropout(dropout)]
    return layers


def _checked_widths(widths: Sequence[int]) -> list[int]:
    if isinstance(widths, str) or not all(isinstance(n, int) and n >= 1 for n in widths):
        raise ConfigError(
            f"widths={widths!r}: expected whole numbers of at least 1, the sizes of the hidden layers, "
            "such as (512, 512)"
        )
    return list(widths)
