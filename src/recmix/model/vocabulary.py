"""The class `Vocabulary`: how examples that people write as text become numbers, and back."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from recmix.errors import DataError, unknown

__all__ = [
    "VOCABULARIES",
    "Encoded",
    "Vocabulary",
    "find_vocabulary",
    "register_vocabulary",
    "vocabulary_from_json",
]


class Encoded(NamedTuple):
    """Texts as numbers, and the texts that could not be encoded.

    Attributes:
        x: the examples, (N, *shape), for the N texts that could be encoded, in their order.
        kept: the indices of these texts, (N,).
        problems: how many texts had each problem, by a description such as "longer than 50 tokens".
            A problem need not exclude a text: words that are not in the vocabulary become unknown.
    """

    x: np.ndarray
    kept: np.ndarray
    problems: dict[str, int]


class Vocabulary(ABC):
    """How texts, such as sentences or SMILES strings, are written as examples of one shape.

    A vocabulary belongs to a data set and is stored with every model that was trained on it. A
    subclass is registered with `register_vocabulary`.

    Attributes:
        kind: its registered name.
        molecules: whether the texts are SMILES strings of molecules.
        shape: shape of an example.
        fields: shapes of the fields of an example, by name; None if it is one array.
        classes: the number of different values (tokens) of an example; 0 if it has several fields.
    """

    kind: ClassVar[str]
    molecules: ClassVar[bool] = False
    shape: tuple[int, ...]
    fields: dict[str, tuple[int, ...]] | None = None
    classes: int = 0

    def model_options(self) -> dict[str, Any]:
        """The values of model options that follow from the vocabulary, by name."""
        return {"classes": self.classes, "end_token": True}

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> Encoded:
        """The texts as examples of numbers."""

    @classmethod
    def normal_forms(cls, texts: Sequence[str]) -> list[str]:
        """For each text, a form that all texts with the same example share; by default the text itself.

        Texts of one form are never divided between training and held-out texts.
        """
        return list(texts)

    @abstractmethod
    def decode(self, x: np.ndarray) -> list[str]:
        """The texts of examples (N, *shape). An example that is no valid text gives ""."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """What `from_json` needs, as values that JSON can store. "kind" is added by `describe`."""

    @classmethod
    @abstractmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Vocabulary:
        """The vocabulary that `to_json` described. Wrong content raises a `DataError`."""

    def describe(self) -> dict[str, Any]:
        """The vocabulary as values that JSON can store; `vocabulary_from_json` reads them."""
        return {"kind": self.kind, **self.to_json()}

    @cached_property
    def digest(self) -> str:
        """SHA-256 hash of `describe`: equal for equal vocabularies."""
        return hashlib.sha256(json.dumps(self.describe(), sort_keys=True).encode()).hexdigest()


VOCABULARIES: dict[str, type[Vocabulary]] = {}
"""All registered vocabularies by name."""


def register_vocabulary(kind: type[Vocabulary]) -> type[Vocabulary]:
    """Class decorator that makes a vocabulary known under its `kind`."""
    VOCABULARIES[kind.kind] = kind
    return kind


def vocabulary_from_json(stored: Any) -> Vocabulary:
    """The vocabulary that `Vocabulary.describe` described.

    Raises:
        DataError: The content is not that of a vocabulary.
    """
    if not isinstance(stored, Mapping) or not isinstance(stored.get("kind"), str):
        raise DataError("this is not a stored vocabulary: expected an object with the field 'kind'")
    return find_vocabulary(stored["kind"]).from_json(stored)


def find_vocabulary(kind: str) -> type[Vocabulary]:
    """The registered vocabulary of this name.

    >>> find_vocabulary("smiles").molecules
    True
    """
    from recmix.model import graph_vocabulary, sequence_vocabulary  # noqa: F401  (they register)

    if kind not in VOCABULARIES:
        raise DataError(unknown("kind of vocabulary", str(kind), VOCABULARIES))
    return VOCABULARIES[kind]
