"""Which images are for training, which for choosing, which for scoring."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recmix.data.images import Images
from recmix.errors import ConfigError, DataError

__all__ = ["ImageData", "divide", "held_out", "split"]


def held_out(count: int) -> int:
    """How many of `count` images one held-out part takes: a tenth, at least one.

    >>> held_out(60_000), held_out(4)
    (6000, 1)
    """
    return max(1, count // 10)


def split(count: int, *, name: str, seed: int = 0, parts: int = 1) -> list[NDArray[np.int64]]:
    """Sorted, disjoint indices that cover `count` images: the rest, then `parts` held-out tenths.

    A pure function of (name, count, seed): the images with the smallest of `count` seeded uniform
    draws are held out.

    >>> train, val = split(20, name="mnist")
    >>> len(train), len(val)
    (18, 2)

    Args:
        count: How many images there are.
        name: The data set's name; different sets are split differently under one seed.
        seed: Which split.
        parts: How many tenths to hold out: 1 for validation, 2 for validation and test.
    """
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise ConfigError(f"seed is {seed!r}; expected an integer of 0 or more")
    size = held_out(count)
    if count <= parts * size:
        raise DataError(
            f"{name}: {count} image(s) cannot be split into {parts + 1} parts; "
            f"give at least {parts + 1} images, or the parts themselves"
        )
    draws = np.random.default_rng([int(seed), zlib.crc32(name.encode())]).random(count)
    order = np.argsort(draws, kind="stable")
    held = [np.sort(order[part * size : (part + 1) * size]) for part in range(parts)]
    return [np.sort(order[parts * size :]), *held]


def divide(
    train: Images,
    val: Images | None,
    test: Images | None,
    *,
    name: str,
    seed: int,
    need_test: bool,
) -> tuple[Images, Images, Images | None]:
    """The three parts, the missing ones held out of the training images by seed.

    Args:
        train: The training images, or all images.
        val: The validation images, if the set brings its own.
        test: The test images, if the set brings its own.
        name: The data set's name.
        seed: Which split.
        need_test: Whether a missing test part is held out too.
    """
    wanted = int(val is None) + int(test is None and need_test)
    rest, *held = split(len(train), name=name, seed=seed, parts=wanted)
    parts = iter([train.subset(index) for index in held])
    x_train = train.subset(rest) if wanted else train
    x_val = val if val is not None else next(parts)
    x_test = test if test is not None else next(parts, None)
    return x_train, x_val, x_test


@dataclass(frozen=True, eq=False, repr=False)
class ImageData:
    """Images for training, validation and test.

    >>> from recmix.data import ArrayImages
    >>> x = ArrayImages(np.zeros((10, 1, 8, 8), np.uint8))
    >>> ImageData("blank", x, x, None)
    ImageData('blank', train=10, val=10, test=None, shape=(1, 8, 8))

    Attributes:
        name: What the set is called.
        x_train: Training images.
        x_val: Images to choose by: early stopping, hyperparameters.
        x_test: Images to score on; None only for arrays that came without.
        seed: The seed of the split.
        dynamic: Training batches are grey values, to be binarised afresh each time they are used.
        binary: Values are 0 and 1 (after binarising, where `dynamic`): a Bernoulli likelihood fits.
        source: Where the images come from, for `describe`.
    """

    name: str
    x_train: Images
    x_val: Images
    x_test: Images | None
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
        _, channels, height, width = self.x_train.shape
        return channels, height, width

    @property
    def counts(self) -> dict[str, int | None]:
        """How many images each part has; None for a missing test part."""
        test = None if self.x_test is None else len(self.x_test)
        return {"train": len(self.x_train), "val": len(self.x_val), "test": test}

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the three parts: equal for equal images in equal splits.

        Streamed images are known by their files' names and sizes, not by their pixels.
        """
        parts = (self.x_train, self.x_val, self.x_test)
        digests = ["none" if part is None else part.fingerprint() for part in parts]
        return hashlib.sha256(" ".join(digests).encode()).hexdigest()

    def describe(self) -> dict[str, Any]:
        """What `recmix.data.rebuild` needs to load the same images again and to check that they are."""
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
        return f"ImageData({self.name!r}, {counts}, shape={self.shape})"
