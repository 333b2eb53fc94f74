"""The central objects: a latent model p(x, z), a posterior q(z | x), a method that learns both."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from recmix.accelerate.fusion import fusible

if TYPE_CHECKING:
    from recmix.model.likelihoods import Likelihood


__all__ = ["LatentModel", "standard_normal"]


@fusible
def standard_normal(z: Tensor) -> Tensor:
    """log N(z; 0, I) summed over the last axis: (..., D) -> (...)."""
    return -0.5 * (z.square().sum(-1) + z.shape[-1] * math.log(2 * math.pi))


class LatentModel(nn.Module):
    """p(x, z) = p(z) p(x | z) with p(z) = N(0, I).

    Images come and go in [0, 1]. For a centred likelihood the training mean is subtracted before an
    encoder sees an image and added back to what the decoder makes; nobody outside has to know.

    Args:
        decoder: (N, D) -> (N, C, H, W).
        likelihood: p(x | decoder's output).
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
        """What is taken off images before an encoder sees them, (C, H, W), if anything is."""
        return self.centre if self.likelihood.centred else None

    def centred(self, x: Tensor) -> Tensor:
        """What an encoder sees of x (B, C, H, W)."""
        return x - self.centre if self.likelihood.centred else x

    def decoded(self, z: Tensor) -> Tensor:
        """The decoder's raw output for z (S, B, D): (S, B, C, H, W)."""
        out: Tensor = self.decoder(z.flatten(0, -2))
        return out.view(*z.shape[:-1], *out.shape[1:])

    def decode(self, z: Tensor) -> Tensor:
        """Mean images of z: (..., D) -> (..., C, H, W), in the data's own range."""
        mean = self.likelihood.mean(self.decoded(z))
        return mean + self.centre if self.likelihood.centred else mean

    def log_conditional(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x | z): x (B, C, H, W), z (S, B, D) -> (S, B)."""
        return self.likelihood.log_prob(self.centred(x), self.decoded(z))

    def log_joint(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x, z): x (B, C, H, W), z (S, B, D) -> (S, B)."""
        return self.log_conditional(x, z) + standard_normal(z)

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Mean images of n draws from the prior, (n, C, H, W)."""
        z = torch.randn(
            n, self.latent, generator=generator, device=self.centre.device, dtype=self.centre.dtype
        )
        return self.decode(z)

    def parameter_groups(self, learning_rate: float, variance_rate: float) -> list[dict[str, Any]]:
        """Groups for the decoder's optimiser: the likelihood's own parameters move faster.

        Adam moves a scalar by at most the learning rate per step, and the noise variance has far to go.
        """
        groups: list[dict[str, Any]] = [{"params": list(self.decoder.parameters()), "lr": learning_rate}]
        if own := list(self.likelihood.parameters()):
            groups.append({"params": own, "lr": learning_rate * variance_rate})
        return groups
