"""Turn sequences of torch layers into functions that use the Triton kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from recmix.accelerate.kernels import Limits, conv2d_stacked, linear_stacked, log_weights_of_parts, split

__all__ = ["recursion", "sequence"]

Run = Callable[[Tensor, Tensor | None], Tensor]
PARTS = 16
"""Most parts into which the sum over the pixels of an image is divided."""


def sequence(
    networks: Sequence[Sequence[nn.Module]], shape: Sequence[int], limits: Limits | None = None
) -> Run | None:
    """Turn K networks of the same shape into one function f(x, centre) that uses Triton kernels.

    The function subtracts `centre`, an image or None, from each example of the batch x. It gives the N
    outputs of each network for B examples, (K, B, N). `sequence` returns None if the kernels do not
    support a layer.

    Args:
        networks: the layers of each network: convolutions, then linear layers, with activations after
            any of them.
        shape: shape of one example, (C, H, W) or (I,).
        limits: smallest and largest value of the second half of the last layer's outputs, which is
            clamped.
    """
    made: list[tuple[Any, tuple[Tensor, Tensor], dict[str, Any]]] = []
    size = tuple(shape)
    # The order of a linear layer's inputs: channels, then rows, then columns.
    layout: tuple[int, ...] = (math.prod(size), 1, 1)
    for layers in zip(*networks, strict=True):
        first: Any = layers[0]
        slope = _slope(first)
        if slope == 1:
            continue
        if slope is not None and made and "slope" not in made[-1][2]:
            made[-1][2]["slope"] = slope
        elif isinstance(first, nn.Conv2d) and len(size) == 3 and _supported(first):
            window: dict[str, Any] = {"kernel": first.kernel_size, "stride": first.stride}
            window["padding"] = first.padding
            sides = zip(size[1:], *window.values(), strict=True)
            size = (first.out_channels, *((n + 2 * p - k) // s + 1 for n, k, s, p in sides))
            if min(size) < 1:
                return None
            made.append((conv2d_stacked, _packed(layers, first.weight.shape[1:]), window))
            layout = size
        elif isinstance(first, nn.Flatten) and (first.start_dim, first.end_dim) == (1, -1):
            size = (math.prod(size),)
        elif isinstance(first, nn.Linear) and size == (first.in_features,):
            made.append((linear_stacked, _packed(layers, layout), {}))
            size, layout = (first.out_features,), (first.out_features, 1, 1)
        else:
            return None
    if not made or made[-1][0] is not linear_stacked:
        return None
    if limits is not None:
        if "slope" in made[-1][2]:
            return None
        made[-1][2]["limits"] = limits

    def run(x: Tensor, centre: Tensor | None) -> Tensor:
        x, centre = x.contiguous(), None if centre is None else centre.contiguous()
        if len(shape) != 3:  # a kernel would read the first axis of an example as one of the batch
            x = x.flatten(1)
        with torch.cuda.device_of(x):
            for call, tensors, options in made:
                x = call(x, *tensors, centre=centre, **options)
                centre = None
        return x

    return run


def recursion(
    gates: Sequence[Sequence[nn.Module]], shape: Sequence[int], minimum: float, maximum: float
) -> Run | None:
    """Turn the gates of a recursive mixture, which give its weights, into one function f(x, centre).

    The function subtracts `centre`, an image or None, from each example of the batch x. It gives the
    mixing weights log α for B examples, (B, number of components). `recursion` returns None if the
    kernels do not support a layer.

    The first layers of all gates are computed as one matrix product. Its long sum over the pixels is
    divided into parts that run in parallel. A second kernel adds the parts and computes the rest.

    Args:
        gates: the layers of each gate: linear, activation, linear to one number. Gate m gives ε_m(x),
            the share of component m in the mixture of the components 0 … m.
        shape: shape of one example.
        minimum: the smallest ε.
        maximum: the largest ε.
    """
    pixels = math.prod(shape)
    kinds = [[layer for layer in gate if type(layer) is not nn.Flatten] for gate in gates]
    if any([type(layer) for layer in kind[::2]] != [nn.Linear, nn.Linear] for kind in kinds):
        return None
    slope = _slope(kinds[0][1]) if len(kinds[0]) == 3 else None
    if slope is None:
        return None
    firsts: list[Any] = [kind[0] for kind in kinds]
    seconds: list[Any] = [kind[2] for kind in kinds]
    count, hidden = len(kinds), firsts[0].out_features
    if firsts[0].in_features != pixels or seconds[0].out_features != 1:
        return None
    parts = max((p for p in range(1, PARTS + 1) if pixels % (16 * p) == 0), default=1)
    weight = torch.cat([layer.weight.detach() for layer in firsts])  # (count hidden, pixels)
    weight = split(weight.view(count * hidden, parts, pixels // parts).transpose(0, 1))
    nothing = weight.new_zeros(parts, count * hidden)
    bias, last = _biases(firsts), _biases(seconds)
    second = torch.cat([layer.weight.detach() for layer in seconds])
    tail = {"slope": slope, "minimum": minimum, "maximum": maximum}

    def run(x: Tensor, centre: Tensor | None) -> Tensor:
        x, centre = x.flatten(1).contiguous(), None if centre is None else centre.contiguous()
        with torch.cuda.device_of(x):
            sums = linear_stacked(x, weight, nothing, centre=centre, parts=True)
            return log_weights_of_parts(sums, bias, second, last, **tail)

    return run


def _packed(layers: Sequence[Any], columns: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Pack one layer of K networks: weights (2, K, N, depth) in the kernel's order, biases (K, N).

    `columns` is the shape (channels, rows, columns) of the weights of one output.
    """
    weights = [layer.weight.detach().reshape(-1, *columns) for layer in layers]
    return split(torch.stack([w.permute(0, 2, 3, 1).flatten(1) for w in weights])), _biases(layers)


def _biases(layers: Sequence[Any]) -> Tensor:
    nothing = layers[0].weight.new_zeros(layers[0].weight.shape[0])
    return torch.stack([nothing if layer.bias is None else layer.bias.detach() for layer in layers])


def _slope(layer: nn.Module) -> float | None:
    """The factor of negative values in ReLU (0), leaky ReLU or identity (1); None for other layers."""
    if type(layer) is nn.LeakyReLU:
        return float(layer.negative_slope)
    return {nn.ReLU: 0.0, nn.Identity: 1.0}.get(type(layer))


def _supported(layer: nn.Conv2d) -> bool:
    """Whether the Triton kernel supports this convolution."""
    zeros = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return zeros and layer.groups == 1 and layer.dilation == (1, 1)
