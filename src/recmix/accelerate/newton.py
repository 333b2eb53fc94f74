"""Make Gauss-Newton steps on log p(x, z) by Triton kernels, if the steps need no gradient."""

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
    is_traceable,
    make_log_joint,
    tangent_chunk,
)
from recmix.model.latent import LatentModel, standard_normal
from recmix.model.likelihoods import Bernoulli, Gaussian
from recmix.posteriors.full import in_double

__all__ = ["KernelLogJoint", "kernels_apply"]

JACOBIAN_UP_TO = 24
"""Largest latent dimension for which a gradient is computed from the decoder's whole Jacobian.

The benchmark ``jacobian_limit`` compares learned refinement with the Jacobian and with autograd, on an
H200. The Jacobian is 11 % faster with 20 dimensions, 2 % slower with 26, and 32 % slower with 50."""


def kernels_apply(device_type: str, dtype: torch.dtype) -> bool:
    """Whether the Triton kernels for Gauss-Newton steps may be used now.

    They need a GPU (or Triton's interpreter), float32 and disabled gradients. They are not used in code
    that is compiled or traced.
    """
    available = device_type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
    traced = torch.compiler.is_compiling() or torch._C._get_tracing_state() or is_traceable()
    return available and dtype == torch.float32 and not torch.is_grad_enabled() and not traced


class KernelLogJoint(LogJoint):
    """log p(x, z) of one batch x as a function of z: a `LogJoint` that uses Triton kernels.

    Where the kernels do not apply, the plain code of `LogJoint` is used.
    """

    def __init__(self, model: LatentModel, x: Tensor, dtype: torch.dtype) -> None:
        super().__init__(model, x, dtype)
        layers = layer_chain(model.decoder)
        like = x.new_empty(1, model.latent, dtype=dtype)
        self.packed: Any = None if layers is None else tangent_kernels.pack(layers, like)

    def _decoded(self, z: Tensor) -> Tensor:
        """The decoder's outputs (T, B, C, H, W) for T latent points per example, z (T, B, D)."""
        if self.packed:
            decoded = tangent_kernels.values(self.packed, z.flatten(0, 1))
            if decoded is not NotImplemented:
                return decoded.view(*z.shape[:2], *decoded.shape[1:])
        return self.model.decoder_output(z)

    def linearise(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The decoder's output (B, *output) and its Jacobian (B, P, D) at z (B, D).

        P is the number of output values for one example.
        """
        if self.packed:
            pushed = tangent_kernels.push(self.packed, z, tangent_chunk(self.model, z))
            if pushed is not NotImplemented:
                return pushed
        return super().linearise(z)

    def log_joint(self, z: Tensor) -> Tensor:
        """log p(x, z), (T, B), of T latent points for each of B examples: z (T, B, D)."""
        decoded = self._decoded(z)
        scored = newton_kernels.score(self.model.likelihood, self.observed, decoded, z, slopes=False)
        if scored is not NotImplemented:
            return scored[0]
        return self.model.log_density(self.observed, decoded) + standard_normal(z)

    def assemble(self, z: Tensor, decoded: Tensor, slope: Tensor) -> NormalEquations:
        """The value, gradient and Gauss-Newton curvature of log p(x, z), see `LogJoint.assemble`."""
        likelihood = self.model.likelihood
        scored = newton_kernels.score(likelihood, self.observed, decoded[None], z[None], slopes=True)
        if scored is not NotImplemented:
            at, residual, weight = (t.squeeze(0) for t in scored)
            made = newton_kernels.equations(slope, weight, residual, z)
            if made is not NotImplemented:
                return NormalEquations(at, *made)
        return super().assemble(z, decoded, slope)

    def gradient(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """log p(x, z), (B,), and its derivative with respect to z, (B, D), at z (B, D).

        Up to `JACOBIAN_UP_TO` dimensions, Triton kernels compute both from the decoder's whole Jacobian.
        For more dimensions autograd is used: it is faster, because it computes only the gradient.
        """
        if not self.packed or z.shape[-1] > JACOBIAN_UP_TO:
            return super().gradient(z)
        here = self.equations(z)
        return here.log_joint, here.gradient

    def dampings(self, level: Tensor) -> Tensor:
        """The T candidates for the damping of one step, (T, B), by one multiplication.

        Args:
            level: the present damping λ of each example, (B,).
        """
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
        """Select the best candidate step of each example by one Triton kernel, see `LogJoint.choose`."""
        limits = (least, LARGEST)
        given = (reached, here.log_joint, z, step, tried, level)
        chosen = newton_kernels.choose(*given, beyond=10 * DAMPINGS[-1], limits=limits)
        if chosen is not NotImplemented:
            return chosen
        return super().choose(reached, here, z, step, tried, level, least)


@make_log_joint.register
def make_kernel_log_joint(model: LatentModel, x: Tensor, dtype: torch.dtype) -> LogJoint:
    """Make a `KernelLogJoint`, which computes log p(x, z) of one batch x by Triton kernels.

    The kernels support Gaussian and Bernoulli likelihoods and the prior N(0, I). The function returns
    NotImplemented if the kernels do not apply. The arguments are those of `make_log_joint`.
    """
    simple = type(model.likelihood) in (Bernoulli, Gaussian) and model.prior.standard
    simple = simple and model.likelihood.noise == 1
    if not kernels_apply(x.device.type, dtype) or not simple or model.spread is not None:
        return NotImplemented
    return KernelLogJoint(model, x, dtype)


@in_double.register
def keep_float32(factor: Tensor) -> Tensor:
    """Version of `in_double` for the Triton kernels: the Cholesky factor (..., D, D) stays in float32.

    The kernels add a small multiple of the identity to a matrix, and so need no float64.

    Returns:
        `factor` unchanged, or NotImplemented if the kernels do not apply.
    """
    return factor if kernels_apply(factor.device.type, factor.dtype) else NotImplemented
