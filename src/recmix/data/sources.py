"""Load data from a name, a path, arrays in memory or a saved description."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

from recmix.data.in_memory import dataset_of
from recmix.data.limits import check_path
from recmix.data.set_files import entry_of
from recmix.data.sets import SETS, load_named
from recmix.data.splits import Data, in_shape
from recmix.data.text_data import DataWarning, check_no_options, from_texts, is_texts, warn_of_notes
from recmix.data.user_data import from_arrays, has_image_files, load_path
from recmix.errors import DataError, unknown
from recmix.model.vocabulary import Vocabulary
from recmix.runs.folder import VOCABULARY, Run
from recmix.runs.hub import open_run

__all__ = ["as_data", "has_same_examples", "load", "load_again", "load_for_training", "rebuild"]


def load(
    name: str | Path,
    root: str | Path | None = None,
    seed: int = 0,
    download: bool = True,
    *,
    size: int | None = None,
    crop: int | None = None,
    stream: bool | str = "auto",
    length: int | None = None,
    vocabulary_size: int | None = None,
    graphs: bool | None = None,
    vocabulary: Vocabulary | None = None,
    shape: tuple[int, ...] | None = None,
) -> Data:
    """Load a named set, a file or a folder, split into training, validation and test examples.

    A missing validation or test part is a random tenth of the training examples. If both are missing,
    the split is 80/10/10.

    A path is one of

    - a `.npy` file of shape (N, ...);
    - an `.npz` file. It holds `x_train` and optional `x_val` and `x_test`; or one array; or, for
      examples with several fields, arrays named `x_train.NAME` or `NAME`; or a matrix that
      `scipy.sparse.save_npz` wrote. Labels next to one array, such as `y`, are not used;
    - a `.csv` or `.csv.gz` file of numbers separated by commas, with or without names of columns;
    - a `.parquet` file of numbers, if pyarrow is installed;
    - a folder of image files, with or without subfolders train, val and test, or a zip file of such a
      folder;
    - a `.txt` or `.txt.gz` file of texts in UTF-8, one per line, whose words are separated by spaces;
    - a `.smi` or `.smi.gz` file of molecules, one SMILES string per line; the rest of a line after white
      space is ignored;
    - a folder of `.txt` or of `.smi` files, named train, val (or valid) and test.

    The vocabulary of texts is made of the training texts, see `recmix.data.from_texts`. See
    `recmix.data.from_arrays` for the meaning of the values. Raise a DataError if a file has more bytes
    (also after decompression) than half of the memory. The environment variable RECMIX_MAX_BYTES sets
    another limit.

    >>> load("digits")
    Data('digits', train=1350, val=150, test=297, shape=(1, 8, 8))

    Args:
        name: A name from `recmix.data.SETS`, or a path. A name takes precedence: write `./mnist` for a
            folder called mnist.
        root: Folder of the named sets; by default the environment variable RECMIX_DATA, else a cache
            folder.
        seed: Seed of the random split.
        download: Whether missing files are downloaded. RECMIX_OFFLINE=1 forbids all downloads.
        size: Images in files are cropped to a square at their centre and resized to this side. Without
            it, all images must have one size.
        crop: Side of this square before resizing; by default the largest possible.
        stream: Whether image files are decoded each time they are used (True) or once into memory
            (False). "auto" means True if they need more than 1 GiB as float32.
        length: Texts: number of tokens of an example, the end token included; by default enough for 99 %
            of the training texts. Graphs: number of atoms.
        vocabulary_size: Texts: how many of the most frequent tokens are known; by default 10,000 words,
            or all tokens of SMILES strings.
        graphs: Whether molecules are read as graphs instead of sequences of tokens; needs RDKit.
        vocabulary: Texts: the vocabulary of a trained model, instead of a new one. Then `length`,
            `vocabulary_size` and `graphs` must not be given.
        shape: Shape of an example that an existing model takes. If the examples differ from this shape
            only in axes of size 1, they are reshaped to it. Otherwise they keep their own shape.
    """
    given = {"length": length, "vocabulary_size": vocabulary_size, "graphs": graphs}
    check_no_options(vocabulary, given)
    options = given | {"size": size, "crop": crop, "stream": stream}
    data = _load(name, root, seed, download, vocabulary, options, shape)
    # which texts a named set leaves out is part of its description
    if data.source["kind"] == "path" or data.vocabulary is None:
        warn_of_notes(data)
    return data


def _load(
    name: str | Path,
    root: str | Path | None,
    seed: int,
    download: bool,
    vocabulary: Vocabulary | None,
    options: Mapping[str, Any],
    shape: tuple[int, ...] | None = None,
) -> Data:
    """Load data as `load` does, but without a warning.

    `options` has values of further arguments of `load` by name, such as `size` and `length`. If
    `vocabulary` is given, options for making a new vocabulary are not used.
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
        return in_shape(load_named(name, root, seed, download, vocabulary, options), shape)
    path = check_path(name, f"a path or one of {', '.join(SETS)}")
    looks_like_path = isinstance(name, Path) or os.sep in name or "/" in name or bool(path.suffix)
    if not path.exists() and not looks_like_path:
        raise DataError(
            f"{unknown('data set', str(name), SETS)}. No file or folder has this name either"
        )
    return load_path(path, seed, vocabulary, options, shape)


