"""Use the image autoencoders of diffusers as a `recmix.Model`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from recmix.api import Model, wrap
from recmix.errors import ConfigError, check_arguments
from recmix.model.likelihoods import Gaussian

__all__ = ["diffusers"]


@check_arguments
def diffusers(
    autoencoder: Any, *, size: int | tuple[int, int] | None = None, variance: float = 0.01
) -> Model:
    """Make a `recmix.Model` of an ``AutoencoderKL`` of diffusers.

    The latent image (C, H, W) of the autoencoder is used as one vector z. Images have values in
    [-1, 1], as in diffusers. These autoencoders are trained with a perceptual loss and have no
    likelihood of their own. So p(x | z) is a Gaussian whose variance you choose.

    Args:
        autoencoder: an ``AutoencoderKL``.
        size: height and width of the images; by default the autoencoder's ``sample_size``.
        variance: variance of p(x | z) for each pixel and channel.
    """
    for part in ("encode", "decode", "config"):
        if not hasattr(autoencoder, part):
            raise ConfigError(
                f"a {type(autoencoder).__name__} has no {part!r}; expected a diffusers AutoencoderKL"
            )
    given = autoencoder.config.sample_size if size is None else size
    height, width = (given, given) if isinstance(given, int) else given
    autoencoder.eval()
    like = next(autoencoder.parameters())
    channels = autoencoder.config.in_channels
    example = torch.zeros(1, channels, height, width, device=like.device, dtype=like.dtype)
    return wrap(
        _Encode(autoencoder),
        _Decode(autoencoder),
        likelihood=Gaussian(variance, learned=False),
        example=example,
        label="AutoencoderKL",
    )


class _Encode(nn.Module):
    def __init__(self, autoencoder: Any) -> None:
        super().__init__()
        self.autoencoder = autoencoder

    def forward(self, x: Tensor) -> Any:
        return self.autoencoder.encode(x).latent_dist


class _Decode(nn.Module):
    def __init__(self, autoencoder: Any) -> None:
        super().__init__()
        self.autoencoder = autoencoder

    def forward(self, z: Tensor) -> Tensor:
        # The fused attention kernels have no forward-mode derivative, which Gauss-Newton steps need.
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            found: Tensor = self.autoencoder.decode(z).sample
        return found
