"""A user's own images: arrays, tensors, torch data sets, array files, folders and zips of pictures."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from recmix.data.checks import check_images, check_size, is_tensor, to_numpy
from recmix.data.files import SUFFIXES, Crop, FileImages, Pictures, check_cut, picture_array, settle
from recmix.data.formats import read_npy, read_npz
from recmix.data.images import Array, ArrayImages, Images, is_binary
from recmix.data.splits import ImageData, divide
from recmix.errors import ConfigError, DataError

__all__ = ["from_arrays", "load_path"]

_FOLDERS = {
    "train": "x_train",
    "val": "x_val",
    "valid": "x_val",
    "validation": "x_val",
    "test": "x_test",
}


def from_arrays(
    x_train: Any,
    x_val: Any = None,
    x_test: Any = None,
    *,
    seed: int = 0,
    name: str = "arrays",
) -> ImageData:
    """Data from images in memory.

    Each part is a numpy array, a torch tensor, a list of images, a torch Dataset (its items are
    images, or tuples whose first element is the image), or an `Images`. Shapes are (N, C, H, W) or
    (N, H, W); uint8 stands for value / 255, booleans for 0 and 1, floats must lie in [0, 1].

    >>> from_arrays(np.zeros((50, 28, 28), np.uint8))
    ImageData('arrays', train=45, val=5, test=None, shape=(1, 28, 28))

    Args:
        x_train: Training images.
        x_val: Validation images; by default a tenth of the training images, held out by seed.
        x_test: Test images; None stays None.
        seed: Which split.
        name: What to call the set; the split depends on it.
    """
    return _assemble(
        {"x_train": x_train, "x_val": x_val, "x_test": x_test},
        name=name,
        seed=seed,
        need_test=False,
        source={"kind": "arrays"},
    )


def load_path(
    path: Path,
    *,
    seed: int = 0,
    size: int | None = None,
    crop: int | None = None,
    stream: bool | str = "auto",
) -> ImageData:
    """Data from a file or folder of the user's; see `recmix.data.load`."""
    path = path.expanduser().absolute()
    if not path.exists():
        raise DataError(
            f"{path} does not exist; expected a .npy, .npz or .zip file or a folder of images"
        )
    suffix = path.suffix.lower()
    options: dict[str, Any] = {"size": size, "crop": crop}
    parts: Mapping[str, Any]
    if path.is_dir() or suffix == ".zip":
        parts = _pictures(path, size, crop, stream)
        options["stream"] = not parts["x_train"].in_memory
    elif suffix in (".npy", ".npz"):
        if size is not None or crop is not None:
            raise ConfigError(f"size and crop are for image files; {path} holds arrays: resize them")
        parts = {"x_train": read_npy(path)} if suffix == ".npy" else read_npz(path)
    else:
        raise DataError(_unsupported(path, suffix))
    try:
        return _assemble(
            parts,
            name=path.name if path.is_dir() else path.stem,
            seed=seed,
            need_test=True,
            source={"kind": "path", "path": str(path), "options": options},
        )
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _assemble(
    parts: Mapping[str, Any], *, name: str, seed: int, need_test: bool, source: Mapping[str, Any]
) -> ImageData:
    x_val, x_test = parts.get("x_val"), parts.get("x_test")
    at_least = 1 + (x_val is None) + (x_test is None and need_test)
    train = _as_images(parts["x_train"], "x_train", None, at_least)
    shape = (train.shape[1], train.shape[2], train.shape[3])
    val = None if x_val is None else _as_images(x_val, "x_val", shape)
    test = None if x_test is None else _as_images(x_test, "x_test", shape)
    split = divide(train, val, test, name=name, seed=seed, need_test=need_test)
    return ImageData(name, *split, seed=seed, binary=is_binary(split[0]), source=source)


def _as_images(x: Any, what: str, shape: tuple[int, int, int] | None, at_least: int = 1) -> Images:
    if isinstance(x, Images):
        return x
    if _has_items(x):
        x = _gather(x, what)
    return ArrayImages(check_images(x, what=what, shape=shape, at_least=at_least))


def _has_items(x: Any) -> bool:
    """Whether it is a sequence of images (a torch Dataset, a list of arrays) and not one array."""
    if isinstance(x, list):
        first = x[0] if x else None
        if isinstance(first, list | tuple):
            first = first[0] if first else None
        return first is not None and not isinstance(first, list | tuple | int | float)
    if isinstance(x, tuple | str | bytes | Mapping) or is_tensor(x) or hasattr(x, "__array__"):
        return False
    return hasattr(x, "__getitem__")


