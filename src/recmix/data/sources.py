"""Load data from a name, a path, arrays in memory or a saved description."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recmix.data.limits import check_path
from recmix.data.set_files import entry_of
from recmix.data.sets import SETS, load_named
from recmix.data.splits import Data
from recmix.data.user_data import from_arrays, load_path
from recmix.errors import DataError, unknown

__all__ = ["as_data", "load", "rebuild"]


def load(
    name: str | Path,
    root: str | Path | None = None,
    seed: int = 0,
    download: bool = True,
    *,
    size: int | None = None,
    crop: int | None = None,
    stream: bool | str = "auto",
) -> Data:
    """Load a named set, a file or a folder, split into training, validation and test examples.

    If there are no validation examples, a random tenth of the training examples is held out for
    them. If there are no test examples either (CelebA, most paths), the split is 80/10/10.

    A path is one of

    - a `.npy` file of shape (N, ...);
    - an `.npz` file. It holds `x_train` and optional `x_val` and `x_test`; or one array; or, for
      examples with several fields, arrays named `x_train.NAME` or `NAME`; or a matrix that
      `scipy.sparse.save_npz` wrote;
    - a `.csv` or `.csv.gz` file of numbers separated by commas, with or without names of columns;
    - a `.parquet` file of numbers, if pyarrow is installed;
    - a folder of image files, or a zip file of it, with or without subfolders train, val and test.

    See `recmix.data.from_arrays` for the meaning of the values. A file of more bytes than half of the
    physical memory, also after decompression, is refused; the environment variable RECMIX_MAX_BYTES
    is another limit.

    >>> load("digits")
    Data('digits', train=1350, val=150, test=297, shape=(1, 8, 8))

    Args:
        name: A name from `recmix.data.SETS`, or a path. A name takes precedence: write `./mnist`
            for a folder called mnist.
        root: Folder of the named sets; by default the environment variable RECMIX_DATA, else a
            cache folder.
        seed: Seed of the random split.
        download: Whether missing files are downloaded. RECMIX_OFFLINE=1 forbids all downloads.
        size: Images in files are cropped to a square at their centre and resized to this side.
            Without it, all images must have one size.
        crop: Side of this square before resizing; by default the largest possible.
        stream: Whether image files are decoded each time they are used (True) or once into memory
            (False). "auto" means True if they need more than 1 GiB as float32.
    """
    if not isinstance(name, str | Path):
        raise DataError(
            f"load got a {type(name).__name__}; expected a name or a path: for examples in memory use "
            "recmix.data.from_arrays"
        )
    if name == "":
        raise DataError(
            f"the name of the data is empty; expected a path or one of {', '.join(SETS)}: write . for "
            "the current folder"
        )
    if isinstance(name, str) and name in SETS:
        return load_named(name, root, seed, download, size, crop, stream)
    path = check_path(name, f"a path or one of {', '.join(SETS)}")
    looks_like_path = isinstance(name, Path) or os.sep in name or "/" in name or bool(path.suffix)
    if not path.exists() and not looks_like_path:
        raise DataError(
            f"{unknown('data set', str(name), SETS)}. No file or folder has this name either"
        )
    return load_path(path, seed, size, crop, stream)


def as_data(
    source: Any, *, seed: int = 0, root: str | Path | None = None, download: bool = True
) -> Data:
    """Convert any supported source of examples to `Data`.

    >>> as_data("digits").name
    'digits'

    Args:
        source: A `Data`, which is returned as it is; a name or path for `load`; or training
            examples in memory for `from_arrays`: an array, a tensor, a list, a dict of arrays, a
            DataFrame, a sparse matrix, a torch Dataset or a DataLoader. Of a DataLoader only the
            data set is used; batch size and order of the examples are options of training.
        seed: Seed of the split.
        root: Same as in `load`.
        download: Same as in `load`.
    """
    if isinstance(source, Data):
        return source
    if isinstance(source, str | Path):
        return load(source, root=root, seed=seed, download=download)
    if isinstance(source, tuple):
        raise DataError(
            f"got a tuple of {len(source)}; for training, validation and test examples use "
            "recmix.data.from_arrays(x_train, x_val, x_test)"
        )
    if hasattr(source, "dataset") and not hasattr(source, "__getitem__"):
        source = source.dataset  # of a DataLoader; batch size and order are options of training
    return from_arrays(source, seed=seed)


def rebuild(
    description: Mapping[str, Any], *, root: str | Path | None = None, download: bool = True
) -> Data:
    """Load the data again from the result of `Data.describe`, and check that they are the same.

    >>> rebuild(load("digits", seed=3).describe()).seed
    3

    Args:
        description: The result of `describe`; it may have been saved as JSON.
        root: Folder of the named sets; by default the described one if it still holds the files of
            the set, else the default of `load`. Nothing is downloaded into the described folder.
        download: Same as in `load`.

    Raises:
        DataError: If the data were arrays in memory, or the examples have changed.
    """
    try:
        kind, name = description["kind"], description["name"]
        seed, expected = description["seed"], description["fingerprint"]
    except KeyError as error:
        raise DataError(
            f"the description of the data has no {error}; expected the result of Data.describe()"
        ) from None
    described_root = description.get("root")
    if root is None and described_root is not None and _has_files(name, described_root):
        root = described_root
    if kind not in ("named", "path"):
        raise DataError(
            f"the data {name!r} were arrays in memory and cannot be loaded again; give the arrays again"
        )
    source = name if kind == "named" else Path(description["path"])
    data = load(source, root, seed, download, **description.get("options", {}))
    if data.fingerprint != expected:
        raise DataError(
            f"{name} has changed: it has {data.counts} examples of shape {data.shape}, "
            f"fingerprint {data.fingerprint[:12]}; expected {description.get('counts')}, "
            f"fingerprint {expected[:12]}: give the original data"
        )
    return data


def _has_files(name: Any, root: Any) -> bool:
    """Whether the folder `root` holds the files of the named set, so that none is downloaded."""
    known = isinstance(name, str) and name in SETS and isinstance(root, str)
    return known and entry_of(SETS[name], Path(root)).usable
