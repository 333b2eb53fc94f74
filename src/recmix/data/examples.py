"""Define `Examples`, the interface to the examples of a data set, and `ArrayExamples` for arrays."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from recmix.errors import DataError

__all__ = [
    "Array",
    "ArrayExamples",
    "Examples",
    "Index",
    "chunk_slices",
    "one_if_constant",
    "rows",
    "to_unit",
]

Array = NDArray[Any]
Index = slice | Sequence[int] | NDArray[Any]

_SAMPLE = 10_000  # statistics of examples that stay in files are computed from this many
_CHUNK_VALUES = 1 << 22  # number of values processed at once: 16 MiB of float32


class Examples(ABC):
    """A sequence of examples, read by index. All have the same shape, called the event shape.

    ``examples[i]`` is one example, float32. ``examples[index]`` is float32 (B, *event), where the index
    is a slice, an integer array or a mask. ``numpy.asarray(examples)`` reads all examples. Statistics of
    examples that stay in files are computed from 10,000 random examples.

    Attributes:
        in_memory: False if the examples stay in files and are read each time they are used.
    """

    in_memory: ClassVar[bool]

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """(N, *event): the number of examples, and the shape of one example."""

    @abstractmethod
    def take(self, index: Index) -> Array:
        """Return the stored values of the examples at `index`, (B, *event).

        Stored values are float32, or uint8 with the meaning value / 255. Use `take` to move batches to a
        device, and divide by 255 there. The result may share memory with this object.

        Args:
            index: A slice, an integer array or a mask.
        """

    @abstractmethod
    def subset(self, index: Index) -> Examples:
        """Return the examples at `index` (a slice, an integer array or a mask) as a new object."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a SHA-256 hash that identifies the examples, as hexadecimal digits."""

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: int | np.integer[Any] | Index) -> NDArray[np.float32]:
        if isinstance(index, int | np.integer):
            first: NDArray[np.float32] = to_unit(self.take([int(index)]))[0]
            return first
        return to_unit(self.take(index))

    def __iter__(self) -> Iterator[NDArray[np.float32]]:
        for part in chunk_slices(self.shape):
            yield from self[part]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("examples cannot be converted to an array without a copy; use copy=True")
        out = np.empty(self.shape, np.float32 if dtype is None else dtype)
        for part in chunk_slices(self.shape):
            out[part] = self[part]
        return out

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape})"

    def mean(self) -> NDArray[np.float32]:
        """Return the mean over the examples, an array of the shape of one example."""
        return self._mean(self._sample()).astype(np.float32)

    def variance(self, mean: Array) -> float:
        """Return the mean of (x - mean)² over all examples and all their values, one number.

        `mean` is an array of the shape of one example.
        """
        chosen = self._sample()
        squares = (np.square(chunk - mean).sum(dtype=np.float64) for chunk in self._chunks(chosen))
        return float(sum(squares)) / (len(chosen) * math.prod(self.shape[1:]))

    def deviation(self) -> NDArray[np.float32]:
        """Return the standard deviation over the examples, an array of the shape of one example.

        The result is 1 where all examples have the same value.
        """
        chosen = self._sample()
        mean, first = self._mean(chosen), self[chosen[:1]]
        squares = np.zeros(self.shape[1:], np.float64)
        constant = np.ones(self.shape[1:], np.bool_)
        for chunk in self._chunks(chosen):
            squares += np.square(chunk - mean).sum(axis=0)
            constant &= (chunk == first).all(axis=0)
        return one_if_constant(np.sqrt(squares / len(chosen)), constant)

    def _mean(self, chosen: NDArray[np.int64]) -> NDArray[np.float64]:
        total = np.zeros(self.shape[1:], np.float64)
        for chunk in self._chunks(chosen):
            total += chunk.sum(axis=0, dtype=np.float64)
        return total / len(chosen)

    def _sample(self) -> NDArray[np.int64]:
        """Return the indices of the examples that statistics are computed from."""
        count = len(self)
        if self.in_memory or count <= _SAMPLE:
            return np.arange(count)
        return np.sort(np.random.default_rng(0).choice(count, _SAMPLE, replace=False))

    def _chunks(self, chosen: NDArray[np.int64]) -> Iterator[NDArray[np.float32]]:
        for part in chunk_slices((len(chosen), *self.shape[1:])):
            yield self[chosen[part]]


