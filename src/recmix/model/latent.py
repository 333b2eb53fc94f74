"""The latent variable model p(x, z) = p(z) p(x | z)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from recmix.model.replaceable import fusable

if TYPE_CHECKING:
    from recmix.model.likelihoods import Likelihood

__all__ = ["LatentModel", "standard_normal"]


@fusable
def standard_normal(z: Tensor) -> Tensor:
    """log N(z; 0, I), summed over the last axis: (..., D) -> (...)."""
    return -0.5 * (z.square().sum(-1) + z.shape[-1] * math.log(2 * math.pi))


class LatentModel(nn.Module):
    """p(x, z) = p(z) p(x | z) with the prior p(z) = N(0, I).

    Shapes: the sample axis comes first. z is (S, B, D), an example x is (B, C, H, W) with values in
    [0, 1]. Log densities are in nats, (S, B).

    If the likelihood is centred, the model subtracts the training mean from x before the encoder and
    the likelihood see it, and adds it to what `decode` returns.

    Args:
        decoder: (N, D) -> (N, C, H, W).
        likelihood: p(x | decoder output).
        latent: D, the dimension of z.
        shape: (C, H, W).
        centre: the training mean (C, H, W); ignored unless the likelihood is centred.
    """

    centre: Tensor

    def __init__(
        self,
        decoder: nn.Module,
        likelihood: Likelihood,
        *,
        latent: int,
        shape: tuple[int, int, int],
        centre: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.decoder = decoder
        self.likelihood = likelihood
        self.latent = latent
        self.shape = shape
        if not self.likelihood.centred or centre is None:
            centre = torch.zeros(shape)
        self.register_buffer("centre", centre.detach().clone())

    @property
    def shift(self) -> Tensor | None:
        """The mean (C, H, W) that is subtracted from x, or None."""
        return self.centre if self.likelihood.centred else None

    def centred(self, x: Tensor) -> Tensor:
        """x (B, C, H, W) as encoders and the likelihood see it."""
        return x - self.centre if self.likelihood.centred else x

    def decoder_output(self, z: Tensor) -> Tensor:
        """The decoder's raw output for z (S, B, D): (S, B, C, H, W)."""
        out: Tensor = self.decoder(z.flatten(0, -2))
        return out.view(*z.shape[:-1], *out.shape[1:])

    def decode(self, z: Tensor) -> Tensor:
        """E[x | z] in the range of the data: (..., D) -> (..., C, H, W)."""
        mean = self.likelihood.mean(self.decoder_output(z))
        return mean + self.centre if self.likelihood.centred else mean

    def log_conditional(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x | z): x (B, C, H, W), z (S, B, D) -> (S, B)."""
        return self.likelihood.log_prob(self.centred(x), self.decoder_output(z))

    def log_joint(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x, z): x (B, C, H, W), z (S, B, D) -> (S, B)."""
        return self.log_conditional(x, z) + standard_normal(z)

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> Tensor:
        """E[x | z] for n draws of z from the prior, (n, C, H, W)."""
        like = self.centre
        z = torch.randn(n, self.latent, generator=generator, device=like.device, dtype=like.dtype)
        return self.decode(z)

    def parameter_groups(self, learning_rate: float, variance_rate: float) -> list[dict[str, Any]]:
        """Parameter groups for the decoder's optimiser.

        The likelihood's own parameters have a larger rate: Adam moves a scalar by at most the learning
        rate per step, and the noise variance must change by a large factor.
        """
        groups: list[dict[str, Any]] = [{"params": list(self.decoder.parameters()), "lr": learning_rate}]
        if own := list(self.likelihood.parameters()):
            groups.append({"params": own, "lr": learning_rate * variance_rate})
        return groups
