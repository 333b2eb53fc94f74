"""A user's own images: arrays, tensors, torch data sets, array files, folders of image files."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from recmix.data.checks import check_examples, check_size, is_tensor, to_numpy
from recmix.data.examples import Array, ArrayExamples, Examples, is_binary
from recmix.data.file_images import SUFFIXES, FileImages, ImageFolder, check_resize, from_pillow
from recmix.data.formats import read_npy, read_npz
from recmix.data.splits import Data, complete_parts
from recmix.errors import ConfigError, DataError

__all__ = ["from_arrays", "load_path"]

_ACCEPTED_PATHS = "expected a .npy, .npz or .zip file or a folder of images"
_PARTS = {"train": "x_train", "val": "x_val", "valid": "x_val", "validation": "x_val", "test": "x_test"}


def from_arrays(
    x_train: Any, x_val: Any = None, x_test: Any = None, *, seed: int = 0, name: str = "arrays"
) -> Data:
    """Make a data set of images in memory.

    Each part is a numpy array, a torch tensor, a list of images, a torch Dataset (of images, or of
    tuples whose first element is the image), or an `Examples`. Shapes are (N, C, H, W) or (N, H, W).
    uint8 means value / 255, booleans mean 0 and 1, floats must lie in [0, 1].

    >>> from_arrays(np.zeros((50, 28, 28), np.uint8))
    Data('arrays', train=45, val=5, test=None, shape=(1, 28, 28))

    Args:
        x_train: Training images.
        x_val: Validation images; by default a tenth of the training images, held out by seed.
        x_test: Test images, or None for no test part.
        seed: Seed of the split.
        name: Name of the data set; the split depends on it.
    """
    parts = {"x_train": x_train, "x_val": x_val, "x_test": x_test}
    return _make_data(parts, name=name, seed=seed, need_test=False, source={"kind": "arrays"})


def load_path(path: Path, seed: int, size: int | None, crop: int | None, stream: bool | str) -> Data:
    """Load a user's file or folder; see `recmix.data.load`."""
    path = path.expanduser().absolute()
    if not path.exists():
        raise DataError(f"{path} does not exist; {_ACCEPTED_PATHS}")
    suffix = path.suffix.lower()
    options: dict[str, Any] = {"size": size, "crop": crop}
    parts: Mapping[str, Any]
    if path.is_dir() or suffix == ".zip":
        parts = _read_image_files(path, size, crop, stream)
        options["stream"] = not parts["x_train"].in_memory
    elif suffix in (".npy", ".npz"):
        if size is not None or crop is not None:
            raise ConfigError(f"size and crop are for image files; {path} holds arrays: resize them")
        parts = {"x_train": read_npy(path)} if suffix == ".npy" else read_npz(path)
    elif suffix in SUFFIXES:
        raise DataError(f"{path} is one image; {_ACCEPTED_PATHS}: give the folder of the image")
    elif suffix in (".pkl", ".pickle", ".pt", ".pth"):
        raise DataError(
            f"{path} is a pickle, which can run any code and is never read; {_ACCEPTED_PATHS}: "
            "save the images with numpy.save"
        )
    else:
        raise DataError(f"{path} has a format that is not supported; {_ACCEPTED_PATHS}")
    name = path.name if path.is_dir() else path.stem
    source = {"kind": "path", "path": str(path), "options": options}
    try:
        return _make_data(parts, name=name, seed=seed, need_test=True, source=source)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _make_data(
    parts: Mapping[str, Any], *, name: str, seed: int, need_test: bool, source: Mapping[str, Any]
) -> Data:
    x_val, x_test = parts.get("x_val"), parts.get("x_test")
    at_least = 1 + (x_val is None) + (x_test is None and need_test)
    train = _as_images(parts["x_train"], "x_train", None, at_least)
    val = None if x_val is None else _as_images(x_val, "x_val", train.shape[1:])
    test = None if x_test is None else _as_images(x_test, "x_test", train.shape[1:])
    complete = complete_parts(train, val, test, name=name, seed=seed, need_test=need_test)
    return Data(name, *complete, seed=seed, binary=is_binary(complete[0]), source=source)


