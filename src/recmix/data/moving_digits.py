"""Make short clips of digits that move and bounce, from images of digits. Nothing is downloaded."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from recmix.data.checks import check_examples
from recmix.data.examples import to_unit
from recmix.errors import ConfigError, DataError

__all__ = ["moving_digits"]

SIDES = (8, 64)  # the smallest and the largest side of a frame


def moving_digits(
    images: Any,
    count: int = 1000,
    *,
    frames: int = 10,
    side: int | None = None,
    digits: int | tuple[int, int] = (1, 2),
    speed: float = 0.1,
    seed: int = 0,
) -> NDArray[np.uint8]:
    """Make clips of digits that move on straight lines and bounce at the edges of the frame.

    Each digit of a clip is a random image, with a random first position and a random direction. Where
    digits overlap, the brighter value is shown. The same arguments give the same clips. Make training
    and test clips from different images.

    >>> from recmix.data import load
    >>> clips = moving_digits(load("digits").x_train, 20, frames=6)
    >>> clips.shape, clips.dtype.name
    ((20, 6, 1, 16, 16), 'uint8')

    Args:
        images: Images of digits, (M, 1, h, w) or (M, h, w), such as
            ``recmix.data.load("digits").x_train``.
        count: Number of clips.
        frames: Number of frames of a clip, T.
        side: Height and width of a frame, 8 to 64; by default twice the larger side of a digit, but at
            most 64.
        digits: Number of digits in a clip, or the smallest and the largest number.
        speed: Distance that a digit moves between two frames, as a fraction of the side.
        seed: Seed of all random choices.

    Returns:
        The clips, (count, T, 1, side, side), as uint8: value / 255 is the brightness.
    """
    pictures = to_unit(check_examples(np.asarray(images), what="images"))
    if pictures.ndim != 4 or pictures.shape[1] != 1 or not 0 <= pictures.min() <= pictures.max() <= 1:
        raise DataError(
            f"images have shape {pictures.shape} and values from {pictures.min():g} to "
            f"{pictures.max():g}; expected grey images (M, 1, h, w) with values in [0, 1]"
        )
    size = np.array(pictures.shape[2:])
    low, high = (digits, digits) if isinstance(digits, int) else digits
    side = min(2 * int(size.max()), SIDES[1]) if side is None else side
    if count < 1 or frames < 1 or not 1 <= low <= high or not 0 <= speed <= 1:
        raise ConfigError(
            f"count={count}, frames={frames}, digits={digits}, speed={speed}: expected positive "
            "numbers, and a speed from 0 to 1"
        )
    if not SIDES[0] <= side <= SIDES[1] or side < size.max():
        raise ConfigError(
            f"side={side}: expected {SIDES[0]} to {SIDES[1]}, and no less than the side of the digits, "
            f"{size.max()}"
        )
    random = np.random.default_rng(seed)
    chosen = np.rint(255 * pictures[random.integers(len(pictures), size=(count, high)), 0])
    present = np.arange(high) < random.integers(low, high + 1, size=(count, 1))
    chosen = (chosen * present[..., None, None]).astype(np.uint8)
    places = _paths(random, (count, high), side - size, frames, speed * side)
    clips = np.zeros((count, frames, 1, side, side), np.uint8)
    for clip, pieces, paths in zip(clips, chosen, places, strict=True):
        for piece, path in zip(pieces, paths, strict=True):
            for frame, (y, x) in zip(clip, path, strict=True):
                window = frame[0, y : y + size[0], x : x + size[1]]
                np.maximum(window, piece, out=window)
    return clips


def _paths(
    random: np.random.Generator,
    counts: tuple[int, int],
    room: NDArray[Any],
    frames: int,
    distance: float,
) -> NDArray[np.int64]:
    """Return the positions (y, x) of the digits in each frame, (clips, digits, frames, 2).

    Each digit moves by `distance` pixels per frame and bounces at 0 and at `room`, the largest (y, x).
    `counts` is (clips, digits).
    """
    start = random.random((*counts, 1, 2)) * room
    angle = random.random((*counts, 1)) * 2 * np.pi
    step = distance * np.stack([np.sin(angle), np.cos(angle)], -1)
    straight = start + step * np.arange(frames)[:, None]
    period = np.maximum(2 * room, 1)
    within = straight % period
    return np.rint(np.minimum(np.minimum(within, period - within), room)).astype(np.int64)
