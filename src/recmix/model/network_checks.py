"""Checks of a user's own encoder and decoder: each is run once on a small batch before training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError
from recmix.model.encoder_decoder import evaluation_mode
from recmix.model.foreign import tried
from recmix.model.likelihoods import Bernoulli, Likelihood, ProbabilityBernoulli

__all__ = ["check_output", "check_probabilities", "mistaken_output"]

TRIED = 16
"""Number of latent points that are decoded for a check."""
ROUNDING = 1e-3
"""Largest distance of a decoder's output from [0, 1] that still counts as a probability."""


def check_output(
    role: str, module: nn.Module, given: Tensor, expected: tuple[int, ...], advice: str
) -> None:
    """Run a module in evaluation mode; raise a `ConfigError` unless its output has shape `expected`.

    Args:
        role: "encoder" or "decoder", for the message.
        given: the input.
        advice: text for the message that describes the expected output.
    """
    with evaluation_mode(module):
        output = tried(module, given, role)
    tensor = isinstance(output, Tensor)
    if not tensor or output.shape != expected:
        found = f"shape {tuple(output.shape)}" if tensor else f"a {type(output).__name__}"
        raise ConfigError(
            f"the {role} {type(module).__name__} gave {found} for an input of shape "
            f"{tuple(given.shape)}; expected one tensor of shape {expected}, {advice}"
        )


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
