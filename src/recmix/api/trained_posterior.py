"""The class `TrainedPosterior`: the part of `Model` that gives q(z | x) for examples in any form."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from recmix.api.evaluates import evaluates
from recmix.data import DataWarning, Examples, check_examples, check_values
from recmix.data.columns import check_columns, is_frame, names_of_frame
from recmix.data.text_data import is_texts
from recmix.errors import ConfigError, DataError, memory_advice, unknown
from recmix.evaluation.calibrate import EXAMPLES
from recmix.inference import Inference
from recmix.inference.learned import check_curvature
from recmix.methods.method import Method, infer, infer_no_grad
from recmix.model.latent import LatentModel
from recmix.model.vocabulary import Vocabulary
from recmix.posteriors import Posterior
from recmix.runs.spec import Spec

__all__ = ["CHUNK", "SeenValues", "TrainedPosterior"]

CHUNK = 512
"""Number of examples that pass through a network at a time."""
FAR = 2.0
"""Examples x are on another scale than the examples given to `recmix.wrap`, whose values lie between low
and high, if the root mean square of x - (low + high) / 2 is above this many times (high - low)."""
USERS_LINE = 9
"""`stacklevel` with which a warning about values names the user's line, such as ``model.elbo(x)``."""


class SeenValues:
    """Remembers the range of values of the examples given to `recmix.wrap`, to warn of other scales.

    Args:
        examples: the examples given to `recmix.wrap`, (B, ...).
    """

    def __init__(self, examples: Any) -> None:
        values = torch.as_tensor(examples)
        values = values / 255 if values.dtype == torch.uint8 else values
        self.low, self.high = float(values.min()), float(values.max())
        self.warned = self.low == self.high  # nothing to compare with

    def check(self, x: np.ndarray) -> None:
        """Warn if x is on another scale than the examples given to `recmix.wrap`, at most once.

        Args:
            x: examples (B, ...) in the memory of the host.
        """
        if self.warned:
            return
        distance = float(np.sqrt(np.square(x - 0.5 * (self.low + self.high), dtype=np.float64).mean()))
        if distance > FAR * (self.high - self.low):
            self.warned = True
            warnings.warn(
                f"x has values from {x.min():.4g} to {x.max():.4g}, but the example of wrap had values "
                f"from {self.low:.4g} to {self.high:.4g}: bring x to the same scale",
                DataWarning,
                stacklevel=USERS_LINE,
            )


