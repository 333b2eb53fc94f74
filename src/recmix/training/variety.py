"""More images than there are, for an encoder to learn from while the decoder stands still.

An encoder that has seen only the training images is far better on them than on others. But what it is
to learn, the posterior of a given decoder, is defined for every image; so any image near the data will
do: one turned or shifted a little, or one that the decoder makes itself.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from recmix.methods.method import Method

__all__ = ["Variety"]

TURN, SCALE, SHEAR, SHIFT = 0.2, 0.15, 0.15, 0.1
"""Largest changes: radians, log-scale, shear, and share of half the side."""
TOWARDS, APART = 0.5, 0.3
"""A dream's latent point: how far towards another image's, and the noise on it."""


class Variety:
    """Replaces a part of every batch by images near the data.

    Dreams are made from the image's own posterior mean μ: with z between μ and another image's mean,
    plus noise, it is x + decode(z) - decode(μ), the image moved along the decoder's surface with its own
    residual; for binary images a draw from the likelihood at z.

    Args:
        method: whose first encoder and decoder make the dreams.
        augment: share of the batch to be turned, scaled, sheared and shifted.
        dreams: share of the batch to be dreamt.
        binary: whether pixels are 0 or 1.
    """

    def __init__(self, method: Method, *, augment: float, dreams: float, binary: bool) -> None:
        self.method = method
        self.augment = augment
        self.dreams = dreams
        self.binary = binary

    @torch.no_grad()
    def __call__(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The batch (B, C, H, W) with its first images replaced; batches come in random order."""
        turned, dreamt = round(self.augment * len(x)), round(self.dreams * len(x))
        parts = x.split([turned, dreamt, len(x) - turned - dreamt])
        return torch.cat([self._turn(parts[0], generator), self._dream(parts[1], generator), parts[2]])

    def _turn(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        if not len(x):
            return x
        u = 2 * torch.rand(6, len(x), generator=generator, device=x.device, dtype=x.dtype) - 1
        turn, shear = TURN * u[0], SHEAR * u[1]
        wide, high = (SCALE * u[2]).exp(), (SCALE * u[3]).exp()
        cos, sin = turn.cos(), turn.sin()
        first = torch.stack([wide * cos, wide * (shear * cos - sin), SHIFT * u[4]], -1)
        second = torch.stack([high * sin, high * (shear * sin + cos), SHIFT * u[5]], -1)
        grid = F.affine_grid(torch.stack([first, second], 1), list(x.shape), align_corners=False)
        turned = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
        return self._drawn(turned.clamp(0, 1), generator)

    def _dream(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        if not len(x):
            return x
        model = self.method.model
        mean: Tensor = self.method.base_encoder(model.centred(x)).chunk(2, dim=-1)[0]
        u = torch.rand(len(x), 1, generator=generator, device=x.device, dtype=x.dtype)
        noise = torch.randn(mean.shape, generator=generator, device=x.device, dtype=x.dtype)
        near = mean + TOWARDS * u * (mean.roll(1, 0) - mean) + APART * noise
        shown = model.decode(torch.stack([near, mean]))  # (2, B, C, H, W)
        if self.binary:
            return self._drawn(shown[0], generator)
        return (x + shown[0] - shown[1]).clamp(0, 1)

    def _drawn(self, grey: Tensor, generator: torch.Generator | None) -> Tensor:
        return torch.bernoulli(grey, generator=generator) if self.binary else grey
