"""Read arrays from files of several formats. A damaged file raises a DataError that names the file.

No reader uses pickle, so reading a file runs no code.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import math
import os
import signal
import struct
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recmix.data import mat_process
from recmix.data.examples import Array
from recmix.data.limits import StepReader, check_file, check_members, max_bytes, read_at_most
from recmix.errors import ConfigError, DataError

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
_LABELS = ("y", "label", "labels", "target", "targets", "class", "classes")  # names of arrays of labels
_SET_BYTES = 1 << 30  # limit for the formats of the named sets; their largest file has 182 MB
_MAT_SECONDS = 600  # reading a MATLAB file may take this long; the largest published one takes seconds


@contextlib.contextmanager
def as_data_error(path: Path, what: str) -> Iterator[None]:
    """Context that turns the error of a library about a damaged file into a DataError with its name.

    Args:
        path: The file.
        what: Kind of file that was expected, such as ".npz file".
    """
    try:
        yield
    except (DataError, ConfigError):
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
    """Open a regular file for reading. A gzip file is decompressed."""
    check_file(path)
    with path.open("rb") as stream:
        zipped = stream.read(2) == b"\x1f\x8b"
    return gzip.open(path) if zipped else path.open("rb")


def read_bytes(path: Path, md5: str | None = None, most: int | None = None, share: int = 1) -> bytes:
    """Read the bytes of a file, decompressed if it is a gzip file.

    Args:
        path: The file.
        md5: Expected MD5 sum of the result; None for no check.
        most: Largest accepted number of bytes; by default `max_bytes() // share`.
        share: Memory needed to process the content, as a multiple of its size.
    """
    with as_data_error(path, "file"):
        try:
            with open_decompressed(path) as stream:
                content = read_at_most(stream, path, most, share)
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
    """Read an IDX file of bytes, the format of MNIST, as an array with the axes of the file.

    The file holds two zero bytes, the type of the values (8 for bytes), the number of axes, the size of
    each axis as a big-endian integer, and then the values. `md5` is the expected MD5 sum, if known.
    """
    content = read_bytes(path, md5, _SET_BYTES)
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
    """Read a text file of zeros and ones, one example per line, as an array (N, columns).

    This is the format of the static binary MNIST.
    """
    text = np.frombuffer(read_bytes(path, most=_SET_BYTES), np.uint8)
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
    content = read_bytes(path, most=_SET_BYTES)
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
    """Read the arrays with the names `keys` from a MATLAB file of version 5, in this order."""
    content = read_bytes(path, most=_SET_BYTES)
    if content[:8] == b"\x89HDF\r\n\x1a\n" or content[:10] == b"MATLAB 7.3":
        raise DataError(
            f"{path} is a MATLAB 7.3 (HDF5) file; expected version 5: "
            "save it from MATLAB with -v7, or from Python with scipy.io.savemat"
        )
    with as_data_error(path, "MATLAB 5 file"), tempfile.TemporaryDirectory() as folder:
        _run_mat_process(path, content, folder, keys)
        arrays: list[Array] = []
        for number, key in enumerate(keys):
            made = Path(folder) / f"{number}.npy"
            if not made.exists():
                raise DataError(
                    f"{path} has no array of numbers named {key!r}; expected {', '.join(keys)}: "
                    f"{_REPLACE}"
                )
            arrays.append(read_npy(made))
    return arrays


def _run_mat_process(path: Path, content: bytes, folder: str, keys: tuple[str, ...]) -> None:
    """Start a process that reads arrays of a MATLAB file and writes them to .npy files in `folder`.

    `content` is the content of the file, and `keys` are the names of the arrays. Raise a DataError if
    the process fails or crashes. See `mat_process`.
    """
    most = min(max_bytes(), _SET_BYTES)
    command = [sys.executable, mat_process.__file__, folder, str(most), *keys]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
        "OPENBLAS_NUM_THREADS": "1",  # each thread reserves address space, which is limited
        "PYTHONWARNINGS": "ignore",
    }
    try:
        done = subprocess.run(
            command,
            input=content,
            capture_output=True,
            check=False,
            env=environment,
            timeout=_MAT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise DataError(
            f"{path} was not read within {_MAT_SECONDS} seconds, so it may be damaged: {_REPLACE}"
        ) from None
    if done.returncode == 0:
        return
    reason = (done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"])[-1]
    if done.returncode < 0:
        with contextlib.suppress(ValueError):
            reason = f"scipy crashed on it with {signal.Signals(-done.returncode).name}"
    raise DataError(f"{path} is not a readable MATLAB 5 file ({reason}): {_REPLACE}")


def read_npy(path: Path) -> Array:
    """Read the array of a .npy file."""
    check_file(path)
    with as_data_error(path, ".npy file of numbers"):
        array = np.load(path, allow_pickle=False)
    if not isinstance(array, np.ndarray):
        array.close()
        raise DataError(f"{path} is an .npz archive with the wrong suffix: rename it to .npz")
    return array


def read_npz(path: Path, notes: list[str] | None = None) -> dict[str, Any]:
    """Read training, validation and test examples from an .npz file.

    The file has one of these forms:

    - An array `x_train`, and optional arrays `x_val` and `x_test`. Arrays of other names, such as
      labels, are not read.
    - Arrays `x_train.NAME`, and optional arrays `x_val.NAME` and `x_test.NAME`, if an example has
      several named arrays (fields).
    - One array of any other name. It becomes `x_train`. Further arrays with a name of labels, such as
      `y` or `y_train`, are not used if they have the shape (N,), are integers or texts of shape (N, 1),
      or have one-hot rows.
    - Several arrays of other names. They become the fields of `x_train`.
    - A sparse matrix that `scipy.sparse.save_npz` wrote. It becomes `x_train`.

    Args:
        path: The file.
        notes: A list to which a note for the user is added if labels are not used.

    Returns:
        {"x_train": examples}, also with "x_val" and "x_test" if the file has them. The examples are an
        array (N, ...), a sparse matrix, or {field name: array (N, ...)}.
    """
    check_file(path)
    if not zipfile.is_zipfile(path):
        with as_data_error(path, ".npz file"):
            path.open("rb").close()
        raise DataError(f"{path} is not a readable .npz file (not a complete zip file): {_REPLACE}")
    with as_data_error(path, ".npz file of numbers"), zipfile.ZipFile(path) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        keys = list(members)
        if "x_train" in keys:
            wanted = [key for key in _PARTS if key in keys]
        elif any(key.startswith("x_train.") for key in keys):
            wanted = [key for key in keys if key.partition(".")[0] in _PARTS and "." in key]
        else:
            wanted = keys
        check_members(path, [members[key] for key in wanted])
        arrays: dict[str, Array] = {}
        for key in wanted:
            with archive.open(members[key]) as stream:
                reader: Any = StepReader(stream)  # numpy's type annotations want more than `read`
                arrays[key] = np.lib.format.read_array(reader, allow_pickle=False)
        if "x_train" in keys:
            return arrays
        if wanted is not keys:
            parts: dict[str, Any] = {}
            for key, array in arrays.items():
                part, _, field = key.partition(".")
                parts.setdefault(part, {})[field] = array
            return parts
        if {"format", "shape", "data"} <= set(keys):
            return {"x_train": _sparse_matrix(arrays)}
    labels = [key for key in keys if _is_labels(key, arrays[key], alone=len(keys) == 1)]
    others = [key for key in keys if key not in labels]
    if len(others) == 1:
        if labels and notes is not None:
            notes.append(
                f"the examples are the array {others[0]}; not used: {', '.join(labels)}. To use labels "
                f"as a field, name the arrays x_train.{others[0]} and x_train.{labels[0]}"
            )
        return {"x_train": arrays[others[0]]}
    if not arrays or any(key.lower() in ("train", *_PARTS) for key in keys):
        raise DataError(
            f"{path} holds {', '.join(keys) or 'nothing'}; expected x_train (x_val and x_test are "
            "optional): name the parts so, with numpy.savez(path, x_train=..., x_test=...)"
        )
    return {"x_train": arrays}


def _is_labels(name: str, array: Array, *, alone: bool) -> bool:
    """Whether an array has the name and the values of labels.

    The values are (N,), integers or texts (N, 1), or one-hot rows (N, K). An array with two axes that is
    alone in its file holds examples.
    """
    if name.lower().removesuffix("_train").removeprefix("train_") not in _LABELS:
        return False
    if array.ndim != 2 or alone:
        return array.ndim == 1
    if array.shape[1] == 1:
        return array.dtype.kind in "biuSU"
    if array.dtype.kind not in "biuf":
        return False
    one_hot = ((array == 0) | (array == 1)).all() and (array.sum(axis=1, dtype=np.int64) == 1).all()
    return bool(one_hot)


def _sparse_matrix(arrays: dict[str, Array]) -> Any:
    """Make a sparse matrix from the arrays of a file that `scipy.sparse.save_npz` wrote."""
    from scipy import sparse

    form = arrays["format"].item()
    form = form.decode("ascii") if isinstance(form, bytes) else form
    kind = "array" if "_is_array" in arrays else "matrix"
    data, shape = arrays["data"], tuple(arrays["shape"].tolist())
    inner: tuple[Any, ...]
    if form in ("csc", "csr", "bsr"):
        inner = (data, arrays["indices"], arrays["indptr"])
    elif form == "dia":
        inner = (data, arrays["offsets"])
    elif form == "coo":
        inner = (data, arrays["coords"] if "coords" in arrays else (arrays["row"], arrays["col"]))
    else:
        raise ValueError(f"sparse format {form!r}, expected bsr, coo, csc, csr or dia")
    return getattr(sparse, f"{form}_{kind}")(inner, shape=shape)
