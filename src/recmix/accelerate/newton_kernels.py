"""Triton kernels for the small matrices of Gauss-Newton steps; they replace many torch kernels.

They compute log densities, normal equations, damped steps, the choice among these steps, and Cholesky
factors. One program of a kernel holds a whole matrix, so the latent dimension is limited. All results
have the accuracy of float32. No operation makes the CPU wait for the GPU.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from recmix.accelerate import kernels
from recmix.accelerate.kernels import _jit, _power_of_two
from recmix.inference.gauss_newton import damped_step, is_traceable
from recmix.model.likelihoods import Bernoulli, Gaussian, Likelihood
from recmix.posteriors.full import cholesky

with suppress(ImportError):  # torch without GPU support has no Triton
    import triton.language as tl

__all__ = [
    "candidate_dampings",
    "choose",
    "equations",
    "factor",
    "score",
    "solve",
    "unless_broken",
    "usable",
    "warps",
]

P = ParamSpec("P")
R = TypeVar("R")
LARGEST = 64
"""Largest latent dimension whose matrix one program can hold."""
PIXELS, PARTS, PROGRAMS = 32, 8, 1024
"""For `equations`: pixels per block, largest number of parts of an image, programs that fill a GPU."""


def usable(*tensors: Tensor) -> bool:
    """Whether the Triton kernels of this module can run on these tensors.

    Gradients must be disabled, and the tensors must be float32, on one GPU and not empty. The kernels
    are not used in code that is compiled or traced.
    """
    traced = torch.compiler.is_compiling() or torch._C._get_tracing_state() or is_traceable()
    if traced or torch.is_grad_enabled():
        return False
    device = tensors[0].device
    return all(t.numel() and t.device == device and kernels.usable(t) for t in tensors)


_broken: set[str] = set()


def unless_broken(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator for a function that calls a Triton kernel.

    If the kernel cannot compile or run, the function warns once and returns NotImplemented.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        name = function.__name__
        if name in _broken:
            return NotImplemented
        try:
            return function(*args, **kwargs)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # compilers raise errors of any kind
            _broken.add(name)
            why = (str(error).splitlines() or [type(error).__name__])[0]
            warnings.warn(
                f"the Triton kernels of Gauss-Newton's {name} cannot be used ({why}): "
                "slower operations of torch are used instead",
                stacklevel=2,
            )
            return NotImplemented

    return call


@_jit
def _score(
    decoded: tl.tensor,  # (L, B, P)
    image: tl.tensor,  # (B, P)
    z: tl.tensor,  # (L, B, D)
    log_variance: tl.tensor,  # (), if GAUSSIAN
    joint: tl.tensor,  # (L, B)
    residual: tl.tensor,  # (L, B, P), if SLOPES
    weight: tl.tensor,  # like `residual`; a single number if GAUSSIAN
    batch: tl.tensor,
    floor: tl.tensor,  # of the log-variance
    GAUSSIAN: tl.constexpr,
    SLOPES: tl.constexpr,
    D: tl.constexpr,
    P: tl.constexpr,
    BD: tl.constexpr,
    BP: tl.constexpr,
) -> None:
    at = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BP,), tl.float32)
    level = 0.0
    scale = 1.0
    if GAUSSIAN:
        level = tl.load(log_variance)
        level = tl.where(level < floor, 2 * floor - level, level)
        scale = tl.exp(-level)
    for start in range(0, P, BP):
        p = start + tl.arange(0, BP)
        m = tl.load(decoded + at * P + p, mask=p < P, other=0.0)
        x = tl.load(image + at % batch * P + p, mask=p < P, other=0.0)
        if GAUSSIAN:
            r = x - m
            total += 0.5 * scale * r * r
        else:  # log(1 + eᵐ) without overflow; keeps NaN
            soft = tl.where(m < 0, 0.0, m) + tl.log(1 + tl.exp(-tl.abs(m)))
            total += tl.where(p < P, soft - x * m, 0.0)
            r = x - tl.sigmoid(m)
        if SLOPES:
            tl.store(residual + at * P + p, r * scale, mask=p < P)
            if not GAUSSIAN:
                tl.store(weight + at * P + p, tl.sigmoid(m) * tl.sigmoid(-m), mask=p < P)
    if SLOPES and GAUSSIAN:
        tl.store(weight, scale, mask=at == 0)
    d = tl.arange(0, BD)
    point = tl.load(z + at * D + d, mask=d < D, other=0.0)
    constant = 1.8378770664093453 * D + (P * (level + 1.8378770664093453) if GAUSSIAN else 0.0)
    tl.store(joint + at, -tl.sum(total, 0) - 0.5 * (tl.sum(point * point, 0) + constant))


@_jit
def _equations(
    slope: tl.tensor,  # Jᵀ, (B, D, P); the last axis is contiguous
    weight: tl.tensor,  # (B, P), any strides
    residual: tl.tensor,  # (B, P)
    z: tl.tensor,  # (B, D)
    gradient: tl.tensor,  # (B, D), or (PARTS, B, D): Jᵀ r of each part of the pixels
    precision: tl.tensor,  # (B, D, D), or (PARTS, B, D, D): Jᵀ W J
    slope_b: tl.tensor,
    slope_d: tl.tensor,
    weight_b: tl.tensor,
    weight_p: tl.tensor,
    D: tl.constexpr,
    P: tl.constexpr,
    PARTS: tl.constexpr,
    PART: tl.constexpr,  # pixels of one part
    BD: tl.constexpr,
    BP: tl.constexpr,
) -> None:
    b = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BD)
    first = tl.program_id(1) * PART
    curvature = tl.zeros((BD, BD), tl.float32)
    pull = tl.zeros((BD, BP), tl.float32)
    for start in range(0, PART, BP):
        p = first + start + tl.arange(0, BP)
        at = slope + b * slope_b + d.to(tl.int64)[:, None] * slope_d + p[None, :]
        j = tl.load(at, mask=(d < D)[:, None] & (p < P)[None, :], other=0.0)
        r = tl.load(residual + b * P + p, mask=p < P, other=0.0)
        w = tl.load(weight + b * weight_b + p * weight_p, mask=p < P, other=0.0)
        pull += j * r[None, :]
        curvature = tl.dot(j * w[None, :], tl.trans(j), curvature, input_precision="tf32x3")
    g = tl.sum(pull, 1)
    if PARTS == 1:
        g -= tl.load(z + b * D + d, mask=d < D, other=0.0)
        curvature += tl.where(d[:, None] == d[None, :], 1.0, 0.0)
    to = tl.program_id(1) * tl.num_programs(0) + b
    tl.store(gradient + to * D + d, g, mask=d < D)
    at = precision + (to * D + d[:, None]) * D + d[None, :]
    tl.store(at, curvature, mask=(d < D)[:, None] & (d < D)[None, :])


@_jit
def _sum_parts(
    gradients: tl.tensor,  # (PARTS, B, D)
    precisions: tl.tensor,  # (PARTS, B, D, D)
    z: tl.tensor,  # (B, D)
    gradient: tl.tensor,  # (B, D)
    precision: tl.tensor,  # (B, D, D)
    D: tl.constexpr,
    PARTS: tl.constexpr,
    BD: tl.constexpr,
) -> None:
    # Sum the parts that `_equations` wrote, subtract z and add the identity.
    b, batch = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    d = tl.arange(0, BD)
    square = (d < D)[:, None] & (d < D)[None, :]
    g = -tl.load(z + b * D + d, mask=d < D, other=0.0)
    curvature = tl.where(d[:, None] == d[None, :], 1.0, 0.0)
    for part in tl.static_range(PARTS):
        at = part * batch + b
        g += tl.load(gradients + at * D + d, mask=d < D, other=0.0)
        at = precisions + (at * D + d[:, None]) * D + d[None, :]
        curvature += tl.load(at, mask=square, other=0.0)
    tl.store(gradient + b * D + d, g, mask=d < D)
    tl.store(precision + (b * D + d[:, None]) * D + d[None, :], curvature, mask=square)


@_jit
def _add_ridge(matrix: tl.tensor, same: tl.tensor) -> tl.tensor:
    # As in `posteriors.full.cholesky`: the diagonal, and the matrix with a small ridge.
    diagonal = tl.sum(tl.where(same, matrix, 0.0), 1)
    ridge = 4 * 1.1920929e-07 * tl.sum(diagonal, 0)
    return diagonal, matrix + tl.where(same, ridge, 0.0)


@_jit
def _solve(
    gradient: tl.tensor,  # (L, B, D)
    precision: tl.tensor,  # (L, B, D, D)
    damping: tl.tensor,  # (L, B)
    out: tl.tensor,  # (L, B, D)
    batch: tl.tensor,
    gradient_l: tl.tensor,  # strides of L; 0 if all matrices are the same
    precision_l: tl.tensor,
    D: tl.constexpr,
    BD: tl.constexpr,
) -> None:
    at = tl.program_id(0).to(tl.int64)
    l, b = at // batch, at % batch  # noqa: E741
    i = tl.arange(0, BD)
    k = i[None, :]
    same = i[:, None] == k
    held = (i < D)[:, None] & (k < D)
    matrix = tl.load(precision + l * precision_l + (b * D + i[:, None]) * D + k, mask=held, other=0.0)
    matrix += tl.where(same & held, tl.load(damping + at), 0.0)
    g = tl.load(gradient + l * gradient_l + b * D + i, mask=i < D, other=0.0)
    diagonal, matrix = _add_ridge(matrix, same)
    alone = g / tl.where(i < D, diagonal, 1.0)
    definite = D > 0
    for j in range(D):  # the matrix stays symmetric: row j equals column j
        row = tl.sum(tl.where(i[:, None] == j, matrix, 0.0), 0)
        pivot = tl.sum(tl.where(i == j, row, 0.0), 0)
        definite = definite & (pivot > 0)
        pivot = tl.where(pivot > 0, pivot, 1.0)
        share = row / pivot
        here = tl.sum(tl.where(i == j, g, 0.0), 0) / pivot
        g = tl.where(i == j, here, g - row * here)
        matrix -= row[:, None] * share[None, :]
        matrix = tl.where(i[:, None] == j, share[None, :], tl.where(k == j, share[:, None], matrix))
    tl.store(out + at * D + i, tl.where(definite, g, alone), mask=i < D)


@_jit
def _factor(
    precision: tl.tensor,  # (B, D, D), any strides
    out: tl.tensor,  # (B, D, D)
    step_b: tl.tensor,
    step_i: tl.tensor,
    step_k: tl.tensor,
    D: tl.constexpr,
    BD: tl.constexpr,
) -> None:
    b = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BD)
    k = i[None, :]
    same = i[:, None] == k
    held = (i < D)[:, None] & (k < D)
    at = precision + b * step_b + i[:, None] * step_i + k * step_k
    diagonal, matrix = _add_ridge(tl.load(at, mask=held, other=0.0), same)
    lower = tl.zeros((BD, BD), tl.float32)
    definite = D > 0
    for j in range(D):
        row = tl.sum(tl.where(i[:, None] == j, matrix, 0.0), 0)
        pivot = tl.sum(tl.where(i == j, row, 0.0), 0)
        definite = definite & (pivot > 0)
        below = tl.where(i < j, 0.0, row / tl.sqrt(tl.where(pivot > 0, pivot, 1.0)))
        matrix -= below[:, None] * below[None, :]
        lower = tl.where(k == j, below[:, None], lower)
    alone = tl.where(same, tl.sqrt(diagonal)[:, None], 0.0)
    tl.store(out + (b * D + i[:, None]) * D + k, tl.where(definite, lower, alone), mask=held)


@_jit
def _choose(
    reached: tl.tensor,  # (L, B)
    joint: tl.tensor,  # (B)
    z: tl.tensor,  # (B, D)
    step: tl.tensor,  # (L, B, D)
    tried: tl.tensor,  # (L, B)
    level: tl.tensor,  # (B)
    new_z: tl.tensor,
    new_level: tl.tensor,
    batch: tl.tensor,
    L: tl.constexpr,
    D: tl.constexpr,
    BEYOND: tl.constexpr,
    LEAST: tl.constexpr,
    MOST: tl.constexpr,
    BB: tl.constexpr,
    BD: tl.constexpr,
) -> None:
    b = tl.program_id(0) * BB + tl.arange(0, BB)
    d = tl.arange(0, BD)
    there = b < batch
    held = there[:, None] & (d < D)[None, :]
    at = b[:, None] * D + d[None, :]
    best = tl.full((BB,), float("-inf"), tl.float32)
    taken = tl.zeros((BB,), tl.float32)
    move = tl.zeros((BB, BD), tl.float32)
    for l in tl.static_range(L):  # noqa: E741
        value = tl.load(reached + l * batch + b, mask=there, other=0.0)
        better = (value > best) & (value < float("inf"))  # false for NaN
        best = tl.where(better, value, best)
        taken = tl.where(better, tl.load(tried + l * batch + b, mask=there, other=0.0), taken)
        move = tl.where(better[:, None], tl.load(step + l * batch * D + at, mask=held, other=0.0), move)
    rose = best > tl.load(joint + b, mask=there, other=0.0)
    stay = tl.load(z + at, mask=held, other=0.0)
    tl.store(new_z + at, tl.where(rose[:, None], stay + move, stay), mask=held)
    after = tl.where(rose, 0.1 * taken, BEYOND * tl.load(level + b, mask=there, other=0.0))
    after = tl.minimum(tl.maximum(after, LEAST), MOST)
    tl.store(new_level + b, after, mask=there)


@unless_broken
def score(
    likelihood: Likelihood, image: Tensor, decoded: Tensor, z: Tensor, *, slopes: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute log p(x, z) and derivatives by one kernel, for L latent points per example.

    Args:
        likelihood: p(x | z).
        image: x after the preprocessing `LatentModel.observed`, (B, C, H, W).
        decoded: the decoder's outputs for z, (L, B, C, H, W).
        z: latent points (L, B, D).
        slopes: whether to compute the derivatives. If False, the last two results are not valid.

    Returns:
        log p(x, z), (L, B), and two derivatives of log p(x | z) with respect to each of the P = C · H ·
        W decoder outputs, (L, B, P) each: the first derivative (residual), and the negative expected
        second derivative (precision). NotImplemented if the kernel does not apply.
    """
    kind, (levels, batch, latent) = type(likelihood), z.shape
    if kind not in (Gaussian, Bernoulli) or decoded.shape != (levels, *image.shape):
        return NotImplemented
    known: Any = likelihood.log_variance if kind is Gaussian else z
    floor: Any = likelihood.floor if kind is Gaussian else 1.0
    if not usable(z, image, decoded, known):
        return NotImplemented
    pixels = decoded[0, 0].numel()
    joint, residual = z.new_empty(levels, batch), z.new_empty((levels, batch, pixels) if slopes else 1)
    weight = torch.empty_like(residual) if kind is Bernoulli else z.new_empty(1)
    with torch.cuda.device_of(z):
        _score[(levels * batch,)](
            *(decoded.contiguous(), image.contiguous(), z.contiguous(), known, joint, residual, weight),
            *(batch, math.log(floor), kind is Gaussian, slopes, latent, pixels),
            *(_power_of_two(latent), min(1024, _power_of_two(pixels))),
        )
    return joint, residual, weight.expand_as(residual)


