"""Readers by file format: each gives arrays or a DataError that names the file and what is wrong.

Nothing is ever unpickled.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recmix.data.images import Array
from recmix.errors import DataError

__all__ = ["read_amat", "read_bytes", "read_cifar", "read_idx", "read_mat", "read_npy", "read_npz"]

_AGAIN = "delete it and fetch it again"


@contextlib.contextmanager
def _reading(path: Path, what: str) -> Iterator[None]:
    """Whatever a library raises on a damaged file becomes a DataError that names the file."""
    try:
        yield
    except DataError:
        raise
    except MemoryError as error:
        raise DataError(f"{path} needs more memory than there is, or its header is damaged") from error
    except (PermissionError, IsADirectoryError, FileNotFoundError) as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except Exception as error:  # scipy, numpy and zipfile raise a dozen different types
        why = str(error)
        if "allow_pickle" in why:  # numpy's advice is to load it unsafely, which is never done here
            why = "it holds Python objects, or is no such file at all"
        raise DataError(f"{path} is not a readable {what} ({why}): {_AGAIN}") from error


def read_bytes(path: Path, md5: str | None = None) -> bytes:
    """The bytes of a file, decompressed if it is gzipped.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a.gz"
    ...     _ = path.write_bytes(gzip.compress(b"abc"))
    ...     read_bytes(path)
    b'abc'

    Args:
        path: The file.
        md5: What the MD5 sum of the decompressed bytes must be.
    """
    with _reading(path, "file"):
        with path.open("rb") as stream:
            packed = stream.read(2) == b"\x1f\x8b"
        try:
            with gzip.open(path) if packed else path.open("rb") as stream:
                blob = stream.read()
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(f"{path} is not a whole gzip file ({error}): {_AGAIN}") from error
    if md5 is not None:
        found = hashlib.md5(blob, usedforsecurity=False).hexdigest()
        if found != md5:
            raise DataError(
                f"{path} is not the published file: MD5 of its (decompressed) content is {found}, "
                f"expected {md5}: {_AGAIN}; images of your own are loaded by their path"
            )
    return bytes(blob)


def read_idx(path: Path, md5: str | None = None) -> NDArray[np.uint8]:
    """An IDX file of bytes, as MNIST's: two zeros, type 8, rank, big-endian sizes, values.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a-idx1-ubyte"
    ...     _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]))
    ...     read_idx(path)
    array([7, 9], dtype=uint8)
    """
    blob = read_bytes(path, md5)
    if len(blob) < 4 or blob[:3] != b"\0\0\x08":
        raise DataError(
            f"{path} is not an IDX file of bytes: it begins with {blob[:4].hex(' ') or 'nothing'}, "
            f"expected 00 00 08 and the rank: {_AGAIN}"
        )
    rank = blob[3]
    start = 4 + 4 * rank
    if len(blob) < start:
        raise DataError(f"{path} ends inside its IDX header, after {len(blob)} bytes: {_AGAIN}")
    shape = struct.unpack(f">{rank}I", blob[4:start])
    promised = 1
    for side in shape:
        promised *= side
    if len(blob) - start != promised:
        raise DataError(
            f"{path} promises {promised} bytes of shape {shape} but holds {len(blob) - start}: {_AGAIN}"
        )
    return np.frombuffer(blob, np.uint8, offset=start).reshape(shape).copy()  # a writable array


def read_amat(path: Path, columns: int = 784) -> NDArray[np.uint8]:
    r"""A text file of zeros and ones, `columns` to a line, as Larochelle's binarised MNIST.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a.amat"
    ...     _ = path.write_text("0 1 \n1 1 \n")
    ...     read_amat(path, columns=2)
    array([[0, 1],
           [1, 1]], dtype=uint8)
    """
    text = np.frombuffer(read_bytes(path), np.uint8)
    digit = (text == ord("0")) | (text == ord("1"))
    space = (text == ord(" ")) | (text == ord("\n")) | (text == ord("\r")) | (text == ord("\t"))
    strange = ~(digit | space)
    strange[1:] |= digit[1:] & digit[:-1]  # "10" is not two values
    if strange.any():
        line = 1 + int((text[: int(np.argmax(strange))] == ord("\n")).sum())
        raise DataError(f"{path}, line {line}: expected zeros and ones apart by spaces: {_AGAIN}")
    if not digit.any():
        raise DataError(f"{path} is empty: {_AGAIN}")
    starts = np.concatenate([[0], 1 + np.flatnonzero(text[:-1] == ord("\n"))])
    widths = np.add.reduceat(digit, starts, dtype=np.int64)
    wrong = (widths != columns) & (widths != 0)
    if wrong.any():
        line = int(np.argmax(wrong))
        raise DataError(
            f"{path}, line {line + 1}: {widths[line]} values, expected {columns}; "
            f"the file may be cut short: {_AGAIN}"
        )
    values: NDArray[np.uint8] = text[digit] - np.uint8(ord("0"))
    return values.reshape(-1, columns)


def read_cifar(path: Path) -> NDArray[np.uint8]:
    """The images of a CIFAR-10 binary batch, (N, 3, 32, 32): records of a label and 3072 bytes.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "data_batch_1.bin"
    ...     _ = path.write_bytes(bytes(2 * 3073))
    ...     read_cifar(path).shape
    (2, 3, 32, 32)
    """
    blob = read_bytes(path)
    if not blob or len(blob) % 3073:
        raise DataError(
            f"{path} has {len(blob)} bytes, expected a multiple of 3073 (a label and 3x32x32 values): "
            f"{_AGAIN}"
        )
    records = np.frombuffer(blob, np.uint8).reshape(-1, 3073)
    if records[:, 0].max() > 9:
        raise DataError(
            f"{path} has a label of {records[:, 0].max()}, expected 0 to 9: it is not a binary batch of "
            f"CIFAR-10: {_AGAIN}"
        )
    return records[:, 1:].reshape(-1, 3, 32, 32).copy()


def read_mat(path: Path, *keys: str) -> list[Array]:
    """Arrays from a MATLAB file of version 5, by their names.

    >>> import tempfile, scipy.io
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a.mat"
    ...     scipy.io.savemat(path, {"X": np.eye(2)})
    ...     read_mat(path, "X")[0].shape
    (2, 2)
    """
    from scipy.io import loadmat

    blob = read_bytes(path)
    if blob[:8] == b"\x89HDF\r\n\x1a\n" or blob[:10] == b"MATLAB 7.3":
        raise DataError(
            f"{path} is a MATLAB 7.3 (HDF5) file; version 5 is read: "
            "save it from MATLAB with -v7, or from Python with scipy.io.savemat"
        )
    with _reading(path, "MATLAB 5 file"):
        stream: Any = io.BytesIO(blob)  # its types know of paths only
        found = loadmat(stream, variable_names=list(keys))
    arrays = [found.get(key) for key in keys]
    for key, array in zip(keys, arrays, strict=True):
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
            raise DataError(
                f"{path} has no array of numbers named {key!r}; expected {', '.join(keys)}: {_AGAIN}"
            )
    return [array for array in arrays if array is not None]


def read_npy(path: Path) -> Array:
    """The array of a .npy file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(Path(folder) / "a.npy", np.zeros((3, 8, 8)))
    ...     read_npy(Path(folder) / "a.npy").shape
    (3, 8, 8)
    """
    with _reading(path, ".npy file of numbers"):
        array = np.load(path, allow_pickle=False)
    if not isinstance(array, np.ndarray):
        array.close()
        raise DataError(f"{path} is an .npz archive under another name: rename it to .npz")
    return array


def read_npz(path: Path) -> dict[str, Array]:
    """The images of an .npz file: x_train, x_val and x_test, or the only array under "x_train".

    Other arrays beside x_train, such as labels, are left unread.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(Path(folder) / "a.npz", x_train=np.zeros((3, 8, 8)), y_train=np.zeros(3))
    ...     list(read_npz(Path(folder) / "a.npz"))
    ['x_train']
    """
    if not zipfile.is_zipfile(path):
        with _reading(path, ".npz file"):
            path.open("rb").close()
        raise DataError(f"{path} is not a readable .npz file (it is not a whole zip): {_AGAIN}")
    with _reading(path, ".npz file of numbers"), np.load(path, allow_pickle=False) as archive:
        keys = archive.files
        if "x_train" in keys:
            wanted = {key: key for key in ("x_train", "x_val", "x_test") if key in keys}
        elif len(keys) == 1:
            wanted = {"x_train": keys[0]}
        else:
            raise DataError(
                f"{path} holds {', '.join(keys) or 'nothing'}; expected x_train, and x_val and x_test "
                "if there are any, or a single array: save it with numpy.savez(path, x_train=...)"
            )
        return {part: archive[key] for part, key in wanted.items()}
