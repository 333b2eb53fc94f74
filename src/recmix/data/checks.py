"""Check that an array holds examples."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from recmix.data.columns import is_frame, table_of_frame
from recmix.data.examples import Array, chunk_slices
from recmix.data.shape_advice import check_not_batch, same_axes, shape_text, wrong_shape
from recmix.data.sparse_examples import SparseExamples, is_sparse
from recmix.errors import DataError
from recmix.model.fields import Fields, check_exact

__all__ = ["check_examples", "is_tensor", "pack_fields", "same_axes", "shape_text", "to_numpy"]

_EXPECTED = "expected numbers of shape (N, ...), one example per row"
_CHANNELS = (1, 3, 4)  # sizes of a last axis that looks like the channels of images
_IMAGE_SIDE = 8  # sides from which an array looks like images


def check_examples(
    x: Any,
    *,
    what: str = "x",
    shape: tuple[int, ...] | None = None,
    at_least: int = 1,
    fields: Mapping[str, Sequence[int]] | None = None,
) -> Array:
    """Check examples and return them as one array (N, *event), where event is the shape of one example.

    - A uint8 array with three axes or more holds grey values, which mean value / 255. The result is
      uint8.
    - Booleans mean 0 and 1. The result is uint8, with 255 in place of 1.
    - All other integers are counts or tokens. The result is float32 with the same values.
    - Floats may have any finite value. The result is float32.

    Without `shape`, images (N, H, W) become (N, 1, H, W). If nothing has to change, the given array
    itself is returned.

    >>> check_examples(np.zeros((5, 28, 28))).shape
    (5, 1, 28, 28)
    >>> check_examples(np.array([[3, 0], [1, 9]])).dtype.name
    'float32'
    >>> check_examples(np.zeros((5, 28, 28, 1)), what="x_train")
    Traceback (most recent call last):
    ...
    recmix.errors.DataError: x_train is float64 of shape (5, 28, 28, 1), which looks channels-last; \
expected images of shape (N, C, H, W): use x_train.transpose(0, 3, 1, 2). If these are not images, \
use recmix.data.ArrayExamples(x_train.astype('float32'))

    Args:
        x: A numpy array, a torch tensor, nested lists of numbers, a `scipy.sparse` matrix or a pandas
            DataFrame. If `fields` is given, x may also be a dict of arrays.
        what: Name of `x` in error messages.
        shape: Required shape of one example; None for any. Axes of size 1 are added or removed.
        at_least: Smallest allowed number of examples.
        fields: {name: shape of one example} for each array of a dict.
    """
    if isinstance(x, Mapping):
        if fields is None:
            names = ", ".join(map(str, x)) or "none"
            raise DataError(
                f"{what} is a dict with the fields {names}, but the examples have no fields; "
                f"{_EXPECTED}, as a numpy array or a torch tensor"
            )
        array, _ = pack_fields(x, what, Fields(fields))
    elif is_sparse(x):
        array = np.asarray(SparseExamples(x, what).raw.toarray())
    elif is_frame(x):
        array = table_of_frame(x, what).values
    else:
        array = to_numpy(x, what, shape)
    given = f"{what} is {array.dtype} of shape {array.shape}"
    _check_type(array, given, what)
    if array.size == 0:
        none = "its examples have no values" if len(array) else "it has no examples"
        raise DataError(f"{given}: {none}; {_EXPECTED}, with N of 1 or more and values in each row")
    array = _with_event_axes(array, shape, given, _expression(x, what), tensor=is_tensor(x))
    if len(array) < at_least:
        raise DataError(f"{given}: it has {len(array)} example(s), expected at least {at_least}")
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    _check_values(array, given, what)
    grey = array.dtype == np.uint8 and array.ndim > 2
    # torch.from_numpy takes a writable, contiguous array without a copy or a warning.
    dtype = np.uint8 if grey else np.float32
    return np.require(array, dtype, ["C_CONTIGUOUS", "WRITEABLE", "ALIGNED"])


def pack_fields(x: Mapping[str, Any], what: str, fields: Fields | None = None) -> tuple[Array, Fields]:
    """Pack a dict of arrays {name: (N, *shape)} into one float32 array (N, P).

    Return this array, and the names and shapes of the fields. P is the number of values of one example
    in all arrays together. uint8 values are not divided by 255. `fields` has the required names and
    shapes; None accepts any. `what` is the name of the dict in error messages.
    """
    arrays = {}
    for name, value in x.items():
        if is_sparse(value):
            raise DataError(
                f"{what}[{name!r}] is a sparse matrix; expected an array, as examples with several "
                "fields are stored dense: use .toarray()"
            )
        arrays[name] = array = to_numpy(value, f"{what}[{name!r}]")
        if array.ndim < 1 or array.size == 0:
            raise DataError(
                f"{what}[{name!r}] is {array.dtype} of shape {array.shape}; expected (N, ...), one row "
                "per example, with N of 1 or more and values in each row"
            )
    if not arrays:
        raise DataError(f"{what} is an empty dict; expected an array for each field")
    try:
        found = fields or Fields({name: array.shape[1:] for name, array in arrays.items()})
        packed = found.pack(arrays)
    except DataError as error:
        raise DataError(f"{what}: {error}") from error
    if packed.ndim != 2:
        raise DataError(f"{what} has fields without an axis for the examples; expected (N, ...)")
    return packed, found


def is_tensor(x: Any) -> bool:
    """Whether `x` is a torch tensor; does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def to_numpy(x: Any, what: str = "x", shape: tuple[int, ...] | None = None) -> Array:
    """Convert a torch tensor (on any device), nested lists or an array to a numpy array.

    Raise a DataError that names `what` if this is not possible, or if x is a DataLoader, or a batch of
    one with labels. `shape` is the shape of one example, if it is known.
    """
    if isinstance(x, np.ndarray):
        return x
    if hasattr(x, "dataset") and hasattr(x, "__iter__") and not hasattr(x, "__getitem__"):
        raise DataError(
            f"{what} is a {type(x).__name__}; expected a batch of examples: give next(iter({what})), or "
            f"next(iter({what}))[0] if its batches are lists that begin with the examples"
        )
    check_not_batch(x, what, shape)
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
            "all examples of one shape: pad sequences to one length, and give the lengths as a second "
            "field"
        ) from error
    raise DataError(f"{what} is a {type(x).__name__}; {_EXPECTED}, as a numpy array or a torch tensor")


