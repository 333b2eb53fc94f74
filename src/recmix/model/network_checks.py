"""Checks of a user's own encoder and decoder: each is run once on a small batch before training."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError
from recmix.model.encoder_decoder import evaluation_mode
from recmix.model.likelihoods import Bernoulli, Likelihood, ProbabilityBernoulli

__all__ = ["check_decoder", "check_encoder", "check_probabilities", "mistaken_output"]

TRIED = 16
"""Number of latent points that are decoded for a check."""
ROUNDING = 1e-3
"""Largest distance of a decoder's output from [0, 1] that still counts as a probability."""


def check_encoder(module: nn.Module, shape: Sequence[int], latent: int) -> None:
    """Run an encoder on two examples (2, *shape). Raise an error unless it gives (2, 2·latent).

    The encoder runs in evaluation mode, so that the statistics of batch normalisation do not change.
    """
    advice = f"mean and log-variance of {latent} latent dimensions side by side"
    _check_output("encoder", module, (2, *shape), (2, 2 * latent), advice)


def check_decoder(module: nn.Module, output: Sequence[int], latent: int) -> None:
    """Run a decoder on two latent points (2, latent). Raise an error unless it gives (2, *output).

    The decoder runs in evaluation mode, so that the statistics of batch normalisation do not change.
    """
    advice = "what the likelihood reads for each latent point"
    _check_output("decoder", module, (2, latent), (2, *output), advice)


def check_probabilities(module: nn.Module, likelihood: Likelihood, latent: int, like: Tensor) -> None:
    """Raise a `ConfigError` if the likelihood needs probabilities, but the decoder returns other values.

    The arguments are those of `mistaken_output`.
    """
    if isinstance(likelihood, ProbabilityBernoulli) and (
        text := mistaken_output(module, likelihood, latent, like)
    ):
        raise ConfigError(text)


@torch.no_grad()
def mistaken_output(module: nn.Module, likelihood: Likelihood, latent: int, like: Tensor) -> str:
    """Return a message if a decoder seems to return logits instead of probabilities, or the reverse.

    The result is "" if there is no such mistake, or if the likelihood is neither `Bernoulli` nor
    `ProbabilityBernoulli`.

    Args:
        module: the decoder, which is run on random z.
        like: a tensor with the device and dtype that z must have.

    >>> mistaken_output(nn.Sigmoid(), Bernoulli(), 3, torch.zeros(()))[:40]
    'the bernoulli likelihood needs logits, b'
    """
    if type(likelihood) not in (Bernoulli, ProbabilityBernoulli):
        return ""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(TRIED, latent, generator=generator).to(like)
    with evaluation_mode(module):
        decoded: Tensor = module(z)
    low, high = float(decoded.min()), float(decoded.max())
    if type(likelihood) is Bernoulli:
        if not (low > 0 and high < 1):
            return ""
        return (
            "the bernoulli likelihood needs logits, but all outputs of the decoder lie between 0 and 1: "
            "if it ends in a sigmoid, remove it, or use likelihood='bernoulli-probabilities'"
        )
    if low >= -ROUNDING and high <= 1 + ROUNDING:
        return ""
    return (
        "the bernoulli-probabilities likelihood needs probabilities, but the decoder gives values from "
        f"{low:.3g} to {high:.3g}: if these are logits, use likelihood='bernoulli'; otherwise end the "
        "decoder with a sigmoid"
    )


def _check_output(
    role: str, module: nn.Module, given: tuple[int, ...], expected: tuple[int, ...], advice: str
) -> None:
    """Run a module on one input; raise a `ConfigError` if its output has not the shape `expected`.

    Args:
        role: "encoder" or "decoder", for the message.
        given: shape of the input.
        advice: text for the message that describes the expected output.
    """
    like = next((p for p in module.parameters() if p.is_floating_point()), torch.empty(0))
    example = torch.linspace(0, 1, math.prod(given), dtype=like.dtype, device=like.device)
    what = f"the {role} {type(module).__name__}"
    try:
        with evaluation_mode(module), torch.no_grad():
            output = module(example.reshape(given))
    except Exception as error:
        raise ConfigError(
            f"{what} failed on an input of shape {given}: {error}; "
            f"expected an output of shape {expected}, {advice}"
        ) from error
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
