"""Jacobians of chains of simple layers: like forward-mode differentiation, with fewer kernels.

A tangent is the derivative of a layer's output along one direction of the input. A linear layer
maps a tangent like an input, without the bias. An activation multiplies a tangent by the
activation's slope. `torch.func.jvp` would also compute products with tangents of the weights, which
are zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recmix.inference.gauss_newton import decoder_jacobian, jacobian_needs_autograd
from recmix.model.networks import Decoder

__all__ = ["chain_jacobian", "layer_chain", "push"]

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


def layer_chain(network: nn.Module) -> list[nn.Module] | None:
    """The layers of a network in order, if it is a chain of simple layers; else None.

    >>> [type(part).__name__ for part in layer_chain(nn.Sequential(nn.Linear(2, 3), nn.Tanh()))]
    ['Linear', 'Tanh']
    >>> layer_chain(nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3)))
    """
    if isinstance(network, Decoder):
        return layer_chain(network.layers)
    if type(network) is nn.Sequential:
        parts = [layer_chain(part) for part in network]
        return None if None in parts else [layer for part in parts for layer in part or []]
    if isinstance(network, nn.Conv2d | nn.ConvTranspose2d) and network.padding_mode != "zeros":
        return None
    simple = (nn.Linear, nn.Conv2d, nn.ConvTranspose2d, *SLOPES, *SHAPES)
    hooked = network._forward_hooks or network._forward_pre_hooks
    return [network] if type(network) in simple and not hooked else None


def push(layers: list[nn.Module], z: Tensor, tangents: Tensor) -> tuple[Tensor, Tensor]:
    """The output of a chain of layers at z (B, D), and its derivatives along T directions of z.

    Args:
        layers: the chain, from `layer_chain`.
        z: inputs (B, D).
        tangents: directions (T, D), the same for all inputs.

    Returns:
        The output (B, …) and the derivatives (T, B, …).

    >>> layer = nn.Linear(2, 3)
    >>> _, moved = push([layer], torch.zeros(5, 2), torch.eye(2))
    >>> torch.equal(moved[:, 0], layer.weight.T)
    True
    """
    at, moved = z, tangents.unsqueeze(1)  # (T, 1, D): one row for all examples while they are equal
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


@decoder_jacobian.register
def chain_jacobian(decoder: nn.Module, z: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """The output (B, …) and the Jacobian (B, P, D) of a decoder that is a chain of simple layers.

    Args:
        decoder: the decoder; for any other kind of network the result is NotImplemented.
        z: latent points (B, D).
        chunk: number of latent directions for which derivatives are computed at a time.
    """
    layers = layer_chain(decoder)
    if layers is None:
        return NotImplemented
    units = torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
    parts = [push(layers, z, part) for part in units.split(chunk)]
    moved = [part[1] for part in parts]
    columns = torch.cat(moved) if len(moved) > 1 else moved[0]  # (D, B, C, H, W)
    return parts[0][0], columns.flatten(2).permute(1, 2, 0)


@jacobian_needs_autograd.register
def chain_needs_autograd(decoder: nn.Module) -> bool:
    """False for a chain of simple layers: `chain_jacobian` uses plain operations, not autograd.

    NotImplemented for other decoders.
    """
    return NotImplemented if layer_chain(decoder) is None else False
