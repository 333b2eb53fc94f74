"""Compute the explorer's answers about texts, such as sentences and SMILES strings.

A vocabulary converts a text to an example x of numbers. The answers have texts instead of images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from recmix.explore.answers import to_array
from recmix.explore.drawing import can_draw, is_molecule
from recmix.explore.explain import describe
from recmix.explore.memory import DRAWS
from recmix.explore.wire import Array, Refused
from recmix.inference import Inference
from recmix.methods.method import infer_no_grad
from recmix.model.sequence_vocabulary import NOT_SMILES, TokenVocabulary
from recmix.model.vocabulary import Vocabulary

if TYPE_CHECKING:
    from recmix.explore.catalogue import ExplorableModel

__all__ = ["check_texts", "encoder_means", "explain_text", "most_likely", "read_texts"]
__all__ += ["reconstruct_texts"]

VALUES = 2**23
"""Largest number of values in the decoder's output for latent vectors that are decoded at a time."""
NAMED = 6
"""Largest number of unknown words that a message names."""


def read_texts(
    vocabulary: Vocabulary, texts: Sequence[str], *, most: int, longest: int
) -> tuple[Array, list[list[str]]]:
    """Convert the B texts of a request to examples; raise `Refused` if a text cannot be read.

    A request may have at most `most` texts, each with at most `longest` characters.

    Returns:
        The examples (B, *shape), and for each text messages for the user, such as about unknown words.
    """
    check_texts(texts, most=most, longest=longest)
    rows, problems = [], []
    for place, text in enumerate(texts):
        name = "the text" if len(texts) == 1 else f"text {place + 1}"
        if not text.strip():
            kind = "a SMILES string" if vocabulary.molecules else "a sentence"
            raise Refused(422, f"{name} is empty: write {kind}")
        found = vocabulary.encode([text])
        if not len(found.x):
            why = ", ".join(found.problems) or "cannot be read"
            raise Refused(422, f"{name} is no example of this run ({why}): {text[:60]!r}")
        rows.append(found.x)
        problems.append(_problems(vocabulary, text, found.problems))
    return np.concatenate(rows), problems


def check_texts(texts: Sequence[str], *, most: int, longest: int) -> None:
    """Check the texts of a request.

    Raise `Refused` if there are more than `most` texts, or if a text has more than `longest` characters.
    """
    if len(texts) > most:
        raise Refused(413, f"{len(texts)} texts are too many: at most {most} at a time")
    for text in texts:
        if len(text) > longest:
            raise Refused(413, f"a text of {len(text)} characters is too long: at most {longest}")


def _problems(vocabulary: Vocabulary, text: str, counted: dict[str, int]) -> list[str]:
    """Return messages about the problems of a text, such as words that are not in the vocabulary.

    The text was converted to an example in spite of these problems. `counted` has the problems that
    `vocabulary.encode` found in the text, as its keys.
    """
    problems = [f"this text is {problem}" for problem in counted]
    if isinstance(vocabulary, TokenVocabulary):
        known = set(vocabulary.tokens) - {"<end>"}
        unknown = list(dict.fromkeys(word for word in vocabulary.split(text) if word not in known))
        problems = []
        if unknown:
            more = f" and {len(unknown) - NAMED} more" if len(unknown) > NAMED else ""
            named = ", ".join(word[:40] for word in unknown[:NAMED])
            problems = [f"not in the vocabulary, read as unknown: {named}{more}"]
    if NOT_SMILES in counted or (vocabulary.molecules and can_draw() and not is_molecule(text)):
        problems.append("not a valid SMILES string of a molecule")
    return problems


@torch.no_grad()
def most_likely(model: ExplorableModel, z: Array | Tensor) -> Array:
    """Return the example (N, *shape) that is most likely given each of the latent vectors z (N, D)."""
    latent_model = model.latent_model
    points = torch.as_tensor(z).to(latent_model.centre).split(_at_once(model))
    decoded = (latent_model.decoder_output(part) for part in points)
    parts = [latent_model.likelihood.most_likely(part) for part in decoded]
    return to_array(torch.cat(parts).float())


def _at_once(model: ExplorableModel) -> int:
    """Return how many latent vectors are decoded at a time."""
    latent_model = model.latent_model
    output = latent_model.likelihood.output_shape(latent_model.shape)
    width = getattr(latent_model.likelihood, "classes", 1)
    values = max(int(np.prod(output)), int(np.prod(latent_model.shape)) * width)
    return max(1, VALUES // values)


def reconstruct_texts(model: ExplorableModel, x: Array) -> dict[str, Any]:
    """Decode the mean of q(z | x), and of each of its K components, to the most likely examples.

    Returns:
        The mixing ``weights`` (B, K), ``texts`` (B, *shape) at the mean of q and ``components``
        (B, K, *shape) at the means of the components. The vocabulary converts these to texts.
    """
    q = model.posterior(x)
    means = torch.stack([q.mean, *(part.mean for part in q.components)], 1)  # (B, 1 + K, D)
    found = most_likely(model, means.flatten(0, 1)).reshape(*means.shape[:2], *x.shape[1:])
    return {"weights": to_array(q.weights), "texts": found[:, 0], "components": found[:, 1:]}


@torch.no_grad()
def explain_text(
    model: ExplorableModel, vocabulary: Vocabulary, x: Array, *, steps: int, samples: int, seed: int
) -> dict[str, Any]:
    """Describe q(z | x) of one text x (1, *shape): the fields that `docs/explorer.md` lists.

    Args:
        model: the model.
        vocabulary: its vocabulary.
        x: the text as an example, (1, *shape).
        steps: number of Gauss-Newton steps on log p(x, z), which start at the mean of q.
        samples: number of samples for ELBO and IWAE.
        seed: seed of all samples.
    """

    def decode(z: Tensor) -> list[str]:
        return vocabulary.decode(most_likely(model, z))

    about = describe(model, x, decode, steps=steps, samples=samples, seed=seed)
    drawn = vocabulary.decode(_draw(model, about.q.mean, seed))
    return {"text": vocabulary.decode(x)[0], **about.answer, "samples": drawn}


def _draw(model: ExplorableModel, z: Tensor, seed: int) -> Array:
    """Draw examples (DRAWS, *shape) from p(x | z) for one latent vector z (1, D)."""
    latent_model = model.latent_model
    generator = torch.Generator(latent_model.centre.device).manual_seed(seed)
    decoded = latent_model.decoder_output(z.expand(DRAWS, -1))
    return to_array(latent_model.likelihood.sample(decoded, generator).float())


def encoder_means(model: ExplorableModel, x: Array) -> dict[str, Any]:
    """Compute the posterior means (B, D) of examples x (B, *shape) without refinement.

    Without refinement this is fast enough for many examples.
    """
    centre = model.latent_model.centre
    q = infer_no_grad(model.method, torch.from_numpy(x).to(centre), Inference())
    return {"mean": to_array(q.mean)}
