"""Score models of molecules: reconstruct test molecules, and sample molecules from the prior.

RDKit decides whether a molecule is valid. Two texts are the same molecule if RDKit writes the same
canonical SMILES string for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recmix.errors import ConfigError
from recmix.evaluation.bounds import at_once
from recmix.model.graph_vocabulary import canonical_smiles, require_rdkit
from recmix.model.vocabulary import Vocabulary

__all__ = ["MoleculeScores", "molecule_scores"]

AT_ONCE = 500
"""Number of test molecules whose posteriors are computed at a time."""
SHOWN = 10
"""Number of molecules sampled from the prior that a result shows."""

ROWS = {
    "greedy": "reconstruction, most probable",
    "reconstruction": "reconstruction, sampled",
    "validity": "validity of prior samples",
    "connected": "... in one piece",
    "uniqueness": "unique among valid",
    "novelty": "novel among unique",
}
"""The shares of a result, with their names in the table."""


@dataclass(frozen=True, kw_only=True)
class MoleculeScores:
    """Scores of a model of molecules.

    Shares are between 0 and 1. A share is NaN if there are no molecules to count.

    Args:
        greedy: share of test molecules that are reconstructed from one encoding without noise: z is
            the mean of the posterior component with the largest weight, and the most probable
            molecule is decoded.
        reconstruction: share of exact reconstructions if z is drawn from q(z | x) and the molecule
            from p(x | z), averaged over all draws. This is the protocol of Kusner et al. (2017).
        validity: share of valid molecules among draws from p(z) and p(x | z).
        connected: share of draws that are valid and have one connected piece.
        uniqueness: number of different valid molecules, divided by the number of valid molecules.
        novelty: share of the different valid molecules that are not in the training data; NaN if no
            training molecules were given.
        reconstruction_se: standard error of `reconstruction`.
        molecules: number of test molecules that were scored. Examples that are not valid molecules, and
            strings that the vocabulary cannot encode, are left out.
        encodings: draws of z for each test molecule.
        decodings: draws of a molecule for each z.
        samples: number of molecules sampled from the prior.
        stereo: whether stereochemistry was compared.
        examples: some of the valid molecules from the prior, as SMILES strings.
    """

    greedy: float
    reconstruction: float
    reconstruction_se: float
    validity: float
    connected: float
    uniqueness: float
    novelty: float
    molecules: int
    encodings: int
    decodings: int
    samples: int
    stereo: bool
    examples: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The scores as {name: value}, for JSON."""
        return {**asdict(self), "examples": list(self.examples)}

    def rows(self) -> list[tuple[str, str]]:
        """The scores as a table: pairs (name of a score, its value in per cent), both as text."""
        found = {key: _percent(getattr(self, key)) for key in ROWS}
        if not math.isnan(self.reconstruction_se):
            found["reconstruction"] += f" ± {100 * self.reconstruction_se:.1f}"
        return [(words, found[key]) for key, words in ROWS.items()]

    def __str__(self) -> str:
        """The scores as text: a table in per cent, and how they were measured."""
        width = max(map(len, ROWS.values()))
        stereo = "with" if self.stereo else "without"
        return "\n".join(
            [
                *(f"{words:<{width}}  {value}" for words, value in self.rows()),
                f"{self.molecules:,} test molecules, {self.encodings} draws of z each and "
                f"{self.decodings} molecules for each z, compared {stereo} stereochemistry; "
                f"{self.samples:,} samples of the prior.",
            ]
        )


