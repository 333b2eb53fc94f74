"""Find the kind of values that examples have. The kind decides which likelihood is the default."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from recmix.data.examples import Array, Examples, chunk_slices
from recmix.data.sparse_examples import SparseExamples
from recmix.model.fields import LARGEST_INTEGER

__all__ = ["Kind", "kind_of", "largest", "stored_values"]

Kind = Literal["binary", "unit", "real", "counts", "fields", "tokens", "graph"]


def kind_of(examples: Examples) -> Kind:
    """Return the kind of values that examples have: "binary", "unit", "counts" or "real".

    "binary" means 0 and 1, "unit" means numbers in [0, 1], "counts" means whole numbers of 0 or more,
    and "real" means other numbers. The kind of images that stay in their files is "unit".

    >>> from recmix.data import ArrayExamples
    >>> kind_of(ArrayExamples(np.array([[0, 3], [1, 0]], np.float32)))
    'counts'
    >>> kind_of(ArrayExamples(np.array([[0, 0.5], [1, 0]], np.float32)))
    'unit'
    """
    if not examples.in_memory:
        return "unit"
    unit = whole = True
    for _, values in stored_values(examples):
        if values.dtype == np.uint8:
            whole = whole and bool(((values == 0) | (values == 255)).all())
            if not whole:
                return "unit"
            continue
        low, high = float(values.min()), float(values.max())
        unit = unit and low >= 0 and high <= 1
        # float32 has no fractions above this limit, so that a large value says nothing.
        whole = (
            whole and low >= 0 and high <= LARGEST_INTEGER and bool((values == np.rint(values)).all())
        )
        if not (unit or whole):
            return "real"
    if unit:
        return "binary" if whole else "unit"
    return "counts"


def largest(examples: Examples) -> float:
    """Return the largest value of all examples. A value stored as uint8 means value / 255."""
    found = [0.0] if isinstance(examples, SparseExamples) else []
    for _, values in stored_values(examples):
        found.append(float(values.max()) / (255 if values.dtype == np.uint8 else 1))
    return max(found)


def stored_values(examples: Examples) -> Iterator[tuple[int, Array]]:
    """Yield all stored values in pieces, each as a pair (start, values).

    `values` is (B, *event), and `start` is the index of its first example. For sparse examples, `values`
    is a vector of values that are not 0, and `start` is the number of such values in earlier pieces.
    """
    if not isinstance(examples, SparseExamples):
        for part in chunk_slices(examples.shape):
            yield part.start, examples.take(part)
        return
    values = examples.raw.data
    for part in chunk_slices(values.shape):
        yield part.start, values[part]
