"""Gauss-Newton steps by Triton kernels, where no gradient is needed."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from recmix.accelerate import newton_kernels, tangent_kernels
from recmix.accelerate.tangents import layer_chain
from recmix.inference.gauss_newton import (
    DAMPINGS,
    LARGEST,
    LogJoint,
    NormalEquations,
    damped_step,
    is_traceable,
    jacobian,
    make_log_joint,
    tangent_chunk,
)
from recmix.model.latent import LatentModel, standard_normal
from recmix.posteriors.full import cholesky, in_double

__all__ = ["KernelLogJoint", "kernels_apply"]


def kernels_apply(device_type: str, dtype: torch.dtype) -> bool:
    """Whether kernels may be used: a GPU (or Triton's interpreter), float32, no gradient, no trace."""
    available = device_type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
    traced = torch.compiler.is_compiling() or torch._C._get_tracing_state() or is_traceable()
    return available and dtype == torch.float32 and not torch.is_grad_enabled() and not traced


def _applies(like: Tensor) -> bool:
    return kernels_apply(like.device.type, like.dtype)


class KernelLogJoint(LogJoint):
    """A `LogJoint` that uses Triton kernels where they apply."""

    def __init__(
        self, model: LatentModel, x: Tensor, dtype: torch.dtype, chunk: int | None = None
    ) -> None:
        super().__init__(model, x, dtype, chunk)
        layers = layer_chain(model.decoder)
        like = x.new_empty(1, model.latent, dtype=dtype)
        self.packed: Any = None if layers is None else tangent_kernels.pack(layers, like)

    def _decoded(self, z: Tensor) -> Tensor:
        """The decoder's output for z (T, B, D): (T, B, C, H, W)."""
        if self.packed:
            decoded = tangent_kernels.values(self.packed, z.flatten(0, 1))
            if decoded is not None:
                return decoded.view(*z.shape[:2], *decoded.shape[1:])
        return self.model.decoder_output(z)

    def _jacobian(self, z: Tensor) -> tuple[Tensor, Tensor]:
        if self.packed:
            pushed = tangent_kernels.push(self.packed, z, self.chunk or tangent_chunk(self.model, z))
            if pushed is not None:
                return pushed
        return jacobian(self.model, z, chunk=self.chunk)

    def log_joint(self, z: Tensor) -> Tensor:
        """log p(x, z) of points z (T, B, D): (T, B)."""
        decoded = self._decoded(z)
        scored = newton_kernels.score(self.model.likelihood, self.observed, decoded, z, slopes=False)
        if scored is not None:
            return scored[0]
        return self.model.likelihood.log_prob(self.observed, decoded) + standard_normal(z)

    def equations(self, z: Tensor) -> NormalEquations:
        """The quadratic model around z (B, D)."""
        likelihood, observed = self.model.likelihood, self.observed
        if not _applies(z):
            return super().equations(z)
        decoded, slope = self._jacobian(z)
        scored = newton_kernels.score(likelihood, observed, decoded[None], z[None], slopes=True)
        if scored is not None:
            at, residual, weight = (t.squeeze(0) for t in scored)
        else:
            residual = likelihood.residual(observed, decoded).flatten(1)
            weight = likelihood.precision(decoded).flatten(1)
            at = likelihood.log_prob(observed, decoded[None]).squeeze(0) + standard_normal(z)
        made = newton_kernels.equations(slope, weight, residual, z)
        if made is not None:
            return NormalEquations(at, *made)
        gradient = (slope.mT @ residual[..., None]).squeeze(-1) - z
        identity = torch.eye(z.shape[-1], dtype=z.dtype, device=z.device)
        return NormalEquations(at, gradient, slope.mT @ (weight[..., None] * slope) + identity)

    def gradient(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """log p(x, z) (B,) and its derivative (B, D): kernels compute all of J in less time."""
        if not self.packed:
            return super().gradient(z)
        here = self.equations(z)
        return here.log_joint, here.gradient

    def dampings(self, level: Tensor) -> Tensor:
        """The candidates of one step, (T, B)."""
        return newton_kernels.candidate_dampings(level, DAMPINGS)

    def choose(
        self,
        reached: Tensor,
        here: NormalEquations,
        z: Tensor,
        step: Tensor,
        tried: Tensor,
        level: Tensor,
        least: float,
    ) -> tuple[Tensor, Tensor]:
        """The next z (B, D) and λ (B,)."""
        limits = (least, LARGEST)
        given = (reached, here.log_joint, z, step, tried, level)
        chosen = newton_kernels.choose(*given, beyond=10 * DAMPINGS[-1], limits=limits)
        return super().choose(reached, here, z, step, tried, level, least) if chosen is None else chosen


@make_log_joint.register
def make_kernel_log_joint(
    model: LatentModel, x: Tensor, dtype: torch.dtype, chunk: int | None = None
) -> LogJoint:
    """A `KernelLogJoint` where kernels apply."""
    if not kernels_apply(x.device.type, dtype):
        return NotImplemented
    return KernelLogJoint(model, x, dtype, chunk)


@damped_step.register
def damped_step_by_kernels(gradient: Tensor, precision: Tensor, damping: Tensor) -> Tensor:
    """(H + λ I)⁻¹ g by one kernel."""
    if not _applies(gradient):
        return NotImplemented
    solved = newton_kernels.solve(gradient, precision, damping)
    return NotImplemented if solved is None else solved


@cholesky.register
def cholesky_by_kernels(matrix: Tensor) -> Tensor:
    """Cholesky factors by one kernel."""
    if not _applies(matrix) or matrix.dim() != 3:
        return NotImplemented
    factor = newton_kernels.factor(matrix)
    return NotImplemented if factor is None else factor


@in_double.register
def keep_float32(factor: Tensor) -> Tensor:
    """Keep float32 where kernels apply, because the kernels add their own ridge to the matrix."""
    return factor if _applies(factor) else NotImplemented
