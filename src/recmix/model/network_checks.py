"""Checks of a user's own encoder and decoder: each is run once on a small batch before training."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError

__all__ = ["check_decoder", "check_encoder"]


def check_encoder(module: nn.Module, shape: Sequence[int], latent: int) -> None:
    """Run an encoder on two examples and check the shape of its output.

    The module runs in evaluation mode, so that statistics of batch normalisation do not change. Its
    mode is restored afterwards.

    Args:
        module: Should map (2, *shape) to (2, 2·latent).
        shape: Shape of one example.
        latent: Dimension of z.

    Raises:
        ConfigError: The module fails, or its output has another shape.

    >>> check_encoder(nn.Flatten(), (1, 8, 8), 32)
    """
    advice = f"mean and log-variance of {latent} latent dimensions side by side"
    _check_output("encoder", module, (2, *shape), (2, 2 * latent), advice)


def check_decoder(module: nn.Module, output: Sequence[int], latent: int) -> None:
    """Run a decoder on two latent points and check the shape of its output.

    The module runs in evaluation mode, as in `check_encoder`.

    Args:
        module: Should map (2, latent) to (2, *output).
        output: Shape of the output that the likelihood needs for one example. For many likelihoods
            this is the shape of the example.
        latent: Dimension of z.

    Raises:
        ConfigError: The module fails, or its output has another shape.

    >>> check_decoder(nn.Unflatten(1, (1, 8, 8)), (1, 8, 8), 64)
    """
    advice = "what the likelihood reads for each latent point"
    _check_output("decoder", module, (2, latent), (2, *output), advice)


def _check_output(
    role: str, module: nn.Module, given: tuple[int, ...], expected: tuple[int, ...], advice: str
) -> None:
    """Run a module on an input of shape `given`; raise an error if the output is not `expected`."""
    like = next((p for p in module.parameters() if p.is_floating_point()), torch.empty(0))
    example = torch.linspace(0, 1, math.prod(given), dtype=like.dtype, device=like.device)
    modes = [(part, part.training) for part in module.modules()]
    what = f"the {role} {type(module).__name__}"
    module.eval()
    try:
        with torch.no_grad():
            output = module(example.reshape(given))
    except Exception as error:
        raise ConfigError(
            f"{what} failed on an input of shape {given}: {error}; "
            f"expected an output of shape {expected}, {advice}"
        ) from error
    finally:
        for part, training in modes:
            part.training = training
    if not isinstance(output, Tensor):
        raise ConfigError(
            f"{what} gave a {type(output).__name__} for an input of shape {given}; "
            f"expected one tensor of shape {expected}, {advice}"
        )
    if output.shape != expected:
        raise ConfigError(
            f"{what} gave shape {tuple(output.shape)} for an input of shape {given}; "
            f"expected {expected}, {advice}"
        )
