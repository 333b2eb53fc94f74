"""Read tables of numbers from pandas DataFrames, .csv files and .parquet files."""

from __future__ import annotations

import csv
import importlib
import io
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recmix.data.formats import as_data_error, read_bytes
from recmix.data.limits import check_file, check_size
from recmix.errors import DataError
from recmix.model.fields import check_exact

__all__ = [
    "ColumnTable",
    "check_columns",
    "is_frame",
    "is_number",
    "names_of_frame",
    "read_csv",
    "read_parquet",
    "table_of_frame",
]

_TEXT_SHARE = 8  # reading text needs about this many times its size in memory
_MISSING = ("", "na", "n/a", "null", "none", "?")  # cells for missing values, in lower case
_MANY = 10  # an error message lists all columns of a table only if there are at most this many
_OLDEST_PYARROW = (14, 0, 1)  # older versions unpickle what a file contains


class ColumnTable(NamedTuple):
    """A table of numbers. Each row is one example."""

    values: NDArray[np.float32]  # (N, F)
    columns: tuple[str, ...] | None  # names of the F columns, if there are any


def is_frame(x: Any) -> bool:
    """Whether `x` is a pandas DataFrame; does not import pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(x, pandas.DataFrame)


def names_of_frame(frame: Any) -> tuple[str, ...]:
    """Return the names of the columns of a pandas DataFrame."""
    return tuple(map(str, frame.columns))


def check_columns(given: Sequence[str], expected: Sequence[str], what: str, known: str) -> None:
    """Raise a DataError if a table has other columns than expected, or the same in another order.

    Names are compared without the white space around them. The names 0, 1, ... which pandas gives to
    columns without names are compared only with the same numbers in another order.

    >>> check_columns(["height", "age"], ["age", "height"], "x", "data.columns")
    Traceback (most recent call last):
    ...
    recmix.errors.DataError: x has its columns in another order: column 1 is 'height', expected 'age'. \