def _expression(x: Any, what: str) -> str:
    """Return Python code for the user's examples as an array or tensor, for advice in messages."""
    if is_sparse(x):
        return f"{what}.toarray()"
    return what if hasattr(x, "reshape") else f"numpy.asarray({what})"


def _check_type(array: Array, given: str, what: str) -> None:
    if array.dtype == np.object_:
        raise DataError(
            f"{given}: an array of Python objects, perhaps examples of different shapes; expected "
            "numbers: give all examples one shape and use numpy.stack"
        )
    if array.dtype.kind not in "biuf":
        raise DataError(f"{given}; expected numbers: integers, floats or booleans")
    if array.dtype.kind in "iu" and array.size:
        advice = f"number the values from 0, or, if rounding does no harm, use {what}.astype('float32')"
        check_exact(int(array.min()), int(array.max()), f"{given} and", advice)


def _with_event_axes(
    array: Array, shape: tuple[int, ...] | None, given: str, what: str, *, tensor: bool
) -> Array:
    """Return examples of the required shape. Without one, images (N, H, W) become (N, 1, H, W).

    If only axes of size 1 differ from `shape`, the examples are reshaped to it. Raise a DataError if
    more differs, or if there are fewer than two axes. Without `shape`, also raise one if the array looks
    like channels-last images.

    Args:
        array: The examples.
        shape: Required shape of one example; None for any.
        given: Description of the array in error messages.
        what: Python expression for the array in error messages.
        tensor: Whether this expression is a torch tensor.
    """
    if array.ndim < 2:
        raise DataError(f"{given}, {array.ndim} dimension(s); {_few_axes_advice(array, shape, what)}")
    if shape is not None:
        if same_axes(array.shape[1:], shape):
            return array.reshape(-1, *shape)
        raise DataError(f"{given}: {wrong_shape(array.shape, shape, what, tensor=tensor)}")
    *_, height, width, channels = (1, *array.shape)
    large = channels in _CHANNELS and min(height, width) >= _IMAGE_SIDE
    order, numbers = ("permute", ".float().numpy()") if tensor else ("transpose", ".astype('float32')")
    other = f"use recmix.data.ArrayExamples({what}{numbers})"
    if array.ndim == 4 and large:
        raise DataError(
            f"{given}, which looks channels-last; expected images of shape (N, C, H, W): "
            f"use {what}.{order}(0, 3, 1, 2). If these are not images, {other}"
        )
    if array.ndim == 5 and large:
        raise DataError(
            f"{given}, which looks channels-last; expected clips of shape (N, T, C, H, W): "
            f"use {what}.{order}(0, 1, 4, 2, 3). If these are not clips, {other}"
        )
    if array.ndim == 3 and large and (height == width or array.dtype == np.uint8):
        raise DataError(
            f"{given}, which looks like one channels-last image; expected images of shape "
            f"(N, C, H, W): use {what}.{order}(2, 0, 1)[None], and give more than one. If this is not "
            f"an image, {other}"
        )
    return array[:, None] if array.ndim == 3 else array


def _few_axes_advice(array: Array, shape: tuple[int, ...] | None, what: str) -> str:
    """Return what was expected instead of an array with one axis or none, and what the user can do."""
    if shape is None:
        return f"{_EXPECTED}: use {what}.reshape(-1, 1) for examples of one value"
    expected = f"expected examples of {shape_text(shape)}, one per row"
    sizes = ", ".join(map(str, shape))
    if array.shape == shape:
        return f"{expected}: use {what}[None] for one example"
    if array.size == math.prod(shape):
        return f"{expected}: use {what}.reshape(1, {sizes}) for one example"
    if math.prod(shape) == 1:
        return f"{expected}: use {what}.reshape(-1, {sizes})"
    return f"{expected}: give an array of shape (N, {sizes})"


def _check_values(array: Array, given: str, what: str) -> None:
    largest = float(np.finfo(np.float32).max)
    high = -math.inf
    for part in chunk_slices(array.shape):
        chunk = array[part]
        chunk_low, chunk_high = float(chunk.min()), float(chunk.max())
        if not (chunk_low >= -largest and chunk_high <= largest):
            fits = np.abs(chunk) <= largest  # NaN is not
            row = part.start + int(np.argmin(fits.all(axis=tuple(range(1, array.ndim)))))
            raise DataError(
                f"{given} and has values that are NaN or infinite (or too large for float32), the first "
                f"in example {row}; expected finite values: remove such examples or use numpy.nan_to_num"
            )
        high = max(high, chunk_high)
    if array.dtype == np.uint8 and array.ndim > 2 and high == 1:
        raise DataError(
            f"{given} and its values are only 0 and 1, but uint8 means value / 255; "
            f"for black and white images use {what}.astype(bool)"
        )
