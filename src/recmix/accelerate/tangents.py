"""Tangents through chains of simple layers: what forward-mode differentiation gives, in fewer kernels.

A tangent passes a linear layer as its input would, without the bias, and an activation by its slope
at the input. For the usual decoders that is all there is to it; `torch.func.jvp` also makes and adds
products with tangents of the weights, which are zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recmix.accelerate.transposed import OneChannel
from recmix.model.networks import Decoder

__all__ = ["chain", "push"]

Slope = Callable[[nn.Module, Tensor, Tensor], Tensor]


def _leaky(layer: nn.Module, before: Tensor, _after: Tensor) -> Tensor:
    leak = layer.negative_slope if isinstance(layer, nn.LeakyReLU) else 0.0
    return torch.where(before > 0, 1.0, leak).to(before.dtype)


SLOPES: dict[type[nn.Module], Slope] = {
    nn.ReLU: _leaky,
    nn.LeakyReLU: _leaky,
    nn.Tanh: lambda _layer, _before, after: 1 - after.square(),
    nn.Sigmoid: lambda _layer, _before, after: after * (1 - after),
}
"""The derivative of an activation from its input and its output."""
SHAPES = (nn.Flatten, nn.Unflatten, nn.Identity)


def chain(network: nn.Module) -> list[nn.Module] | None:
    """The layers of a network that is nothing but a chain of ones that tangents pass simply, or None.

    >>> [type(part).__name__ for part in chain(nn.Sequential(nn.Linear(2, 3), nn.Tanh()))]
    ['Linear', 'Tanh']
    >>> chain(nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3)))
    """
    if isinstance(network, Decoder):
        return chain(network.layers)
    if type(network) is nn.Sequential:
        parts = [chain(part) for part in network]
        return None if None in parts else [layer for part in parts for layer in part or []]
    if isinstance(network, nn.Conv2d | nn.ConvTranspose2d) and network.padding_mode != "zeros":
        return None
    simple = (nn.Linear, nn.Conv2d, nn.ConvTranspose2d, OneChannel, *SLOPES, *SHAPES)
    hooked = network._forward_hooks or network._forward_pre_hooks
    return [network] if type(network) in simple and not hooked else None


def push(layers: list[nn.Module], z: Tensor, tangents: Tensor) -> tuple[Tensor, Tensor]:
    """The chain at z (B, D), and its derivative along tangents (T, D) of all examples: (T, B, …).

    >>> layer = nn.Linear(2, 3)
    >>> _, moved = push([layer], torch.zeros(5, 2), torch.eye(2))
    >>> torch.equal(moved[:, 0], layer.weight.T)
    True
    """
    at, moved = z, tangents.unsqueeze(1)  # (T, 1, D): one row for all examples as long as they agree
    for layer in layers:
        before, at = at, layer(at)
        rows = moved.flatten(0, 1)
        if type(layer) in SLOPES:
            moved = moved * SLOPES[type(layer)](layer, before, at)
            continue
        moved = _without_bias(layer, rows).unflatten(0, moved.shape[:2])
    return at, moved.expand(-1, z.shape[0], *moved.shape[2:])


def _without_bias(layer: Any, rows: Tensor) -> Tensor:
    if isinstance(layer, nn.Linear):
        return F.linear(rows, layer.weight)
    if isinstance(layer, OneChannel):
        return layer.without_bias(rows)
    if isinstance(layer, nn.ConvTranspose2d):
        return F.conv_transpose2d(
            rows,
            layer.weight,
            None,
            layer.stride,  # type: ignore[arg-type]
            layer.padding,  # type: ignore[arg-type]
            layer.output_padding,  # type: ignore[arg-type]
            layer.groups,
            layer.dilation,  # type: ignore[arg-type]
        )
    if isinstance(layer, nn.Conv2d):
        return F.conv2d(
            rows, layer.weight, None, layer.stride, layer.padding, layer.dilation, layer.groups
        )
    reshaped: Tensor = layer(rows)
    return reshaped
