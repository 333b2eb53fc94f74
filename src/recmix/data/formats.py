"""Readers of file formats. Each returns arrays or raises a DataError that names the file.

No reader uses pickle, so reading a file runs no code.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recmix.data.examples import Array
from recmix.errors import DataError

__all__ = [
    "as_data_error",
    "open_decompressed",
    "read_amat",
    "read_bytes",
    "read_cifar",
    "read_idx",
    "read_mat",
    "read_npy",
    "read_npz",
]

_REPLACE = "replace it with an intact copy"
_PARTS = ("x_train", "x_val", "x_test")


@contextlib.contextmanager
def as_data_error(path: Path, what: str) -> Iterator[None]:
    """In this context, turn every error of a library on a damaged file into a DataError with the path.

    Args:
        path: The file.
        what: What the file should be, for the message.
    """
    try:
        yield
    except DataError:
        raise
    except MemoryError as error:
        raise DataError(f"{path} needs too much memory, or its header is damaged: {_REPLACE}") from error
    except (PermissionError, IsADirectoryError, FileNotFoundError) as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except Exception as error:  # scipy, numpy and zipfile raise many different types
        reason = str(error)
        if "allow_pickle" in reason:  # numpy recommends unsafe loading; recmix never does that
            reason = "it holds Python objects, or has another format"
        raise DataError(f"{path} is not a readable {what} ({reason}): {_REPLACE}") from error


def open_decompressed(path: Path) -> io.BufferedIOBase:
    """Open a file for reading; a gzip file is decompressed."""
    with path.open("rb") as stream:
        zipped = stream.read(2) == b"\x1f\x8b"
    return gzip.open(path) if zipped else path.open("rb")


def read_bytes(path: Path, md5: str | None = None) -> bytes:
    """Read the bytes of a file, decompressed if it is a gzip file, and check their MD5 sum if given."""
    with as_data_error(path, "file"):
        try:
            with open_decompressed(path) as stream:
                content = stream.read()
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(f"{path} is not a complete gzip file ({error}): {_REPLACE}") from error
    if md5 is not None:
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if found != md5:
            raise DataError(
                f"{path} is not the published file: the MD5 sum of its (decompressed) content is "
                f"{found}, expected {md5}: {_REPLACE}; to load your own data, give their path"
            )
    return content


def read_idx(path: Path, md5: str | None = None) -> NDArray[np.uint8]:
    """Read an IDX file of bytes, the format of MNIST, as an array.

    The file holds two zero bytes, the type of the values (8 for bytes), the number of axes, the
    size of each axis as a big-endian integer, and then the values.
    """
    content = read_bytes(path, md5)
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise DataError(
            f"{path} is not an IDX file of bytes: it begins with {content[:4].hex(' ') or 'nothing'}, "
            f"expected 00 00 08 and the rank: {_REPLACE}"
        )
    rank = content[3]
    start = 4 + 4 * rank
    if len(content) < start:
        raise DataError(f"{path} ends inside its IDX header, after {len(content)} bytes: {_REPLACE}")
    shape = struct.unpack(f">{rank}I", content[4:start])
    expected, found = math.prod(shape), len(content) - start
    if found != expected:
        raise DataError(f"{path} has {found} values, expected {expected} of shape {shape}: {_REPLACE}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()  # copy: writable


def read_amat(path: Path, columns: int = 784) -> NDArray[np.uint8]:
    """Read a text file of zeros and ones with `columns` values per line, one line per example.

    This is the format of the static binary MNIST.
    """
    text = np.frombuffer(read_bytes(path), np.uint8)
    digit = (text == ord("0")) | (text == ord("1"))
    space = (text == ord(" ")) | (text == ord("\n")) | (text == ord("\r")) | (text == ord("\t"))
    wrong = ~(digit | space)
    wrong[1:] |= digit[1:] & digit[:-1]  # two digits without a space between them
    if wrong.any():
        line = 1 + int((text[: int(np.argmax(wrong))] == ord("\n")).sum())
        raise DataError(f"{path}, line {line}: expected zeros and ones, separated by spaces: {_REPLACE}")
    if not digit.any():
        raise DataError(f"{path} is empty: {_REPLACE}")
    starts = np.concatenate([[0], 1 + np.flatnonzero(text[:-1] == ord("\n"))])
    widths = np.add.reduceat(digit, starts, dtype=np.int64)
    short = (widths != columns) & (widths != 0)
    if short.any():
        line = int(np.argmax(short))
        raise DataError(
            f"{path}, line {line + 1}: {widths[line]} values, expected {columns}; "
            f"the file may be incomplete: {_REPLACE}"
        )
    values: NDArray[np.uint8] = text[digit] - np.uint8(ord("0"))
    return values.reshape(-1, columns)


def read_cifar(path: Path) -> NDArray[np.uint8]:
    """Read the images of one binary file of CIFAR-10, (N, 3, 32, 32).

    Each record of the file is a label (one byte, not used) and 3072 bytes of pixels.
    """
    content = read_bytes(path)
    if not content or len(content) % 3073:
        raise DataError(
            f"{path} has {len(content)} bytes, expected a multiple of 3073 (a label and 3x32x32 "
            f"values): {_REPLACE}"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, 3073)
    if (label := records[:, 0].max()) > 9:
        raise DataError(
            f"{path} is not a CIFAR-10 binary batch: it has label {label}, expected 0 to 9: {_REPLACE}"
        )
    return records[:, 1:].reshape(-1, 3, 32, 32).copy()


def read_mat(path: Path, *keys: str) -> list[Array]:
    """Read arrays from a MATLAB file of version 5.

    Args:
        path: The file.
        *keys: Names of the arrays.
    """
    from scipy.io import loadmat

    content = read_bytes(path)
    if content[:8] == b"\x89HDF\r\n\x1a\n" or content[:10] == b"MATLAB 7.3":
        raise DataError(
            f"{path} is a MATLAB 7.3 (HDF5) file; expected version 5: "
            "save it from MATLAB with -v7, or from Python with scipy.io.savemat"
        )
    with as_data_error(path, "MATLAB 5 file"):
        stream: Any = io.BytesIO(content)  # loadmat's type annotations allow paths only
        found = loadmat(stream, variable_names=list(keys))
    for key in keys:
        if not isinstance(found.get(key), np.ndarray) or found[key].dtype.kind not in "biuf":
            raise DataError(
                f"{path} has no array of numbers named {key!r}; expected {', '.join(keys)}: {_REPLACE}"
            )
    return [found[key] for key in keys]


def read_npy(path: Path) -> Array:
    """Read the array of a .npy file."""
    with as_data_error(path, ".npy file of numbers"):
        array = np.load(path, allow_pickle=False)
    if not isinstance(array, np.ndarray):
        array.close()
        raise DataError(f"{path} is an .npz archive with the wrong suffix: rename it to .npz")
    return array


def read_npz(path: Path) -> dict[str, Any]:
    """Read training, validation and test examples (x_train, x_val, x_test) from an .npz file.

    Each is an array, or a dict of arrays by field if the examples have several fields.

    - `x_train` is an array; `x_val` and `x_test` are optional. Arrays of other names, such as
      labels, are not read.
    - `x_train.NAME` is the field NAME of `x_train`; the same for `x_val` and `x_test`.
    - Without an `x_train`, a single array is x_train, and several arrays are its fields.
    - A file of `scipy.sparse.save_npz` holds one sparse matrix, which is x_train.
    """
    if not zipfile.is_zipfile(path):
        with as_data_error(path, ".npz file"):
            path.open("rb").close()
        raise DataError(f"{path} is not a readable .npz file (not a complete zip file): {_REPLACE}")
    with as_data_error(path, ".npz file of numbers"), np.load(path, allow_pickle=False) as archive:
        keys = archive.files
        if "x_train" in keys:
            return {part: archive[part] for part in _PARTS if part in keys}
        if any(key.startswith("x_train.") for key in keys):
            fields = {part: [key for key in keys if key.startswith(f"{part}.")] for part in _PARTS}
            return {
                part: {key.partition(".")[2]: archive[key] for key in found}
                for part, found in fields.items()
                if found
            }
        if {"format", "shape", "data"} <= set(keys):
            return {"x_train": _read_sparse(path)}
        arrays = {key: archive[key] for key in keys}
    if len(arrays) == 1:
        return {"x_train": arrays[keys[0]]}
    if not arrays or any(part in keys for part in _PARTS):
        raise DataError(
            f"{path} holds {', '.join(keys) or 'nothing'}; expected x_train (x_val and x_test are "
            "optional), or a single array, or the fields of the examples: save it with "
            "numpy.savez(path, x_train=...)"
        )
    return {"x_train": arrays}


def _read_sparse(path: Path) -> Any:
    """Read the matrix in a file of `scipy.sparse.save_npz`, without unpickling."""
    from scipy import sparse

    return sparse.load_npz(path)