@unless_broken
def equations(slope: Tensor, weight: Tensor, residual: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient and the curvature matrix of log p(x, z) for one Gauss-Newton step, by one kernel.

    Args:
        slope: J, the decoder's Jacobian with respect to z, (B, P, D), for P decoder outputs per example.
        weight: the diagonal of W, the precision of each decoder output, (B, P).
        residual: r, the derivative of log p(x | z) with respect to each decoder output, (B, P).
        z: latent points (B, D).

    Returns:
        Jᵀ r - z (B, D) and Jᵀ W J + I (B, D, D); NotImplemented if the kernel does not apply.
    """
    batch, pixels, latent = slope.shape
    if latent > LARGEST or slope.stride(1) != 1 or not usable(slope, weight, residual, z):
        return NotImplemented
    parts = max(1, min(PARTS, PROGRAMS // batch, pixels // (2 * PIXELS)))
    each = -(-pixels // (parts * PIXELS)) * PIXELS
    parts = -(-pixels // each)
    gradient, precision = z.new_empty(parts, batch, latent), z.new_empty(parts, batch, latent, latent)
    strides, block = (slope.stride(0), slope.stride(2)), _power_of_two(latent)
    many = 2 if latent <= 32 else 4
    z = z.contiguous()
    with torch.cuda.device_of(z):
        _equations[(batch, parts)](
            *(slope, weight, residual.contiguous(), z, gradient, precision, *strides, *weight.stride()),
            *(latent, pixels, parts, each, block, PIXELS),
            num_warps=many,
        )
        if parts == 1:
            return gradient[0], precision[0]
        found = torch.empty_like(z), z.new_empty(batch, latent, latent)
        _sum_parts[(batch,)](gradient, precision, z, *found, latent, parts, block, num_warps=many)
    return found


def candidate_dampings(level: Tensor, multiples: tuple[float, ...]) -> Tensor:
    """The L candidate dampings of a Gauss-Newton step, (L, B).

    They are the present damping `level` (B,) of each example, times each of the L `multiples`.
    """
    return _on_device(multiples, level.device) * level


@functools.cache
def _on_device(multiples: tuple[float, ...], device: torch.device) -> Tensor:
    """The multiples as a tensor (L, 1); cached, because a CUDA graph cannot copy from the host."""
    return torch.tensor(multiples, dtype=torch.float32, device=device)[:, None]


@damped_step.register
@unless_broken
def solve(gradient: Tensor, precision: Tensor, damping: Tensor) -> Tensor:
    """`damped_step` by one Triton kernel: solve (H + λ I) δ = g for the damped steps δ, (L, B, D).

    The result is NotImplemented if the kernel does not apply.

    The method is Gauss-Jordan elimination that keeps the matrix symmetric. For positive definite
    matrices it is about as accurate as a Cholesky factor (Peters and Wilkinson 1975), and it gives the
    solution directly.

    Args:
        gradient: g, the gradient of log p(x, z), (L, B, D), for L dampings and B examples.
        precision: H, the Gauss-Newton curvature of -log p(x, z), (L, B, D, D).
        damping: λ, (L, B).
    """
    latent = gradient.shape[-1]
    if latent > LARGEST or gradient.dim() != 3 or not usable(gradient, precision, damping):
        return NotImplemented
    levels, batch, _ = gradient.shape
    inner = (latent, 1), (latent * latent, latent, 1)
    if (gradient.stride()[1:], precision.stride()[1:]) != inner:
        gradient, precision = gradient.contiguous(), precision.contiguous()
    out = gradient.new_empty(levels, batch, latent)
    strides = (gradient.stride(0), precision.stride(0))
    with torch.cuda.device_of(out):
        _solve[(levels * batch,)](
            *(
                gradient,
                precision,
                damping.contiguous(),
                out,
                batch,
                *strides,
                latent,
                _power_of_two(latent),
            ),
            num_warps=warps(latent),
        )
    return out


@cholesky.register
@unless_broken
def factor(matrix: Tensor) -> Tensor:
    """`cholesky` by one Triton kernel: the lower Cholesky factors of matrices (B, D, D).

    The result is NotImplemented if the kernel does not apply.
    """
    batch, latent = matrix.shape[0], matrix.shape[-1]
    if latent > LARGEST or matrix.dim() != 3 or not usable(matrix):
        return NotImplemented
    out = matrix.new_empty(matrix.shape)
    with torch.cuda.device_of(out):
        _factor[(batch,)](
            *(matrix, out, *matrix.stride(), latent, _power_of_two(latent)), num_warps=warps(latent)
        )
    return out


def warps(latent: int) -> int:
    """The number of warps of a program that holds a matrix (D, D)."""
    return 1 if latent <= 32 else 4


@unless_broken
def choose(
    reached: Tensor,
    joint: Tensor,
    z: Tensor,
    step: Tensor,
    tried: Tensor,
    level: Tensor,
    *,
    beyond: float,
    limits: tuple[float, float],
) -> tuple[Tensor, Tensor]:
    """Select, for each example, the candidate step with the highest log p(x, z), by one Triton kernel.

    If no candidate raises the log p(x, z) of an example, its z stays.

    Args:
        reached: log p(x, z + step) of each of L candidate steps, (L, B).
        joint: log p(x, z), (B,).
        z: latent points (B, D).
        step: candidate steps, (L, B, D).
        tried: the dampings λ of these steps, (L, B).
        level: the present λ, (B,).
        beyond: the factor of the present λ if no step raises log p(x, z).
        limits: smallest and largest value of the next λ.

    Returns:
        The next z (B, D) and the next λ (B,); NotImplemented if the kernel does not apply.
    """
    given = (reached, joint, z, step, tried, level)
    if not usable(*given):
        return NotImplemented
    new_z, new_level = torch.empty_like(z), torch.empty_like(level)
    (levels, batch), latent = reached.shape, z.shape[1]
    bd = 1 << math.ceil(math.log2(latent))
    with torch.cuda.device_of(z):
        _choose[(-(-batch // 4),)](
            *(t.contiguous() for t in given),
            *(new_z, new_level, batch, levels, latent, beyond, *limits, 4, bd),
        )
    return new_z, new_level
