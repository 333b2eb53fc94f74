"""Examples with several named fields: pack a dict of arrays into one flat array, and unpack it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from recmix.errors import DataError

__all__ = ["LARGEST_INTEGER", "Fields", "check_exact"]

LARGEST_INTEGER = 2**24
"""The largest n for which float32 holds all whole numbers from -n to n exactly."""

Array = TypeVar("Array")  # a numpy array or a torch tensor


@dataclass(frozen=True, init=False, repr=False)
class Fields:
    """Names and shapes of the fields of an example, in the order in which they are packed.

    The fields of an example are flattened and concatenated to one vector of `size` numbers. So a data
    set and a model handle one tensor, and the networks unpack it. `unpack` takes numpy arrays and torch
    tensors. This module does not import torch.

    >>> fields = Fields({"tokens": (5,), "length": ()})
    >>> packed = fields.pack({"tokens": np.ones((2, 5), int), "length": np.array([3, 4])})
    >>> packed.shape, packed.dtype.name
    ((2, 6), 'float32')
    >>> fields.unpack(packed)["length"]
    array([3., 4.], dtype=float32)

    Args:
        shapes: Shape of each field of one example, by name. A field with one number has shape ().
    """

    entries: tuple[tuple[str, tuple[int, ...]], ...]

    def __init__(self, shapes: Mapping[str, Sequence[int]]) -> None:
        entries = tuple((name, tuple(int(side) for side in shape)) for name, shape in shapes.items())
        for name, shape in entries:
            if not isinstance(name, str) or not name:
                raise DataError(f"a field has the name {name!r}; expected text, such as 'tokens'")
            if any(side < 1 for side in shape):
                raise DataError(f"field {name!r} has shape {shape}; expected sides of 1 or more")
        if not entries:
            raise DataError("there are no fields; expected at least one, such as {'tokens': (20,)}")
        object.__setattr__(self, "entries", entries)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each field of one example, {field name: shape}."""
        return dict(self.entries)

    @property
    def size(self) -> int:
        """The number of values of one packed example: the sum over all fields."""
        return sum(math.prod(shape) for _, shape in self.entries)

    def pack(self, values: Mapping[str, Any]) -> NDArray[np.float32]:
        """Flatten and concatenate the fields of a batch of examples: a float32 array (B, size).

        Args:
            values: For each field name, an array or list (B, *shape). B may stand for several axes.

        Raises:
            DataError: If a field is missing, unknown, of another shape, or has an integer that float32
                cannot represent exactly.
        """
        if set(values) != set(self.shapes):
            raise DataError(
                f"got the fields {', '.join(map(str, values)) or 'none'}; "
                f"expected {', '.join(self.shapes)}"
            )
        arrays = {name: _float32(np.asarray(value), name) for name, value in values.items()}
        return np.concatenate(self._flat(arrays), axis=-1)

    def unpack(self, x: Array) -> dict[str, Array]:
        """Split packed examples (B, size) into a dict with one array (B, *shape) for each field.

        B may stand for several axes.
        """
        packed: Any = x
        if not packed.ndim or packed.shape[-1] != self.size:
            raise DataError(
                f"packed examples have shape {tuple(packed.shape)}; expected (..., {self.size}) for "
                f"the fields {self.shapes}"
            )
        found = {}
        start = 0
        for name, shape in self.entries:
            stop = start + math.prod(shape)
            found[name] = packed[..., start:stop].reshape((*packed.shape[:-1], *shape))
            start = stop
        return found

    def to_json(self) -> list[list[Any]]:
        """The fields as a list of [name, shape] pairs, which `from_json` reads."""
        return [[name, list(shape)] for name, shape in self.entries]

    @classmethod
    def from_json(cls, pairs: Sequence[Sequence[Any]]) -> Fields:
        """Make the `Fields` again from the result of `to_json`.

        >>> Fields.from_json(Fields({"tokens": (5,), "length": ()}).to_json()).size
        6
        """
        return cls({str(name): tuple(shape) for name, shape in pairs})

    def __repr__(self) -> str:
        return f"Fields({self.shapes})"

    def _flat(self, values: Mapping[str, Any]) -> list[Any]:
        """Flatten each field to (B, number of its values); raise a `DataError` if a shape is wrong."""
        flat: list[Any] = []
        for name, shape in self.entries:
            value = values[name]
            axes = value.ndim - len(shape)
            if axes < 0 or tuple(value.shape[axes:]) != shape:
                raise DataError(
                    f"field {name!r} has shape {tuple(value.shape)}; expected (B, *{shape}) for B "
                    "examples"
                )
            rest = tuple(value.shape[:axes])
            if flat and rest != tuple(flat[0].shape[:-1]):
                first = self.entries[0][0]
                raise DataError(
                    f"field {name!r} has {rest} examples, field {first!r} has "
                    f"{tuple(flat[0].shape[:-1])}; all fields must have the same number of examples"
                )
            flat.append(value.reshape((*rest, math.prod(shape))))
        return flat


def _float32(array: Any, name: str) -> Any:
    if array.dtype.kind not in "biuf":
        raise DataError(f"field {name!r} is {array.dtype} of shape {array.shape}; expected numbers")
    if array.dtype.kind in "iu" and array.size:
        check_exact(int(array.min()), int(array.max()), f"field {name!r}")
    with np.errstate(over="ignore"):  # what is too large becomes infinite
        return array.astype(np.float32)


def check_exact(
    low: float, high: float, what: str, advice: str = "number the values from 0, or give floats"
) -> None:
    """Raise a `DataError` if float32 cannot represent all integers from `low` to `high` exactly.

    Args:
        low: the smallest integer in the data.
        high: the largest integer in the data.
        what: a description of the data, with which the error message begins.
        advice: the end of the error message, which says what to do.
    """
    largest = max(low, high, key=abs)
    if abs(largest) > LARGEST_INTEGER:
        raise DataError(
            f"{what} has the integer {largest}, but float32 holds whole numbers exactly only up to "
            f"2**24 = {LARGEST_INTEGER}: {advice}"
        )