def _gather(items: Any, what: str) -> Array:
    """All images of a sequence, in one array; the first says which shape and type they have."""
    try:
        count = len(items)
    except (TypeError, NotImplementedError):
        raise DataError(
            f"{what} is a {type(items).__name__} without a length; expected a data set that is read by "
            "index, or an array: collect its images into an array first"
        ) from None
    if count == 0:
        raise DataError(f"{what}, a {type(items).__name__}, has no images; give at least two")
    first = _item(items[0], f"{what}[0]")
    out = np.empty((count, *first.shape), first.dtype)
    out[0] = first
    for row in range(1, count):
        image = _item(items[row], f"{what}[{row}]")
        if image.shape != first.shape or image.dtype != first.dtype:
            raise DataError(
                f"{what}[{row}] is {image.dtype} of shape {image.shape}, {what}[0] is {first.dtype} of "
                f"shape {first.shape}; all images must have one shape and type: resize them"
            )
        out[row] = image
    return out


def _item(item: Any, what: str) -> Array:
    if isinstance(item, tuple | list) and item:
        item = item[0]
    pillow = sys.modules.get("PIL.Image")
    if pillow is not None and isinstance(item, pillow.Image):
        return picture_array(item)
    if isinstance(item, Mapping):
        raise DataError(
            f"{what} is a mapping with keys {', '.join(map(str, item))}; expected an image, or a tuple "
            "whose first element is the image"
        )
    return to_numpy(item, what)


def _pictures(path: Path, size: int | None, crop: int | None, stream: bool | str) -> dict[str, Images]:
    check_cut(size, crop)
    if crop is not None and size is None:
        raise ConfigError(f"crop is {crop} without a size; give size=... too, for example size=64")
    pictures = Pictures(path)
    names = pictures.names()
    if not names:
        raise DataError(f"{path} has no images; expected files that end in {', '.join(SUFFIXES)}")
    channels, height, width = _common_header(pictures, names, resized=size is not None)
    cut: Crop = None
    if size is not None:
        height, width, cut = size, size, crop or "square"
    check_size(height, width, f"{pictures.where(names[0])} is {height}x{width} (height x width)")

    def images(members: list[str]) -> Images:
        files = FileImages(pictures, members, size=(height, width), channels=channels, crop=cut)
        return settle(files, stream)

    return {part: images(members) for part, members in _parts(path, names).items()}


def _common_header(pictures: Pictures, names: list[str], *, resized: bool) -> tuple[int, int, int]:
    """Channels and size of all pictures; colour if any is in colour."""
    channels, height, width = pictures.header(names[0])
    for name in names[1:]:
        other_channels, other_height, other_width = pictures.header(name)
        channels = max(channels, other_channels)
        if not resized and (other_height, other_width) != (height, width):
            raise DataError(
                f"{pictures.where(name)} is {other_height}x{other_width} (height x width), "
                f"{names[0]} is {height}x{width}; all must have one size: give size=..., for example "
                "size=64, to cut the centred square out of each and resize it"
            )
    return channels, height, width


def _parts(path: Path, names: list[str]) -> dict[str, list[str]]:
    """Names by part: the folders train, val and test where there is a train, else one part."""
    depth = 0
    paths = [PurePosixPath(name).parts for name in names]
    while len({parts[depth] for parts in paths}) == 1 and len(paths[0]) > depth + 2:
        depth += 1  # a single outer folder, as zips often have
    folders = {parts[depth].lower() for parts in paths if len(parts) > depth + 1}
    if "train" not in folders:
        return {"x_train": names}
    found: dict[str, list[str]] = {}
    for name, parts in zip(names, paths, strict=True):
        part = _FOLDERS.get(parts[depth].lower()) if len(parts) > depth + 1 else None
        if part is None:
            raise DataError(
                f"{path} has a folder train, and {name} outside of train, val and test; "
                "move it into one of them or out of the way"
            )
        found.setdefault(part, []).append(name)
    return found


def _unsupported(path: Path, suffix: str) -> str:
    accepted = "expected a .npy, .npz or .zip file or a folder of images"
    if suffix in SUFFIXES:
        return f"{path} is one image; {accepted}: give the folder that holds it"
    if suffix in (".pkl", ".pickle", ".pt", ".pth"):
        return (
            f"{path} is a pickle, which can run any code and is never read; {accepted}: "
            "save the images with numpy.save"
        )
    return f"{path} is of a kind that is not read; {accepted}"
