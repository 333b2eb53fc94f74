"""Compute Jacobians and gradients of chains of simple layers, without automatic differentiation.

Jacobians are computed in forward mode. A tangent is the derivative of a layer's output along one
direction of the input. A linear layer maps a tangent in the same way as its input, but without the bias.
An activation multiplies a tangent by the activation's slope. `torch.func.jvp` would also compute
products with tangents of the weights, which are zero. Gradients of one number are computed in reverse
mode, without those of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recmix.inference.gauss_newton import decoder_jacobian, is_traceable, jacobian_needs_autograd
from recmix.model.curvature_network import chain_output
from recmix.model.networks import Decoder

__all__ = ["chain_jacobian", "fast_on_cpu", "layer_chain", "value_and_pullback", "values"]

Pull = Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]


def _leaky(layer: nn.Module, gradient: Tensor, before: Tensor, _after: Tensor) -> Tensor:
    leak = layer.negative_slope if isinstance(layer, nn.LeakyReLU) else 0.0
    # The derivative with respect to `before` is zero. Detached, autograd keeps no copy for it.
    pulled: Tensor = torch.ops.aten.leaky_relu_backward(gradient, before.detach(), leak, False)
    return pulled


def _silu(_layer: nn.Module, gradient: Tensor, before: Tensor, _after: Tensor) -> Tensor:
    if torch.is_grad_enabled() or _traced():  # torch's own operator has no derivative and no ONNX form
        gate = before.sigmoid()
        return gradient * (gate * (1 + before * (1 - gate)))
    pulled: Tensor = torch.ops.aten.silu_backward(gradient, before)
    return pulled


ACTIVATIONS: dict[type[nn.Module], Pull] = {
    nn.ReLU: _leaky,
    nn.LeakyReLU: _leaky,
    nn.SiLU: _silu,
    nn.GELU: lambda layer, gradient, before, _after: torch.ops.aten.gelu_backward(
        gradient, before, approximate=layer.approximate
    ),
    nn.Tanh: lambda _layer, gradient, _before, after: gradient * (1 - after.square()),
    nn.Sigmoid: lambda _layer, gradient, _before, after: gradient * (after * (1 - after)),
}
"""Functions (layer, gradient, input, output) that multiply a gradient by an activation's derivative."""
BLOCK = 2**20
"""Most values of one layer's tangents that are computed at a time on a CPU."""
SHAPES = (nn.Flatten, nn.Unflatten, nn.Identity)


def layer_chain(network: nn.Module) -> list[nn.Module] | None:
    """The layers of a network in order, if it is a chain of simple layers; else None.

    Simple layers are linear layers, convolutions, a few activations, and changes of shape.

    >>> [type(part).__name__ for part in layer_chain(nn.Sequential(nn.Linear(2, 3), nn.Tanh()))]
    ['Linear', 'Tanh']
    >>> layer_chain(nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3)))
    """
    before, after = network._forward_pre_hooks, network._forward_hooks
    if before or after or network._backward_pre_hooks or network._backward_hooks:
        return None
    if type(network) is Decoder:
        return layer_chain(network.layers)
    if type(network) is nn.Sequential:
        parts = [layer_chain(part) for part in network]
        return None if None in parts else [layer for part in parts for layer in part or []]
    if isinstance(network, nn.Conv2d | nn.ConvTranspose2d) and network.padding_mode != "zeros":
        return None
    simple = (nn.Linear, nn.Conv2d, nn.ConvTranspose2d, *ACTIVATIONS, *SHAPES)
    return [network] if type(network) in simple else None


def values(layers: list[nn.Module], z: Tensor) -> Tensor:
    """The output (B, ...) of a chain of layers at z (B, D), without derivatives.

    `chain_jacobian` computes the same output together with its Jacobian.

    >>> layers = [nn.Linear(2, 3), nn.Tanh()]
    >>> values(layers, torch.zeros(5, 2)).shape
    torch.Size([5, 3])
    """
    for layer in layers:
        z = _value(layer, z)
    return z.contiguous()  # so that a likelihood can use `view`


def _value(layer: nn.Module, z: Tensor) -> Tensor:
    """The output of one layer, which may be stored in any order."""
    return layer(z) if type(layer) in ACTIVATIONS else _linear(layer, z, bias=True)


@chain_output.register
def chain_output_on_cpu(layers: Sequence[nn.Module], rows: Tensor) -> Tensor:
    """The output of a chain of simple layers on a CPU, without gradients; else NotImplemented."""
    chains = [layer_chain(layer) for layer in layers] if fast_on_cpu(rows) else [None]
    if None in chains:
        return NotImplemented
    return values([layer for chain in chains for layer in chain or []], rows)