@torch.no_grad()
def molecule_scores(
    model: Any,
    x_test: Any,
    train_texts: Iterable[str] | None = None,
    *,
    vocabulary: Vocabulary | None = None,
    encodings: int = 10,
    decodings: int = 10,
    samples: int = 10_000,
    stereo: bool | None = None,
    seed: int = 0,
    memory: int | None = None,
    report: Callable[[int], None] = lambda done: None,
) -> MoleculeScores:
    """Score a model of molecules: reconstruction, validity, uniqueness and novelty. It needs RDKit.

    The molecules may be strings or graphs. Kusner et al. (2017) and Jin et al. (2018) draw 1,000
    points z from the prior and decode each many times. Here each of the `samples` molecules has its
    own z. The expected validity is the same, its error is smaller, and repeated molecules of one z do
    not count against uniqueness.

    Args:
        model: a `recmix.Model` whose data are molecules. Its refinement and calibration are used.
        x_test: test examples (N, ...), or a list of SMILES strings. Strings that the vocabulary cannot
            encode are left out.
        train_texts: SMILES strings of the training molecules, for the novelty.
        vocabulary: how examples are written as SMILES strings; by default the model's.
        encodings: draws of z from q(z | x) for each test molecule.
        decodings: draws of a molecule from p(x | z) for each z.
        samples: number of molecules that are sampled from the prior.
        stereo: whether stereochemistry is compared too; by default it is if the vocabulary keeps it.
        report: function that is called with the number of test molecules and prior samples done.

    References:
        Kusner, Paige & Hernández-Lobato, Grammar variational autoencoder, ICML 2017. Jin, Barzilay &
        Jaakkola, Junction tree variational autoencoder for molecular graph generation, ICML 2018.
    """
    require_rdkit()
    used = getattr(model, "vocabulary", None) if vocabulary is None else vocabulary
    if used is None or not used.molecules:
        raise ConfigError(
            "the model has no vocabulary of molecules: train it on SMILES strings or on molecule "
            "graphs, or give vocabulary="
        )
    for name, value in (("encodings", encodings), ("decodings", decodings), ("samples", samples)):
        if value < 1:
            raise ConfigError(f"{name} must be positive, got {value}")
    if isinstance(x_test, list) and all(isinstance(text, str) for text in x_test):
        x_test = used.encode(x_test).x
    if not len(x_test):
        raise ConfigError("there are no test molecules: give at least one")
    keep = getattr(used, "stereo", True) if stereo is None else stereo
    decoder = _Decoder(model.latent_model, used, seed=seed, stereo=keep, memory=memory)
    numbers = torch.as_tensor(np.asarray(x_test[:])).cpu().numpy()
    truths = np.array(canonical_smiles(used.decode(numbers), stereo=keep), dtype=object)
    x_test, truths = numbers[truths != ""], truths[truths != ""]
    if not len(x_test):
        raise ConfigError(
            f"none of {len(numbers):,} test examples is a valid molecule with known tokens: give others"
        )
    greedy, shares = [], []
    for start in range(0, len(x_test), AT_ONCE):
        x, truth = x_test[start : start + AT_ONCE], truths[start : start + AT_ONCE]
        q = model.posterior(x)
        means = torch.stack([part.mean for part in q.components], 1)  # (B, K, D)
        best = means[torch.arange(len(x), device=means.device), q.weights.argmax(-1)]
        greedy.append(decoder.most_probable(best) == truth)
        z, _ = q.rsample_and_log_prob(encodings, generator=decoder.generator)  # (encodings, B, D)
        hits = [decoder.drawn(z.flatten(0, 1)) == np.tile(truth, encodings) for _ in range(decodings)]
        shares.append(np.mean(hits, 0).reshape(encodings, -1).mean(0))
        report(start + len(x))
    found: list[str] = []
    for start in range(0, samples, AT_ONCE):
        count = min(AT_ONCE, samples - start)
        found += list(decoder.drawn(decoder.prior(count)))
        report(len(x_test) + start + count)
    valid = [text for text in found if text]
    unique = list(dict.fromkeys(valid))
    each = np.concatenate(shares)
    error = float(each.std(ddof=1)) / math.sqrt(len(each)) if len(each) > 1 else math.nan
    return MoleculeScores(
        greedy=float(np.concatenate(greedy).mean()),
        reconstruction=float(each.mean()),
        reconstruction_se=error,
        validity=len(valid) / samples,
        connected=sum("." not in text for text in valid) / samples,
        uniqueness=_share(len(unique), len(valid)),
        novelty=_novelty(unique, train_texts, stereo=keep),
        molecules=len(x_test),
        encodings=encodings,
        decodings=decodings,
        samples=samples,
        stereo=keep,
        examples=tuple(unique[:SHOWN]),
    )


class _Decoder:
    """Decodes latent points to canonical SMILES strings.

    If the result for a latent point is not a valid molecule, the string is empty.
    """

    def __init__(
        self, model: Any, vocabulary: Vocabulary, *, seed: int, stereo: bool, memory: int | None
    ) -> None:
        self.model, self.vocabulary, self.stereo = model, vocabulary, stereo
        self.generator = torch.Generator(model.centre.device).manual_seed(seed)
        self.count = max(1, at_once(model, memory))

    def prior(self, count: int) -> Tensor:
        """Draw `count` points z from the prior, (count, D)."""
        return self.model.prior.sample(count, generator=self.generator)

    def drawn(self, z: Tensor) -> np.ndarray:
        """Draw one molecule from p(x | z) for each z (N, D). Return SMILES strings (N,)."""
        return self._texts(z, lambda out: self.model.likelihood.sample(out, self.generator))

    def most_probable(self, z: Tensor) -> np.ndarray:
        """Return the most probable molecule for each z (N, D), as SMILES strings (N,)."""
        return self._texts(z, self.model.likelihood.most_likely)

    def _texts(self, z: Tensor, decode: Callable[[Tensor], Tensor]) -> np.ndarray:
        rows = [decode(self.model.decoder_output(part)).cpu().numpy() for part in z.split(self.count)]
        different, places = np.unique(np.concatenate(rows), axis=0, return_inverse=True)
        texts = canonical_smiles(self.vocabulary.decode(different), stereo=self.stereo)
        return np.array(texts, dtype=object)[places.reshape(-1)]


def _novelty(unique: Sequence[str], train_texts: Iterable[str] | None, *, stereo: bool) -> float:
    if train_texts is None:
        return math.nan
    known = set(canonical_smiles(list(train_texts), stereo=stereo))
    return _share(sum(text not in known for text in unique), len(unique))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else math.nan


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f} %"
