"""Compute values and tangents of a decoder on a GPU, by one Triton kernel for each layer.

A tangent is the derivative of a layer's output along one direction of z. Everything between layers is
channels-last, (N, H, W, C). The T tangents of one example are stored next to each other.

A transposed convolution is computed as a matrix product. The kernel reads the entries of the left factor
directly from the input image. With stride s and padding p, the output positions s q - p, …,
s q - p + s - 1 depend on the same input positions q, q - 1, … So one row of the product belongs to one
q. The inner dimension of the product, called depth here, runs over (row, column, channel) of these
inputs. The columns of the product run over (row, column, channel) of these outputs. A linear layer is
the case of a single q.

The slope of an activation is 1 for positive values and a constant for other values. An activation
multiplies a tangent by its slope. The kernel of the layer before the activation does this
multiplication. The first layer is an exception: its tangents are the same for all examples, so the
kernel of the second layer multiplies them.

Products of tangents use TF32. This is accurate enough, because the Jacobian is used only for the
Gauss-Newton steps and their curvature. Products of values use TF32 if torch's own layers may use it.
Otherwise they have the accuracy of float32. Tensor cores drop the last 13 bits of the numbers that they
multiply. This would make each number smaller by about 3e-4 of its size, and the error would add up over
the layers. So the kernels round all numbers except z to TF32 when they write them.

A CUDA graph can capture these kernels, because the block sizes depend only on the shapes and no
operation makes the CPU wait for the GPU. The weights are packed once for each sequence of Gauss-Newton
steps. The graph contains this packing, so a replay uses the weights at the time of the replay.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from recmix.accelerate.kernels import _activation, _jit, _nearest_tf32, _power_of_two
from recmix.accelerate.layers import _slope
from recmix.accelerate.newton_kernels import unless_broken, usable

with suppress(ImportError):  # torch without GPU support has no Triton
    import triton.language as tl

__all__ = ["Packed", "pack", "plan", "push", "tiles", "values"]

PRECISION = "tf32"
"""Precision of products of tangents; "tf32x3" has the accuracy of float32."""
PROGRAMS = 128
"""Programs per layer that keep a GPU busy: about one for each multiprocessor of an H200."""
INDICES = 2**31
"""Largest number of values of one tensor that the kernels can index."""


@_jit
def _round_tf32(value: tl.tensor) -> tl.tensor:
    # Round to TF32, so that dropping 13 bits changes nothing; infinities and NaN stay.
    return tl.where(tl.abs(value) < float("inf"), _nearest_tf32(value), value)


@_jit
def _pack(
    weight: tl.tensor,  # (C, O, KH, KW), any strides
    out: tl.tensor,  # (SH SW O, AH AW C), the order of `_layer`
    step_c: tl.tensor,
    step_o: tl.tensor,
    step_h: tl.tensor,
    step_w: tl.tensor,
    C: tl.constexpr,
    O: tl.constexpr,  # noqa: E741
    KH: tl.constexpr,
    KW: tl.constexpr,
    AH: tl.constexpr,
    AW: tl.constexpr,
    SH: tl.constexpr,
    SW: tl.constexpr,
    ROUND: tl.constexpr,
    BM: tl.constexpr,
) -> None:
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = m // (AH * AW * C)
    place = m // C % (AH * AW)
    h = place // AW * SH + n // O // SW
    w = place % AW * SW + n // O % SW
    there = m < SH * SW * O * AH * AW * C
    at = m % C * step_c + n % O * step_o + h * step_h + w * step_w
    value = tl.load(weight + at, mask=there & (h < KH) & (w < KW), other=0.0)
    if ROUND:
        value = _round_tf32(value)
    tl.store(out + m, value, mask=there)


@_jit
def _outputs(
    top: tl.tensor,  # (BM, 1)
    left: tl.tensor,
    there: tl.tensor,
    n: tl.tensor,  # (BN)
    O: tl.constexpr,  # noqa: E741
    OH: tl.constexpr,
    OW: tl.constexpr,
    SH: tl.constexpr,
    SW: tl.constexpr,
    PH: tl.constexpr,
    PW: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    # The position in the image of the columns n of these rows, and whether it exists.
    h = top * SH - PH + (n // (SW * O))[None, :]
    w = left * SW - PW + (n // O % SW)[None, :]
    inside = there & (n < SH * SW * O)[None, :] & (h < OH) & (w < OW)
    return h * OW + w, inside


@_jit
def _apply_activation(
    x: tl.tensor,
    gate: tl.tensor,  # the activation's values, if x are tangents
    inside: tl.tensor,
    VALUES: tl.constexpr,
    SLOPE: tl.constexpr,
) -> tl.tensor:
    # Apply an activation to values, or multiply tangents by its slope.
    if VALUES:
        x = _activation(x, SLOPE)
    elif SLOPE != 1:
        x = tl.where(tl.load(gate, mask=inside, other=0) > 0, x, x * SLOPE)
    return x


@_jit
def _layer(
    x: tl.tensor,  # (T, H, W, C) if SHARED by the examples, else (B T, H, W, C)
    opened: tl.tensor,  # (B, H, W, C) if SHARED: positive where the activation before has slope 1
    weight: tl.tensor,  # (SH SW O, AH AW C)
    bias: tl.tensor,  # (O), or one for each position, (O, SH, SW)
    gate: tl.tensor,  # like `out` of the values: positive where the activation after has slope 1
    tail: tl.tensor,  # (O, TAIL): the last layer's weights, if TAIL is not 0
    out: tl.tensor,  # (B T, OH, OW, O or TAIL), or (B T, O, OH, OW) if FIRST
    batch: tl.tensor,  # B T
    T: tl.constexpr,
    VALUES: tl.constexpr,  # x are values, not tangents: the activation after applies to the results
    SHARED: tl.constexpr,
    BEFORE: tl.constexpr,  # slope of the activation before for negative values
    AFTER: tl.constexpr,  # slope of the activation after for negative values; 1 if there is none
    BIAS: tl.constexpr,  # biases per channel; 0 if there is none
    FIRST: tl.constexpr,
    C: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    O: tl.constexpr,  # noqa: E741
    OH: tl.constexpr,
    OW: tl.constexpr,
    QH: tl.constexpr,  # number of q
    QW: tl.constexpr,
    AH: tl.constexpr,  # number of inputs that each q depends on
    AW: tl.constexpr,
    SH: tl.constexpr,
    SW: tl.constexpr,
    PH: tl.constexpr,
    PW: tl.constexpr,
    TAIL: tl.constexpr,
    PRECISION: tl.constexpr,
    ROUND: tl.constexpr,  # the next product uses TF32
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    BT: tl.constexpr,
) -> None:
    DEPTH: tl.constexpr = AH * AW * C
    # Unsigned: a negative row or column becomes larger than the last one.
    m = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.uint32)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    row = m // (QH * QW)
    there = (row < batch)[:, None]
    top = (m // QW % QH + PH // SH)[:, None]
    left = (m % QW + PW // SW)[:, None]
    example = (row // T).to(tl.int64)[:, None]
    image = (row % T if SHARED else row).to(tl.int64)[:, None] * (H * W * C)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, DEPTH, BK):
        d = start + tl.arange(0, BK)
        # If a block of the depth has one input, its position is a scalar.
        if C % BK == 0:
            place = start // C
            c = d - place * C
        else:
            place = (d // C)[None, :]
            c = d % C
        h = top - place // AW
        w = left - place % AW
        inside = there & (h < H) & (w < W)
        wanted = (n < SH * SW * O)[:, None]
        if DEPTH % BK != 0:
            inside = inside & (d < DEPTH)[None, :]
            wanted = wanted & (d < DEPTH)[None, :]
        at = (h * W + w) * C + c[None, :]
        seen = tl.load(x + image + at, mask=inside, other=0.0)
        if SHARED:
            seen = _apply_activation(seen, opened + example * (H * W * C) + at, inside, False, BEFORE)
            if PRECISION == "tf32" and BEFORE != 0:
                seen = _round_tf32(seen)
        factor = tl.load(weight + n[:, None] * DEPTH + d[None, :], mask=wanted, other=0.0)
        total = tl.dot(seen, tl.trans(factor), total, input_precision=PRECISION)
    place, inside = _outputs(top, left, there, n, O, OH, OW, SH, SW, PH, PW)
    at = place + (n % O * (OH * OW))[None, :] if FIRST else place * O + (n % O)[None, :]
    if BIAS > 0:
        own = n % O * BIAS + (n // O if BIAS > 1 else 0)
        total += tl.load(bias + own, mask=n < SH * SW * O, other=0.0)[None, :]
    total = _apply_activation(total, gate + example * (OH * OW * O) + at, inside, VALUES, AFTER)
    if ROUND:
        total = _round_tf32(total)
    if TAIL > 0:  # compute the next layer's products while the values are in registers
        k = tl.arange(0, BT)
        wanted = (n // O)[:, None] == (k // TAIL)[None, :]
        at = (n % O * TAIL)[:, None] + (k % TAIL)[None, :]
        total = tl.dot(total, tl.load(tail + at, mask=wanted, other=0.0), input_precision=PRECISION)
        place, inside = _outputs(top, left, there, k, TAIL, OH, OW, SH, SW, PH, PW)
        at = place * TAIL + (k % TAIL)[None, :]
    image = row.to(tl.int64)[:, None] * (OH * OW * (TAIL if TAIL > 0 else O))
    tl.store(out + image + at, total, mask=inside)


@_jit
def _fold(
    x: tl.tensor,  # (N, H, W, O, KH, KW): contribution of each input to the neighbouring outputs
    bias: tl.tensor,  # (O), if BIASED
    out: tl.tensor,  # (N, O, OH, OW)
    batch: tl.tensor,  # number of values of `out`
    H: tl.constexpr,
    W: tl.constexpr,
    O: tl.constexpr,  # noqa: E741
    OH: tl.constexpr,
    OW: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    SH: tl.constexpr,
    SW: tl.constexpr,
    PH: tl.constexpr,
    PW: tl.constexpr,
    BIASED: tl.constexpr,
    BM: tl.constexpr,
) -> None:
    # Unsigned: a negative row or column becomes larger than the last one.
    m = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.uint32)
    image = x + (m // (O * OH * OW)).to(tl.int64) * (H * W * O * KH * KW)
    top = m // OW % OH + PH
    left = m % OW + PW
    total = tl.zeros((BM,), tl.float32)
    for a in tl.static_range((KH + SH - 1) // SH):
        for b in tl.static_range((KW + SW - 1) // SW):
            i = top % SH + a * SH
            j = left % SW + b * SW
            h = top // SH - a
            w = left // SW - b
            inside = (m < batch) & (i < KH) & (j < KW) & (h < H) & (w < W)
            at = (h * W + w) * (O * KH * KW) + (m // (OH * OW) % O * KH + i) * KW + j
            total += tl.load(image + at, mask=inside, other=0.0)
    if BIASED:
        total += tl.load(bias + m // (OH * OW) % O)
    tl.store(out + m, total, mask=m < batch)


class LayerStep(NamedTuple):
    """A step of a decoder: a layer with weights, and the activation after it."""

    layer: Any
    shape: tuple[int, ...]  # of its output for one example: (N,) or (C, H, W)
    activation: nn.Module | None = None


def plan(layers: list[nn.Module]) -> list[LayerStep] | None:
    """Group a decoder's layers into steps: a layer with weights, and the activation after it.

    Return None if the Triton kernels do not support the layers.

    >>> net = [nn.Linear(2, 9), nn.ReLU(), nn.Unflatten(1, (1, 3, 3)), nn.ConvTranspose2d(1, 4, 2)]
    >>> [step.shape for step in plan(net)]
    [(1, 3, 3), (4, 4, 4)]
    >>> plan([nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3)])
    """
    steps: list[LayerStep] = []
    for layer in layers:
        shape = steps[-1].shape if steps else ()
        leak = _slope(layer)
        if leak == 1:
            continue
        if isinstance(layer, nn.Linear) and shape in ((), (layer.in_features,)):
            steps.append(LayerStep(layer, (layer.out_features,)))
        elif isinstance(layer, nn.ConvTranspose2d) and shape[:1] == (layer.in_channels,) and shape[1:]:
            window: Any = (layer.kernel_size, layer.stride, layer.padding, layer.output_padding)
            sides = zip(shape[1:], *window, strict=True)
            size = [(n - 1) * s - 2 * p + k + extra for n, k, s, p, extra in sides]
            if layer.groups != 1 or layer.dilation != (1, 1) or min(size) < 1:
                return None
            steps.append(LayerStep(layer, (layer.out_channels, *size)))
        elif leak is not None and leak >= 0 and steps and steps[-1].activation is None:
            steps[-1] = steps[-1]._replace(activation=layer)
        elif isinstance(layer, nn.Unflatten) and layer.dim == 1 and len(shape) == 1:
            parts: Any = tuple(layer.unflattened_size)
            if len(parts) != 3 or any(type(n) is not int or n < 1 for n in parts):
                return None
            if math.prod(parts) != shape[0]:
                return None
            steps[-1] = steps[-1]._replace(shape=parts)
        else:
            return None
    # The tangents of the first step are the same for all examples, up to its activation.
    return steps if len(steps) > 1 and steps[0].activation is not None else None


class Packed:
    """The steps of a decoder, with their weights in the memory layout of the Triton kernels.

    The weights of a step are packed when they are first used. Later changes of the weights are not
    noticed, so make a new object for each sequence of Gauss-Newton steps.

    Args:
        steps: the steps that `plan` returns.
    """

    def __init__(self, steps: list[LayerStep]) -> None:
        self.steps = steps
        self.fuses = _can_fuse(steps)
        self._made: dict[Any, Tensor] = {}

    def layout(self, i: int) -> tuple[int, ...]:
        """The shape (C, H, W) in which the kernels store the output of decoder step i for one example.

        A vector of N numbers has the shape (N, 1, 1).
        """
        step = self.steps[i]
        if i == len(self.steps) - 1 and isinstance(step.layer, nn.Linear):
            return (math.prod(step.shape), 1, 1)  # already in the order of the weights
        return step.shape if len(step.shape) == 3 else (*step.shape, 1, 1)

    def window(self, i: int) -> tuple[tuple[int, ...], ...]:
        """Kernel size, stride and padding of decoder step i as a transposed convolution.

        Each has two numbers, for rows and columns. A linear layer is treated as a transposed convolution
        that maps a single position to a whole image.
        """
        layer, whole = self.steps[i].layer, self.layout(i)[1:]
        linear = isinstance(layer, nn.Linear)
        return (whole, whole, (0, 0)) if linear else (layer.kernel_size, layer.stride, layer.padding)

    def geometry(self, i: int) -> tuple[int, ...]:
        """The sizes of decoder step i that the Triton kernel `_layer` takes.

        A position q stands for the SH · SW output positions that depend on the same inputs.

        Returns:
            In this order: channels, height and width of the input (C, H, W) and of the output (O, OH,
            OW); the rows and columns of positions q (QH, QW); the rows and columns of inputs that each q
            depends on (AH, AW); the stride (SH, SW); the padding (PH, PW).
        """
        layer, shape = self.steps[i].layer, self.layout(i)
        before = (layer.in_features, 1, 1) if isinstance(layer, nn.Linear) else self.layout(i - 1)
        kernel, stride, padding = self.window(i)
        sides = list(zip(shape[1:], kernel, stride, padding, strict=True))
        counts = [(n - 1 + p) // s - p // s + 1 for n, _, s, p in sides]
        inputs = [-(-k // s) for _, k, s, _ in sides]
        return (*before, *shape, *counts, *inputs, *stride, *padding)

    def weight(self, i: int, precision: str) -> Tensor:
        """The weight of decoder step i as a matrix (SH · SW · O, AH · AW · C), see `geometry`.

        Each row belongs to an output, each column to an input. For the precision "tf32" the weight is
        rounded to TF32.
        """
        layer, shape = self.steps[i].layer, self.layout(i)
        if not isinstance(layer, nn.Linear):
            return self._packed(i, layer.weight, self.window(i)[1], precision)
        if shape[1:] == (1, 1) and precision != "tf32":
            return layer.weight.contiguous()
        return self._packed(i, layer.weight.t().unflatten(1, shape), shape[1:], precision)

    def tail(self, precision: str) -> Tensor:
        """The weight of the last decoder step, a transposed convolution, as a matrix (C, O · KH · KW).

        Row c has the weights of input channel c. The kernel that computes the last two steps together
        uses this matrix, see `_can_fuse`. For the precision "tf32" the weight is rounded to TF32.
        """
        flat = self.steps[-1].layer.weight.flatten(1)
        return self._packed("tail", flat.t()[..., None, None], (1, 1), precision)

    def first(self, start: int, stop: int) -> Tensor:
        """Derivatives of the first layer's output with respect to latent dimensions, (T, H · W · C).

        They are the layer's weights, rounded to TF32, so they are the same for all examples. The T
        dimensions are `start` to `stop` - 1.
        """
        axes = self.steps[0].layer.weight.t()[start:stop].unflatten(1, self.layout(0))
        return self._packed((start, stop), axes.transpose(0, 1), (1, 1), PRECISION)

    def _packed(self, name: Any, weight: Tensor, stride: tuple[int, ...], precision: str) -> Tensor:
        """Pack a weight (C, O, KH, KW) as a matrix, see `weight`, and cache the matrix.

        Args:
            name: key of the matrix in the cache.
            weight: the weight of a transposed convolution.
            stride: rows and columns of the stride (SH, SW).
            precision: for "tf32" the weight is rounded to TF32.
        """
        key = (name, precision == "tf32")
        if key not in self._made:
            (sh, sw), (channels, outputs, kh, kw) = stride, weight.shape
            ah, aw = -(-kh // sh), -(-kw // sw)
            made = weight.new_empty(sh * sw * outputs, ah * aw * channels)
            sizes = (*weight.shape, ah, aw, sh, sw)
            _pack[(-(-made.numel() // 512),)](weight, made, *weight.stride(), *sizes, key[1], 512)
            self._made[key] = made
        return self._made[key]


def pack(layers: list[nn.Module], z: Tensor) -> Packed | None:
    """Prepare a decoder's layers for the Triton kernels, to evaluate the decoder at z (B, D).

    Return None if the kernels do not support the layers or z.

    >>> pack([nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3)], torch.zeros(1, 2))
    """
    steps = plan(layers)
    if steps is None or z.shape[1:] != (steps[0].layer.in_features,):
        return None
    own = [t for step in steps for t in (step.layer.weight, step.layer.bias) if t is not None]
    return Packed(steps) if usable(z, *own) else None


@unless_broken
def values(packed: Packed, z: Tensor) -> Tensor:
    """The decoder's output (N, ...) at z (N, D), by Triton kernels.

    The result is NotImplemented if the kernels do not apply.
    """
    if not usable(z) or _too_many(packed, len(z)):
        return NotImplemented
    with torch.cuda.device_of(z):
        at = deque(_values(packed, z, packed.fuses), maxlen=1).pop()  # keeps only the last in memory
    return at.view(-1, *packed.steps[-1].shape)


@unless_broken
def push(packed: Packed, z: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """The decoder's output (B, ...) at z (B, D) and its Jacobian (B, P, D), by Triton kernels.

    P is the number of output values per example. The result is NotImplemented if the kernels do not
    apply.

    Args:
        packed: the decoder, prepared by `pack`.
        z: latent points.
        chunk: number of latent directions for which derivatives are computed at a time.
    """
    latent = z.shape[1]
    if not usable(z) or _too_many(packed, len(z) * min(chunk, latent)):
        return NotImplemented
    with torch.cuda.device_of(z):
        at = list(_values(packed, z, False))
        parts = [
            _tangents(packed, at, packed.first(start, min(start + chunk, latent)))
            for start in range(0, latent, chunk)
        ]
    slope = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
    return at[-1].view(-1, *packed.steps[-1].shape), slope.mT


def _values(packed: Packed, z: Tensor, fused: bool) -> Iterator[Tensor]:
    """Yield the output (N, values) of each decoder step for z (N, D).

    If `fused`, one kernel computes the last two steps together: the partial products of the last step
    are yielded in place of the output of the second-to-last step.
    """
    at, count = z.contiguous(), len(packed.steps)
    for i in range(count - fused):
        at = _run(packed, i, at, len(z), None, fused and i == count - 2)
        yield at
    if fused:
        yield _folded(packed, at, packed.steps[-1].layer.bias)


def _tangents(packed: Packed, at: list[Tensor], moved: Tensor) -> Tensor:
    """Move tangents through all decoder steps after the first; return (B, T, values).

    Args:
        packed: the decoder's steps.
        at: the output of each step, from `_values`.
        moved: T tangents after the first layer, before its activation, (T, …), from `Packed.first`.
    """
    batch, tangents, count = len(at[0]), len(moved), len(packed.steps)
    for i in range(1, count - packed.fuses):
        moved = _run(packed, i, moved, batch * tangents, at, packed.fuses and i == count - 2)
    if packed.fuses:
        moved = _folded(packed, moved, None)
    return moved.view(batch, tangents, -1)


def _too_many(packed: Packed, rows: int) -> bool:
    """Whether the output of a decoder step, for this many inputs, is too large to be indexed."""
    return rows * max(math.prod(step.shape) for step in packed.steps) >= INDICES


def _can_fuse(steps: list[LayerStep]) -> bool:
    """Whether one kernel can compute the second-to-last step and the products of the last step.

    These are the products input · weight. Another kernel adds them up, see `_folded`. Both steps must be
    transposed convolutions with few channels, and the last one must have no activation. For each input
    position of the last step there must be fewer products (output channels x kernel height x kernel
    width) than input channels.
    """
    before, last = steps[-2:]
    if last.activation or not all(isinstance(step.layer, nn.ConvTranspose2d) for step in steps[-2:]):
        return False
    places, added = math.prod(before.layer.stride), math.prod(last.layer.weight.shape[1:])
    return bool(added < before.shape[0] and places * added <= 64 and places * before.shape[0] <= 128)


def _run(packed: Packed, i: int, x: Tensor, rows: int, at: list[Tensor] | None, fused: bool) -> Tensor:
    """Run the kernel of decoder step i on `rows` values or tangents; return (rows, values).

    If `fused`, the result is the partial products of the last step instead (see `_folded`).

    Args:
        packed: the decoder's steps.
        i: index of the step.
        x: inputs of the step: values, or tangents.
        rows: number of inputs.
        at: the values after each step, if x are tangents; None if x are values.
        fused: whether the kernel also computes the products of the last step.
    """
    step, last, shapes = packed.steps[i], i == len(packed.steps) - 1, packed.geometry(i)
    # Precisions of this product and of the next.
    one, two = (PRECISION if at else _precision(packed.steps[j]) for j in (i, i if last else i + 1))
    weight = packed.weight(i, one)
    tail = packed.tail(one) if fused else weight
    added = tail.shape[1] if fused else 0
    out = x.new_empty(rows, math.prod(packed.layout(i)[1:]) * (added or packed.layout(i)[0]))
    bias = None if at else step.layer.bias
    biases = 0 if bias is None else bias.numel() // shapes[3]
    opened, gate, tangents = (at[i - 1], at[i], rows // len(at[0])) if at else (x, x, 1)
    slopes = [_negative_slope(packed.steps[j]) for j in (max(i - 1, 0), i)]
    (columns, depth), places = weight.shape, rows * shapes[6] * shapes[7]
    *block, warps, stages = tiles(places, columns, depth, whole=fused, precision=one)
    _layer[(-(-places // block[0]), -(-columns // block[1]))](
        *(x, opened, weight, weight if bias is None else bias.contiguous(), gate, tail, out, rows),
        *(tangents, not at, bool(at) and i == 1, *slopes, biases, last, *shapes),
        *(
            added,
            one,
            two == "tf32" and not last,
            *block,
            _power_of_two(shapes[10] * shapes[11] * added),
        ),
        num_warps=warps,
        num_stages=stages,
    )
    return out


def _folded(packed: Packed, x: Tensor, bias: Tensor | None) -> Tensor:
    """Sum the partial products x from `_run` to the output of the last step, and add its bias.

    The result is (rows, values). For tangents the bias is None.
    """
    shape, window = packed.steps[-1].shape, packed.window(len(packed.steps) - 1)
    out = x.new_empty(len(x), math.prod(shape))
    sizes = (*packed.steps[-2].shape[1:], *shape, *(n for pair in window for n in pair))
    _fold[(-(-out.numel() // 256),)](
        *(x, x if bias is None else bias.contiguous(), out, out.numel(), *sizes, bias is not None, 256),
        num_warps=8,
    )
    return out


def _negative_slope(step: LayerStep) -> float:
    """The factor of negative values in the activation after a step; 1 if the step has no activation."""
    leak = None if step.activation is None else _slope(step.activation)
    return 1.0 if leak is None else leak


def _precision(step: LayerStep) -> str:
    """The precision of a step's matrix product for values: "tf32" or "tf32x3".

    It is "tf32" if torch's own layer may use TF32, else "tf32x3", which is about as exact as float32.
    """
    allowed = False
    with suppress(RuntimeError):  # raised if TF32 was set through another interface of torch
        linear = isinstance(step.layer, nn.Linear)
        allowed = (torch.backends.cuda.matmul if linear else torch.backends.cudnn).allow_tf32
    return "tf32" if allowed else "tf32x3"


def tiles(
    rows: int, columns: int, depth: int, *, whole: bool = False, precision: str = "tf32"
) -> tuple[int, ...]:
    """Choose the block sizes of the Triton kernel for one matrix product.

    The block is the largest one for which the kernel still has enough programs to fill the GPU.

    Args:
        rows: rows of the product's result.
        columns: columns of the product's result.
        depth: length of the sum in each entry of the product.
        whole: whether a block must have all columns.
        precision: ``tf32``, or ``tf32x3`` for three TF32 products with the accuracy of float32.

    Returns:
        Rows, columns and depth of a block, the number of warps, and the number of pipeline stages.
    """
    largest = (64, 128) if columns > 64 and not whole else (128, 128)
    for bm, most in (largest, (128, 64), (64, 64), (32, 64), (32, 32), (16, 32), (16, 16)):
        bn = min(128 if whole else most, _power_of_two(columns))
        if -(-rows // bm) * -(-columns // bn) >= PROGRAMS:
            break
    # Three products instead of one need twice the registers.
    warps = 2 if bm * bn <= 1024 else 8 if bm * bn > 8192 and precision != "tf32" else 4
    return bm, bn, min(_power_of_two(depth), 32), warps, 3
