"""Load a user's own data: examples in memory, files of numbers or texts, folders of image files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from recmix.data.columns import read_csv, read_parquet
from recmix.data.examples import Examples
from recmix.data.file_images import SUFFIXES, FileImages, ImageFolder, check_no_resize, check_resize
from recmix.data.formats import read_npy, read_npz
from recmix.data.in_memory import read_part
from recmix.data.splits import Data, complete_parts, in_shape
from recmix.data.text_data import (
    PART_NAMES,
    TEXT_SUFFIXES,
    check_not_texts,
    data_of_texts,
    is_texts,
    read_texts,
    text_files,
    text_options,
    text_suffix,
)
from recmix.data.transparency import ON_WHITE
from recmix.data.values import kind_of
from recmix.errors import ConfigError, DataError, check_arguments
from recmix.model.vocabulary import Vocabulary

__all__ = ["from_arrays", "has_image_files", "load_path"]

_READERS: dict[str, Callable[[Path], Mapping[str, Any]]] = {
    ".npy": lambda path: {"x_train": read_npy(path)},
    ".npz": read_npz,
    ".csv": lambda path: {"x_train": read_csv(path)},
    ".csv.gz": lambda path: {"x_train": read_csv(path)},
    ".parquet": lambda path: {"x_train": read_parquet(path)},
}
_ACCEPTED_PATHS = (
    f"expected a {', '.join([*_READERS, *TEXT_SUFFIXES])} or .zip file, or a folder of images or texts"
)
_PARTS = {folder: f"x_{part}" for folder, part in PART_NAMES.items()}


@check_arguments
def from_arrays(
    x_train: Any,
    x_val: Any = None,
    x_test: Any = None,
    *,
    seed: int = 0,
    name: str = "arrays",
    hold_out_test: bool = True,
    shape: tuple[int, ...] | None = None,
) -> Data:
    """Make a data set of examples in memory.

    A missing validation or test part is a random tenth of the training examples, as in `load`. So one
    array is split 80/10/10.

    Each of `x_train`, `x_val` and `x_test` is

    - a numpy array, a torch tensor or nested lists of numbers, (N, ...): vectors (N, F), images (N, C,
      H, W) or (N, H, W), or any other shape;
    - a list of examples, a torch Dataset, or a DataLoader, of which only the data set is used. Each
      item is an example, a tuple whose first element is the example, or a dict of fields;
    - a dict of arrays: the fields of the examples, such as {"tokens": (N, T), "lengths": (N,)};
    - a pandas DataFrame of numbers;
    - a `scipy.sparse` matrix, which stays sparse in memory;
    - an `Examples`.

    Values of a uint8 array with three axes or more are divided by 255. All other integers, also uint8
    vectors and integers in fields, are used as they are. Booleans mean 0 and 1. Floats may have any
    finite value.

    >>> import numpy as np
    >>> from_arrays(np.zeros((50, 28, 28), np.uint8))
    Data('arrays', train=40, val=5, test=5, shape=(1, 28, 28))
    >>> from_arrays({"tokens": np.zeros((50, 9), int), "lengths": np.full(50, 4)}).fields
    {'tokens': (9,), 'lengths': ()}

    Args:
        x_train: Training examples.
        x_val: Validation examples; by default a random tenth of the training examples is held out.
        x_test: Test examples; by default another tenth is held out, see `hold_out_test`.
        seed: Seed of the split.
        name: Name of the data set; the split depends on it.
        hold_out_test: Whether test examples are held out if `x_test` is None. False means that there is
            no test part, for example because you have test examples of your own.
        shape: Shape of an example that an existing model takes. If the examples differ from this shape
            only in axes of size 1, they are reshaped to it. Otherwise they keep their own shape.
    """
    if is_texts(x_train):
        raise DataError("x_train is a list of texts; expected numbers: use recmix.data.from_texts")
    parts = {"x_train": x_train, "x_val": x_val, "x_test": x_test}
    source = {"kind": "arrays"}
    return _make_data(parts, name=name, seed=seed, need_test=hold_out_test, source=source, like=shape)


def load_path(
    path: Path,
    seed: int,
    vocabulary: Vocabulary | None,
    options: Mapping[str, Any],
    like: tuple[int, ...] | None = None,
) -> Data:
    """Load a user's file or folder, split into training, validation and test examples.

    `seed` and `vocabulary` mean the same as in `recmix.data.load`.

    Args:
        path: The file or folder.
        options: Further arguments of `load` by name, such as `size` and `length`. It may also contain
            `split_name`, the name under which the split is stored, and `hold_out_test`, which says
            whether test examples are held out.
        like: The shape that each example must have; None if any shape is allowed.
    """
    path = path.expanduser().absolute()
    if not path.exists():
        raise DataError(f"{path} does not exist; {_ACCEPTED_PATHS}")
    texts = text_files(path) if path.is_dir() else {"train": path} if text_suffix(path) else {}
    if texts:
        return _load_texts(path, texts, seed, vocabulary, options)
    check_not_texts(options, str(path))
    size, crop = options.get("size"), options.get("crop")
    suffix = ".csv.gz" if path.name.lower().endswith(".csv.gz") else path.suffix.lower()
    kept: dict[str, Any] = {"size": size, "crop": crop}
    notes: list[str] = []
    parts: Mapping[str, Any]
    if has_image_files(path):
        parts = _read_image_files(path, size, crop, options.get("stream", "auto"), notes)
        kept["stream"] = not parts["x_train"].in_memory
    elif suffix in _READERS:
        check_no_resize(options, f"{path} holds numbers: resize them")
        parts = read_npz(path, notes) if suffix == ".npz" else _READERS[suffix](path)
    elif suffix in SUFFIXES:
        raise DataError(f"{path} is one image; {_ACCEPTED_PATHS}: give the folder of the image")
    elif suffix in (".pkl", ".pickle", ".pt", ".pth"):
        raise DataError(
            f"{path} is a pickle, which can run any code and is never read; {_ACCEPTED_PATHS}: "
            "save the examples with numpy.save"
        )
    else:
        raise DataError(f"{path} has a format that is not supported; {_ACCEPTED_PATHS}")
    name = path.name if path.is_dir() else path.name[: -len(suffix)]
    try:
        data = _make_data(
            parts,
            name=options.get("split_name", name),
            seed=seed,
            need_test=options.get("hold_out_test", True),
            source={"kind": "path", "path": str(path), "options": kept | _split_options(options)},
            like=like,
        )
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    return dataclasses.replace(data, notes=tuple(notes))


def has_image_files(path: Path) -> bool:
    """Whether `path` is a zip file or a folder without text files. These are read as image files."""
    return path.suffix.lower() == ".zip" or (path.is_dir() and not text_files(path))


def _load_texts(
    path: Path,
    files: Mapping[str, Path],
    seed: int,
    vocabulary: Vocabulary | None,
    options: Mapping[str, Any],
) -> Data:
    """Load the training, validation and test texts of a file or of a folder of files.

    `files` is {"train": path}, also with "val" and "test" if there are such files. The other arguments
    are those of `load_path`.
    """
    check_no_resize(options, f"{path} holds texts: leave them out")
    name = path.name if path.is_dir() else path.name[: -len(text_suffix(path))]
    kept = text_options(options) | _split_options(options)
    texts = {part: read_texts(file) for part, file in files.items()}
    try:
        return data_of_texts(
            texts,
            kind=TEXT_SUFFIXES[text_suffix(files["train"])],
            options=options,
            vocabulary=vocabulary,
            name=options.get("split_name", name),
            seed=seed,
            need_test=options.get("hold_out_test", True),
            source={"kind": "path", "path": str(path), "options": kept},
        )
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _split_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options `split_name` and `hold_out_test`, if they are there.

    `load_again` sets these options to split a file in the same way as the arrays in memory of a run.
    """
    return {key: options[key] for key in ("split_name", "hold_out_test") if key in options}


