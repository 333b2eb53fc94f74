"""Say how examples differ from the required shape, and which change of the array is safe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations
from typing import Any, NoReturn

from recmix.errors import DataError

__all__ = ["check_not_batch", "same_axes", "shape_text", "wrong_shape"]

_MOST_AXES = 6  # orders of more axes are not searched


def same_axes(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two shapes differ at most in axes of size 1.

    >>> same_axes((1, 8, 8), (8, 8)), same_axes((8, 8), (64,))
    (True, False)
    """
    return _long_axes(one) == _long_axes(other)


def shape_text(shape: tuple[int, ...]) -> str:
    """Return the shape of one example as text.

    >>> shape_text((1, 28, 28)), shape_text((7,))
    ('1x28x28', '7 values')
    """
    return "x".join(map(str, shape)) if len(shape) > 1 else f"{math.prod(shape)} values"


def wrong_shape(given: tuple[int, ...], shape: tuple[int, ...], what: str, *, tensor: bool) -> str:
    """Return text that says how examples differ from the required shape, and what the user can do.

    The text advises a reshape only for vectors, because in all other cases it would mix up the values
    of an example. If the axes are in another order, it advises a transpose.

    >>> wrong_shape((5, 20, 12), (12, 20), "x", tensor=False)
    'each example is 20x12, expected 12x20: two axes seem to be swapped, use x.swapaxes(1, 2)'

    Args:
        given: Shape of the user's array, (N, *event).
        shape: Required shape of one example.
        what: Python expression for the array in the advice.
        tensor: Whether the array is a torch tensor.
    """
    event = given[1:]
    shown = (1, *event) if len(event) == 2 and len(shape) == 3 else event  # images (N, H, W)
    text = f"each example is {shape_text(shown)}, expected {shape_text(shape)}"
    if len(shown) == 1:
        text = f"its examples are flat vectors of {shown[0]} values, expected {shape_text(shape)}"
    elif len(shown) != len(shape):
        text += f" (the array has {1 + len(shown)} dimensions, expected {1 + len(shape)})"
    if math.prod(event) == math.prod(shape) and (_is_flat(event) or _is_flat(shape)):
        colour = " if the values are channel by channel" if len(shape) == 3 and shape[0] > 1 else ""
        return f"{text}: use {what}.reshape({_sizes(-1, *shape)}){colour}"
    if (order := _order(event, shape)) is not None:
        return f"{text}: {_reordered(order, what, first=1, tensor=tensor)}"
    if same_axes(given, shape):
        return f"{text}: for one example use {what}[None]"
    if math.prod(given) == math.prod(shape) and (_is_flat(given) or _is_flat(shape)):
        return f"{text}: for one example use {what}.reshape({_sizes(1, *shape)})"
    if (order := _order(given, shape)) is not None:
        return f"{text}: if it is one example, {_reordered(order, what, first=0, tensor=tensor)}[None]"
    return (
        f"{text}: all examples of a data set, and those given to a model that was trained on it, must "
        "have the same shape"
    )


def check_not_batch(x: Any, what: str, shape: tuple[int, ...] | None = None) -> None:
    """Raise a DataError if `x` is a list or tuple such as [images, labels], which data loaders give.

    Args:
        x: What the user gave.
        what: Name of `x` in the message.
        shape: Shape of one example, if it is known.
    """
    if not isinstance(x, list | tuple) or not x:
        return
    # A list of examples can be long: look at all parts only if the first two may be a batch.
    if not all(hasattr(part, "shape") and len(part.shape) for part in x[:2]) or len(x[0].shape) < 2:
        return
    shapes = [tuple(getattr(part, "shape", ())) for part in x]
    first, *others = shapes
    if shape is not None and all(same_axes(each, shape) for each in shapes):
        return  # a list of examples
    if shape is not None:
        if others and all(same_axes(each[1:], shape) for each in shapes):
            join = "numpy.concatenate" if hasattr(x[0], "__array_interface__") else "torch.cat"
            advice = f"{join}({what}), or {what}[0] if the others are not examples"
            _refuse_batch(x, what, shapes, "several batches", advice)
        fits = same_axes(first[1:], shape) and all(other[:1] == first[:1] for other in others)
        if fits:
            found = "a batch of examples with labels or other arrays" if others else "a batch in a list"
            _refuse_batch(x, what, shapes, found, f"{what}[0]")
    labelled = all(other[:1] == first[:1] and len(other) <= 2 for other in others)
    if len(first) > 2 and 0 < len(others) <= 2 and labelled:
        _refuse_batch(x, what, shapes, "a batch of examples with labels", f"{what}[0]")


def _refuse_batch(
    x: Sequence[Any], what: str, shapes: list[tuple[int, ...]], found: str, advice: str
) -> NoReturn:
    raise DataError(
        f"{what} is a {type(x).__name__} of {len(x)} array(s) of shape "
        f"{', '.join(map(str, shapes[:3]))}, which looks like {found}; expected one array of examples: "
        f"give {advice}"
    )


def _order(given: Sequence[int], shape: Sequence[int]) -> list[int] | None:
    """Return the order of the axes of `given` that makes `shape`, up to axes of size 1.

    The result is None if there is no such order, or if it is not clear which of several is right. Of
    several orders, one that moves a single axis with a size of its own is taken: so (16, 16, 3) is
    (H, W, C), not (W, H, C).
    """
    places = [place for place, size in enumerate(given) if size != 1]
    sizes, wanted = _long_axes(given), _long_axes(shape)
    if len(sizes) > _MOST_AXES or sizes == wanted or sorted(sizes) != sorted(wanted):
        return None
    orders = [o for o in permutations(range(len(sizes))) if [sizes[axis] for axis in o] == wanted]
    if len(orders) > 1:
        single = [axis for axis, size in enumerate(sizes) if sizes.count(size) == 1]
        orders = [o for o in orders if any(_only_moves(o, axis) for axis in single)]
    if len(orders) != 1:
        return None
    found = list(range(len(given)))
    for place, axis in zip(places, orders[0], strict=True):
        found[place] = places[axis]
    return found


def _only_moves(order: Sequence[int], axis: int) -> bool:
    """Whether all axes except one are in their old order."""
    rest = [other for other in order if other != axis]
    return rest == sorted(rest)


def _reordered(order: list[int], what: str, *, first: int, tensor: bool) -> str:
    """Return advice to bring the axes of an array into an order.

    Args:
        order: The order, of numbers from 0.
        what: Python expression for the array.
        first: Number of the axis that `order` calls 0. The axes before it stay where they are.
        tensor: Whether the array is a torch tensor.
    """
    moved = [axis for axis, source in enumerate(order) if axis != source]
    if len(moved) == 2:  # numpy and torch have this method
        axes = _sizes(*(axis + first for axis in moved))
        return f"two axes seem to be swapped, use {what}.swapaxes({axes})"
    last = len(order) - 1
    channels_last = [*range(last - 2), last, last - 2, last - 1] == order
    why = "the array looks channels-last" if channels_last else "the axes seem to be in another order"
    method = "permute" if tensor else "transpose"
    axes = _sizes(*range(first), *(axis + first for axis in order))
    return f"{why}, use {what}.{method}({axes})"


def _is_flat(shape: Sequence[int]) -> bool:
    return len(_long_axes(shape)) < 2


def _long_axes(shape: Sequence[int]) -> list[int]:
    return [size for size in shape if size != 1]


def _sizes(*sizes: int) -> str:
    return ", ".join(map(str, sizes))
