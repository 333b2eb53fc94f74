"""A decoder's values and tangents on a GPU, one Triton kernel for each layer.

Everything between layers lies channels-last, (N, H, W, C), the T tangents of an example one after the
other. A transposed convolution is a matrix product whose left factor is gathered while it is read: with
stride s and padding p the outputs s q - p, …, s q - p + s - 1 depend on the same inputs q, q - 1, …, so
a row of the product is one q, its depth runs over (row, column, channel) of these inputs, and its
columns over (row, column, channel) of these outputs. A linear layer is the case of a single q. The slope
of an activation is 1 or a constant; for tangents it multiplies what the layer before it writes, and it
is 1 where the value there is positive.

Products of tangents are of TF32, which is enough for a Jacobian: it shapes steps and curvatures. Those
of values are where torch's own may be, else they have the accuracy of float32. Tensor cores cut off the
last 13 bits of what they multiply, so it is rounded to TF32 where it is written (all but z): cut numbers
are too small by 3e-4 on average, and every layer would add to that.

Block sizes follow from the shapes alone, weights are packed once for every climb and nothing waits for
the device: it can be captured in a CUDA graph, which sees the weights as they are when it is replayed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from recmix.accelerate.kernels import _active, _jit, _nearest, _power
from recmix.accelerate.layers import _slope
from recmix.accelerate.newton_kernels import unless_broken, usable

with suppress(ImportError):  # it comes with torch where that is built for GPUs
    import triton.language as tl

__all__ = ["Packed", "pack", "plan", "push", "tiles", "values"]

PRECISION = "tf32"
"""Of the products that push tangents; "tf32x3" is that of float32."""
PROGRAMS = 128
"""As many programs as a layer should have: about one for each multiprocessor of an H200."""
INDICES = 2**31
"""Values in one tensor that the kernels can number."""


@_jit
def _rounded(value: tl.tensor) -> tl.tensor:
    # To TF32, so that cutting off 13 bits changes nothing; what is not finite stays as it is.
    return tl.where(tl.abs(value) < float("inf"), _nearest(value), value)


@_jit
def _pack(
    weight: tl.tensor,  # (C, O, KH, KW), any strides
    out: tl.tensor,  # (SH SW O, AH AW C), which is the order of `_layer`
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
        value = _rounded(value)
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
    # In which place of an image the columns n of these rows are, and whether there is such a place.
    h = top * SH - PH + (n // (SW * O))[None, :]
    w = left * SW - PW + (n // O % SW)[None, :]
    inside = there & (n < SH * SW * O)[None, :] & (h < OH) & (w < OW)
    return h * OW + w, inside


@_jit
def _opened(
    x: tl.tensor,
    gate: tl.tensor,  # where the activation's values are, if x are tangents
    inside: tl.tensor,
    VALUES: tl.constexpr,
    SLOPE: tl.constexpr,
) -> tl.tensor:
    # What an activation makes of values, or its slope of tangents.
    if VALUES:
        x = _active(x, SLOPE)
    elif SLOPE != 1:
        x = tl.where(tl.load(gate, mask=inside, other=0) > 0, x, x * SLOPE)
    return x


@_jit
def _layer(
    x: tl.tensor,  # (T, H, W, C) if SHARED by the examples, else (B T, H, W, C)
    opened: tl.tensor,  # (B, H, W, C) if SHARED: positive where the activation before was open
    weight: tl.tensor,  # (SH SW O, AH AW C)
    bias: tl.tensor,  # (O) or, one for every place, (O, SH, SW)
    gate: tl.tensor,  # as `out` of the values: positive where the activation after is open
    tail: tl.tensor,  # (O, TAIL): the last layer's weights, if TAIL is not 0
    out: tl.tensor,  # (B T, OH, OW, O or TAIL), or (B T, O, OH, OW) if FIRST
    batch: tl.tensor,  # B T
    T: tl.constexpr,
    VALUES: tl.constexpr,  # x are values, not tangents: the activation after sees what is made here
    SHARED: tl.constexpr,
    BEFORE: tl.constexpr,  # slope of the activation before where it was not open
    AFTER: tl.constexpr,  # slope of the activation after where it is not; 1 if there is none
    BIAS: tl.constexpr,  # biases of a channel; 0 if there is none
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
    ROUND: tl.constexpr,  # the next product is of TF32
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
            seen = _opened(seen, opened + example * (H * W * C) + at, inside, False, BEFORE)
            if PRECISION == "tf32" and BEFORE != 0:
                seen = _rounded(seen)
        factor = tl.load(weight + n[:, None] * DEPTH + d[None, :], mask=wanted, other=0.0)
        total = tl.dot(seen, tl.trans(factor), total, input_precision=PRECISION)
    place, inside = _outputs(top, left, there, n, O, OH, OW, SH, SW, PH, PW)
    at = place + (n % O * (OH * OW))[None, :] if FIRST else place * O + (n % O)[None, :]
    if BIAS > 0:
        own = n % O * BIAS + (n // O if BIAS > 1 else 0)
        total += tl.load(bias + own, mask=n < SH * SW * O, other=0.0)[None, :]
    total = _opened(total, gate + example * (OH * OW * O) + at, inside, VALUES, AFTER)
    if ROUND:
        total = _rounded(total)
    if TAIL > 0:  # the next layer's products with what is still at hand
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
    x: tl.tensor,  # (N, H, W, O, KH, KW): what every input adds to the outputs around it
    bias: tl.tensor,  # (O), if BIASED
    out: tl.tensor,  # (N, O, OH, OW)
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
    BIASED: tl.constexpr,
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
    if BIASED:
        total += tl.load(bias + m // (OH * OW) % O)
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
        if isinstance(layer, nn.Linear) and shape in ((), (layer.in_features,)):
            steps.append(Step(layer, (layer.out_features,)))
        elif isinstance(layer, nn.ConvTranspose2d) and shape[:1] == (layer.in_channels,) and shape[1:]:
            window: Any = (layer.kernel_size, layer.stride, layer.padding, layer.output_padding)
            sides = zip(shape[1:], *window, strict=True)
            size = [(n - 1) * s - 2 * p + k + extra for n, k, s, p, extra in sides]
            if layer.groups != 1 or layer.dilation != (1, 1) or min(size) < 1:
                return None
            steps.append(Step(layer, (layer.out_channels, *size)))
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
    # The first step is the same for all examples, up to its activation.
    return steps if len(steps) > 1 and steps[0].activation is not None else None


class Packed:
    """A decoder's steps and their weights as the kernels read them, packed when they are first used.

    To be made anew for every climb: a weight that changes afterwards is not seen.
    """

    def __init__(self, steps: list[Step]) -> None:
        self.steps = steps
        self.fuses = _fuses(steps)
        self._made: dict[Any, Tensor] = {}

    def laid(self, i: int) -> tuple[int, ...]:
        """The shape of what step i gives one example, as its kernel sees it: (C, H, W)."""
        step = self.steps[i]
        if i == len(self.steps) - 1 and isinstance(step.layer, nn.Linear):
            return (math.prod(step.shape), 1, 1)  # it lies in the order of the weights already
        return step.shape if len(step.shape) == 3 else (*step.shape, 1, 1)

    def window(self, i: int) -> tuple[tuple[int, ...], ...]:
        """Kernel, stride and padding of step i; a linear layer spreads one place over an image."""
        layer, whole = self.steps[i].layer, self.laid(i)[1:]
        linear = isinstance(layer, nn.Linear)
        return (whole, whole, (0, 0)) if linear else (layer.kernel_size, layer.stride, layer.padding)

    def geometry(self, i: int) -> tuple[int, ...]:
        """C, H, W, O, OH, OW, QH, QW, AH, AW, SH, SW, PH, PW of `_layer`."""
        layer, shape = self.steps[i].layer, self.laid(i)
        before = (layer.in_features, 1, 1) if isinstance(layer, nn.Linear) else self.laid(i - 1)
        kernel, stride, padding = self.window(i)
        sides = list(zip(shape[1:], kernel, stride, padding, strict=True))
        counts = [(n - 1 + p) // s - p // s + 1 for n, _, s, p in sides]
        inputs = [-(-k // s) for _, k, s, _ in sides]
        return (*before, *shape, *counts, *inputs, *stride, *padding)

    def weight(self, i: int, precision: str) -> Tensor:
        """Of step i, in the order of `_layer`'s columns and depth."""
        layer, shape = self.steps[i].layer, self.laid(i)
        if not isinstance(layer, nn.Linear):
            return self._packed(i, layer.weight, self.window(i)[1], precision)
        if shape[1:] == (1, 1) and precision != "tf32":
            return layer.weight.contiguous()
        return self._packed(i, layer.weight.t().unflatten(1, shape), shape[1:], precision)

    def tail(self, precision: str) -> Tensor:
        """Of the last step, (channels, what a place adds to the outputs around it)."""
        flat = self.steps[-1].layer.weight.flatten(1)
        return self._packed("tail", flat.t()[..., None, None], (1, 1), precision)

    def first(self, start: int, stop: int) -> Tensor:
        """Tangents after the first layer, (T, H, W, C), along these axes of z: its weights."""
        axes = self.steps[0].layer.weight.t()[start:stop].unflatten(1, self.laid(0))
        return self._packed((start, stop), axes.transpose(0, 1), (1, 1), PRECISION)

    def _packed(self, name: Any, weight: Tensor, stride: tuple[int, ...], precision: str) -> Tensor:
        """(C, O, KH, KW) as (SH SW O, AH AW C), rounded to TF32 if they are to be multiplied so."""
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
    """These layers for our kernels at points like z (B, D), or None where they cannot run.

    >>> pack([nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3)], torch.zeros(1, 2))
    """
    steps = plan(layers)
    if steps is None or z.shape[1:] != (steps[0].layer.in_features,):
        return None
    own = [t for step in steps for t in (step.layer.weight, step.layer.bias) if t is not None]
    return Packed(steps) if usable(z, *own) else None


