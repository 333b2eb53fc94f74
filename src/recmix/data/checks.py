"""Is this array a set of images? If not, say what was given, what was expected and what to do."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from recmix.data.images import Array
from recmix.errors import DataError

__all__ = ["SIDES", "check_images", "check_size", "is_tensor", "to_numpy"]

SIDES = (8, 128)  # the networks know images whose sides lie between these, both included

_CHUNK = 1 << 22  # values looked at together
_WANTED = "expected images of shape (N, C, H, W) or (N, H, W)"


def check_images(
    x: Any,
    *,
    what: str = "x",
    shape: tuple[int, int, int] | None = None,
    at_least: int = 1,
) -> Array:
    """Images as an array of shape (N, C, H, W), uint8 or float32 in [0, 1].

    uint8 stands for value / 255; booleans are 0 and 1; other floats become float32. The array given
    is returned itself where nothing has to change.

    >>> check_images(np.zeros((5, 28, 28))).shape
    (5, 1, 28, 28)
    >>> check_images(np.zeros((5, 28, 28, 1)), what="x_train")
    Traceback (most recent call last):
    ...
    recmix.errors.DataError: x_train is float64 of shape (5, 28, 28, 1), which looks channels-last; \
expected images of shape (N, C, H, W) or (N, H, W): use x_train.transpose(0, 3, 1, 2)

    Args:
        x: A numpy array, a torch tensor, or nested lists of numbers.
        what: How the messages name it.
        shape: The (C, H, W) that it must have.
        at_least: The fewest images that make sense.

    Raises:
        DataError: If these are not images.
    """
    array = to_numpy(x, what)
    given = f"{what} is {array.dtype} of shape {array.shape}"
    _check_type(array, given, what)
    if array.ndim == 3 and array.shape[-1] in (1, 3, 4) and min(array.shape[:2]) >= SIDES[0]:
        raise DataError(
            f"{given}, which looks like one channels-last image; {_WANTED}: "
            f"use {what}.transpose(2, 0, 1)[None], and more than one image"
        )
    if array.ndim == 3:
        array = array[:, None]
    _check_shape(array, given, what)
    if shape is not None and array.shape[1:] != shape:
        raise DataError(
            f"{given}: its images are {_size(array.shape[1:])}, expected {_size(shape)}: all images "
            "of a data set, and those given to a model trained on it, have one shape (C, H, W)"
        )
    if len(array) < at_least:
        raise DataError(
            f"{given}: {len(array)} image(s) where at least {at_least} are needed; give more images"
        )
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    _check_values(array, given, what)
    kind = np.uint8 if array.dtype == np.uint8 else np.float32
    # Writable and contiguous: torch.from_numpy then takes it as it is and without a warning.
    return np.require(array, kind, ["C_CONTIGUOUS", "WRITEABLE", "ALIGNED"])


def check_size(height: int, width: int, given: str) -> None:
    """Raise a DataError unless both sides lie in the range that the networks know.

    >>> check_size(200, 28, "photo.png is 200x28")
    Traceback (most recent call last):
    ...
    recmix.errors.DataError: photo.png is 200x28; each side must have 8 to 128 pixels: resize the \
