"""Compute log p(x, z) fast on a CPU, for decoders that are chains of simple layers."""

from __future__ import annotations

import torch
from torch import Tensor

from recmix.accelerate.newton import kernels_apply
from recmix.accelerate.tangents import fast_on_cpu, layer_chain, value_and_pullback, values
from recmix.inference.gauss_newton import LogJoint, make_log_joint
from recmix.model.latent import LatentModel

__all__ = ["ChainLogJoint"]

ROWS = 320
"""Number of latent points that are decoded at a time."""


class ChainLogJoint(LogJoint):
    """log p(x, z) of one batch x as a function of z: a `LogJoint` that is fast on a CPU.

    It is for decoders that are chains of simple layers. The decoder is evaluated layer by layer, in
    the memory layout that is fast on a CPU.

    >>> from recmix.model.likelihoods import Gaussian
    >>> decoder = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.Unflatten(1, (1, 8, 8)))
    >>> model = LatentModel(decoder, Gaussian(), latent=2, shape=(1, 8, 8))
    >>> joint = ChainLogJoint(model, torch.zeros(3, 1, 8, 8), torch.float32)
    >>> joint.log_joint(torch.zeros(5, 3, 2)).shape
    torch.Size([5, 3])
    """

    def log_joint(self, z: Tensor) -> Tensor:
        """log p(x, z), (T, B), of T latent points for each of the B examples: z (T, B, D)."""
        layers = layer_chain(self.model.decoder)
        if layers is None or not fast_on_cpu(z):
            return super().log_joint(z)
        decoded = torch.cat([values(layers, part) for part in z.flatten(0, 1).split(ROWS)])
        decoded = decoded.view(*z.shape[:2], *decoded.shape[1:])
        return self.model.log_density(self.observed, decoded) + self.model.prior.log_prob(z)

    def gradient(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """log p(x, z), (B,), and its derivative with respect to z, (B, D), at z (B, D).

        Autograd gives the derivatives of the likelihood and of the prior. The decoder is differentiated
        layer by layer, which is faster.
        """
        layers = layer_chain(self.model.decoder)
        if layers is None or not fast_on_cpu(z) or torch.is_inference_mode_enabled():
            return super().gradient(z)
        if any(isinstance(getattr(layer, "padding", 0), str) for layer in layers):
            return super().gradient(z)  # the pullback needs the padding as numbers
        decoded, pullback = value_and_pullback(layers, z)
        with torch.enable_grad():
            output, at = decoded.detach().requires_grad_(), z.detach().requires_grad_()
            likelihood = self.model.log_density(self.observed, output[None]).squeeze(0)
            joint = likelihood + self.model.prior.log_prob(at)
            # A prior may be constant in z, such as a uniform one.
            slope, of_prior = torch.autograd.grad(joint.sum(), (output, at), allow_unused=True)
        slope = pullback(slope)
        return joint.detach(), slope if of_prior is None else slope + of_prior


@make_log_joint.register
def make_chain_log_joint(model: LatentModel, x: Tensor, dtype: torch.dtype) -> LogJoint:
    """Make a `ChainLogJoint`, which computes log p(x, z) of one batch x fast on a CPU.

    The function returns NotImplemented if x is not on the CPU, if the decoder is not a chain of simple
    layers, or if Triton's interpreter runs the GPU kernels on the CPU, as in tests. The arguments are
    those of `make_log_joint`.
    """
    if x.device.type != "cpu" or kernels_apply("cpu", dtype) or layer_chain(model.decoder) is None:
        return NotImplemented
    return ChainLogJoint(model, x, dtype)