@unless_broken
def values(packed: Packed, z: Tensor) -> Tensor | None:
    """The decoder at z (N, D), (N, …), or None."""
    if not usable(z) or _too_many(packed, len(z)):
        return None
    with torch.cuda.device_of(z):
        at = deque(_values(packed, z, packed.fuses), maxlen=1).pop()  # the others are let go
    return at.view(-1, *packed.steps[-1].shape)


@unless_broken
def push(packed: Packed, z: Tensor, chunk: int) -> tuple[Tensor, Tensor] | None:
    """The decoder at z (B, D), (B, …), and its Jacobian (B, P, D), or None.

    Args:
        packed: the decoder.
        z: latent points.
        chunk: tangents at a time.
    """
    latent = z.shape[1]
    if not usable(z) or _too_many(packed, len(z) * min(chunk, latent)):
        return None
    with torch.cuda.device_of(z):
        at = list(_values(packed, z, False))
        parts = [
            _tangents(packed, at, packed.first(start, min(start + chunk, latent)))
            for start in range(0, latent, chunk)
        ]
    slope = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
    return at[-1].view(-1, *packed.steps[-1].shape), slope.mT


def _values(packed: Packed, z: Tensor, fused: bool) -> Iterator[Tensor]:
    """What every step gives, (N, values); where fused, the last two are formed together."""
    at, count = z.contiguous(), len(packed.steps)
    for i in range(count - fused):
        at = _run(packed, i, at, len(z), None, fused and i == count - 2)
        yield at
    if fused:
        yield _folded(packed, at, packed.steps[-1].layer.bias)


