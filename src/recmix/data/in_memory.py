"""Convert arrays, lists, torch data sets, DataFrames and other examples in memory to `Examples`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from recmix.data.checks import check_examples, is_tensor, pack_fields, to_numpy
from recmix.data.columns import ColumnTable, check_columns, is_frame, table_of_frame
from recmix.data.examples import Array, ArrayExamples, Examples, to_unit
from recmix.data.file_images import from_pillow
from recmix.data.shape_advice import check_not_batch
from recmix.data.sparse_examples import SparseExamples, is_sparse
from recmix.errors import DataError
from recmix.model.fields import Fields

__all__ = ["Form", "as_examples", "dataset_of", "read_part"]

_PART_NAMES = {"x_train", "x_val", "x_test"}


class Form(NamedTuple):
    """What training, validation and test examples of a data set must have in common."""

    shape: tuple[int, ...] | None = None  # of one example; None for any
    fields: Fields | None = None  # names and shapes of the arrays of an example, if there are several
    columns: tuple[str, ...] | None = None  # names of the columns, if the examples are rows of a table


def as_examples(x: Any) -> Examples:
    """Convert examples in memory, of any type that `from_arrays` accepts, to `Examples`.

    >>> as_examples([[1.0, 2.0], [3.0, 4.0]]).shape
    (2, 2)
    """
    return read_part(x, "x")[0]


def dataset_of(x: Any) -> Any:
    """Return the data set of a DataLoader. Examples that are not in a DataLoader are returned unchanged.

    Raise a DataError if the DataLoader has the user's own sampler, batch sampler or `collate_fn`: they
    would have no effect, because only the data set is used, with all its examples.
    """
    if not hasattr(x, "dataset") or hasattr(x, "__getitem__"):
        return x
    from torch.utils import data

    streamed = isinstance(x.dataset, data.IterableDataset)  # refused later, with its own message
    if not isinstance(x, data.DataLoader) or streamed:
        return x.dataset
    samplers = (data.SequentialSampler, data.RandomSampler, data.DistributedSampler)
    own = ""
    advice = "torch.utils.data.Subset(dataset, indices)"
    if x.batch_size is None and x.batch_sampler is not None:
        own = "batch_sampler"
    elif type(x.sampler) not in samplers or not _takes_all(x.sampler, x.dataset):
        own = f"sampler, {type(x.sampler).__name__}"
    elif x.collate_fn not in (data.default_collate, data.default_convert):
        own, advice = "collate_fn", "a data set whose items are what collate_fn makes of them"
    if own:
        raise DataError(
            f"the DataLoader has its own {own}, but only its data set is used, with all examples: give "
            f"{advice}"
        )
    return x.dataset


def _takes_all(sampler: Any, dataset: Any) -> bool:
    """Whether one of torch's samplers gives each example of the data set once, over all processes."""
    if hasattr(sampler, "num_replicas"):
        return True
    repeats = getattr(sampler, "replacement", False)
    return sampler.data_source is dataset and len(sampler) == len(dataset) and not repeats


def read_part(
    x: Any,
    what: str,
    form: Form | None = None,
    at_least: int = 1,
    like: tuple[int, ...] | None = None,
) -> tuple[Examples, Form]:
    """Check the training, validation or test examples of a user; return them and their `Form`.

    Args:
        x: The examples, of any type that `from_arrays` accepts.
        what: Name of `x` in error messages.
        form: Required shape, fields and columns; None allows any.
        at_least: Smallest allowed number of examples.
        like: Shape of one example that an existing model takes. Examples of exactly this shape are not
            reshaped: for example (H, W) does not become (1, H, W).
    """
    shape = None if form is None else form.shape
    x = dataset_of(x)
    if isinstance(x, Examples):
        if shape is not None and x.shape[1:] != shape:
            raise DataError(
                f"{what} has examples of shape {x.shape[1:]}, expected {shape}: all examples of a data "
                "set must have one shape"
            )
        return x, Form(x.shape[1:])
    if _is_sequence_of_examples(x):
        x = _stack(x, what)
    if isinstance(x, Mapping):
        return _read_fields(x, what, form, at_least)
    if is_sparse(x):
        sparse = SparseExamples(x, what)
        given = f"{what} is a sparse matrix of shape {sparse.shape}"
        if shape is not None and sparse.shape[1:] != shape:
            raise DataError(f"{given}; expected examples of shape {shape}")
        if len(sparse) < at_least:
            raise DataError(f"{given}: it has {len(sparse)} example(s), expected at least {at_least}")
        return sparse, Form(sparse.shape[1:])
    columns: tuple[str, ...] | None = None
    if is_frame(x):
        x = table_of_frame(x, what)
    if isinstance(x, ColumnTable):
        x, columns = x
        if form is not None and form.columns and columns:
            check_columns(columns, form.columns, what, "x_train.columns")
    if like is not None and shape is None:
        x = to_numpy(x, what)
        shape = like if x.shape[1:] == like else None
    array = check_examples(x, what=what, shape=shape, at_least=at_least)
    return ArrayExamples(array), Form(array.shape[1:], columns=columns)


