"""What `Model` does with texts: encode them, decode examples, sample and reconstruct texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from recmix.data.text_data import is_texts
from recmix.errors import ConfigError, DataError
from recmix.model.vocabulary import Vocabulary

if TYPE_CHECKING:
    from recmix.api.model import Model

__all__ = ["decode_texts", "encode_texts", "reconstruct_texts", "sample_texts"]

CHUNK = 512
"""Texts that are decoded at a time."""


def encode_texts(model: Model, texts: Sequence[str]) -> Tensor:
    """Return the texts as examples (N, ...) on the model's device; see `Model.encode_texts`."""
    if not is_texts(texts):
        shown = f"{texts!r:.80}"
        raise DataError(f"expected a list of texts, at least one, got {shown}: write ['one text']")
    encoded = _vocabulary(model).encode([str(text) for text in texts])
    if len(encoded.kept) < len(texts):
        first = int(np.setdiff1d(np.arange(len(texts)), encoded.kept)[0])
        said = ", ".join(f"{count} {problem}" for problem, count in encoded.problems.items())
        raise DataError(
            f"{len(texts) - len(encoded.kept)} of {len(texts)} texts cannot be encoded ({said}), the "
            f"first is text {first}, {texts[first]!r:.80}: remove such texts"
        )
    like = model.method.model.centre
    return torch.from_numpy(encoded.x).to(like.device, like.dtype)


def decode_texts(model: Model, x: Any) -> list[str]:
    """Return the text of each of N examples (N, ...); see `Model.decode_texts`."""
    rows = x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)
    return _vocabulary(model).decode(rows)


@torch.no_grad()
def sample_texts(model: Model, n: int, *, seed: int | None = None) -> list[str]:
    """Draw n texts from the model: z from the prior, then x from p(x | z); see `Model.sample_texts`."""
    if n < 1:
        raise ConfigError(f"sample_texts needs a positive number of texts, got {n}")
    _vocabulary(model)
    generator = torch.Generator(model.device)
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    latent_model = model.latent_model
    found: list[str] = []
    for z in latent_model.prior.sample(n, generator=generator).split(CHUNK):
        drawn = latent_model.likelihood.sample(latent_model.decoder_output(z), generator)
        found += decode_texts(model, drawn)
    return found


@torch.no_grad()
def reconstruct_texts(model: Model, texts: Sequence[str]) -> list[str]:
    """Return a likely text under p(x | z) for each text, with z at the mean of q(z | x).

    This is `Model.reconstruct_texts`.
    """
    latent_model = model.latent_model
    found: list[str] = []
    for part in encode_texts(model, texts).split(CHUNK):
        decoded = latent_model.decoder_output(model.posterior(part).mean)
        found += decode_texts(model, latent_model.likelihood.most_likely(decoded))
    return found


def _vocabulary(model: Model) -> Vocabulary:
    if model.vocabulary is None:
        raise ConfigError(
            "this model was not trained on texts, so it has no vocabulary: train it on data of "
            "recmix.data.from_texts, or on a .txt or .smi file"
        )
    return model.vocabulary