def _tangents(packed: Packed, at: list[Tensor], moved: Tensor) -> Tensor:
    """The last step's tangents (B, T, values) from the first layer's, (T, …), and all its values."""
    batch, tangents, count = len(at[0]), len(moved), len(packed.steps)
    for i in range(1, count - packed.fuses):
        moved = _run(packed, i, moved, batch * tangents, at, packed.fuses and i == count - 2)
    if packed.fuses:
        moved = _folded(packed, moved, None)
    return moved.view(batch, tangents, -1)


def _too_many(packed: Packed, rows: int) -> bool:
    """Whether some step gives more values than can be numbered."""
    return rows * max(math.prod(step.shape) for step in packed.steps) >= INDICES


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


def _run(packed: Packed, i: int, x: Tensor, rows: int, at: list[Tensor] | None, fused: bool) -> Tensor:
    """What step i makes of x, (rows, values); where fused, what that adds to each output of the last.

    x are values or, where the values after every step are given, tangents at their examples.
    """
    step, last, shapes = packed.steps[i], i == len(packed.steps) - 1, packed.geometry(i)
    # Of this product and of the next.
    one, two = (PRECISION if at else _precision(packed.steps[j]) for j in (i, i if last else i + 1))
    weight = packed.weight(i, one)
    tail = packed.tail(one) if fused else weight
    added = tail.shape[1] if fused else 0
    out = x.new_empty(rows, math.prod(packed.laid(i)[1:]) * (added or packed.laid(i)[0]))
    bias = None if at else step.layer.bias
    biases = 0 if bias is None else bias.numel() // shapes[3]
    opened, gate, tangents = (at[i - 1], at[i], rows // len(at[0])) if at else (x, x, 1)
    slopes = [_leak(packed.steps[j]) for j in (max(i - 1, 0), i)]
    (columns, depth), places = weight.shape, rows * shapes[6] * shapes[7]
    *block, warps, stages = tiles(places, columns, depth, whole=fused, precision=one)
    _layer[(-(-places // block[0]), -(-columns // block[1]))](
        *(x, opened, weight, weight if bias is None else bias.contiguous(), gate, tail, out, rows),
        *(tangents, not at, bool(at) and i == 1, *slopes, biases, last, *shapes),
        *(added, one, two == "tf32" and not last, *block, _power(shapes[10] * shapes[11] * added)),
        num_warps=warps,
        num_stages=stages,
    )
    return out


def _folded(packed: Packed, x: Tensor, bias: Tensor | None) -> Tensor:
    """What the last step gives, (rows, values), from what the kernel before has formed."""
    shape, window = packed.steps[-1].shape, packed.window(len(packed.steps) - 1)
    out = x.new_empty(len(x), math.prod(shape))
    sizes = (*packed.steps[-2].shape[1:], *shape, *(n for pair in window for n in pair))
    _fold[(-(-out.numel() // 256),)](
        *(x, x if bias is None else bias.contiguous(), out, out.numel(), *sizes, bias is not None, 256),
        num_warps=8,
    )
    return out


def _leak(step: Step) -> float:
    """What the activation after a step multiplies negative values by."""
    leak = None if step.activation is None else _slope(step.activation)
    return 1.0 if leak is None else leak


def _precision(step: Step) -> str:
    """Of the products of a step's values: TF32 where torch's own layer may use it."""
    allowed = False
    with suppress(RuntimeError):  # torch may refuse to say, where it was told in another way
        linear = isinstance(step.layer, nn.Linear)
        allowed = (torch.backends.cuda.matmul if linear else torch.backends.cudnn).allow_tf32
    return "tf32" if allowed else "tf32x3"


def tiles(
    rows: int, columns: int, depth: int, *, whole: bool = False, precision: str = "tf32"
) -> tuple[int, ...]:
    """How a product is divided: rows, columns and depth of a block, warps, stages of its loop.

    The largest block that still makes enough programs; with all columns if it has to be `whole`.
    """
    largest = (64, 128) if columns > 64 and not whole else (128, 128)
    for bm, most in (largest, (128, 64), (64, 64), (32, 64), (32, 32), (16, 32), (16, 16)):
        bn = min(128 if whole else most, _power(columns))
        if -(-rows // bm) * -(-columns // bn) >= PROGRAMS:
            break
    # Three products for one take twice the registers.
    warps = 2 if bm * bn <= 1024 else 8 if bm * bn > 8192 and precision != "tf32" else 4
    return bm, bn, min(_power(depth), 32), warps, 3