Give the columns in the order of training, in pandas frame[['age', 'height']]

    Args:
        given: Names of the columns of the table.
        expected: Names of the columns of the training examples.
        what: Name of the table in error messages.
        known: Where the user finds the expected names if they are too many for the error message.
    """
    given, expected = ([name.strip() for name in names] for names in (given, expected))
    if given == expected:
        return
    same = sorted(given) == sorted(expected)
    if not same and any(names == [str(n) for n in range(len(names))] for names in (given, expected)):
        return
    found = "has its columns in another order"
    if not same:
        missing = [name for name in expected if name not in given][:5]
        more = [name for name in given if name not in expected][:5]
        found = (
            f"lacks the columns {', '.join(missing) or 'none'}, and has {', '.join(more) or 'none'} more"
        )
    both = enumerate(zip(given, expected, strict=False), 1)
    pairs = (f": column {number} is {a!r}, expected {b!r}" for number, (a, b) in both if a != b)
    listed = str(expected) if len(expected) <= _MANY else f"list({known})"
    raise DataError(
        f"{what} {found}{next(pairs, '')}. Give the columns in the order of training, in pandas "
        f"frame[{listed}]"
    )


def table_of_frame(frame: Any, what: str) -> ColumnTable:
    """Return the numbers and the column names of a pandas DataFrame. The index is not used.

    `what` is the name of the table in error messages.
    """
    names = names_of_frame(frame)
    kinds = zip(names, frame.dtypes, strict=True)
    wrong = [f"{name!r} ({kind})" for name, kind in kinds if getattr(kind, "kind", "O") not in "biuf"]
    _refuse_columns(what, wrong)
    columns = (frame.iloc[:, number] for number in range(len(names)))
    return _table(what, names, len(frame), map(_column_values, columns))


def read_csv(path: Path) -> ColumnTable:
    """Read a .csv file of numbers, one example per line. The file may be gzipped.

    If a cell of the first line is not a number, this line holds the names of the columns. But a line of
    numbers and missing values is refused, in the first line as in others.
    """
    with as_data_error(path, ".csv file of numbers in UTF-8"):
        text = read_bytes(path, share=_TEXT_SHARE).decode("utf-8-sig")
    lines = io.StringIO(text, newline="")
    first: Sequence[str] = []
    while not any(cell.strip() for cell in first):
        start = lines.tell()
        with as_data_error(path, ".csv file of numbers"):
            first = next(csv.reader(lines), ["end"])
    if lines.tell() == start:
        raise DataError(f"{path} is empty; expected numbers separated by commas")
    names = None if all(map(is_number, first)) else tuple(cell.strip() for cell in first)
    if names is None:
        lines.seek(start)
    elif len(names) == 1 and any(mark in names[0] for mark in ";\t"):
        raise DataError(f"{path} seems to be separated by semicolons or tabs; expected commas")
    elif not names[0]:
        raise DataError(
            f"{path}: the first column has no name, so it seems to hold row numbers: write the file "
            "without them (in pandas: to_csv(path, index=False)), or give the column a name"
        )
    elif any(map(is_number, names)) and all(is_number(n) or n.lower() in _MISSING for n in names):
        names = None  # the line is refused below
        lines.seek(start)
    rest = lines.read()
    if not rest.strip():
        raise DataError(f"{path} has no row of numbers; expected one row per example")
    try:
        values = np.loadtxt(io.StringIO(rest), delimiter=",", quotechar='"', comments=None, ndmin=2)
    except ValueError as error:
        wrong = _wrong_cell(text, names, len(first)) or str(error)
        raise DataError(
            f"{path}, {wrong}: give numbers only, with equally many in each line. (Texts, one per line, "
            "are read from .txt files, SMILES strings from .smi files)"
        ) from None
    if values.shape[1] != len(first):
        raise DataError(
            f"{path} has {len(first)} names of columns, but {values.shape[1]} columns: name every column"
        )
    return _table(str(path), names, len(values), values.T)


def read_parquet(path: Path) -> ColumnTable:
    """Read a table of numbers from a .parquet file, with the package pyarrow."""
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise DataError(
            f"{path}: .parquet files are read with pyarrow, which is not installed: "
            "use `pip install pyarrow`, or save the table as .csv or .npy"
        ) from None
    arrow: Any = sys.modules["pyarrow"]
    if tuple(int(part) for part in arrow.__version__.split(".")[:3] if part.isdigit()) < _OLDEST_PYARROW:
        raise DataError(
            f"{path}: pyarrow {arrow.__version__} may run code from a .parquet file: update it with "
            "`pip install --upgrade pyarrow`"
        )
    check_file(path)
    with as_data_error(path, ".parquet file"), parquet.ParquetFile(path) as file:
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        # 8 bytes for each number; pyarrow can abort the process when it describes a damaged column
        check_size(path, 8 * sum(group.num_rows * group.num_columns for group in groups))
        index = "__index_level_0__"  # the index of a pandas DataFrame
        types = arrow.types
        plain = (types.is_integer, types.is_floating, types.is_boolean)
        fields = [field for field in file.schema_arrow if field.name != index]
        wrong = [field for field in fields if not any(test(field.type) for test in plain)]
        _refuse_columns(str(path), [f"{field.name!r} ({field.type})" for field in wrong])
        table = file.read()
    if index in table.column_names:
        table = table.drop_columns([index])
    columns = (column.to_numpy() for column in table.columns)
    return _table(str(path), tuple(table.column_names), table.num_rows, columns)


def _table(what: str, names: tuple[str, ...] | None, count: int, columns: Iterable[Any]) -> ColumnTable:
    """Join columns (N,) to one float32 array (N, F). Raise a DataError if float32 cannot hold a value.

    `names` are the names of the columns, and `count` is N. `what` is the name of the table in error
    messages.
    """
    columns = list(columns)
    out = np.empty((count, len(columns)), np.float32)
    for number, column in enumerate(columns):
        name = f"column {names[number]!r}" if names else f"column {number + 1}"
        values = np.asarray(column, np.float64) if column.dtype == np.object_ else column
        with np.errstate(over="ignore"):  # reported below
            out[:, number] = values
        finite = np.isfinite(out[:, number])
        if not finite.all():
            row = int(np.argmin(finite))
            raise DataError(
                f"{what}: {name} has a value that is missing, infinite or too large for float32, "
                f"{values[row]}, the first in row {row} (counted from 0): fill such values or drop such "
                "rows, in pandas with fillna or dropna"
            )
        if values.dtype.kind in "iu" and count:
            advice = "drop the column if it is an identifier, or convert it to floats"
            check_exact(int(values.min()), int(values.max()), f"{what}: {name}", advice)
    return ColumnTable(out, names)


def _refuse_columns(what: str, wrong: Sequence[str]) -> None:
    if wrong:
        more = f" and {len(wrong) - 10} more" if len(wrong) > 10 else ""
        raise DataError(
            f"{what}: these columns do not hold numbers: {', '.join(wrong[:10])}{more}: drop them, or "
            "encode them as numbers, in pandas with get_dummies"
        )


def _column_values(column: Any) -> Any:
    """Return a pandas column as a numpy array. Missing values become NaN."""
    if isinstance(column.dtype, np.dtype):
        return column.to_numpy()
    if column.isna().any():
        return column.to_numpy(np.float64, na_value=np.nan)
    return column.to_numpy(np.dtype(column.dtype.kind + "8") if column.dtype.kind in "iuf" else np.bool_)


def is_number(cell: str) -> bool:
    """Whether Python's `float` can read a text. This includes "nan" and "inf"."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _wrong_cell(text: str, names: tuple[str, ...] | None, width: int) -> str | None:
    """Describe the first wrong cell or line of a csv file for an error message; None if all are right.

    `names` are the names of the columns, if the first line of the file has them. `width` is the expected
    number of cells in each line.
    """
    reader = csv.reader(io.StringIO(text, newline=""))
    waiting_for_names = names is not None
    for row in reader:
        if not any(cell.strip() for cell in row):
            continue
        if waiting_for_names:
            waiting_for_names = False
            continue
        if len(row) != width:
            return f"line {reader.line_num}: {len(row)} values, expected {width}"
        for number, cell in enumerate(row):
            if not is_number(cell):
                name = repr(names[number]) if names else str(number + 1)
                shown = "is empty" if not cell.strip() else f"is {cell[:40]!r}, not a number"
                return f"line {reader.line_num}: column {name} {shown}"
    return None
