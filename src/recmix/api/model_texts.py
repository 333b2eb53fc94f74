"""The class `TextModel`: the methods of `Model` that return texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recmix.api.trained_posterior import CHUNK, TrainedPosterior
from recmix.errors import ConfigError

__all__ = ["TextModel"]


class TextModel(TrainedPosterior):
    """The methods of `recmix.Model` that return texts, for a model that was trained on texts."""

    def decode_texts(self, x: Any) -> list[str]:
        """Convert examples x (N, ...) to N texts; "" for an example that is no valid text."""
        rows = x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)
        return self._known_vocabulary().decode(rows)

    @torch.no_grad()
    def sample_texts(self, n: int = 16, *, seed: int | None = None) -> list[str]:
        """Draw n texts from the model: z from the prior, then x from p(x | z).

        Args:
            n: number of texts.
            seed: seed of the draws; None for new texts each time.
        """
        if n < 1:
            raise ConfigError(f"sample_texts needs a positive number of texts, got {n}")
        self._known_vocabulary()
        generator = torch.Generator(self.device)
        if seed is None:
            generator.seed()
        else:
            generator.manual_seed(seed)
        model = self.latent_model
        found: list[str] = []
        for z in model.prior.sample(n, generator=generator).split(CHUNK):
            found += self.decode_texts(model.likelihood.sample(model.decoder_output(z), generator))
        return found

    @torch.no_grad()
    def reconstruct_texts(self, texts: Sequence[str]) -> list[str]:
        """Reconstruct each text: return a likely text under p(x | z), with z at the mean of q(z | x)."""
        model = self.latent_model
        found: list[str] = []
        for part in self.encode_texts(texts).split(CHUNK):
            decoded = model.decoder_output(self.posterior(part).mean)
            found += self.decode_texts(model.likelihood.most_likely(decoded))
        return found
