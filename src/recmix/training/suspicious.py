"""Warn of data and networks that can be trained, but are probably a mistake."""

from __future__ import annotations

import warnings

import torch

from recmix.data import Data, DataWarning
from recmix.methods.method import Method
from recmix.model.likelihoods import Bernoulli

__all__ = ["warn_if_suspicious"]

FEWEST = 5
"""Fewer training examples than this are probably a mistake."""
LOOKED_AT = 1000
"""Training examples whose values are compared."""


def warn_if_suspicious(data: Data, method: Method, *, own_decoder: bool) -> None:
    """Warn of very few examples, of values that are all equal, and of probabilities used as logits.

    Args:
        data: the training data.
        method: the method before its training.
        own_decoder: whether the user wrote the decoder.
    """
    count = len(data.x_train)
    if count < FEWEST:
        _warn(f"there are only {count} training example(s): is an axis missing or in another place?")
    if data.x_train.in_memory and not data.dynamic:  # dynamic data are binarised later
        few = data.x_train[:LOOKED_AT]
        if few.size > 1 and few.min() == few.max():
            _warn(f"all values of the training data are {few.min():g}: nothing can be learned from them")
    if own_decoder and type(method.model.likelihood) is Bernoulli and _gives_probabilities(method):
        warnings.warn(
            "the Bernoulli likelihood needs logits, but all outputs of the decoder lie between 0 and 1: "
            "remove the sigmoid at its end, or use likelihood='bernoulli-probabilities'",
            stacklevel=2,
        )


@torch.no_grad()
def _gives_probabilities(method: Method) -> bool:
    """Whether all outputs of the decoder for some random z lie strictly between 0 and 1."""
    model = method.model
    before = method.training
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(16, model.latent, generator=generator).to(model.centre)
    decoded = method.eval().model.decoder(z)
    method.train(before)
    return bool(((decoded > 0) & (decoded < 1)).all())


def _warn(text: str) -> None:
    warnings.warn(text, DataWarning, stacklevel=3)
