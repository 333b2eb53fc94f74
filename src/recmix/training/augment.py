"""Make additional images to train an encoder while the decoder is fixed.

An encoder is much better on its training images than on other images. Its task is to approximate the
posterior of the fixed decoder, which is defined for every image. So any image near the data can be
a training image: a rotated or shifted image, or an image that the decoder makes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from recmix.errors import ConfigError
from recmix.methods.method import Method
from recmix.model.likelihoods import Likelihood

__all__ = ["Augment", "takes_decoder_samples"]

TURN, SCALE, SHEAR, SHIFT = 0.2, 0.15, 0.15, 0.1
"""Largest rotation in radians, largest change of the log-scale, largest shear, and largest shift as a
share of half the image's side."""
TOWARDS, NOISE = 0.5, 0.3
"""For decoder samples: the largest weight of another image's posterior mean, and the standard deviation
of the noise that is added to z."""


class Augment:
    """Replaces some images of every batch by other images near the data.

    A part of the batch is rotated, scaled, sheared and shifted. Another part is replaced by decoder
    samples. A decoder sample is made from an image x with the posterior mean μ: z is a random point
    between μ and the posterior mean of another image, plus noise. The sample is
    x + decode(z) - decode(μ). For binary images and for classes, such as tokens, it is a draw from the
    likelihood at z instead.

    Args:
        method: the method that is trained. Its first encoder gives μ, and its decoder is `decode`.
        augment: share of the batch to rotate, scale, shear and shift.
        decoder_samples: share of the batch to replace by decoder samples.
        kind: kind of the data, see `recmix.data.Data.kind`: values of "binary" and "unit" data stay
            in [0, 1].

    Raises:
        ConfigError: The examples are not images, or the likelihood does not allow such samples.
    """

    def __init__(self, method: Method, *, augment: float, decoder_samples: float, kind: str) -> None:
        model = method.model
        self.unit, binary = kind in ("binary", "unit"), kind == "binary"
        if augment and len(model.shape) != 3:
            raise ConfigError(
                f"augment rotates and shifts images (C, H, W), but examples have shape {model.shape}: "
                "leave it out"
            )
        self.classes = model.likelihood.values == "classes"
        if decoder_samples and not takes_decoder_samples(model.likelihood, kind):
            raise ConfigError(
                "decoder_samples needs a gaussian, bernoulli or categorical likelihood, but this one is "
                f"{model.likelihood.name}: leave it out"
            )
        self.method = method
        self.augment = augment
        self.decoder_samples = decoder_samples
        self.binary = binary

    @torch.no_grad()
    def __call__(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return the batch (B, C, H, W) with its first images replaced by other images near the data.

        The caller must give examples in random order. Then the first images are a random choice.
        """
        turned, decoded = round(self.augment * len(x)), round(self.decoder_samples * len(x))
        parts = x.split([turned, decoded, len(x) - turned - decoded])
        moved = [self._transform(parts[0], generator), self._decode_near(parts[1], generator)]
        return torch.cat([*moved, parts[2]])

    def _transform(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
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
        return self._binarise(self._in_range(turned), generator)

    def _decode_near(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        if not len(x):
            return x
        model = self.method.model
        mean: Tensor = self.method.base_encoder(model.observed(x)).chunk(2, dim=-1)[0]
        u = torch.rand(len(x), 1, generator=generator, device=x.device, dtype=x.dtype)
        noise = torch.randn(mean.shape, generator=generator, device=x.device, dtype=x.dtype)
        near = mean + TOWARDS * u * (mean.roll(1, 0) - mean) + NOISE * noise
        if self.classes:
            return model.likelihood.sample(model.decoder_output(near), generator)
        shown = model.decode(torch.stack([near, mean]))  # (2, B, C, H, W)
        if self.binary:
            return self._binarise(shown[0], generator)
        return self._in_range(x + shown[0] - shown[1])

    def _in_range(self, x: Tensor) -> Tensor:
        return x.clamp(0, 1) if self.unit else x

    def _binarise(self, grey: Tensor, generator: torch.Generator | None) -> Tensor:
        return torch.bernoulli(grey, generator=generator) if self.binary else grey


def takes_decoder_samples(likelihood: Likelihood, kind: str) -> bool:
    """Whether decoder samples (see `Augment`) can replace training examples of this kind.

    Args:
        likelihood: the likelihood of the model.
        kind: kind of the data, see `recmix.data.Data.kind`.
    """
    return likelihood.centred or kind in ("binary", "unit") or likelihood.values == "classes"
