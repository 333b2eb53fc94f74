"""Check that an array holds images. An error says what was given, what was expected, what to do."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from recmix.data.examples import Array, chunk_slices
from recmix.errors import DataError

__all__ = ["SIDES", "check_examples", "check_size", "is_tensor", "to_numpy"]

SIDES = (8, 128)  # smallest and largest image side that the networks accept

_EXPECTED = "expected images of shape (N, C, H, W) or (N, H, W)"


def check_examples(
    x: Any, *, what: str = "x", shape: tuple[int, int, int] | None = None, at_least: int = 1
) -> Array:
    """Check images and return them as an array (N, C, H, W), uint8 or float32 in [0, 1].

    uint8 means value / 255. Booleans mean 0 and 1. Other floats become float32. If nothing has to
    change, the given array itself is returned.

    >>> check_examples(np.zeros((5, 28, 28))).shape
    (5, 1, 28, 28)
    >>> check_examples(np.zeros((5, 28, 28, 1)), what="x_train")
    Traceback (most recent call last):
    ...
    recmix.errors.DataError: x_train is float64 of shape (5, 28, 28, 1), which looks channels-last; \
expected images of shape (N, C, H, W) or (N, H, W): use x_train.transpose(0, 3, 1, 2)

    Args:
        x: A numpy array, a torch tensor, or nested lists of numbers.
        what: Name of `x` in error messages.
        shape: Required (C, H, W).
        at_least: Required number of images.

    Raises:
        DataError: If `x` does not hold such images.
    """
    array = to_numpy(x, what)
    given = f"{what} is {array.dtype} of shape {array.shape}"
    _check_type(array, given, what)
    if array.ndim == 3 and array.shape[-1] in (1, 3, 4) and min(array.shape[:2]) >= SIDES[0]:
        raise DataError(
            f"{given}, which looks like one channels-last image; {_EXPECTED}: "
            f"use {what}.transpose(2, 0, 1)[None], and give more than one image"
        )
    if array.ndim == 3:
        array = array[:, None]
    _check_shape(array, given, what)
    if shape is not None and array.shape[1:] != shape:
        found, expected = ("x".join(map(str, size)) for size in (array.shape[1:], shape))
        raise DataError(
            f"{given}: its images are {found}, expected {expected}: all images of a data set, and "
            "those given to a model trained on it, must have one shape (C, H, W)"
        )
    if len(array) < at_least:
        raise DataError(f"{given}: it has {len(array)} image(s), expected at least {at_least}")
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    _check_values(array, given, what)
    dtype = np.uint8 if array.dtype == np.uint8 else np.float32
    # torch.from_numpy takes a writable, contiguous array without a copy or a warning.
    return np.require(array, dtype, ["C_CONTIGUOUS", "WRITEABLE", "ALIGNED"])


def check_size(height: int, width: int, given: str) -> None:
    """Raise a DataError that begins with `given` unless the networks accept images of this size."""
    low, high = SIDES
    if not (low <= height <= high and low <= width <= high):
        raise DataError(
            f"{given}; each side must have {low} to {high} pixels: resize the images "
            "(for image files, give size=..., for example size=64)"
        )


def is_tensor(x: Any) -> bool:
    """Whether `x` is a torch tensor; does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def to_numpy(x: Any, what: str = "x") -> Array:
    """Convert a torch tensor (on any device), nested lists or an array to a numpy array."""
    if isinstance(x, np.ndarray):
        return x
    try:
        if is_tensor(x):
            tensor = x.detach().cpu()
            half = str(tensor.dtype) in ("torch.bfloat16", "torch.float16")
            return np.asarray((tensor.float() if half else tensor).numpy())
        if isinstance(x, list | tuple) or hasattr(x, "__array__"):
            return np.asarray(x)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{what}, a {type(x).__name__}, cannot be converted to one array ({error}); {_EXPECTED}, "
            "all images of one size"
        ) from error
    raise DataError(f"{what} is a {type(x).__name__}; {_EXPECTED}, as a numpy array or a torch tensor")


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
            f"{given}: an array of Python objects, perhaps images of different sizes; expected "
            "numbers, uint8 or float: resize the images to one size and use numpy.stack"
        )
    raise DataError(f"{given}; expected numbers, uint8 or float in [0, 1]")


def _check_shape(array: Array, given: str, what: str) -> None:
    if array.size == 0:
        raise DataError(f"{given}: it has no images; {_EXPECTED} with N of 1 or more")
    if array.ndim == 2:
        raise DataError(
            f"{given}, which looks like flat vectors; {_EXPECTED}: "
            f"use {what}.reshape({_image_shape(array.shape[1])})"
        )
    if array.ndim != 4:
        raise DataError(f"{given}, {array.ndim} dimensions; {_EXPECTED}")
    _, channels, height, width = array.shape
    if width < SIDES[0] <= min(channels, height):
        raise DataError(
            f"{given}, which looks channels-last; {_EXPECTED}: use {what}.transpose(0, 3, 1, 2)"
        )
    check_size(height, width, f"{given}: its images are {height}x{width}")


def _image_shape(values: int) -> str:
    """The likely image shape of flat vectors, for an error message."""
    for channels in (1, 3):
        side = math.isqrt(values // channels)
        if channels * side * side == values and side > 1:
            return f"-1, {channels}, {side}, {side}"
    return "N, C, H, W"


def _check_values(array: Array, given: str, what: str) -> None:
    low, high = math.inf, -math.inf
    for part in chunk_slices(array.shape):
        chunk = array[part]
        chunk_low, chunk_high = float(chunk.min()), float(chunk.max())
        if not (math.isfinite(chunk_low) and math.isfinite(chunk_high)):
            image = part.start + int(np.argmax(~np.isfinite(chunk).all(axis=(1, 2, 3))))
            raise DataError(
                f"{given} and has values that are NaN or infinite, the first in image {image}; "
                "expected finite values in [0, 1]: remove such images or use numpy.nan_to_num"
            )
        low, high = min(low, chunk_low), max(high, chunk_high)
    if array.dtype == np.uint8:
        if high == 1:
            raise DataError(
                f"{given} and its values are only 0 and 1, but uint8 means value / 255; "
                f"for black and white images use {what}.astype(bool)"
            )
    elif np.float32(low) < 0 or np.float32(high) > 1:
        advice = _range_advice(low, high, what)
        raise DataError(f"{given} with values from {low:.6g} to {high:.6g}; expected [0, 1]: {advice}")


def _range_advice(low: float, high: float, what: str) -> str:
    if low >= -0.01 and high <= 1.01:
        return f"use {what}.clip(0, 1)"
    if low >= -1 and high <= 1:
        return f"if the values were scaled to [-1, 1], use ({what} + 1) / 2"
    if low >= 0 and high <= 255:
        return f"give grey values from 0 to 255 as uint8, or divide by 255: {what} / 255"
    return (
        f"rescale them, for example ({what} - {what}.min()) / ({what}.max() - {what}.min()); "
        "give grey values from 0 to 255 as uint8, or divide by 255"
    )