class ArrayExamples(Examples):
    """Examples in memory, stored as uint8 (divided by 255 when read) or float32.

    Several objects can share one array.

    >>> examples = ArrayExamples(np.full((4, 1, 8, 8), 255, np.uint8), index=[0, 3])
    >>> examples.shape, examples[0].dtype.name, float(examples[0].max())
    ((2, 1, 8, 8), 'float32', 1.0)

    Args:
        array: (M, *event), uint8 or float32, where event is the shape of one example.
        index: Selects and orders the examples of the array; None for all of them.
    """

    in_memory = True

    def __init__(self, array: Array, index: Index | None = None) -> None:
        if array.ndim < 2 or array.dtype not in (np.uint8, np.float32):
            raise DataError(
                f"ArrayExamples got {array.dtype} of shape {array.shape}; expected uint8 or float32 of "
                "shape (N, ...), two axes or more: convert the array with recmix.data.check_examples"
            )
        # One attribute, so that a thread never sees a new array with an old index.
        self._store = (array, None if index is None else rows(index, len(array)))

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, *event): the number of selected examples, and the shape of one example."""
        array, selected = self._store
        return len(array) if selected is None else len(selected), *array.shape[1:]

    @property
    def raw(self) -> Array:
        """The stored values of all selected examples, (N, *event): float32, or uint8 (value / 255).

        If only some examples of a shared array are selected, the first access copies them.
        """
        array, selected = self._store
        if selected is not None:
            array = array[selected]
            self._store = (array, None)
        return array

    def take(self, index: Index) -> Array:
        """Return the stored values of the examples at `index`, (B, *event): uint8 or float32."""
        array, selected = self._store
        if selected is None and isinstance(index, slice):
            return array[index]
        chosen = rows(index, len(self))
        return array[chosen if selected is None else selected[chosen]]

    def subset(self, index: Index) -> ArrayExamples:
        """Return the examples at `index` as a new object that shares the stored array."""
        array, selected = self._store
        chosen = rows(index, len(self))
        return ArrayExamples(array, chosen if selected is None else selected[chosen])

    def fingerprint(self) -> str:
        """Return a SHA-256 hash of the stored values, their dtype and their shape."""
        digest = hashlib.sha256(f"{self._store[0].dtype.name} {self.shape}".encode())
        for part in chunk_slices(self.shape):
            digest.update(np.ascontiguousarray(self.raw[part]).data)
        return digest.hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrayExamples, (self.raw,)  # a pickle holds the selected examples, not the shared array


def chunk_slices(shape: tuple[int, ...]) -> Iterator[slice]:
    """Yield slices along the first axis of an array of this shape, to read it in small pieces."""
    step = max(1, _CHUNK_VALUES // max(1, math.prod(shape[1:])))
    for start in range(0, shape[0], step):
        yield slice(start, start + step)


def rows(index: Index, count: int) -> NDArray[np.int64]:
    """Return the indices (B,) that a slice, an integer array or a mask selects, counted from 0.

    >>> rows(slice(None, None, 2), 5), rows([-1], 5)
    (array([0, 2, 4]), array([4]))

    Args:
        index: The slice, integer array or mask.
        count: Number of examples to select from.
    """
    if isinstance(index, slice):
        return np.arange(*index.indices(count))
    array = np.asarray(index)
    if array.dtype == np.bool_:
        if array.shape != (count,):
            raise IndexError(f"the mask has shape {array.shape}; expected ({count},), one per example")
        return np.flatnonzero(array)
    if array.ndim != 1 or not (array.size == 0 or np.issubdtype(array.dtype, np.integer)):
        raise IndexError(
            f"the index is {array.dtype} of shape {array.shape}; expected an integer, a slice, a list "
            "of integers or a mask"
        )
    chosen = array.astype(np.int64)
    outside = chosen[(chosen < -count) | (chosen >= count)]
    if outside.size:
        raise IndexError(f"index {outside[0]} is out of range for {count} examples")
    return np.where(chosen < 0, chosen + count, chosen)


def to_unit(values: Array) -> NDArray[np.float32]:
    """Convert stored values to a new float32 array of the same shape. uint8 is divided by 255.

    >>> to_unit(np.array([0, 51, 255], np.uint8))
    array([0. , 0.2, 1. ], dtype=float32)
    """
    if values.dtype == np.uint8:
        return np.divide(values, np.float32(255), dtype=np.float32)
    return values if values.flags.owndata else values.copy()


def one_if_constant(deviation: Array, constant: Array) -> NDArray[np.float32]:
    """Return standard deviations as float32, with 1 where dividing by them is not possible.

    Args:
        deviation: Standard deviations, of any shape.
        constant: Mask of the same shape, true where all examples have the same value.
    """
    small = deviation < np.finfo(np.float32).tiny
    return np.where(constant | small, 1, deviation).astype(np.float32)
