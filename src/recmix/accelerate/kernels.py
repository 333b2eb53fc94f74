"""A Triton kernel that computes one layer of K networks of the same shape: product, bias, activation.

A convolution is computed as a matrix product. Row m of the left factor belongs to one output position of
one example. The inner dimension of the product, called depth here, runs over (kernel row, kernel column,
channel). The left factor is not stored: the kernel reads its entries from the image. Weights are packed
once in the order of the depth. Activations between layers are channels-last, (K, B, H, W, C), so a layer
reads contiguous memory. The first layer reads images (B, C, H, W) and subtracts the centre, a fixed
image, from them.

A product of float32 numbers is computed as the sum of three TF32 products, which has the accuracy of
float32 on tensor cores. Each number is split into a TF32 number and a remainder. The product of two
remainders is left out. Weights are split when they are packed, inputs when they are read.

A CUDA graph can capture these kernels, because the block sizes depend only on the shapes and no
operation makes the CPU wait for the GPU.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # torch without GPU support has no Triton; then nothing here is called
    triton = None

__all__ = [
    "Limits",
    "conv2d_stacked",
    "linear_stacked",
    "log_weights_of_parts",
    "split",
    "tiles",
    "usable",
]

Limits = tuple[float, float]
PROGRAMS = 200
"""Programs per layer that keep a GPU with about a hundred multiprocessors busy."""


def usable(x: Tensor) -> bool:
    """Whether the Triton kernels of this module can run on the device and dtype of x.

    They need float32, and an NVIDIA GPU of compute capability 8.0 or higher, or Triton's interpreter.
    """
    if triton is None or x.dtype != torch.float32:
        return False
    if x.is_cuda:
        return torch.version.hip is None and torch.cuda.get_device_capability(x.device) >= (8, 0)
    return os.environ.get("TRITON_INTERPRET") == "1"


def _jit(function: Any) -> Any:
    return function if triton is None else triton.jit(function, do_not_specialize=["batch"])


@_jit
def _activation(value: tl.tensor, SLOPE: tl.constexpr) -> tl.tensor:
    # These comparisons keep NaN.
    if SLOPE == 0:
        value = tl.where(value < 0, 0.0, value)
    elif SLOPE != 1:
        value = tl.where(value < 0, value * SLOPE, value)
    return value


@_jit
def _nearest_tf32(value: tl.tensor) -> tl.tensor:
    # The nearest TF32 number: tensor cores drop the last 13 bits. NaN may become 0.
    bits = (value.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
    return bits.to(tl.float32, bitcast=True)


@_jit
def _layer(
    x: tl.tensor,  # (B, C, H, W) if SHARED, else (K, B, H, W, C)
    centre: tl.tensor,  # (C, H, W)
    weight: tl.tensor,  # (2, K, N, KH KW C), from `split`
    bias: tl.tensor,  # (K, N)
    out: tl.tensor,  # (K, B, OH, OW, N)
    batch: tl.tensor,
    SHARED: tl.constexpr,
    K: tl.constexpr,  # networks
    WIDE: tl.constexpr,  # networks whose columns form one product: all with the same input, or 1
    STEP: tl.constexpr,  # distance between the first pixels of two networks in a shared image
    IMAGE: tl.constexpr,  # values per image
    C: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    SH: tl.constexpr,
    SW: tl.constexpr,
    PH: tl.constexpr,
    PW: tl.constexpr,
    N: tl.constexpr,
    CENTRED: tl.constexpr,
    SLOPE: tl.constexpr,
    LIMITED: tl.constexpr,
    LOW: tl.constexpr,
    HIGH: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
) -> None:
    net = tl.program_id(2)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    of = n // N if WIDE > 1 else net
    column = n % N if WIDE > 1 else n
    steps = tl.arange(0, BK)
    rows = batch * (OH * OW)
    example = m // (OH * OW)
    top = (m // OW % OH * SH - PH)[:, None]
    left = (m % OW * SW - PW)[:, None]
    image = (example.to(tl.int64) if SHARED else net.to(tl.int64) * batch + example) * IMAGE
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, KH * KW * C, BK):
        d = start + steps
        # If a block of the depth has one position of the kernel, that position is a scalar.
        if KH * KW == 1:
            place = 0
            c = d
        elif C % BK == 0:
            place = start // C
            c = d - place * C
        else:
            place = (d // C)[None, :]
            c = d % C
        h = top + place // KW
        w = left + place % KW
        if SHARED:
            pixel = (c * (H * W))[None, :] + h * W + w + net * STEP
        else:
            pixel = (h * W + w) * C + c[None, :]
        inside = (m < rows)[:, None] & (d < KH * KW * C)[None, :]
        inside = inside & (h >= 0) & (h < H) & (w >= 0) & (w < W)
        seen = tl.load(x + image[:, None] + pixel, mask=inside, other=0.0)
        if CENTRED:
            seen -= tl.load(centre + pixel, mask=inside, other=0.0)
        wanted = (n < WIDE * N)[:, None] & (d < KH * KW * C)[None, :]
        at = (net * N + n)[:, None] * (KH * KW * C) + d[None, :]
        factor = tl.load(weight + at, mask=wanted, other=0.0)
        rest = tl.load(weight + K * N * KH * KW * C + at, mask=wanted, other=0.0)
        near = _nearest_tf32(seen)
        # NaN reaches the sum through the remainder. Tensor cores round sums towards zero, so each
        # block of the depth has its own sum.
        part = tl.dot(seen - near, tl.trans(factor), input_precision="tf32")
        part = tl.dot(near, tl.trans(rest), part, input_precision="tf32")
        total += tl.dot(near, tl.trans(factor), part, input_precision="tf32")
    total += tl.load(bias + net * N + n, mask=n < WIDE * N, other=0.0)[None, :]
    total = _activation(total, SLOPE)
    if LIMITED:
        last = (column >= N // 2)[None, :]
        total = tl.where(last & (total < LOW), LOW, total)
        total = tl.where(last & (total > HIGH), HIGH, total)
    to = (of.to(tl.int64) * rows + m[:, None]) * N + column[None, :]
    tl.store(out + to, total, mask=(m < rows)[:, None] & (n < WIDE * N)[None, :])


@_jit
def _log_weights(
    sums: tl.tensor,  # (PARTS, B, GATES HIDDEN): partial sums of the hidden layers
    bias: tl.tensor,  # (GATES HIDDEN)
    weight: tl.tensor,  # (GATES HIDDEN), of the last layers
    last: tl.tensor,  # (GATES), their biases
    out: tl.tensor,  # (B, GATES + 1)
    batch: tl.tensor,
    PARTS: tl.constexpr,
    GATES: tl.constexpr,
    HIDDEN: tl.constexpr,
    SLOPE: tl.constexpr,
    MINIMUM: tl.constexpr,
    MAXIMUM: tl.constexpr,
    BB: tl.constexpr,
    BG: tl.constexpr,
    BH: tl.constexpr,
) -> None:
    b = tl.program_id(0) * BB + tl.arange(0, BB)
    g = tl.arange(0, BG)  # component 0 has no gate, component g has gate g - 1
    n = tl.arange(0, BH)
    gated = (g > 0) & (g <= GATES)
    unit = (g[:, None] - 1) * HIDDEN + n[None, :]
    unit_there = gated[:, None] & (n < HIDDEN)[None, :]
    there = (b < batch)[:, None, None] & unit_there[None, :, :]
    hidden = tl.zeros((BB, BG, BH), tl.float32)
    for part in tl.static_range(PARTS):
        at = (part * batch + b).to(tl.int64)[:, None, None] * (GATES * HIDDEN) + unit[None, :, :]
        hidden += tl.load(sums + at, mask=there, other=0.0)
    hidden += tl.load(bias + unit, mask=unit_there, other=0.0)[None, :, :]
    hidden = _activation(hidden, SLOPE)
    factor = tl.load(weight + unit, mask=unit_there, other=0.0)
    score = tl.sum(hidden * factor[None, :, :], 2)
    score += tl.load(last + g - 1, mask=gated, other=0.0)[None, :]
    # ε and 1 - ε as sums of positive terms, like `recursion.bounded`.
    log_eps = tl.log(MINIMUM + (MAXIMUM - MINIMUM) * tl.sigmoid(score))
    log_rest = tl.log((1 - MAXIMUM) + (MAXIMUM - MINIMUM) * tl.sigmoid(-score))
    log_eps = tl.where(gated[None, :], log_eps, 0.0)
    after = (g[None, :] > g[:, None]) & gated[None, :]  # (component, gates of later components)
    later = tl.sum(tl.where(after[None, :, :], log_rest[:, None, :], 0.0), 2)
    there = (b < batch)[:, None] & (g <= GATES)[None, :]
    tl.store(out + b[:, None] * (GATES + 1) + g[None, :], log_eps + later, mask=there)


def tiles(networks: int, rows: int, columns: int, depth: int, taps: int) -> tuple[int, ...]:
    """Choose the block sizes of the Triton kernel for `networks` matrix products of the same shape.

    The block is the largest one for which the kernel still has enough programs to fill the GPU.

    Args:
        networks: number of matrix products.
        rows: rows of each product's result.
        columns: columns of each product's result.
        depth: length of the sum in each entry of a product.
        taps: number of positions of the convolution kernel; 1 for a linear layer.

    Returns:
        Rows, columns and depth of a block, the number of warps, and the number of pipeline stages.
    """
    for bm, bn in ((128, 64), (128, 32), (64, 64), (64, 32), (32, 32), (16, 32), (16, 16)):
        if bn < 2 * columns and networks * -(-rows // bm) * -(-columns // bn) >= PROGRAMS:
            break
    bk = min(_power_of_two(depth), 32 if taps > 1 else 64)
    return bm, bn, bk, 4 if bm * bn > 1024 else 2, 3


def _power_of_two(n: int) -> int:
    """The smallest power of two that is at least n and at least 16, the smallest side of a block."""
    return max(16, 1 << (n - 1).bit_length())


def split(weight: Tensor) -> Tensor:
    """Split a float32 weight into two TF32 parts, for products that are as exact as float32.

    Returns:
        The nearest TF32 numbers, then the remainders rounded to TF32, (2, ...) for a weight (...).
    """

    def nearest(x: Tensor) -> Tensor:
        return ((x.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)

    near = nearest(weight.contiguous())
    rest = weight - near
    return torch.stack([near, torch.where(rest.isfinite(), nearest(rest), rest)])  # keeps NaN


def conv2d_stacked(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    kernel: Sequence[int],
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    slope: float = 1.0,
    centre: Tensor | None = None,
) -> Tensor:
    """Compute one convolution layer of K networks, with biases and activations, by one Triton kernel.

    Args:
        x: images that all networks read, (B, C, H, W); or activations of each network, (K, B, H, W,
            C). Must be contiguous.
        weight: weights packed by `split`, (2, K, N, kernel rows · kernel columns · C), for N output
            channels.
        bias: (K, N).
        kernel: rows and columns of the convolution kernel.
        stride: stride along rows and columns.
        padding: zero padding of rows and columns.
        slope: factor of negative values in the activation: 1 for no activation, 0 for ReLU.
        centre: an image (C, H, W) that is subtracted from x before padding; only if all networks
            read the same images.

    Returns:
        Activations (K, B, H', W', N).
    """
    if x.dim() == 4:
        batch, channels, height, width = x.shape
    else:
        _, batch, height, width, channels = x.shape
    sides = zip((height, width), kernel, stride, padding, strict=True)
    size = [(side + 2 * p - k) // s + 1 for side, k, s, p in sides]
    out = x.new_empty(weight.shape[1], batch, *size, weight.shape[2])
    window = (*size, *kernel, *stride, *padding)
    _launch(x, centre, weight, bias, out, (channels, height, width), window, slope, None)
    return out


def linear_stacked(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    slope: float = 1.0,
    centre: Tensor | None = None,
    limits: Limits | None = None,
    parts: bool = False,
) -> Tensor:
    """Compute one linear layer of K networks, with biases and activations, by one Triton kernel.

    Args:
        x: vectors that all networks read, (B, I); or vectors of each network, (K, B, I). Must be
            contiguous. Examples (B, C, H, W) and activations (K, B, H, W, C) are also accepted; the
            axes after B are flattened to I.
        weight: weights packed by `split`, (2, K, N, I), for N outputs; with `parts` (2, K, N, I /
            K).
        bias: (K, N).
        slope: factor of negative values in the activation: 1 for no activation, 0 for ReLU.
        centre: a vector (I,) that is subtracted from x; only if all networks read the same vectors.
        limits: smallest and largest value of the second half of the N outputs, which is clamped.
        parts: divide each vector of x (B, I) into K parts of equal length; layer k reads only part
            k.

    Returns:
        Outputs (K, B, N).
    """
    if x.dim() > 3:
        x = x.flatten(x.dim() - 3)
    out = x.new_empty(weight.shape[1], x.shape[-2], weight.shape[2])
    window = (1, 1, 1, 1, 1, 1, 0, 0)
    _launch(x, centre, weight, bias, out, (weight.shape[3], 1, 1), window, slope, limits, parts)
    return out


def log_weights_of_parts(
    sums: Tensor,
    bias: Tensor,
    weight: Tensor,
    last: Tensor,
    *,
    slope: float,
    minimum: float,
    maximum: float,
) -> Tensor:
    """Compute the mixing weights log α of a recursive mixture with M gates by one Triton kernel.

    Gate m is a network with one hidden layer of F units. It gives ε_m(x), the share of component m
    in the mixture of the components 0 … m.

    Args:
        sums: partial sums of the hidden units of all gates, (parts, B, M · F). Their sum over the
            first axis gives the hidden units before bias and activation.
        bias: biases of the hidden layers, (M, F).
        weight: weights of the gates' last layers, (M, F).
        last: biases of the gates' last layers, (M, 1).
        slope: factor of negative values in the activation of the hidden layers.
        minimum: the smallest ε.
        maximum: the largest ε.

    Returns:
        log α, (B, M + 1).
    """
    parts, batch, _ = sums.shape
    gates, hidden = bias.shape
    out = sums.new_empty(batch, gates + 1)
    if batch:
        bb, bg, bh = 4, _power_of_two(gates + 1), _power_of_two(hidden)
        sizes = (parts, gates, hidden, slope, minimum, maximum, bb, bg, bh)
        _log_weights[(-(-batch // bb),)](sums, bias, weight, last, out, batch, *sizes)
    return out


def _launch(
    x: Tensor,
    centre: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    out: Tensor,
    shape: tuple[int, int, int],
    window: tuple[int, ...],
    slope: float,
    limits: Limits | None,
    parts: bool = False,
) -> None:
    _, networks, columns, depth = weight.shape
    batch, shared = out.shape[1], x.dim() in (2, 4)
    rows = batch * window[0] * window[1]
    if not rows:
        return
    wide = networks if shared and not parts else 1  # a shared input is gathered once
    products, across = networks // wide, wide * columns
    bm, bn, bk, warps, stages = tiles(products, rows, across, depth, window[2] * window[3])
    step = depth if parts else 0
    image = math.prod(shape) * (networks if parts else 1)
    _layer[(-(-rows // bm), -(-across // bn), products)](
        *(x, x if centre is None else centre, weight, bias, out, batch),
        *(shared, networks, wide, step, image, *shape, *window, columns, centre is not None, slope),
        *(limits is not None, *(limits or (0.0, 0.0)), bm, bn, bk),
        num_warps=warps,
        num_stages=stages,
    )
