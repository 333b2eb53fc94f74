"""From whatever names or holds images to the data for a run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recmix.data.own import from_arrays, load_path
from recmix.data.sets import SETS, load_named
from recmix.data.splits import ImageData
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
) -> ImageData:
    """The images of a named set or of a file or folder, split for training, validation and test.

    A tenth of the training images is held out for validation, by seed. Where there is no test part
    either (CelebA, most paths), the split is 80/10/10.

    A path is one of

    - a `.npy` file of shape (N, C, H, W) or (N, H, W), uint8 or float in [0, 1];
    - an `.npz` file with `x_train` and, if there are any, `x_val` and `x_test`, or with one array;
    - a folder of pictures, or a zip of one, with or without subfolders train, val and test.

    >>> load("digits")
    ImageData('digits', train=1350, val=150, test=297, shape=(1, 8, 8))

    Args:
        name: A name from `recmix.data.SETS`, or a path. A name comes before a path: write `./mnist`
            for a folder called mnist.
        root: Where named sets lie; by default the environment variable RECMIX_DATA, else a cache
            folder.
        seed: Which split.
        download: Whether missing files are fetched; RECMIX_OFFLINE=1 forbids it everywhere.
        size: Pictures are cut to the centred square and resized to this side. Without it they must
            all have one size.
        crop: Side of the centred square to cut before resizing; by default the largest.
        stream: Whether pictures stay in their files (True) or are decoded into memory (False);
            "auto" leaves them there if they would take more than 1 GiB as float32.
    """
    if not isinstance(name, str | Path):
        raise DataError(
            f"load was given a {type(name).__name__}; expected a name or a path: for images in memory "
            "use recmix.data.from_arrays"
        )
    if isinstance(name, str) and name in SETS:
        return load_named(
            name, root=root, seed=seed, download=download, size=size, crop=crop, stream=stream
        )
    path = Path(name).expanduser()
    looks_like_path = isinstance(name, Path) or os.sep in name or "/" in name or bool(path.suffix)
    if not path.exists() and not looks_like_path:
        raise DataError(
            f"{unknown('data set', str(name), SETS)}; nor is there a file or folder of that name"
        )
    return load_path(path, seed=seed, size=size, crop=crop, stream=stream)


def as_data(
    source: Any, *, seed: int = 0, root: str | Path | None = None, download: bool = True
) -> ImageData:
    """Data from anything that is or names images.

    >>> as_data("digits").name
    'digits'

    Args:
        source: An `ImageData`, which is returned itself; a name or path, for `load`; an array, a
            tensor or a torch Dataset of training images, for `from_arrays`.
        seed: Which split.
        root: As in `load`.
        download: As in `load`.
    """
    if isinstance(source, ImageData):
        return source
    if isinstance(source, str | Path):
        return load(source, root=root, seed=seed, download=download)
    if isinstance(source, tuple):
        raise DataError(
            f"got a tuple of {len(source)}; for training, validation and test images use "
            "recmix.data.from_arrays(x_train, x_val, x_test)"
        )
    if hasattr(source, "dataset") and not hasattr(source, "__getitem__"):
        raise DataError(
            f"got a {type(source).__name__}, which deals out batches; give its data set: .dataset"
        )
    return from_arrays(source, seed=seed)


def rebuild(
    description: Mapping[str, Any], *, root: str | Path | None = None, download: bool = True
) -> ImageData:
    """The data that `ImageData.describe` described, loaded again and checked to be the same.

    >>> rebuild(load("digits", seed=3).describe()).seed
    3

    Args:
        description: What `describe` gave, perhaps by way of JSON.
        root: Where named sets lie now; by default where they lay if that is still there, else as in
            `load`.
        download: As in `load`.

    Raises:
        DataError: If the data were arrays in memory, or the images are not the same any more.
    """
    try:
        kind, name = description["kind"], description["name"]
        seed, expected = description["seed"], description["fingerprint"]
    except KeyError as error:
        raise DataError(
            f"the description of the data has no {error}; expected what ImageData.describe() gives"
        ) from None
    options = dict(description.get("options", {}))
    then = description.get("root")
    if root is None and then is not None and Path(then).is_dir():
        root = then
    if kind == "named":
        data = load(name, root, seed, download, **options)
    elif kind == "path":
        data = load(Path(description["path"]), root, seed, download, **options)
    else:
        raise DataError(
            f"the data {name!r} were arrays in memory and cannot be loaded again; give them once more"
        )
    if data.fingerprint != expected:
        raise DataError(
            f"{name} is not what it was: it has {data.counts} images of shape {data.shape}, "
            f"fingerprint {data.fingerprint[:12]}; expected {description.get('counts')}, "
            f"{expected[:12]}: give the data that were used then"
        )
    return data
