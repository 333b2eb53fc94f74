"""Define `Data`, a data set split into training, validation and test examples."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recmix.data.examples import ArrayExamples, Examples
from recmix.data.shape_advice import same_axes
from recmix.data.values import Kind, kind_of, largest
from recmix.errors import ConfigError, DataError
from recmix.model.data_facts import Statistics
from recmix.model.fields import Fields
from recmix.model.vocabulary import Vocabulary

__all__ = ["Data", "complete_parts", "holdout_size", "in_shape", "split"]


_FEW = 1000  # examples that `Data.statistics` gives


def holdout_size(count: int) -> int:
    """Return the size of a validation or test set that is held out of `count` examples: a tenth.

    >>> holdout_size(60_000), holdout_size(4)
    (6000, 1)
    """
    return max(1, count // 10)


def split(count: int, *, name: str, seed: int = 0, parts: int = 1) -> list[NDArray[np.int64]]:
    """Split `count` examples at random into training examples and one or two held-out parts.

    The result depends only on the arguments: each example gets a uniform random number, and the examples
    with the smallest numbers are held out.

    >>> train, val = split(20, name="mnist")
    >>> len(train), len(val)
    (18, 2)

    Args:
        count: Number of examples.
        name: Name of the data set. Different sets are split differently with the same seed.
        seed: Seed of the split.
        parts: Number of held-out parts, each a tenth of the examples: 1 for validation, 2 for validation
            and test.

    Returns:
        Sorted indices of the training examples, then of each held-out part.
    """
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise ConfigError(f"seed is {seed!r}; expected an integer of 0 or more")
    size = holdout_size(count)
    if count <= parts * size:
        raise DataError(
            f"{name}: {count} example(s) cannot be split into {parts + 1} parts; "
            f"give at least {parts + 1} examples, or give each part"
        )
    numbers = np.random.default_rng([int(seed), zlib.crc32(name.encode())]).random(count)
    order = np.argsort(numbers, kind="stable")
    held_out = [np.sort(order[part * size : (part + 1) * size]) for part in range(parts)]
    return [np.sort(order[parts * size :]), *held_out]


def complete_parts(
    train: Examples,
    val: Examples | None,
    test: Examples | None,
    *,
    name: str,
    seed: int,
    need_test: bool,
) -> tuple[Examples, Examples, Examples | None]:
    """Return training, validation and test examples. Missing parts are taken at random out of `train`.

    If the test part is missing and `need_test` is false, the result for it is None. `name` and `seed`
    are as in `split`.
    """
    missing = int(val is None) + int(test is None and need_test)
    rest, *held_out = split(len(train), name=name, seed=seed, parts=missing)
    parts = iter([train.subset(index) for index in held_out])
    x_train = train.subset(rest) if missing else train
    x_val = val if val is not None else next(parts)
    x_test = test if test is not None else next(parts, None)
    return x_train, x_val, x_test


@dataclass(frozen=True, eq=False, repr=False)
class Data:
    """Examples for training, validation and test.

    >>> from recmix.data import ArrayExamples
    >>> x = ArrayExamples(np.zeros((10, 1, 8, 8), np.uint8))
    >>> Data("blank", x, x, None)
    Data('blank', train=10, val=10, test=None, shape=(1, 8, 8))

    Attributes:
        name: Name of the data set.
        x_train: Training examples.
        x_val: Validation examples, for early stopping and the choice of hyperparameters.
        x_test: Test examples; None if there is no test part.
        seed: Seed of the split.
        dynamic: Whether training examples lie in [0, 1] and are binarised again each time they are used.
        binary: Whether values are 0 and 1 (if `dynamic`, after binarisation). A Bernoulli likelihood
            fits.
        source: Where the examples come from, for `describe`.
        fields: {name: shape} of the fields, if an example consists of several named arrays, such as
            tokens and their number; else None. Each example is then stored as one vector of the values
            of all fields; `recmix.model.fields.Fields` unpacks it.
        columns: Names of the columns, if the data are a table with names.
        vocabulary: Converts examples to texts and back, if they were read from texts; else None.
        notes: What a user should know about the examples, such as how many texts were left out.
        held_out: Parts of a user's data ("val", "test") that were missing, and were taken at random from
            the training examples.
    """

    name: str
    x_train: Examples
    x_val: Examples
    x_test: Examples | None
    seed: int = 0
    dynamic: bool = False
    binary: bool = False
    source: Mapping[str, Any] = field(default_factory=lambda: {"kind": "arrays"})
    fields: dict[str, tuple[int, ...]] | None = None
    columns: tuple[str, ...] | None = None
    vocabulary: Vocabulary | None = None
    notes: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for part, examples in (("x_val", self.x_val), ("x_test", self.x_test)):
            if examples is not None and examples.shape[1:] != self.shape:
                raise DataError(
                    f"{self.name}: {part} has examples of shape {examples.shape[1:]}, x_train of shape "
                    f"{self.shape}; all parts of a data set must have one event shape"
                )
        expected: dict[str, tuple[int, ...]] = {}
        if self.fields is not None:
            size = Fields(self.fields).size
            expected[f"the fields {self.fields} have {size} values"] = (size,)
        if self.columns is not None:
            expected[f"there are {len(self.columns)} names of columns"] = (len(self.columns),)
        if self.vocabulary is not None:
            shape = tuple(self.vocabulary.shape)
            expected[f"the vocabulary gives examples of shape {shape}"] = shape
        for found, shape in expected.items():
            if shape != self.shape:
                raise DataError(f"{self.name}: {found}, but an example has shape {self.shape}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one example, the event shape."""
        return self.x_train.shape[1:]

    @cached_property
    def kind(self) -> Kind:
        """Which values the training examples have.

        - "binary": 0 and 1, perhaps after dynamic binarisation.
        - "unit": numbers in [0, 1].
        - "counts": whole numbers of 0 or more, some above 1.
        - "real": other numbers.
        - "tokens": class numbers of the tokens of texts.
        - "graph": nodes and edges of molecules.
        - "fields": several named fields, other than those of a graph.
        """
        if self.vocabulary is not None:
            return "tokens" if self.vocabulary.fields is None else "graph"
        if self.fields is not None:
            return "fields"
        return "binary" if self.binary or self.dynamic else kind_of(self.x_train)

    @cached_property
    def classes(self) -> int:
        """The number of classes, for examples whose values are class numbers from 0.

        The number is the size of the vocabulary. Without a vocabulary it is one more than the largest
        value.
        """
        if self.vocabulary is not None:
            return self.vocabulary.classes
        parts = [part for part in (self.x_train, self.x_val, self.x_test) if part is not None]
        return 1 + int(max(largest(part) for part in parts))

    def statistics(self, *, spread: bool = False, examples: bool = False) -> Statistics:
        """Return the statistics of the training examples that a new model needs, such as their mean.

        If an example has several fields (named arrays), nothing is computed: all attributes of the
        result have the defaults of `Statistics`. For tokens, only `examples` can differ from them.

        Args:
            spread: Whether to compute the standard deviation of each value, too.
            examples: Whether to include a few training examples, too.
        """
        if self.fields is not None:
            return Statistics()
        few = self.x_train[:_FEW] if examples else None
        if self.vocabulary is not None:
            return Statistics(examples=few)
        centre, variance = self._moments
        return Statistics(
            centre=centre,
            spread=self.x_train.deviation() if spread else None,
            variance=variance,
            examples=few,
        )

    @cached_property
    def _moments(self) -> tuple[NDArray[np.float32], float]:
        """The mean and the variance of the training examples, computed only once.

        Many models may be trained on the same data.
        """
        centre = self.x_train.mean()
        return centre, self.x_train.variance(centre)

    @property
    def counts(self) -> dict[str, int | None]:
        """Numbers of examples: {"train": N, "val": N, "test": N}; "test" is None without a test part."""
        test = None if self.x_test is None else len(self.x_test)
        return {"train": len(self.x_train), "val": len(self.x_val), "test": test}

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 hash of all examples: equal for equal training, validation and test examples.

        For images that stay in their files, the hash depends on file names and sizes, not on pixels.
        """
        parts = (self.x_train, self.x_val, self.x_test)
        digests = ["none" if part is None else part.fingerprint() for part in parts]
        if self.fields is not None:
            digests.append(str(Fields(self.fields)))
        if self.vocabulary is not None:
            digests.append(self.vocabulary.digest)
        return hashlib.sha256(" ".join(digests).encode()).hexdigest()

    def describe(self) -> dict[str, Any]:
        """Return a description of the data as JSON values.

        With the description, `recmix.data.rebuild` loads the same data again and checks that they have
        not changed.
        """
        described = {
            "name": self.name,
            **self.source,
            "seed": int(self.seed),
            "counts": self.counts,
            "shape": list(self.shape),
            "dynamic": self.dynamic,
            "binary": self.binary,
            "fingerprint": self.fingerprint,
        }
        if self.fields is not None:
            described["fields"] = Fields(self.fields).to_json()
        if self.columns is not None:
            described["columns"] = list(self.columns)
        if self.vocabulary is not None:
            described["vocabulary"] = {"kind": self.vocabulary.kind, "sha256": self.vocabulary.digest}
        return described

    def __repr__(self) -> str:
        counts = ", ".join(f"{part}={count}" for part, count in self.counts.items())
        return f"Data({self.name!r}, {counts}, shape={self.shape})"


def in_shape(data: Data, shape: tuple[int, ...] | None) -> Data:
    """Reshape examples to `shape`, if only axes of size 1 must be added or removed.

    Otherwise the data are returned unchanged, as are texts, data with fields or names of columns, and
    examples that are not stored in arrays.

    >>> x = ArrayExamples(np.zeros((10, 1, 8, 8), np.uint8))
    >>> in_shape(Data("blank", x, x, None), (8, 8)).shape
    (8, 8)
    """
    named = data.fields is not None or data.columns is not None or data.vocabulary is not None
    if shape is None or shape == data.shape or named or not same_axes(shape, data.shape):
        return data
    changed: dict[str, Any] = {}
    for name, part in {"x_train": data.x_train, "x_val": data.x_val, "x_test": data.x_test}.items():
        if isinstance(part, ArrayExamples):
            changed[name] = ArrayExamples(part.raw.reshape(-1, *shape))
        elif part is not None:
            return data
    return replace(data, **changed)