def value_and_pullback(layers: list[nn.Module], z: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """The output (B, ...) of a chain of layers at z (B, D), and its pullback.

    The pullback is a function. It maps a gradient with respect to the output to the gradient with
    respect to z. This is backpropagation without the gradients of the parameters.

    >>> layer = nn.Linear(2, 3)
    >>> output, pullback = value_and_pullback([layer], torch.zeros(3, 2))
    >>> torch.equal(pullback(torch.eye(3)), layer.weight)
    True
    """
    reached = _reached(layers, z)

    def pullback(gradient: Tensor) -> Tensor:
        for layer, before, after in reversed(list(zip(layers, reached, reached[1:], strict=False))):
            gradient = _pull(layer, gradient, before, after)
        return gradient

    return reached[-1].contiguous(), pullback


def _reached(layers: list[nn.Module], z: Tensor) -> list[Tensor]:
    """z (B, D), then the output of each layer. No layer changes the output of the one before it."""
    reached = [z]
    for layer in layers:
        last = reached[-1].clone() if getattr(layer, "inplace", False) else reached[-1]
        reached.append(_value(layer, last))
    return reached


def _pull(layer: Any, gradient: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """The gradient with respect to a layer's input, from the gradient with respect to its output."""
    if type(layer) in ACTIVATIONS:
        return ACTIVATIONS[type(layer)](layer, gradient, before, after)
    if isinstance(layer, nn.Linear):
        return gradient @ layer.weight
    if not isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
        return gradient.reshape(before.shape)
    pulled: Tensor = torch.ops.aten.convolution_backward(
        gradient.contiguous(memory_format=torch.channels_last),
        before.contiguous(memory_format=torch.channels_last),
        layer.weight,
        None,
        layer.stride,
        layer.padding,
        layer.dilation,
        layer.transposed,
        layer.output_padding,
        layer.groups,
        (True, False, False),  # only the gradient of the input
    )[0]
    return pulled


def _move(layers: list[nn.Module], slopes: Sequence[Tensor | None], tangents: Tensor) -> Tensor:
    """The derivatives (B, T, …) of a chain's output along the directions `tangents` (T, D).

    They are (1, T, …) if no layer is an activation: then they are equal for all examples.
    """
    moved = tangents.clone().unsqueeze(0)  # (1, T, D): for all examples, while they are equal
    for layer, slope in zip(layers, slopes, strict=True):
        if slope is None:
            rows = _linear(layer, moved.flatten(0, 1), bias=False)
            moved = rows.unflatten(0, moved.shape[:2])
        elif moved.shape[0] == slope.shape[0] and not torch.is_grad_enabled():
            moved = moved.mul_(slope.unsqueeze(1))
        else:
            moved = moved * slope.unsqueeze(1)
    return moved


def _linear(layer: Any, rows: Tensor, *, bias: bool) -> Tensor:
    """The output of a layer that is not an activation, with or without its bias."""
    fast = fast_on_cpu(rows)
    if isinstance(layer, nn.Linear):
        return _product(rows, layer.weight, layer.bias if bias else None)
    if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d) and fast:
        rows = rows.contiguous(memory_format=torch.channels_last)
    if isinstance(layer, nn.ConvTranspose2d):
        if fast and _has_one_channel(layer):
            return _to_one_channel(layer, rows, bias=bias)
        shift = layer.bias if bias else None
        made = F.conv_transpose2d(
            rows,
            layer.weight,
            None if fast else shift,
            layer.stride,  # type: ignore[arg-type]
            layer.padding,  # type: ignore[arg-type]
            layer.output_padding,  # type: ignore[arg-type]
            layer.groups,
            layer.dilation,  # type: ignore[arg-type]
        )
        if fast and shift is not None:  # on a CPU faster than inside the convolution
            made.add_(shift.view(-1, 1, 1))
        return made
    if isinstance(layer, nn.Conv2d):
        return F.conv2d(
            rows,
            layer.weight,
            layer.bias if bias else None,
            layer.stride,
            layer.padding,
            layer.dilation,
            layer.groups,
        )
    reshaped: Tensor = layer(rows)
    return reshaped


def fast_on_cpu(like: Tensor) -> bool:
    """Whether the fast CPU code for chains of layers may be used for the tensor `like`.

    It must be on the CPU, with gradients disabled, and not inside a transform of `torch.func`. Torch
    must neither compile nor trace.
    """
    transformed = torch._C._functorch.maybe_current_level() is not None
    plain = not torch.is_grad_enabled() and not transformed and not _traced()
    return like.device.type == "cpu" and plain


def _traced() -> bool:
    """Whether torch compiles or traces the operations."""
    return bool(torch.compiler.is_compiling() or torch._C._get_tracing_state() or is_traceable())


def _product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product rows @ weightᵀ + bias, (N, outputs), for rows (N, inputs).

    On a CPU, oneDNN computes it. For float32 on AMD processors that takes half the time of `F.linear`,
    which calls MKL.
    """
    onednn = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    types = {t.dtype for t in (rows, weight, bias) if t is not None}
    fits = types == {torch.float32} and rows.ndim == 2 and rows.shape[1] == weight.shape[1]
    if onednn is None or not fits or not fast_on_cpu(rows):
        return F.linear(rows, weight, bias)
    # oneDNN reads the bias as if its numbers were side by side in memory.
    shift = None if bias is None else bias.contiguous()
    product: Tensor = onednn(rows, weight, shift, "none", [], "")
    return product


def _has_one_channel(layer: Any) -> bool:
    """Whether `_to_one_channel` supports this transposed convolution."""
    rules = zip(layer.kernel_size, layer.stride, layer.padding, layer.output_padding, strict=True)
    whole = all(k % s == 0 and extra <= cut for k, s, cut, extra in rules)
    return layer.out_channels == 1 and whole and layer.dilation == (1, 1)


def _to_one_channel(layer: Any, rows: Tensor, *, bias: bool) -> Tensor:
    """A transposed convolution to one channel, (N, 1, H', W'), as a matrix product and a sum of windows.

    On a CPU torch's own function takes as long for one channel as for eight. A window is the part of the
    output that depends on one position of the input. It consists of blocks of the size of the stride.
    The blocks of neighbouring windows are added, first along the width, then along the height.
    """
    count, channels, height, width = rows.shape
    tall, wide = layer.stride
    down, along = (size // step for size, step in zip(layer.kernel_size, layer.stride, strict=True))
    blocks = layer.weight.reshape(channels, down, tall, along, wide).permute(3, 1, 2, 4, 0)
    windows = _product(rows.permute(0, 2, 3, 1).flatten(0, 2), blocks.reshape(-1, channels))
    windows = windows.view(count, height, width, along, down * tall * wide)
    lines = F.pad(windows[..., 0, :], (0, 0, 0, along - 1))  # (N, H, W + along - 1, down · tall · wide)
    for i in range(1, along):
        lines[:, :, i : i + width] += windows[..., i, :]
    lines = lines.unflatten(-1, (down, -1))
    made = F.pad(lines[..., 0, :], (0, 0, 0, 0, 0, down - 1))
    for i in range(1, down):
        made[:, i : i + height] += lines[..., i, :]
    made = made.unflatten(-1, (1, tall, wide)).permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)
    for axis, cut, extra in zip((2, 3), layer.padding, layer.output_padding, strict=True):
        made = made.narrow(axis, cut, made.shape[axis] - 2 * cut + extra)
    return made.add_(layer.bias) if bias and layer.bias is not None else made


@decoder_jacobian.register
def chain_jacobian(decoder: nn.Module, z: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """The output (B, ...) and the Jacobian (B, P, D) of a decoder that is a chain of simple layers.

    P is the number of output values per example. On a CPU without gradients, a few examples are computed
    at a time: their derivatives stay in the processor's cache. For other decoders the function returns
    NotImplemented.

    Args:
        decoder: the decoder.
        z: latent points (B, D).
        chunk: number of latent directions for which derivatives are computed at a time.
    """
    layers = layer_chain(decoder)
    if layers is None:
        return NotImplemented
    reached = _reached(layers, z)
    at = reached[-1].contiguous()
    slopes = [
        _pull(layer, torch.ones_like(after), before, after) if type(layer) in ACTIVATIONS else None
        for layer, before, after in zip(layers, reached, reached[1:], strict=False)
    ]
    del reached  # the outputs of the layers are not needed beside the tangents
    batch, latent = z.shape
    units = torch.eye(latent, dtype=z.dtype, device=z.device)
    sizes = [slope.shape[1:].numel() for slope in slopes if slope is not None]
    examples = min(BLOCK // max(sizes), chunk * batch) // latent if sizes and fast_on_cpu(z) else 0
    if 0 < examples < batch:
        starts = range(0, batch, examples)
        pieces = [[None if s is None else s[i : i + examples] for s in slopes] for i in starts]
        columns = torch.cat([_move(layers, piece, units) for piece in pieces])
    else:
        parts = [_move(layers, slopes, part) for part in units.split(chunk)]
        columns = torch.cat(parts, 1) if len(parts) > 1 else parts[0]  # (B, D, C, H, W)
    return at, columns.expand(batch, *columns.shape[1:]).flatten(2).mT


@jacobian_needs_autograd.register
def chain_needs_autograd(decoder: nn.Module) -> bool:
    """False for a chain of simple layers, whose Jacobian needs no autograd; else NotImplemented."""
    return NotImplemented if layer_chain(decoder) is None else False
