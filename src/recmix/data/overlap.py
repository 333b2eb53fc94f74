"""Count how many examples were training examples of a run, whatever file or split they come from."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recmix.data.examples import Examples, chunk_slices
from recmix.data.sources import rebuild
from recmix.data.splits import Data
from recmix.errors import RecmixError, RunError
from recmix.model.vocabulary import Vocabulary
from recmix.runs.files import read_json, write_json
from recmix.runs.folder import TRAINING_EXAMPLES

__all__ = ["count_repeated", "count_training_examples", "write_training_examples"]

_BYTES = 8  # of the hash of one example
_MOST = 1_000_000  # training examples whose hashes are stored


def write_training_examples(folder: Path, data: Data) -> None:
    """Write hashes of the training examples into the folder of a run, if the user gave them in memory.

    Such examples cannot be loaded again later, so `count_training_examples` reads the hashes. Nothing is
    written for data from a file or a named set, or for more than 1,000,000 examples. The hashes need 11
    bytes for each example.
    """
    known = data.source["kind"] in ("named", "path")
    if not known and data.x_train.in_memory and len(data.x_train) <= _MOST:
        hashes = np.unique(_hashes(data.x_train)).astype("<u8")
        content = {"hashes": base64.b64encode(hashes.tobytes()).decode()}
        write_json(folder / TRAINING_EXAMPLES, content)


def count_training_examples(
    examples: Examples,
    description: Mapping[str, Any],
    *,
    folder: Path | None = None,
    root: str | Path | None = None,
    vocabulary: Vocabulary | None = None,
    train: Examples | None = None,
) -> int | None:
    """Count how many of the examples are also training examples of a run.

    Return None if the training examples of the run are not known. Two examples are the same if their
    values are equal as float32, in the same order. Their shapes may differ.

    Args:
        examples: The examples to look for among the training examples.
        description: The result of `Data.describe` of the run's data.
        folder: The run folder, if there is one. If the data of the run were in memory, it has hashes of
            the training examples.
        root: Folder of the named data sets, see `recmix.data.load`.
        vocabulary: Vocabulary of the run's model, if its examples are texts.
        train: The training examples of the run, if they are loaded already.
    """
    stored = None if folder is None else folder / TRAINING_EXAMPLES
    if train is not None:
        known = _hashes(train)
    elif stored is not None and stored.exists():
        known = _read(stored)
    elif description.get("kind") in ("named", "path"):
        try:
            data = rebuild(description, root=root, download=False, vocabulary=vocabulary)
        except (RecmixError, OSError):  # the file was moved or has changed
            return None
        known = _hashes(data.x_train)
    else:
        return None
    return int(np.isin(_hashes(examples), known).sum())


def count_repeated(examples: Examples) -> int:
    """Count the examples that occur more than once. All copies are counted: [a, b, a] gives 2.

    >>> from recmix.data.examples import ArrayExamples
    >>> count_repeated(ArrayExamples(np.array([[1, 2], [3, 4], [1, 2]], np.float32)))
    2
    """
    _, counts = np.unique(_hashes(examples), return_counts=True)
    return int(counts[counts > 1].sum())


def _read(path: Path) -> NDArray[np.uint64]:
    try:
        content = base64.b64decode(read_json(path)["hashes"], validate=True)
        return np.frombuffer(content, "<u8")
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise RunError(f"{path} is damaged ({error}): restore it from a copy, or delete it") from error


def _hashes(examples: Examples) -> NDArray[np.uint64]:
    """Return a hash of the values of each example, (N,)."""
    found = bytearray()
    for part in chunk_slices(examples.shape):
        for example in examples[part] + np.float32(0):  # -0 becomes 0
            found += hashlib.blake2b(example.tobytes(), digest_size=_BYTES).digest()
    return np.frombuffer(bytes(found), "<u8")