def load_for_training(
    name: str | Path | Mapping[str, Any],
    *,
    start: str | Path | None = None,
    resumed: Run | None = None,
    tell: Callable[[str], object] | None = None,
    root: str | Path | None = None,
    seed: int | None = None,
    **options: Any,
) -> Data:
    """Load the data of a new training, or of a training that is continued, without warnings.

    If the training starts from a trained model, texts are read with the vocabulary of this model, unless
    `options` ask for a new one. Examples that differ from the shape that this model takes only in axes
    of size 1 are reshaped to it.

    Args:
        name: A name or a path, as in `load`; or the result of `Data.describe` for data to load again.
        start: Folder or address of the run with the trained model to start from, or None.
        resumed: The run that is continued, or None. Its data are split as before.
        tell: Function that is called with each line of text for the user: first the numbers of
            examples, then the notes in `Data.notes`.
        root: Folder of the named sets, see `load`.
        seed: Seed of the random split. None means 0, or that of the run that is continued.
        **options: Other arguments of `load`.
    """
    described: Mapping[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        if isinstance(name, Mapping):
            described = name
            data = rebuild(described, root=root, vocabulary=_vocabulary(resumed))
        elif resumed and resumed.exists and seed is None and not any(options.values()):
            described = resumed.spec().data
            data = load_again(name, described, root=root, vocabulary=_vocabulary(resumed))
        else:
            run = None if start is None else open_run(start)
            if run is not None and run.exists:
                given = any(options.get(key) for key in ("length", "vocabulary_size", "graphs"))
                options["shape"] = run.spec().shape
                options["vocabulary"] = None if given else run.vocabulary()
            data = load(name, root=root, seed=seed or 0, **options)
    if not _held_out_test(described):
        data = dataclasses.replace(data, x_test=None)
    if tell is not None:
        tell(f"{data.name}: " + ", ".join(f"{n} {part}" for part, n in data.counts.items() if n))
        for note in data.notes:
            tell(note)
    return data


def _vocabulary(run: Run | None) -> Vocabulary | None:
    """Return the vocabulary of a run, or None if the run has none.

    A run that was killed early may not have written its vocabulary yet. It is then made again.
    """
    there = run is not None and run.exists and (run.folder / VOCABULARY).exists()
    return run.vocabulary() if run is not None and there else None


def as_data(
    source: Any,
    *,
    seed: int = 0,
    root: str | Path | None = None,
    download: bool = True,
    shape: tuple[int, ...] | None = None,
    description: Mapping[str, Any] | None = None,
) -> Data:
    """Convert any supported source of examples to `Data`.

    >>> as_data("digits").name
    'digits'

    Args:
        source: A `Data`, which is returned as it is; a name or path for `load`; or training examples in
            memory for `from_arrays`: an array, a tensor, a list, a dict of arrays, a DataFrame, a sparse
            matrix, a torch Dataset or a DataLoader. Of a DataLoader only the data set is used; it must
            not have a sampler or `collate_fn` of its own. A list of texts is given to `from_texts`, as
            sentences of words. A function without arguments that returns one of these is called.
        seed: Seed of the split.
        root: Folder of the named sets, see `load`.
        download: Whether missing files are downloaded.
        shape: Shape of an example that an existing model takes, see `load`.
        description: Result of `Data.describe` for the data of a run that is continued; None for a new
            run. If the run had no test examples, none are held out of examples in memory.
    """
    if isinstance(source, FunctionType | MethodType | partial):
        source = source()
    if isinstance(source, Data):
        return in_shape(source, shape)
    if isinstance(source, str | Path):
        return load(source, root=root, seed=seed, download=download, shape=shape)
    if isinstance(source, tuple):
        raise DataError(
            f"got a tuple of {len(source)}; for training, validation and test examples use "
            "recmix.data.from_arrays(x_train, x_val, x_test)"
        )
    source = dataset_of(source)  # batch size and order are options of training
    hold_out = _held_out_test(description or {})
    if is_texts(source):
        return from_texts(source, seed=seed, hold_out_test=hold_out)
    return from_arrays(source, seed=seed, hold_out_test=hold_out, shape=shape)


def rebuild(
    description: Mapping[str, Any],
    *,
    root: str | Path | None = None,
    download: bool = True,
    vocabulary: Vocabulary | None = None,
) -> Data:
    """Load the data again from the result of `Data.describe`, and check that they are the same.

    Raise a DataError if the examples have changed, or if they were in memory and so cannot be loaded.

    >>> rebuild(load("digits", seed=3).describe()).seed
    3

    Args:
        description: The result of `Data.describe`; it may have been saved as JSON.
        root: Folder of the named sets; by default the folder in `description` if it still holds the
            files of the set, else the default of `load`.
        vocabulary: The vocabulary of the model that was trained on the data. By default it is made again
            from the training texts of the data. Give it if it was made from other texts.
    """
    if not description:
        raise DataError(
            "the model was trained elsewhere, so that its data are not known: name the data with --data"
        )
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
        memory = "texts" if kind == "texts" else "arrays"
        raise DataError(
            f"the data {name!r} were {memory} in memory and cannot be loaded again; give the {memory} "
            "again, or save them in a file and name it with --data"
        )
    source = name if kind == "named" else Path(description["path"])
    options = dict(description.get("options", {}))
    data = _load(source, root, seed, download, vocabulary, options, _shape(description))
    if not has_same_examples(data, description):
        raise DataError(
            f"{name} has changed: it has {data.counts} examples of shape {data.shape}, "
            f"fingerprint {data.fingerprint[:12]}; expected {description.get('counts')}, "
            f"fingerprint {expected[:12]}: give the original data"
        )
    return data


def load_again(
    source: str | Path,
    description: Mapping[str, Any],
    *,
    root: str | Path | None = None,
    vocabulary: Vocabulary | None = None,
    shape: tuple[int, ...] | None = None,
) -> Data:
    """Load the data of a run from a named set or a path, and split them as the run did.

    Two cases are special:

    - The run used arrays in memory, and the same examples were saved in a file later: the file is split
      as the arrays were.
    - The file has other examples than the run: it is split as `load` splits every new file.

    Images get the `size` and `crop` that the description has.

    Args:
        source: A name or a path, as in `load`.
        description: The result of `Data.describe` of the run's data.
        root: The folder of the data sets, as in `load`.
        vocabulary: Vocabulary of the run, if its examples are texts.
        shape: Shape of an example, see `load`; by default the shape in the description.
    """
    seed = description.get("seed", 0)
    shape = _shape(description) if shape is None else shape
    given: Mapping[str, Any] = description.get("options", {}) if _is_resized(source) else {}
    resize: dict[str, Any] = {key: given.get(key) for key in ("size", "crop")}
    data = load(source, root=root, seed=seed, vocabulary=vocabulary, shape=shape, **resize)
    if has_same_examples(data, description) or data.source["kind"] != "path":
        return data
    counts, name = description.get("counts"), description.get("name")
    if not isinstance(counts, Mapping) or not isinstance(name, str):
        return data
    split = {"split_name": name, "hold_out_test": _held_out_test(description)}
    again = _load(source, root, seed, True, vocabulary, {**data.source["options"], **split}, shape)
    return again if has_same_examples(again, description) else data


def has_same_examples(data: Data, description: Mapping[str, Any]) -> bool:
    """Whether `data` have the same examples as the data of a run. The files may be different.

    `description` is the result of `Data.describe` of the run's data. If the run had no test examples,
    only training and validation examples are compared.

    >>> x = load("digits")
    >>> has_same_examples(x, x.describe()), has_same_examples(x, load("digits", seed=1).describe())
    (True, False)
    """
    expected = description.get("fingerprint")
    if data.fingerprint == expected:
        return True
    without_test = not _held_out_test(description)
    return without_test and dataclasses.replace(data, x_test=None).fingerprint == expected


def _held_out_test(description: Mapping[str, Any]) -> bool:
    """Whether a result of `Data.describe` has a number of test examples; true if it has no counts."""
    counts = description.get("counts")
    return not isinstance(counts, Mapping) or counts.get("test") is not None


def _shape(description: Mapping[str, Any]) -> tuple[int, ...] | None:
    shape = description.get("shape")
    return tuple(shape) if isinstance(shape, list) else None


def _is_resized(source: str | Path) -> bool:
    """Whether a named set or a path has image files, so that `size` and `crop` can change them."""
    if isinstance(source, str) and source in SETS:
        return any(file.name.endswith(".zip") for file in SETS[source].files)
    return has_image_files(check_path(source, "a path"))


def _has_files(name: Any, root: Any) -> bool:
    """Whether `name` is a named set that can be loaded from the folder `root` without a download."""
    known = isinstance(name, str) and name in SETS and isinstance(root, str)
    return known and entry_of(SETS[name], Path(root)).usable