def _make_data(
    parts: Mapping[str, Any],
    *,
    name: str,
    seed: int,
    need_test: bool,
    source: Mapping[str, Any],
    like: tuple[int, ...] | None = None,
) -> Data:
    x_val, x_test = parts.get("x_val"), parts.get("x_test")
    at_least = 1 + (x_val is None) + (x_test is None and need_test)
    train, form = read_part(parts["x_train"], "x_train", at_least=at_least, like=like)
    val = None if x_val is None else read_part(x_val, "x_val", form)[0]
    test = None if x_test is None else read_part(x_test, "x_test", form)[0]
    complete = complete_parts(train, val, test, name=name, seed=seed, need_test=need_test)
    found = Data(
        name,
        *complete,
        seed=seed,
        binary=form.fields is None and kind_of(complete[0]) == "binary",
        source=source,
        fields=None if form.fields is None else form.fields.shapes,
        columns=form.columns,
        held_out=tuple(
            part
            for part, given, used in (("val", x_val, True), ("test", x_test, need_test))
            if given is None and used
        ),
    )
    return in_shape(found, like)


def _read_image_files(
    path: Path, size: int | None, crop: int | None, stream: bool | str, notes: list[str]
) -> dict[str, Examples]:
    """Read a folder or zip file of images, as {"x_train": images}, also with "x_val" and "x_test".

    A note for the user is added to `notes` if images have transparent pixels. The other arguments are
    those of `recmix.data.load`.
    """
    check_resize(size, crop)
    if crop is not None and size is None:
        raise ConfigError(f"crop is {crop} but size is missing; give size=..., for example size=64")
    folder = ImageFolder(path)
    names = folder.names()
    (channels, height, width), unclear = folder.common_header(names, any_size=size is not None)
    images = FileImages(folder, names, size=(height, width), channels=channels)
    if size is not None:
        images = images.resized(size, crop or "square")
    parts = _rows_by_part(path, names)
    if (first := folder.first_transparent(unclear)) is not None:
        notes.append(
            f"some images {ON_WHITE} (for example {first}): for another background, save the images "
            "without transparency"
        )
    return {part: images.subset(rows).loaded(stream) for part, rows in parts.items()}


def _rows_by_part(path: Path, names: list[str]) -> dict[str, list[int]]:
    """Sort image files into x_train, x_val and x_test by their folder: train, val or test.

    Return the indices of the files in `names`, such as {"x_train": [0, 1], "x_val": [2]}. If there is no
    folder train, all files are in x_train.
    """
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
