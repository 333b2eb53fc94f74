"""Tangents through a decoder on a GPU, one Triton kernel for each layer: see `recmix.tangents`.

Tangents lie channels-last, (B T, H, W, C), the T of an example one after the other. A transposed
convolution is a matrix product whose left factor is gathered while it is read: with stride s and padding
p the outputs s q - p, …, s q - p + s - 1 depend on the same inputs q, q - 1, …, so a row of the product
is one q, its depth runs over (row, column, channel) of these inputs, and its columns over (row, column,
channel) of these outputs. A linear layer is the case of a single place. The slope of an activation is 1
or a constant; it multiplies what the layer before it writes.

Products are of TF32, which is enough for a Jacobian: it shapes steps and curvatures, while values and
densities come from the ordinary layers. Block sizes follow from the shapes alone, weights are packed
at every call and nothing waits for the device: it can be captured in a CUDA graph, which sees the
weights as they are when it is replayed.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recmix.kernels import _jit, _power
from recmix.layers import _slope
from recmix.newton_kernels import unless_broken, usable

with suppress(ImportError):  # it comes with torch where that is built for GPUs
    import triton.language as tl

__all__ = ["plan", "push", "tiles"]

PRECISION = "tf32"
"""Of the products that push tangents; "tf32x3" is that of float32."""
PROGRAMS = 264
"""As many programs as a layer should have: two for each multiprocessor of an H200."""


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
    # In which place of an image the columns n of these rows are, and whether there is such a place.
    h = top * SH - PH + (n // (SW * O))[None, :]
    w = left * SW - PW + (n // O % SW)[None, :]
    inside = there & (n < SH * SW * O)[None, :] & (h < OH) & (w < OW)
    return h * OW + w, inside


@_jit
def _layer(
    x: tl.tensor,  # (T, H, W, C) if SHARED by the examples, else (B T, H, W, C)
    opened: tl.tensor,  # (B, H, W, C) if SHARED: positive where the activation before was open
    weight: tl.tensor,  # (SH SW O, AH AW C)
    gate: tl.tensor,  # (B, OH, OW, O): positive where the activation after is open
    tail: tl.tensor,  # (O, TAIL): the last layer's weights, if TAIL is not 0
    out: tl.tensor,  # (B T, OH, OW, O or TAIL), or (B T, O, OH, OW) if FIRST
    batch: tl.tensor,  # B T
    T: tl.constexpr,
    SHARED: tl.constexpr,
    BEFORE: tl.constexpr,  # slope of the activation before where it was not open
    AFTER: tl.constexpr,  # slope of the activation after where it is not; 1 if there is none
    FIRST: tl.constexpr,
    C: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    O: tl.constexpr,  # noqa: E741
    OH: tl.constexpr,
    OW: tl.constexpr,
    QH: tl.constexpr,  # how many q there are
    QW: tl.constexpr,
    AH: tl.constexpr,  # how many inputs each depends on
    AW: tl.constexpr,
    SH: tl.constexpr,
    SW: tl.constexpr,
    PH: tl.constexpr,
    PW: tl.constexpr,
    TAIL: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    BT: tl.constexpr,
) -> None:
    DEPTH: tl.constexpr = AH * AW * C
    # Unsigned: what lies before the first row or column is beyond the last.
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
        # Where a block of the depth stays within one input, that is a scalar.
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
            clear = tl.load(opened + example * (H * W * C) + at, mask=inside, other=0)
            seen = tl.where(clear > 0, seen, seen * BEFORE)
        factor = tl.load(weight + n[:, None] * DEPTH + d[None, :], mask=wanted, other=0.0)
        total = tl.dot(seen, tl.trans(factor), total, input_precision=PRECISION)
    place, inside = _outputs(top, left, there, n, O, OH, OW, SH, SW, PH, PW)
    if AFTER != 1:
        at = example * (OH * OW * O) + place * O + (n % O)[None, :]
        clear = tl.load(gate + at, mask=inside, other=0)
        total = tl.where(clear > 0, total, total * AFTER)
    if TAIL > 0:  # the next layer's products with what is still at hand
        k = tl.arange(0, BT)
        wanted = (n // O)[:, None] == (k // TAIL)[None, :]
        at = (n % O * TAIL)[:, None] + (k % TAIL)[None, :]
        total = tl.dot(total, tl.load(tail + at, mask=wanted, other=0.0), input_precision=PRECISION)
        place, inside = _outputs(top, left, there, k, TAIL, OH, OW, SH, SW, PH, PW)
        at = place * TAIL + (k % TAIL)[None, :]
    elif FIRST:
        at = place + (n % O * (OH * OW))[None, :]
    else:
        at = place * O + (n % O)[None, :]
    image = row.to(tl.int64)[:, None] * (OH * OW * (TAIL if TAIL > 0 else O))
    tl.store(out + image + at, total, mask=inside)


@_jit
def _fold(
    x: tl.tensor,  # (B T, H, W, O, KH, KW): what every input adds to the outputs around it
    out: tl.tensor,  # (B T, O, OH, OW)
    batch: tl.tensor,  # values of `out`
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
    BM: tl.constexpr,
) -> None:
    # Unsigned: what lies before the first row or column is beyond the last.
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
    tl.store(out + m, total, mask=m < batch)


class Step(NamedTuple):
    """A linear layer or a transposed convolution, and the activation after it."""

    layer: Any
    shape: tuple[int, ...]  # of what it gives for one example: (N,) or (C, H, W)
    activation: nn.Module | None = None


def plan(layers: list[nn.Module]) -> list[Step] | None:
    """The steps that these layers come to, or None where the kernels do not know them.

    >>> net = [nn.Linear(2, 9), nn.ReLU(), nn.Unflatten(1, (1, 3, 3)), nn.ConvTranspose2d(1, 4, 2)]
    >>> [step.shape for step in plan(net)]
    [(1, 3, 3), (4, 4, 4)]
    >>> plan([nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3)])
    """
    steps: list[Step] = []
    for layer in layers:
        shape = steps[-1].shape if steps else ()
        leak = _slope(layer)
        if leak == 1:
            continue
        if isinstance(layer, nn.Linear) and len(shape) <= 1:
            steps.append(Step(layer, (layer.out_features,)))
        elif isinstance(layer, nn.ConvTranspose2d) and len(shape) == 3:
            window: Any = (layer.kernel_size, layer.stride, layer.padding, layer.output_padding)
            sides = zip(shape[1:], *window, strict=True)
            size = [(n - 1) * s - 2 * p + k + extra for n, k, s, p, extra in sides]
            if layer.groups != 1 or layer.dilation != (1, 1) or min(size) < 1:
                return None
            steps.append(Step(layer, (layer.out_channels, *size)))
        elif leak is not None and steps and steps[-1].activation is None:
            steps[-1] = steps[-1]._replace(activation=layer)
        elif isinstance(layer, nn.Unflatten) and layer.dim == 1 and len(shape) == 1:
            parts: Any = tuple(layer.unflattened_size)
            if len(parts) != 3 or any(type(n) is not int or n < 1 for n in parts):
                return None
            steps[-1] = steps[-1]._replace(shape=parts)
        else:
            return None
    # The first step is the same for all examples, up to its activation.
    return steps if len(steps) > 1 and steps[0].activation is not None else None


@unless_broken
def push(layers: list[nn.Module], z: Tensor, tangents: Tensor) -> tuple[Tensor, Tensor] | None:
    """What `recmix.tangents.push` gives for z (B, D) and tangents (T, D), or None.

    The values (B, …) are those of the layers themselves; of the (T, B, …) an example's lie together.
    """
    steps = plan(layers)
    if steps is None or not usable(z, tangents, *(step.layer.weight for step in steps)):
        return None
    at: Tensor = z
    gates: list[Tensor] = []
    for step in steps:
        at = step.layer(at)
        gates.append(z if step.activation is None else _open(at, step.shape))
        at = (at if step.activation is None else step.activation(at)).view(-1, *step.shape)
    moved = _channels_last(F.linear(tangents, steps[0].layer.weight), steps[0].shape).contiguous()
    size, fused = (len(z), len(tangents)), _fuses(steps)
    with torch.cuda.device_of(z):
        for i in range(1, len(steps) - fused):
            moved = _one(steps, i, moved, gates, size, fused and i == len(steps) - 2)
        if fused:
            moved = _folded(steps, moved)
    return at, moved.view(*size, *at.shape[1:]).transpose(0, 1)


def _fuses(steps: list[Step]) -> bool:
    """Whether the kernel of the last step but one can also form the products of the last.

    Both are convolutions then, and a place's products with the last's weights are fewer numbers than
    the place's own channels.
    """
    before, last = steps[-2:]
    if last.activation or not all(isinstance(step.layer, nn.ConvTranspose2d) for step in steps[-2:]):
        return False
    places, added = math.prod(before.layer.stride), math.prod(last.layer.weight.shape[1:])
    return bool(added < before.shape[0] and places * added <= 64 and places * before.shape[0] <= 128)


def _one(
    steps: list[Step], i: int, moved: Tensor, gates: list[Tensor], size: tuple[int, int], fused: bool
) -> Tensor:
    """Tangents after step i, (B T, values); where fused, what they add to each output of the last."""
    before, step, last = steps[i - 1], steps[i], i == len(steps) - 1
    rows, tangents = math.prod(size), size[1]
    weight, shapes = _packed(step, last), _geometry(before, step)
    tail = steps[-1].layer.weight.contiguous() if fused else weight
    added = tail[0].numel() if fused else 0
    out = moved.new_empty(rows, math.prod(step.shape[1:]) * (added or step.shape[0]))
    slopes = [1.0 if one.activation is None else _slope(one.activation) for one in (before, step)]
    (columns, depth), places = weight.shape, rows * shapes[6] * shapes[7]
    *block, warps, stages = tiles(places, columns, depth, whole=fused)
    _layer[(-(-places // block[0]), -(-columns // block[1]))](
        *(moved, gates[i - 1], weight, gates[i], tail, out, rows, tangents, i == 1, *slopes, last),
        *(*shapes, added, PRECISION, *block, _power(shapes[10] * shapes[11] * added)),
        num_warps=warps,
        num_stages=stages,
    )
    return out


def _folded(steps: list[Step], moved: Tensor) -> Tensor:
    """Tangents after the last step, (B T, values), from what the kernel before has formed."""
    (_, before, _), (layer, shape, _) = steps[-2:]
    out = moved.new_empty(len(moved), math.prod(shape))
    window = (*layer.kernel_size, *layer.stride, *layer.padding)
    _fold[(-(-out.numel() // 512),)](moved, out, out.numel(), *before[1:], *shape, *window, 512)
    return out


def tiles(rows: int, columns: int, depth: int, *, whole: bool = False) -> tuple[int, ...]:
    """How a product is divided: rows, columns and depth of a block, warps, stages of its loop.

    The largest block that still makes enough programs; with all columns if it has to be `whole`.
    """
    for bm, most in ((128, 128), (128, 64), (64, 64), (32, 64), (32, 32), (16, 32), (16, 16)):
        bn = min(128 if whole else most, _power(columns))
        if -(-rows // bm) * -(-columns // bn) >= PROGRAMS:
            break
    return bm, bn, min(_power(depth), 32), 8 if bm * bn > 8192 else 4, 3


def _geometry(before: Step, step: Step) -> tuple[int, ...]:
    """C, H, W, O, OH, OW, QH, QW, AH, AW, SH, SW, PH, PW of `_layer`."""
    layer = step.layer
    if isinstance(layer, nn.Linear):
        return (layer.in_features, 1, 1, layer.out_features, *(1,) * 8, 0, 0)
    window = list(zip(step.shape[1:], layer.kernel_size, layer.stride, layer.padding, strict=True))
    counts = [(n - 1 + p) // s - p // s + 1 for n, _, s, p in window]
    inputs = [-(-k // s) for _, k, s, _ in window]
    return (*before.shape, *step.shape, *counts, *inputs, *layer.stride, *layer.padding)


def _packed(step: Step, last: bool) -> Tensor:
    """The weights in the order of the kernel's columns and depth."""
    weight: Tensor = step.layer.weight
    if isinstance(step.layer, nn.Linear):
        if not last and len(step.shape) == 3:
            weight = weight.unflatten(0, (step.shape[0], -1)).transpose(0, 1).flatten(0, 1)
        return weight.contiguous()
    (kh, kw), (sh, sw) = step.layer.kernel_size, step.layer.stride
    ah, aw = -(-kh // sh), -(-kw // sw)
    if (ah * sh, aw * sw) != (kh, kw):
        weight = F.pad(weight, (0, aw * sw - kw, 0, ah * sh - kh))
    apart: Tensor = weight.unflatten(3, (aw, sw)).unflatten(2, (ah, sh))  # (C, O, AH, SH, AW, SW)
    return apart.permute(3, 5, 1, 2, 4, 0).reshape(-1, ah * aw * weight.shape[0])


def _channels_last(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """(N, C H W) or (N, C, H, W) as (N, H W, C)."""
    return values if len(shape) == 1 else values.reshape(len(values), shape[0], -1).transpose(1, 2)


def _open(at: Tensor, shape: tuple[int, ...]) -> Tensor:
    """What is positive where an activation's input is, channels-last."""
    if len(shape) == 1:
        return at.contiguous()
    laid = _channels_last(at, shape)
    # Into a tensor of its own, which is contiguous; otherwise it would take over the strides.
    return torch.gt(laid, 0, out=laid.new_empty(laid.shape, dtype=torch.bool)).view(torch.int8)
