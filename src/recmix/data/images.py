"""Images as numpy arrays of shape (N, C, H, W) with values in [0, 1]: one interface for all stores."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from recmix.errors import DataError

__all__ = ["Array", "ArrayImages", "Images", "Index", "is_binary", "to_unit"]

Array = NDArray[Any]
Index = slice | Sequence[int] | NDArray[Any]

_CHUNK = 1 << 22  # values per chunk when a statistic walks over all images: 16 MiB of float32


class Images(ABC):
    """A sequence of images of one size, read by index.

    ``images[i]`` is float32 (C, H, W); ``images[index]`` with a slice, an integer array or a mask
    is float32 (B, C, H, W). Values lie in [0, 1]. ``numpy.asarray(images)`` reads them all.
    """

    in_memory: ClassVar[bool]

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int, int]:
        """(N, C, H, W)."""

    @abstractmethod
    def take(self, index: Index) -> Array:
        """The stored values of some images, (B, C, H, W): uint8 (to be divided by 255) or float32.

        For code that moves batches to a device and divides there. May share memory with the store.
        """

    @abstractmethod
    def subset(self, index: Index) -> Images:
        """These images restricted to an index; the store is shared, not copied."""

    @abstractmethod
    def fingerprint(self) -> str:
        """SHA-256 of what the images are, as hexadecimal digits."""

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: int | np.integer[Any] | Index) -> NDArray[np.float32]:
        if isinstance(index, int | np.integer):
            first: NDArray[np.float32] = to_unit(self.take([int(index)]))[0]
            return first
        return to_unit(self.take(index))

    def __iter__(self) -> Iterator[NDArray[np.float32]]:
        for chunk in self._chunks(np.arange(len(self))):
            yield from chunk

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("these images cannot be given as an array without a copy")
        wanted = np.dtype(np.float32 if dtype is None else dtype)
        out = np.empty(self.shape, wanted)
        start = 0
        for chunk in self._chunks(np.arange(len(self))):
            out[start : start + len(chunk)] = chunk
            start += len(chunk)
        return out

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape})"

    def mean(self, sample: int = 10_000, seed: int = 0) -> NDArray[np.float32]:
        """The mean image, (C, H, W).

        Args:
            sample: How many images to average where reading them all is slow; images in memory are
                all averaged.
            seed: Which sample.
        """
        chosen = self._sample(sample, seed)
        total = np.zeros(self.shape[1:], np.float64)
        for chunk in self._chunks(chosen):
            total += chunk.sum(axis=0, dtype=np.float64)
        return (total / len(chosen)).astype(np.float32)

    def variance(self, mean: Array, sample: int = 10_000, seed: int = 0) -> float:
        """The mean squared deviation from a mean image, over images and pixels.

        Args:
            mean: The mean image, (C, H, W).
            sample: As in `mean`.
            seed: As in `mean`.
        """
        chosen = self._sample(sample, seed)
        total = 0.0
        for chunk in self._chunks(chosen):
            total += float(np.square(chunk - mean).sum(dtype=np.float64))
        return total / (len(chosen) * int(np.prod(self.shape[1:])))

    def _sample(self, sample: int, seed: int) -> NDArray[np.int64]:
        count = len(self)
        if self.in_memory or count <= sample:
            return np.arange(count)
        return np.sort(np.random.default_rng(seed).choice(count, sample, replace=False))

    def _chunks(self, chosen: NDArray[np.int64]) -> Iterator[NDArray[np.float32]]:
        step = max(1, _CHUNK // int(np.prod(self.shape[1:])))
        for start in range(0, len(chosen), step):
            yield to_unit(self.take(chosen[start : start + step]))


class ArrayImages(Images):
    """Images held in memory as uint8 (divided by 255 when read) or float32.

    Several of them can share one array, each with its own index.

    >>> images = ArrayImages(np.full((4, 1, 8, 8), 255, np.uint8), index=[0, 3])
    >>> images.shape, images[0].dtype.name, float(images[0].max())
    ((2, 1, 8, 8), 'float32', 1.0)

    Args:
        array: (M, C, H, W), uint8 or float32 with values in [0, 1].
        index: Which of the M images these are, in which order; all of them by default.
    """

    in_memory = True

    def __init__(self, array: Array, index: Index | None = None) -> None:
        if array.ndim != 4 or array.dtype not in (np.uint8, np.float32):
            raise DataError(
                f"ArrayImages was given {array.dtype} of shape {array.shape}; it holds uint8 or "
                "float32 of shape (N, C, H, W). check_images converts other arrays"
            )
        # One attribute, so that a thread never sees a new array with an old index.
        self._store = (array, None if index is None else rows(index, len(array)))

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(N, C, H, W)."""
        array, index = self._store
        _, channels, height, width = array.shape
        return len(array) if index is None else len(index), channels, height, width

    @property
    def raw(self) -> Array:
        """The stored values of all these images, uint8 or float32.

        The first use gathers them into an array of their own and lets the shared one go.
        """
        array, index = self._store
        if index is not None:
            array = array[index]
            self._store = (array, None)
        return array

    def take(self, index: Index) -> Array:
        """The stored values of some images, (B, C, H, W): uint8 or float32."""
        array, own = self._store
        if own is None and isinstance(index, slice):
            return array[index]
        chosen = rows(index, len(self))
        return array[chosen if own is None else own[chosen]]

    def subset(self, index: Index) -> ArrayImages:
        """These images restricted to an index; the array is shared."""
        array, own = self._store
        chosen = rows(index, len(self))
        return ArrayImages(array, chosen if own is None else own[chosen])

    def fingerprint(self) -> str:
        """SHA-256 of the stored values, their type and their shape."""
        array, _ = self._store
        digest = hashlib.sha256(f"{array.dtype.name} {self.shape}".encode())
        step = max(1, _CHUNK // int(np.prod(self.shape[1:])))
        for start in range(0, len(self), step):
            digest.update(np.ascontiguousarray(self.take(slice(start, start + step))).data)
        return digest.hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrayImages, (self.raw,)  # a worker is sent its own images, not the shared array


def rows(index: Index, count: int) -> NDArray[np.int64]:
    """A slice, an integer array or a mask over `count` images as row numbers.

    >>> rows(slice(None, None, 2), 5), rows([-1], 5)
    (array([0, 2, 4]), array([4]))
    """
    if isinstance(index, slice):
        return np.arange(*index.indices(count))
    array = np.asarray(index)
    if array.dtype == np.bool_:
        if array.shape != (count,):
            raise IndexError(f"a mask of shape {array.shape} over {count} images")
        return np.flatnonzero(array)
    if array.ndim != 1 or not (array.size == 0 or np.issubdtype(array.dtype, np.integer)):
        raise IndexError(
            f"images are read by an integer, a slice, a list of integers or a mask; "
            f"got {array.dtype} of shape {array.shape}"
        )
    chosen = array.astype(np.int64)
    if chosen.size and (chosen.min() < -count or chosen.max() >= count):
        raise IndexError(f"index {chosen[(chosen < -count) | (chosen >= count)][0]} of {count} images")
    return np.where(chosen < 0, chosen + count, chosen)


def to_unit(values: Array) -> NDArray[np.float32]:
    """Stored values as float32 in [0, 1], in memory of their own: uint8 is divided by 255.

    >>> to_unit(np.array([0, 51, 255], np.uint8))
    array([0. , 0.2, 1. ], dtype=float32)
    """
    if values.dtype == np.uint8:
        return np.divide(values, np.float32(255), dtype=np.float32)
    return values if values.flags.owndata else values.copy()


def is_binary(images: Images) -> bool:
    """Whether every value is 0 or 1; images that are not in memory are taken to be grey.

    >>> is_binary(ArrayImages(np.full((2, 1, 8, 8), 0.5, np.float32)))
    False
    """
    if not images.in_memory:
        return False
    step = max(1, _CHUNK // int(np.prod(images.shape[1:])))
    for start in range(0, len(images), step):
        values = images.take(slice(start, start + step))
        if not ((values == 0) | (values == (255 if values.dtype == np.uint8 else 1))).all():
            return False
    return True
