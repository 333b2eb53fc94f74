"""Triton kernels for the quasi-Newton steps of the refinement ``learned`` (`recmix.inference.learned`).

The refinement moves the posterior's mean by steps that increase log p(x, z). The kernels compute
everything between two gradients of log p(x, z). Plain torch starts about 70 small kernels for each
step; this module starts three.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

from recmix.accelerate.kernels import _jit, _power_of_two
from recmix.accelerate.newton_kernels import LARGEST, unless_broken, usable, warps
from recmix.inference.learned import SHRINK, Iterate, Pair, advance, direction
from recmix.model.curvature_network import scaled_triangle
from recmix.posteriors import FullGaussian, LowRankGaussian

with suppress(ImportError):  # torch without GPU support has no Triton
    import triton.language as tl

__all__ = ["advance_kernel", "direction_kernel", "triangle_kernel"]


@_jit
def _triangle(
    out: tl.tensor,  # (B, D (D + 1) / 2)
    typical: tl.tensor,  # (D, D)
    factor: tl.tensor,  # (B, D, D)
    D: tl.constexpr,
    BD: tl.constexpr,
) -> None:
    at = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BD)
    row, column = i[:, None], i[None, :]
    inside = (row < D) & (column < D)
    start = out + at * (D * (D + 1) // 2)
    scale = tl.exp(tl.load(start + i, mask=i < D, other=0.0))
    below = tl.load(start + D + row * (row - 1) // 2 + column, mask=(column < row) & inside, other=0.0)
    unit = tl.where(row == column, 1.0, below) * scale[:, None]
    unit = tl.where(inside, unit, 0.0)
    left = tl.load(typical + row * D + column, mask=inside, other=0.0)
    tl.store(
        factor + at * D * D + row * D + column, tl.dot(left, unit, input_precision="ieee"), mask=inside
    )


@_jit
def _direction(
    factor: tl.tensor,  # (B, D, D)
    gradient: tl.tensor,  # (B, D)
    step1: tl.tensor,  # the newest pair; (B, D)
    change1: tl.tensor,
    inverse1: tl.tensor,  # (B,)
    step2: tl.tensor,  # the pair before
    change2: tl.tensor,
    inverse2: tl.tensor,
    out: tl.tensor,  # (B, D)
    PAIRS: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
) -> None:
    at = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BD)
    here = at * D + i
    row, column = i[:, None], i[None, :]
    matrix = tl.load(factor + at * D * D + row * D + column, mask=(row < D) & (column <= row), other=0.0)
    g = tl.load(gradient + here, mask=i < D, other=0.0)
    rest = g
    if PAIRS > 0:
        s1 = tl.load(step1 + here, mask=i < D, other=0.0)
        y1 = tl.load(change1 + here, mask=i < D, other=0.0)
        r1 = tl.load(inverse1 + at)
        share1 = r1 * tl.sum(s1 * rest, 0)
        rest = rest - share1 * y1
    if PAIRS > 1:
        s2 = tl.load(step2 + here, mask=i < D, other=0.0)
        y2 = tl.load(change2 + here, mask=i < D, other=0.0)
        r2 = tl.load(inverse2 + at)
        share2 = r2 * tl.sum(s2 * rest, 0)
        rest = rest - share2 * y2
    found = tl.sum(matrix * tl.sum(matrix * rest[:, None], 0)[None, :], 1)
    if PAIRS > 1:
        found = found + (share2 - r2 * tl.sum(y2 * found, 0)) * s2
    if PAIRS > 0:
        found = found + (share1 - r1 * tl.sum(y1 * found, 0)) * s1
        plain = tl.sum(matrix * tl.sum(matrix * g[:, None], 0)[None, :], 1)
        found = tl.where(tl.sum(found * g, 0) > 0, found, plain)
    tl.store(out + here, found, mask=i < D)


@_jit
def _advance(
    z: tl.tensor,  # (B, D)
    value: tl.tensor,  # (B,)
    gradient: tl.tensor,  # (B, D)
    length: tl.tensor,  # (B,)
    step: tl.tensor,  # (B, D)
    reached: tl.tensor,  # (B,)
    there: tl.tensor,  # (B, D)
    new_z: tl.tensor,
    new_value: tl.tensor,
    new_gradient: tl.tensor,
    new_length: tl.tensor,
    pair_step: tl.tensor,
    pair_change: tl.tensor,
    pair_inverse: tl.tensor,
    shrink: tl.tensor,
    eps: tl.tensor,
    D: tl.constexpr,
    BD: tl.constexpr,
) -> None:
    at = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BD)
    here, inside = at * D + i, i < D
    s = tl.load(step + here, mask=inside, other=0.0)
    before = tl.load(gradient + here, mask=inside, other=0.0)
    after = tl.load(there + here, mask=inside, other=0.0)
    change = before - after
    product = tl.sum(s * change, 0)
    good = (product > eps * tl.sum(change * change, 0)) & (product < float("inf"))
    tl.store(pair_step + here, tl.where(good, s, 0.0), mask=inside)
    tl.store(pair_change + here, tl.where(good, change, 0.0), mask=inside)
    tl.store(pair_inverse + at, tl.where(good, 1.0 / tl.where(good, product, 1.0), 0.0))
    old, new = tl.load(value + at), tl.load(reached + at)
    rose = new > old  # false for NaN
    point = tl.load(z + here, mask=inside, other=0.0)
    tl.store(new_z + here, tl.where(rose, point + s, point), mask=inside)
    tl.store(new_gradient + here, tl.where(rose, after, before), mask=inside)
    tl.store(new_value + at, tl.where(rose, new, old))
    tl.store(new_length + at, tl.where(rose, 1.0, shrink * tl.load(length + at)))


@scaled_triangle.register_for_gpu
@unless_broken
def triangle_kernel(out: Tensor, typical: Tensor, places: Tensor) -> Tensor:
    """`scaled_triangle`, the matrices L = T diag(exp a) M, (B, D, D), by one Triton kernel.

    The result is NotImplemented if the kernel does not apply. `places` is not used.
    """
    latent = len(typical)
    if latent > LARGEST or not usable(out, typical):
        return NotImplemented
    factor = out.new_empty(len(out), latent, latent)
    block = max(16, _power_of_two(latent))  # the smallest matrix that tl.dot takes
    with torch.cuda.device_of(out):
        _triangle[(len(out),)](out.contiguous(), typical.contiguous(), factor, latent, block)
    return factor


@direction.register_for_gpu
@unless_broken
def direction_kernel(
    q: FullGaussian | LowRankGaussian, gradient: Tensor, pairs: Sequence[Pair]
) -> Tensor:
    """`direction`, the directions of the next steps, (B, D), by one Triton kernel.

    The result is NotImplemented if the kernel does not apply. It is for at most two pairs, and for a
    `FullGaussian`.
    """
    if not isinstance(q, FullGaussian):
        return NotImplemented
    batch, latent = gradient.shape
    given = [q.scale_tril, gradient, *(part for pair in reversed(pairs) for part in pair)]
    if latent > LARGEST or len(pairs) > 2 or not usable(*given):
        return NotImplemented
    out = torch.empty_like(gradient, memory_format=torch.contiguous_format)
    known = [t.contiguous() for t in given]
    known += [gradient] * (8 - len(known))  # not read
    with torch.cuda.device_of(out):
        _direction[(batch,)](
            *known, out, len(pairs), latent, _power_of_two(latent), num_warps=warps(latent)
        )
    return out


@advance.register_for_gpu
@unless_broken
def advance_kernel(at: Iterate, step: Tensor, reached: Tensor, gradient: Tensor) -> tuple[Iterate, Pair]:
    """`advance` by one Triton kernel: accept the steps that raise log p(x, z).

    The result is NotImplemented if the kernel does not apply.
    """
    batch, latent = step.shape
    given = (*at, step, reached, gradient)
    if latent > LARGEST or not usable(*given):
        return NotImplemented
    new = Iterate(*(torch.empty_like(t, memory_format=torch.contiguous_format) for t in at))
    pair = Pair(torch.empty_like(new.z), torch.empty_like(new.z), step.new_empty(batch, 1))
    constants = (SHRINK, torch.finfo(step.dtype).eps, latent, _power_of_two(latent))
    with torch.cuda.device_of(step):
        _advance[(batch,)](*(t.contiguous() for t in given), *new, *pair, *constants, num_warps=1)
    return new, pair
