"""Check that the values of examples are possible under a likelihood."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from recmix.data.checks import to_numpy
from recmix.data.examples import Array, Examples, chunk_slices, to_unit
from recmix.data.sparse_examples import SparseExamples, is_sparse
from recmix.data.splits import Data
from recmix.data.values import stored_values
from recmix.errors import ConfigError, DataError, unknown

__all__ = ["check_values"]

_GRID_ERROR = 1e-3  # largest distance of 255 x from a whole number; float32 makes it 2e-5


@dataclass(frozen=True)
class _Requirement:
    needs: str
    fits: Callable[[Array], Array]  # of float32 values
    grey_fits: bool  # whether value / 255 always fits
    advice: str


def check_values(data: Any, requirement: str, likelihood: str, *, what: str = "x") -> None:
    """Raise a DataError if a value of the data is not possible under the likelihood.

    >>> check_values(np.array([[0.0, 3.0], [-1.5, 2.0]]), "counts", "poisson")
    Traceback (most recent call last):
    ...
    recmix.errors.DataError: the poisson likelihood needs counts (whole numbers of 0 or more), but \
x has the negative value -1.5 in example 1: choose a likelihood of real values, such as 'gaussian', \
or convert the values to counts

    The requirement of a likelihood is one of

    - "real": any finite number;
    - "unit": numbers in [0, 1];
    - "counts": whole numbers of 0 or more;
    - "classes": whole numbers, of which negative ones mark padding;
    - "classes:K": whole numbers from 0 to K - 1;
    - "padded_classes:K": as "classes:K", but negative whole numbers are allowed, too: they mark
      padding;
    - "graph:A*n+E*m": n nodes of A classes, then m = n(n-1)/2 edges of E classes, with padding, see
      `recmix.likelihoods.CategoricalGraph`;
    - "eight_bit": k / 255 for a whole number k from 0 to 255.

    Args:
        data: A `Data`, whose training, validation and test examples are checked; an `Examples`; or an
            array or tensor (N, ...), where uint8 means value / 255.
        requirement: The requirement of the likelihood, one of the texts in this list.
        likelihood: Name of the likelihood, for the message.
        what: Name of `data` in the message; not used for a `Data`.
    """
    rule = _find(requirement)
    if not isinstance(data, Data):
        _check(data, rule, likelihood, what)
        return
    parts = {"x_train": data.x_train, "x_val": data.x_val, "x_test": data.x_test}
    for name, examples in parts.items():
        if examples is not None and not (data.dynamic and name == "x_train"):  # those are binarised
            _check(examples, rule, likelihood, name)


def _check(examples: Any, rule: _Requirement, likelihood: str, what: str) -> None:
    if is_sparse(examples):
        examples = SparseExamples(examples, what)
    elif not isinstance(examples, Examples):
        examples = to_numpy(examples, what)
    for start, values in _parts(examples):
        if values.dtype == np.uint8 and rule.grey_fits:
            continue
        numbers = _as_float(values)
        wrong = ~rule.fits(numbers)
        if not wrong.any():
            continue
        not_finite = ~np.isfinite(numbers)
        place = int(np.argmax(not_finite if not_finite.any() else wrong))
        value = float(numbers.reshape(-1)[place])
        if isinstance(examples, SparseExamples):
            row = examples.row_of(start + place)
        else:
            row = start + place // max(1, math.prod(values.shape[1:]))
        if math.isfinite(value):
            shown = f"{'negative ' if value < 0 else ''}value {value:.6g}"
            advice = rule.advice.format(scale=_scale_advice(examples, what))
        else:
            shown = "value NaN" if math.isnan(value) else f"infinite value {value}"
            advice = "remove such examples, or replace these values, for example with numpy.nan_to_num"
        raise DataError(
            f"the {likelihood} likelihood needs {rule.needs}, but {what} has the {shown} in example "
            f"{row}: {advice}"
        )


def _parts(examples: Any) -> Iterator[tuple[int, Array]]:
    """Yield the values of examples in pieces, each as a pair (start, values), see `stored_values`."""
    if isinstance(examples, Examples):
        yield from stored_values(examples)
        return
    for part in chunk_slices(examples.shape):
        yield part.start, examples[part]


def _as_float(values: Array) -> Array:
    """Convert values to float32; uint8 is divided by 255."""
    if values.dtype == np.uint8:
        return to_unit(values)
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused
        return values.astype(np.float32, copy=False)


def _scale_advice(examples: Any, what: str) -> str:
    """Return advice for an error message: how to bring the values of `examples` into [0, 1].

    Values that are not finite do not count. `what` is the name of the examples in the message.
    """
    low, high = (0.0, 0.0) if isinstance(examples, SparseExamples) else (math.inf, -math.inf)
    for _, values in _parts(examples):
        numbers = _as_float(values)
        numbers = numbers[np.isfinite(numbers)]
        low = float(numbers.min(initial=low))
        high = float(numbers.max(initial=high))
    if low >= -0.01 and high <= 1.01:
        return f"use {what}.clip(0, 1)"
    if low >= -1 and high <= 1:
        return f"if the values were scaled to [-1, 1], use ({what} + 1) / 2"
    if low >= 0 and high <= 255:
        return f"give images with grey values from 0 to 255 as uint8, or divide by 255: {what} / 255"
    return f"rescale them, for example ({what} - {what}.min()) / ({what}.max() - {what}.min())"


_REAL = "choose a likelihood of real values, such as 'gaussian'"
_UNIT = f"{{scale}}, or {_REAL}"


def _in_unit(x: Array) -> Array:
    return (x >= 0) & (x <= 1)


def _whole(x: Array) -> Array:
    return (x == np.rint(x)) & np.isfinite(x)


def _count(x: Array) -> Array:
    return (x >= 0) & _whole(x)


def _on_grid(x: Array) -> Array:
    grey = 255 * x.astype(np.float64)
    return _in_unit(x) & (np.abs(grey - np.rint(grey)) <= _GRID_ERROR)


_REQUIREMENTS = {
    "real": _Requirement("finite numbers", np.isfinite, True, "remove such examples"),
    "unit": _Requirement("values in [0, 1]", _in_unit, True, _UNIT),
    "counts": _Requirement(
        "counts (whole numbers of 0 or more)",
        _count,
        False,
        f"{_REAL}, or convert the values to counts",
    ),
    "classes": _Requirement(
        "class numbers (whole numbers; negative ones mark padding)",
        _whole,
        False,
        f"{_REAL}, or number the classes",
    ),
    "eight_bit": _Requirement(
        "grey values of 8 bits (k / 255, for k from 0 to 255)",
        _on_grid,
        True,
        f"give images as uint8, or {_REAL}",
    ),
}


def _find(requirement: str) -> _Requirement:
    if requirement in _REQUIREMENTS:
        return _REQUIREMENTS[requirement]
    name, _, number = requirement.partition(":")
    if name == "graph" and (sizes := re.fullmatch(r"(\d+)\*(\d+)\+(\d+)\*\d+", number)):
        return _graph(*map(int, sizes.groups()))
    if name not in ("classes", "padded_classes"):
        names = [*_REQUIREMENTS, "classes:K", "padded_classes:K", "graph:A*n+E*m"]
        raise ConfigError(unknown("requirement of a likelihood", requirement, names))
    if not re.fullmatch(r"[1-9]\d*", number):
        raise ConfigError(
            f"the requirement is {requirement!r}; expected a number of classes, such as '{name}:5'"
        )
    last, padded = int(number) - 1, name == "padded_classes"
    words = f"from 0 to {last}"

    def fits(x: Array) -> Array:
        found: Array = (_whole(x) if padded else _count(x)) & (x <= last)
        return found

    return _Requirement(
        f"classes (whole numbers {words}{'; negative ones mark padding' if padded else ''})",
        fits,
        False,
        f"number the classes {words}, or give the right number of classes",
    )


def _graph(node_classes: int, nodes: int, edge_classes: int) -> _Requirement:
    """The requirement of graphs of at most `nodes` nodes; see `recmix.likelihoods.CategoricalGraph`."""
    rows, columns = np.triu_indices(nodes, 1)
    limits = np.repeat([node_classes, edge_classes], [nodes, len(rows)])

    def fits(x: Array) -> Array:
        if x.ndim == 1:  # the values of a sparse matrix that are not 0: their places are not known
            return np.asarray(_whole(x) & (x < limits.max()))
        node = x[..., :nodes]
        ended = np.cumsum(node <= 0, -1) - (node <= 0) > 0  # whether an earlier node is "no node"
        there = ~ended & (node > 0)
        real = np.concatenate([~ended, there[..., rows] & there[..., columns]], -1)
        found: Array = _whole(x) & np.where(real, (x >= 0) & (x < limits), x < 0)
        return found

    return _Requirement(
        f"graphs ({nodes} nodes of classes from 0 to {node_classes - 1}, then {len(rows)} edges of "
        f"classes from 0 to {edge_classes - 1}; the first node of class 0, 'no node', ends a graph; "
        "later nodes, and edges of nodes that do not exist, are -1)",
        fits,
        False,
        "see recmix.likelihoods.CategoricalGraph, or give molecules as SMILES strings",
    )
