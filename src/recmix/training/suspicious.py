"""Warn of data, networks and learning rates with which one can train, but which are probably wrong."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from recmix.data import Data, DataWarning
from recmix.methods.method import Method
from recmix.model.network_checks import mistaken_output

__all__ = ["fell", "warn_if_suspicious", "warn_if_swapped"]

FEWEST = 5
"""Fewer training examples than this are probably a mistake."""
LOOKED_AT = 1000
"""Training examples whose values are compared."""
EXAMPLES, SAMPLES = 16, 8
"""Examples, and samples of z for each, with which the outputs of an encoder are tried."""
CLEAR_NATS, CLEAR_SHARE = 5.0, 0.1
"""The other order is clearly better by more nats, and a larger share of the bound, than this."""
WORSE, EXPLODED = 0.5, 10.0
"""Shares of a validation bound before training. A bound that is lower by more than that is reported:
the first for the bound that is kept at the end, the second for any bound on the way."""


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


@torch.no_grad()
def warn_if_swapped(method: Method, x: Tensor) -> None:
    """Warn if a trained encoder probably returns log-variances and means, in the wrong order.

    The warning comes if the bound is clearly higher in the other order, on average and for each example.

    Args:
        method: a VAE whose encoder was trained elsewhere.
        x: a few examples (B, ...).
    """
    model, x = method.model, x[:EXAMPLES]
    network = getattr(method.base_encoder, "network", method.base_encoder)
    if not x.any() or not isinstance(network(x), Tensor | tuple | list):
        return  # a placeholder instead of examples; or an output that names its parts
    out = method.base_encoder(x)
    first, second = out.chunk(2, 1)
    noise = torch.randn(SAMPLES, *first.shape, generator=torch.Generator().manual_seed(0)).to(first)

    def bound(mean: Tensor, log_variance: Tensor) -> Tensor:  # (B,)
        log_q = -0.5 * (noise.square() + log_variance + math.log(2 * math.pi)).sum(-1)
        found = [model.log_joint(x, mean + (log_variance / 2).exp() * one[None]) for one in noise]
        return (torch.cat(found) - log_q).mean(0)

    given, swapped = bound(first, second), bound(second, first)
    clear = max(CLEAR_NATS, CLEAR_SHARE * abs(float(given.mean())))
    if bool((swapped > given).all()) and float(swapped.mean() - given.mean()) > clear:
        warnings.warn(
            f"the ELBO on {len(x)} examples is {float(given.mean()):.1f} nats with the encoder's "
            f"outputs as mean and log-variance, but {float(swapped.mean()):.1f} the other way round. "
            "If they are swapped, put the encoder into a module that returns (mean, log-variance)",
            stacklevel=4,
        )


def fell(first: float, best: float, rows: Sequence[Mapping[str, float]], rate: float) -> str:
    """A warning if validation bounds are far below the one before training, else "".

    Args:
        first: the validation bound before training; not a number if it is not known.
        best: the validation bound of the weights that are kept.
        rows: the history of the training.
        rate: the learning rate.
    """
    if not math.isfinite(first) or not rows:
        return ""
    worst = min(rows, key=lambda row: row["val_iwae"])
    size = max(10.0, abs(first))
    if first - best > WORSE * size:
        what = f"is {best:.4g} nats after it"
    elif first - worst["val_iwae"] > EXPLODED * size:
        what = f"fell to {worst['val_iwae']:.4g} nats in epoch {worst['epoch']}"
    else:
        return ""
    return (
        f"the validation bound was {first:.4g} nats before training and {what}. The learning rate "
        f"{rate:g} is probably too high: train again with a lower learning_rate (--learning-rate)"
    )


def _warn(text: str) -> None:
    warnings.warn(text, DataWarning, stacklevel=3)