def _read_fields(
    x: Mapping[str, Any], what: str, form: Form | None, at_least: int
) -> tuple[Examples, Form]:
    names = ", ".join(map(str, x))
    if _PART_NAMES & set(x):
        raise DataError(
            f"{what} is a dict with the keys {names}; the keys of a dict are the fields of an example: "
            "for training, validation and test parts use recmix.data.from_arrays(**parts)"
        )
    if form is not None and form.fields is None:
        raise DataError(
            f"{what} is a dict with the fields {names}, but the examples have no fields: give one array"
        )
    packed, fields = pack_fields(x, what, None if form is None else form.fields)
    array = check_examples(packed, what=what, at_least=at_least)
    return ArrayExamples(array), Form(array.shape[1:], fields)


def _is_sequence_of_examples(x: Any) -> bool:
    """Whether `x` is a sequence with one item per example (a torch Dataset, a list of arrays)."""
    if isinstance(x, list):
        first = x[0] if x else None
        if isinstance(first, list | tuple):
            first = first[0] if first else None
        return first is not None and not isinstance(first, list | tuple | int | float | np.generic)
    if isinstance(x, tuple | str | bytes | Mapping) or is_tensor(x) or hasattr(x, "__array__"):
        return False
    return hasattr(x, "__getitem__") and not (is_sparse(x) or is_frame(x))


def _stack(items: Any, what: str) -> Array | dict[str, Array]:
    """Collect all examples of a sequence in one array, or in one array for each field."""
    check_not_batch(items, what)
    unreadable = (
        f"{what} is a {type(items).__name__} without a length or without an index; expected an array, "
        "or a data set that is read by index: collect its examples in an array first"
    )
    try:
        count = len(items)
    except (TypeError, NotImplementedError):
        raise DataError(unreadable) from None
    if count == 0:
        raise DataError(f"{what}, a {type(items).__name__}, has no examples; give at least two")
    try:
        item = items[0]
    except NotImplementedError:  # an IterableDataset with a length
        raise DataError(unreadable) from None
    first = _item_fields(item, f"{what}[0]")
    out = {name: np.empty((count, *array.shape), array.dtype) for name, array in first.items()}
    for row in range(count):
        item = _item_fields(items[row], f"{what}[{row}]") if row else first
        if set(item) != set(first):
            raise DataError(
                f"{what}[{row}] has the fields {', '.join(item)}, {what}[0] has {', '.join(first)}; all "
                "examples must have the same fields"
            )
        for name, array in first.items():
            value = item[name]
            if value.shape != array.shape or value.dtype != array.dtype:
                field = f", field {name!r}," if name else ""
                raise DataError(
                    f"{what}[{row}]{field} is {value.dtype} of shape {value.shape}, {what}[0] is "
                    f"{array.dtype} of shape {array.shape}; all examples must have one shape and type: "
                    "resize images, pad sequences"
                )
            out[name][row] = value
    return out.get("", out)


def _item_fields(item: Any, what: str) -> dict[str, Array]:
    """Return the arrays of one item of a sequence, {name of the field: array}.

    For an item without fields the result is {"": array}.
    """
    if isinstance(item, tuple | list) and item:
        item = item[0]
    if not isinstance(item, Mapping):
        return {"": _item_to_array(item, what)}
    found = {}
    for name, value in item.items():
        number = isinstance(value, int | float | np.generic)
        array = np.asarray(value) if number else _item_to_array(value, f"{what}[{name!r}]")
        found[str(name)] = to_unit(array) if _is_image(value) else array
    return found


def _is_image(item: Any) -> bool:
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(item, pillow.Image)


def _item_to_array(item: Any, what: str) -> Array:
    return from_pillow(item) if _is_image(item) else to_numpy(item, what)
