"""Split images into training, validation and test parts."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recmix.data.examples import Examples
from recmix.errors import ConfigError, DataError

__all__ = ["Data", "complete_parts", "holdout_size", "split"]


def holdout_size(count: int) -> int:
    """Number of images in one held-out part: a tenth of `count`, at least one.

    >>> holdout_size(60_000), holdout_size(4)
    (6000, 1)
    """
    return max(1, count // 10)


def split(count: int, *, name: str, seed: int = 0, parts: int = 1) -> list[NDArray[np.int64]]:
    """Split `count` images at random: sorted indices of the rest, then of `parts` held-out tenths.

    The result depends on (name, count, seed) only: each image gets a seeded uniform number, and
    the images with the smallest numbers are held out.

    >>> train, val = split(20, name="mnist")
    >>> len(train), len(val)
    (18, 2)

    Args:
        count: Number of images.
        name: Name of the data set. Different sets are split differently with the same seed.
        seed: Seed of the split.
        parts: Number of held-out tenths: 1 for validation, 2 for validation and test.
    """
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise ConfigError(f"seed is {seed!r}; expected an integer of 0 or more")
    size = holdout_size(count)
    if count <= parts * size:
        raise DataError(
            f"{name}: {count} image(s) cannot be split into {parts + 1} parts; "
            f"give at least {parts + 1} images, or give each part"
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
    """Training, validation and test images; missing parts are held out of the training images.

    A missing test part is held out only with `need_test`. See `split` for `name` and `seed`.
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
        x_train: Training images.
        x_val: Validation images, for early stopping and the choice of hyperparameters.
        x_test: Test images; None only for arrays without a test part.
        seed: Seed of the split.
        dynamic: Training images are grey and are binarised again each time they are used.
        binary: Values are 0 and 1 (if `dynamic`, after binarisation). A Bernoulli likelihood fits.
        source: Where the images come from, for `describe`.
    """

    name: str
    x_train: Examples
    x_val: Examples
    x_test: Examples | None
    seed: int = 0
    dynamic: bool = False
    binary: bool = False
    source: Mapping[str, Any] = field(default_factory=lambda: {"kind": "arrays"})

    def __post_init__(self) -> None:
        for part, images in (("x_val", self.x_val), ("x_test", self.x_test)):
            if images is not None and images.shape[1:] != self.shape:
                raise DataError(
                    f"{self.name}: {part} has images of shape {images.shape[1:]}, x_train of shape "
                    f"{self.shape}; all parts of a data set must have one image shape (C, H, W)"
                )

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one image."""
        return self.x_train.shape[1:]

    @property
    def counts(self) -> dict[str, int | None]:
        """Number of images in each part; None for a missing test part."""
        test = None if self.x_test is None else len(self.x_test)
        return {"train": len(self.x_train), "val": len(self.x_val), "test": test}

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the three parts: equal for equal images in equal splits.

        For images that stay in their files it depends on file names and sizes, not on pixels.
        """
        parts = (self.x_train, self.x_val, self.x_test)
        digests = ["none" if part is None else part.fingerprint() for part in parts]
        return hashlib.sha256(" ".join(digests).encode()).hexdigest()

    def describe(self) -> dict[str, Any]:
        """Description (for JSON) with which `recmix.data.rebuild` loads and checks the same images."""
        return {
            "name": self.name,
            **self.source,
            "seed": int(self.seed),
            "counts": self.counts,
            "shape": list(self.shape),
            "dynamic": self.dynamic,
            "binary": self.binary,
            "fingerprint": self.fingerprint,
        }

    def __repr__(self) -> str:
        counts = ", ".join(f"{part}={count}" for part, count in self.counts.items())
        return f"Data({self.name!r}, {counts}, shape={self.shape})"
