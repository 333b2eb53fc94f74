"""The class `Vocabulary`: it converts texts to examples of numbers, and back."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from recmix.errors import DataError, unknown

__all__ = ["Encoded", "Vocabulary", "find_vocabulary", "vocabulary_from_json"]


class Encoded(NamedTuple):
    """The result of `Vocabulary.encode`: texts as numbers, and the problems that were found.

    Attributes:
        x: the examples (N, *shape) of the N texts that could be encoded, in the order of the texts.
        kept: the indices of the texts that could be encoded, (N,).
        problems: {description: number of texts}, such as {"longer than 50 tokens": 3}. A text with a
            problem is not always left out: a text with unknown words is counted, but kept.
    """

    x: np.ndarray
    kept: np.ndarray
    problems: dict[str, int]


class Vocabulary(ABC):
    """Base class of vocabularies, which convert texts to examples of one shape and back.

    Texts are, for example, sentences or SMILES strings. A vocabulary belongs to a data set and is stored
    with every model that was trained on it. `find_vocabulary` lists the subclasses.

    Attributes:
        kind: the name of the class in stored vocabularies, such as "smiles".
        molecules: whether the texts are SMILES strings of molecules.
        shape: shape of an example.
        fields: shapes of the fields of an example, {field name: shape}; None if an example is one array.
        classes: the number of different tokens; 0 if an example has several fields.
    """

    kind: ClassVar[str]
    molecules: ClassVar[bool] = False
    shape: tuple[int, ...]
    fields: dict[str, tuple[int, ...]] | None = None
    classes: int = 0

    def model_options(self) -> dict[str, Any]:
        """The model options that follow from the vocabulary, {name: value}, such as {"classes": 40}."""
        return {"classes": self.classes, "end_token": True}

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> Encoded:
        """Convert texts to examples of numbers. Texts that cannot be converted are left out."""

    @classmethod
    def normal_forms(cls, texts: Sequence[str]) -> list[str]:
        """Convert each text to a normal form, which is equal for texts that differ only in spelling.

        One molecule, for example, has many SMILES strings. When data are split, all texts with one
        normal form go into the same part.
        """
        return list(texts)

    @abstractmethod
    def decode(self, x: np.ndarray) -> list[str]:
        """Convert N examples (N, *shape) to N texts. An invalid example gives ""."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """The content of the vocabulary as a dict, from which `from_json` makes the vocabulary again."""

    @classmethod
    @abstractmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Vocabulary:
        """Make the vocabulary again from the result of `to_json`. Other content raises a `DataError`."""

    def describe(self) -> dict[str, Any]:
        """The vocabulary as a dict for `vocabulary_from_json`: its `kind` and the items of `to_json`."""
        return {"kind": self.kind, **self.to_json()}

    def _rows(self, x: Any) -> np.ndarray:
        """Return examples x (N, *shape) as an array.

        Raise a `DataError` if x has another shape or does not hold numbers.
        """
        rows = np.asarray(x)
        if rows.ndim != 2 or rows.shape[1:] != self.shape or rows.dtype.kind not in "biuf":
            raise DataError(
                f"decode got {rows.dtype} of shape {rows.shape}; expected numbers of shape "
                f"(N, {self.shape[0]})"
            )
        return rows

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @cached_property
    def digest(self) -> str:
        """SHA-256 hash of `describe()`. Equal vocabularies have equal hashes."""
        return hashlib.sha256(json.dumps(self.describe(), sort_keys=True).encode()).hexdigest()


def vocabulary_from_json(stored: Any) -> Vocabulary:
    """Make a vocabulary again from the result of `Vocabulary.describe`.

    Raise a `DataError` if `stored` is not such a result.
    """
    if not isinstance(stored, Mapping) or not isinstance(stored.get("kind"), str):
        raise DataError("this is not a stored vocabulary: expected an object with the field 'kind'")
    return find_vocabulary(stored["kind"]).from_json(stored)


def find_vocabulary(kind: str) -> type[Vocabulary]:
    """Return the vocabulary class of this kind.

    Raise a `DataError` if there is none.

    >>> find_vocabulary("smiles").molecules
    True
    """
    from recmix.model.graph_vocabulary import MoleculeGraphs
    from recmix.model.sequence_vocabulary import Smiles, Words

    known: dict[str, type[Vocabulary]] = {made.kind: made for made in (Words, Smiles, MoleculeGraphs)}
    if kind not in known:
        raise DataError(unknown("kind of vocabulary", str(kind), known))
    return known[kind]
