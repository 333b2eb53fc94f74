"""Warn of data and networks that can be trained, but are probably a mistake."""

from __future__ import annotations

import warnings

from recmix.data import Data, DataWarning
from recmix.methods.method import Method
from recmix.model.network_checks import mistaken_output

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
    model = method.model
    if own_decoder and (
        text := mistaken_output(model.decoder, model.likelihood, model.latent, model.centre)
    ):
        warnings.warn(text, stacklevel=2)


def _warn(text: str) -> None:
    warnings.warn(text, DataWarning, stacklevel=3)