class TrainedPosterior(nn.Module):
    """A trained method that gives q(z | x), refined and calibrated; base class of `recmix.Model`.

    Args:
        method, spec, history, folder, vocabulary: as in `recmix.Model`.
        seen: the range of values of the examples that were given to `recmix.wrap`, if any.
    """

    def __init__(
        self,
        method: Method,
        spec: Spec,
        history: Sequence[dict[str, float]] = (),
        folder: Path | None = None,
        vocabulary: Vocabulary | None = None,
        seen: SeenValues | None = None,
    ) -> None:
        super().__init__()
        self.method = method
        self.spec = spec
        self.history = list(history)
        self.folder = folder
        self.vocabulary = vocabulary
        self.seen = seen
        self.training = method.training
        self._parts = list(method.modules())  # finding them can take longer than a posterior

    @property
    def inference(self) -> Inference:
        """The refinement and calibration that are applied each time the posterior is used."""
        return self.spec.inference

    @property
    def latent_model(self) -> LatentModel:
        """The model p(x, z). If the noise of the likelihood was calibrated, the model has this noise."""
        return self.inference.model(self.method.model)

    @property
    def device(self) -> torch.device:
        """The device of the model's parameters."""
        return self.latent_model.centre.device

    def forward(self, x: Tensor) -> Posterior:
        """q(z | x) of a batch x (B, ...) on the model's device, with gradients.

        Unlike `posterior`, this method does not convert x: give floating-point numbers on the scale on
        which the networks were trained, such as images / 255.
        """
        if getattr(x, "dtype", None) is torch.uint8:
            raise ConfigError(
                "model(x) takes floating-point numbers in the units of the training: for images "
                "x / 255, for counts and classes x.float(). model.posterior(x) takes uint8, too"
            )
        return infer(self.method, x, self.inference)

    def using(self, **options: Any) -> Self:
        """The same model with some inference options changed; the weights are shared.

        Inference options say how the posterior is refined and calibrated, see `recmix.Inference`.

        >>> import numpy as np
        >>> from recmix.api import fit
        >>> model = fit("vae", np.random.default_rng(0).random((30, 1, 8, 8), np.float32), epochs=1)
        >>> model.using(refine=2, scale=1.2).inference.key
        'gauss-newton,refine=2,reuse=2,restarts=1,checks=1,scale=1.2,slope=0.0,reference=0.0'
        """
        for name in options:
            if name not in vars(self.inference):
                raise ConfigError(unknown("option of Inference", name, vars(self.inference)))
        inference = replace(self.inference, **options)
        if inference.refine and inference.how == "learned":
            check_curvature(self.method.model)
        spec = replace(self.spec, inference=inference)
        made = type(self)(self.method, spec, self.history, None, self.vocabulary, self.seen)
        made.training = self.training
        return made

    @evaluates
    def posterior(self, x: Any) -> Posterior:
        """q(z | x) of examples x (B, ...), without gradients."""
        with memory_advice("give fewer examples at a time, or lower restarts or the number of steps"):
            return infer_no_grad(self.method, self._examples(x), self.inference)

    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        """Convert N texts to examples (N, ...), for a model that was trained on texts.

        Unknown words become ``<unknown>``. Raise a DataError if a text is empty or too long.
        """
        if not is_texts(texts):
            shown = f"{texts!r:.80}"
            raise DataError(f"expected a list of texts, at least one, got {shown}: write ['one text']")
        wrong = [i for i, text in enumerate(texts) if not isinstance(text, str)]
        if wrong:
            raise DataError(
                f"text {wrong[0]} is a {type(texts[wrong[0]]).__name__}; expected a list of str"
            )
        encoded = self._known_vocabulary().encode([str(text) for text in texts])
        if len(encoded.kept) < len(texts):
            first = int(np.setdiff1d(np.arange(len(texts)), encoded.kept)[0])
            said = ", ".join(f"{count} {problem}" for problem, count in encoded.problems.items())
            raise DataError(
                f"{len(texts) - len(encoded.kept)} of {len(texts)} texts cannot be encoded ({said}), "
                f"the first is text {first}, {texts[first]!r:.80}: remove such texts"
            )
        like = self.method.model.centre
        return torch.from_numpy(encoded.x).to(like.device, like.dtype)

    def decode_texts(self, x: Any) -> list[str]:
        """Convert examples x (N, ...) to N texts; "" for an example that is no valid text."""
        rows = x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)
        return self._known_vocabulary().decode(rows)

    @evaluates
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

    @evaluates
    @torch.no_grad()
    def reconstruct_texts(self, texts: Sequence[str]) -> list[str]:
        """Reconstruct each text: return a likely text under p(x | z), with z at the mean of q(z | x)."""
        model = self.latent_model
        found: list[str] = []
        for part in self.encode_texts(texts).split(CHUNK):
            decoded = model.decoder_output(self.posterior(part).mean)
            found += self.decode_texts(model.likelihood.most_likely(decoded))
        return found

    def _known_vocabulary(self) -> Vocabulary:
        if self.vocabulary is None:
            raise ConfigError(
                "this model was not trained on texts, so it has no vocabulary: train it on data of "
                "recmix.data.from_texts, or on a .txt or .smi file"
            )
        return self.vocabulary

    def _latents(self, z: Any) -> Tensor:
        z = torch.as_tensor(z, dtype=self.latent_model.centre.dtype, device=self.device)
        if z.ndim < 2 or z.shape[-1] != self.latent_model.latent:
            raise ConfigError(f"z must be (..., {self.latent_model.latent}), got {tuple(z.shape)}")
        return z

    def _examples(self, x: Any) -> Tensor:
        if is_texts(x) or (isinstance(x, str) and self.vocabulary is not None):
            return self.encode_texts(x)
        model = self.method.model
        like = model.centre
        on_device = isinstance(x, Tensor) and x.is_cuda and x.is_floating_point()
        if on_device and tuple(x.shape[1:]) == model.shape and len(x) and bool(x.isfinite().all()):
            return x.detach().to(like.device, like.dtype)  # without a copy to the host
        fields = None if model.fields is None else model.fields.shapes
        if is_frame(x):
            self._check_columns(names_of_frame(x), "x")
        checked = check_examples(x, what="x", shape=model.shape, fields=fields)
        check_values(checked, model.likelihood.requirement, model.likelihood.name)
        if self.seen is not None and checked.dtype != np.uint8:
            self.seen.check(checked[:CHUNK])
        examples = torch.as_tensor(checked, device=like.device).to(like.dtype)
        return examples / 255 if checked.dtype == np.uint8 else examples

    def _check_columns(self, given: Sequence[str] | None, what: str) -> None:
        """Raise a DataError if a table with names has other columns than the training examples.

        Nothing is checked if the table, or the training examples, had no names of columns.
        """
        expected = self.spec.data.get("columns")
        if given and expected:
            check_columns(given, expected, what, 'model.spec.data["columns"]')

    def _first_examples(self, x: Any) -> Tensor:
        """Return the first thousand of the user's examples x as a tensor, or all if there are fewer."""
        if isinstance(x, Mapping):
            return self._examples({name: part[:EXAMPLES] for name, part in x.items()})
        return self._examples(x[:EXAMPLES] if hasattr(x, "__getitem__") else x)

    def _chunks(self, x: Any) -> list[Tensor]:
        if isinstance(x, Examples):
            return [self._examples(x[i : i + CHUNK]) for i in range(0, len(x), CHUNK)]
        return list(self._examples(x).split(CHUNK))