def _as_images(x: Any, what: str, shape: tuple[int, int, int] | None, at_least: int = 1) -> Examples:
    if isinstance(x, Examples):
        return x
    if _is_sequence_of_images(x):
        x = _stack(x, what)
    return ArrayExamples(check_examples(x, what=what, shape=shape, at_least=at_least))


def _is_sequence_of_images(x: Any) -> bool:
    """Whether `x` is a sequence of images (a torch Dataset, a list of arrays) and not one array."""
    if isinstance(x, list):
        first = x[0] if x else None
        if isinstance(first, list | tuple):
            first = first[0] if first else None
        return first is not None and not isinstance(first, list | tuple | int | float)
    if isinstance(x, tuple | str | bytes | Mapping) or is_tensor(x) or hasattr(x, "__array__"):
        return False
    return hasattr(x, "__getitem__")


def _stack(items: Any, what: str) -> Array:
    """Collect all images of a sequence in one array, with the shape and type of the first."""
    try:
        count = len(items)
    except (TypeError, NotImplementedError):
        raise DataError(
            f"{what} is a {type(items).__name__} without a length; expected an array, or a data set "
            "that is read by index: collect its images in an array first"
        ) from None
    if count == 0:
        raise DataError(f"{what}, a {type(items).__name__}, has no images; give at least two")
    first = _item_to_array(items[0], f"{what}[0]")
    out = np.empty((count, *first.shape), first.dtype)
    out[0] = first
    for row in range(1, count):
        image = _item_to_array(items[row], f"{what}[{row}]")
        if image.shape != first.shape or image.dtype != first.dtype:
            raise DataError(
                f"{what}[{row}] is {image.dtype} of shape {image.shape}, {what}[0] is {first.dtype} of "
                f"shape {first.shape}; all images must have one shape and type: resize them"
            )
        out[row] = image
    return out


def _item_to_array(item: Any, what: str) -> Array:
    if isinstance(item, tuple | list) and item:
        item = item[0]
    pillow = sys.modules.get("PIL.Image")
    if pillow is not None and isinstance(item, pillow.Image):
        return from_pillow(item)
    if isinstance(item, Mapping):
        raise DataError(
            f"{what} is a mapping with keys {', '.join(map(str, item))}; expected an image, or a tuple "
            "whose first element is the image"
        )
    return to_numpy(item, what)


def _read_image_files(
    path: Path, size: int | None, crop: int | None, stream: bool | str
) -> dict[str, Examples]:
    check_resize(size, crop)
    if crop is not None and size is None:
        raise ConfigError(f"crop is {crop} but size is missing; give size=..., for example size=64")
    folder = ImageFolder(path)
    names = folder.names()
    channels, height, width = folder.common_shape(names, any_size=size is not None)
    images = FileImages(folder, names, size=(height, width), channels=channels)
    if size is None:
        check_size(height, width, f"{folder.location(names[0])} is {height}x{width} (height x width)")
    else:
        images = images.resized(size, crop or "square")
    parts = _rows_by_part(path, names)
    return {part: images.subset(rows).loaded(stream) for part, rows in parts.items()}


def _rows_by_part(path: Path, names: list[str]) -> dict[str, list[int]]:
    """Group names, given by number, by folder: train, val, test. Without a train, all are x_train."""
    depth = 0
    paths = [PurePosixPath(name).parts for name in names]
    while len({parts[depth] for parts in paths}) == 1 and len(paths[0]) > depth + 2:
        depth += 1  # skip a single outer folder, which zip files often have
    folders = [parts[depth].lower() if len(parts) > depth + 1 else "" for parts in paths]
    if "train" not in folders:
        return {"x_train": list(range(len(names)))}
    found: dict[str, list[int]] = {}
    for row, folder in enumerate(folders):
        if folder not in _PARTS:
            raise DataError(
                f"{path} has a folder train, but {names[row]} is not in train, val or test; "
                "move it into one of them or remove it"
            )
        found.setdefault(_PARTS[folder], []).append(row)
    return found