images (image files are resized by size=..., for example size=64)
    """
    low, high = SIDES
    if not (low <= height <= high and low <= width <= high):
        raise DataError(
            f"{given}; each side must have {low} to {high} pixels: resize the images "
            "(image files are resized by size=..., for example size=64)"
        )


def is_tensor(x: Any) -> bool:
    """Whether it is a torch tensor; torch is not imported to find out.

    >>> is_tensor(np.zeros(3))
    False
    """
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def to_numpy(x: Any, what: str = "x") -> Array:
    """A numpy array of a torch tensor (from any device), of nested lists, or of an array.

    >>> to_numpy([[0.0, 1.0]]).shape
    (1, 2)
    """
    if isinstance(x, np.ndarray):
        return x
    try:
        if is_tensor(x):
            tensor = x.detach().cpu()
            known = str(tensor.dtype) not in ("torch.bfloat16", "torch.float16")
            return np.asarray((tensor if known else tensor.float()).numpy())
        if isinstance(x, list | tuple) or hasattr(x, "__array__"):
            return np.asarray(x)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{what}, a {type(x).__name__}, does not become one array ({error}); {_WANTED}, "
            "all images of one size"
        ) from error
    raise DataError(f"{what} is a {type(x).__name__}; {_WANTED}, as a numpy array or a torch tensor")


def _size(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _check_type(array: Array, given: str, what: str) -> None:
    if array.dtype in (np.uint8, np.bool_) or np.issubdtype(array.dtype, np.floating):
        return
    if np.issubdtype(array.dtype, np.integer):
        raise DataError(
            f"{given}; expected uint8, or floats in [0, 1]: use {what}.astype('uint8') for grey "
            f"values from 0 to 255, {what}.astype('float32') for values in [0, 1]"
        )
    if array.dtype == np.object_:
        raise DataError(
            f"{given}: an array of Python objects, perhaps of images of different sizes; expected "
            "numbers, uint8 or float: resize the images to one size and use numpy.stack"
        )
    raise DataError(f"{given}; expected numbers, uint8 or float in [0, 1]")


def _check_shape(array: Array, given: str, what: str) -> None:
    if array.size == 0:
        raise DataError(f"{given}: it has no images; {_WANTED} with N of 1 or more")
    if array.ndim == 2:
        raise DataError(
            f"{given}, which looks like flat vectors; {_WANTED}: "
            f"use {what}.reshape({_reshape(array.shape[1])})"
        )
    if array.ndim != 4:
        raise DataError(f"{given}, {array.ndim} dimensions; {_WANTED}")
    _, channels, height, width = array.shape
    if width < SIDES[0] <= min(channels, height):
        raise DataError(
            f"{given}, which looks channels-last; {_WANTED}: use {what}.transpose(0, 3, 1, 2)"
        )
    check_size(height, width, f"{given}: its images are {height}x{width}")


def _reshape(pixels: int) -> str:
    for channels in (1, 3):
        side = math.isqrt(pixels // channels)
        if channels * side * side == pixels and side > 1:
            return f"-1, {channels}, {side}, {side}"
    return "N, C, H, W"


def _check_values(array: Array, given: str, what: str) -> None:
    low, high = math.inf, -math.inf
    step = max(1, _CHUNK // max(1, array[0].size))
    for start in range(0, len(array), step):
        chunk = array[start : start + step]
        chunk_low, chunk_high = float(chunk.min()), float(chunk.max())
        if not (math.isfinite(chunk_low) and math.isfinite(chunk_high)):
            bad = ~np.isfinite(chunk)
            image = start + int(np.argmax(bad.any(axis=(1, 2, 3))))
            raise DataError(
                f"{given} and has values that are NaN or infinite, the first in image {image}; "
                f"expected finite values in [0, 1]: drop those images or use numpy.nan_to_num"
            )
        low, high = min(low, chunk_low), max(high, chunk_high)
    if array.dtype == np.uint8:
        if high == 1:
            raise DataError(
                f"{given} and its values are only 0 and 1, but uint8 stands for value / 255; "
                f"for black and white images use {what}.astype(bool)"
            )
        return
    if np.float32(low) < 0 or np.float32(high) > 1:
        raise DataError(
            f"{given} with values from {low:.6g} to {high:.6g}; expected [0, 1]: "
            f"{_rescue(low, high, what)}"
        )


def _rescue(low: float, high: float, what: str) -> str:
    if low >= -0.01 and high <= 1.01:
        return f"use {what}.clip(0, 1)"
    if low >= -1 and high <= 1:
        return f"if they were scaled to [-1, 1] use ({what} + 1) / 2"
    if low >= 0 and high <= 255:
        return f"give grey values from 0 to 255 as uint8, or divide by 255: {what} / 255"
    return (
        f"rescale them, for example ({what} - {what}.min()) / ({what}.max() - {what}.min()); "
        "grey values from 0 to 255 can be given as uint8, or divide by 255"
    )
