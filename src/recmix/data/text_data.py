"""Read texts, such as sentences and SMILES strings, and make data sets of them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from recmix.data.columns import is_number
from recmix.data.examples import ArrayExamples
from recmix.data.formats import read_bytes
from recmix.data.limits import check_size
from recmix.data.splits import Data, split
from recmix.data.transparency import ON_WHITE
from recmix.errors import ConfigError, DataError
from recmix.model.sequence_vocabulary import KEPT, NOT_SMILES, TokenVocabulary
from recmix.model.vocabulary import Vocabulary, find_vocabulary

__all__ = [
    "PART_NAMES",
    "TEXT_OPTIONS",
    "TEXT_SUFFIXES",
    "DataWarning",
    "check_no_options",
    "check_not_texts",
    "data_of_texts",
    "from_texts",
    "is_texts",
    "lines_of",
    "read_texts",
    "text_files",
    "text_options",
    "text_suffix",
    "warn_of_notes",
]

TEXT_SUFFIXES = {".txt": "words", ".txt.gz": "words", ".smi": "smiles", ".smi.gz": "smiles"}
"""{suffix of a text file: kind of the vocabulary of its texts}."""
PART_NAMES = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
"""{word in the name of a file or folder: part of the data set that the file or folder holds}."""

TEXT_OPTIONS = ("length", "vocabulary_size", "graphs")  # options of `recmix.data.load` for texts
_TEXT_SHARE = 16  # a list of short lines needs about this many times the size of the file
_PARTS = {"train": "training", "val": "validation", "test": "test"}
LENGTH_NOTE = (
    "the length suffices for 99 % of the training texts, but not for texts that are far longer than "
    "most; give length=... (--length) for another one"
)
FIXED_LENGTH_NOTE = "the length is that of the trained model"


class DataWarning(UserWarning):
    """Warning of data that may be wrong: left-out texts, few examples, or values on another scale."""


def from_texts(
    train: Sequence[str],
    val: Sequence[str] | None = None,
    test: Sequence[str] | None = None,
    *,
    kind: str = "words",
    length: int | None = None,
    vocabulary_size: int | None = None,
    vocabulary: Vocabulary | None = None,
    seed: int = 0,
    name: str = "texts",
    hold_out_test: bool = True,
) -> Data:
    """Make a data set of texts in memory.

    The vocabulary is made of the training texts. Tokens that are not in the vocabulary are replaced by
    an unknown token. Empty texts and texts that are too long are left out. SMILES strings with a wrong
    syntax are kept; but for molecules as graphs, strings that cannot become a graph are left out.
    `Data.notes` says how many texts each of this concerns. If texts were left out or are not valid
    SMILES strings, a `DataWarning` shows the notes, too.

    >>> data = from_texts(["a cat sat", "a dog ran", "a cow"], ["a dog sat"], ["a cow sat"])
    >>> data.kind, data.shape, data.classes
    ('tokens', (4,), 8)
    >>> data.vocabulary.decode(data.x_val[:])
    ['a dog sat']

    Args:
        train: Training texts.
        val: Validation texts; by default a random tenth of the distinct training texts is held out.
        test: Test texts; by default another tenth is held out, see `hold_out_test`.
        kind: "words", which are separated by white space; "smiles", molecules as strings; or
            "molecule-graphs", molecules as graphs, given as SMILES strings.
        length: Number of tokens of an example, the end token included; by default enough for 99 % of the
            training texts. For graphs: number of atoms; by default that of the largest training
            molecule.
        vocabulary_size: How many of the most frequent tokens are known; by default 10,000 words, or all
            tokens of SMILES strings.
        vocabulary: The vocabulary of a trained model, instead of a new one. Then leave `kind`, `length`
            and `vocabulary_size` out.
        seed: Seed of the split.
        name: Name of the data set; the split depends on it.
        hold_out_test: Whether test texts are held out if `test` is None.
    """
    given = {"length": length, "vocabulary_size": vocabulary_size}
    check_no_options(vocabulary, given)
    data = data_of_texts(
        {"train": train, "val": val, "test": test},
        kind=kind if vocabulary is None else vocabulary.kind,
        options=given,
        vocabulary=vocabulary,
        name=name,
        seed=seed,
        need_test=hold_out_test,
        source={"kind": "texts"},
    )
    warn_of_notes(data)
    return data


def warn_of_notes(data: Data) -> None:
    """Issue a `DataWarning` that shows `Data.notes`, if the user should look at the data.

    This is so if texts were left out or are not valid, or if images have transparent pixels.
    """
    important = ("left out", NOT_SMILES, ON_WHITE)
    if any(words in note for note in data.notes for words in important):
        warnings.warn(f"{data.name}: {'; '.join(data.notes)}", DataWarning, stacklevel=3)


def check_no_options(vocabulary: Vocabulary | None, given: Mapping[str, Any]) -> None:
    """Raise a ConfigError if a vocabulary is given together with options for making a new one.

    `given` is {option: value} of these options. An option without a value does not count.
    """
    wrong = [name for name, value in given.items() if value]
    if vocabulary is not None and wrong:
        raise ConfigError(f"the vocabulary is given, and determines {', '.join(wrong)}: leave it out")


def is_texts(x: Any) -> bool:
    """Whether `x` is a list or a numpy array of texts.

    >>> is_texts(["a", "b"]), is_texts([1, 2]), is_texts("a")
    (True, False, False)
    """
    if isinstance(x, list):
        return bool(x) and isinstance(x[0], str)
    return getattr(getattr(x, "dtype", None), "kind", "") == "U" and getattr(x, "ndim", 0) == 1


def data_of_texts(
    parts: Mapping[str, Sequence[str] | None],
    *,
    kind: str,
    options: Mapping[str, Any],
    vocabulary: Vocabulary | None,
    name: str,
    seed: int,
    need_test: bool,
    source: Mapping[str, Any],
) -> Data:
    """Make a data set of training, validation and test texts.

    `vocabulary`, `name` and `seed` are as in `from_texts`.

    Args:
        parts: {"train": texts, "val": texts, "test": texts}; None for a part that is missing.
        kind: Kind of vocabulary: "words", "smiles" or "molecule-graphs".
        options: Values of the options `length`, `vocabulary_size` and `graphs` of `recmix.data.load`.
        need_test: Whether test texts are held out of the training texts if they are missing.
        source: Where the texts come from, for `Data.describe`.
    """
    made = find_vocabulary(kind)
    if options.get("graphs"):
        if not made.molecules:
            raise ConfigError(
                f"graphs is for molecules; {source.get('path', name)} does not hold SMILES strings: "
                "leave it out"
            )
        made = find_vocabulary("molecule-graphs")
    if vocabulary is not None and made.molecules != vocabulary.molecules:
        raise ConfigError(
            f"the vocabulary is of {vocabulary.kind}, but {name} has texts of {made.kind}: give "
            "texts of the kind that the model was trained on"
        )
    if vocabulary is not None:
        made = type(vocabulary)  # its normal forms decide the split, as for the data of the vocabulary
    given = {key: _clean(texts, key, made) for key, texts in parts.items() if texts is not None}
    total = sum(map(len, given.values()))
    filled = {key: [text for text in texts if text] for key, texts in given.items()}
    empty = total - sum(map(len, filled.values()))
    if not filled["train"]:
        lines = f"only {empty} empty one(s)" if empty else "the file or list is empty"
        raise DataError(f"{name}: there is no training text, {lines}; give some texts")
    different = list(dict.fromkeys(text for texts in filled.values() for text in texts))
    forms = dict(zip(different, made.normal_forms(different), strict=True))
    filled = _complete(filled, forms, name=name, seed=seed, need_test=need_test)
    length_note = LENGTH_NOTE if vocabulary is None else FIXED_LENGTH_NOTE
    if vocabulary is None:
        vocabulary = _vocabulary(made, filled["train"], options)
    left_out = {"empty": empty} if empty else {}
    changed: dict[str, int] = {}
    examples: dict[str, ArrayExamples] = {}
    for key, texts in filled.items():
        check_size(f"{name} as examples", 4 * len(texts) * math.prod(vocabulary.shape))
        found = vocabulary.encode(texts)
        if not len(found.x):
            said = ", ".join(f"{count:,} {problem}" for problem, count in found.problems.items())
            long = options.get("length") is None and "longer" in said
            advice = length_note if long else "give other texts, or a larger length"
            raise DataError(f"{name}: no {_PARTS[key]} text is left of {len(texts):,}: {said}; {advice}")
        for problem, count in found.problems.items():
            into = changed if problem in KEPT else left_out
            into[problem] = into.get(problem, 0) + count
        examples[key] = ArrayExamples(found.x)
    return Data(
        name,
        examples["train"],
        examples["val"],
        examples.get("test"),
        seed=seed,
        source=source,
        fields=vocabulary.fields,
        vocabulary=vocabulary,
        notes=tuple(_notes(filled, forms, total, left_out, changed, options, length_note)),
        held_out=tuple(part for part in filled if part not in given),
    )


def read_texts(path: Path) -> list[str]:
    """Read the lines of a text file in UTF-8, which may be gzipped."""
    return lines_of(read_bytes(path, share=_TEXT_SHARE), path)


def lines_of(content: bytes, path: Path) -> list[str]:
    """Split the content of a text file in UTF-8 into lines, without the line ends (LF, CR LF or CR).

    `path` is the name of the file in error messages.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}, line {line}: byte 0x{content[error.start]:02x} is not UTF-8 ({error.reason}); "
            "expected text in UTF-8: convert the file, for example with iconv"
        ) from None
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if not lines[-1]:
        lines.pop()
    return lines


def text_suffix(path: Path) -> str:
    """Return the suffix of a text file, one of `TEXT_SUFFIXES`; "" for other files."""
    return next((one for one in TEXT_SUFFIXES if path.name.lower().endswith(one)), "")


def text_files(folder: Path) -> dict[str, Path]:
    """Find the text files of a folder: {"train": path}, also with "val" and "test" if they exist.

    The name of a text file, without its suffix, is train, val, valid, validation or test, or ends with a
    dot and one of these words: ``train.txt``, ``news.valid.txt.gz``. Other files are ignored. Return {}
    if there is no text file.
    """
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        suffix = text_suffix(path)
        part = PART_NAMES.get(path.name[: -len(suffix)].lower().rpartition(".")[2]) if suffix else None
        if part is None:
            continue
        if part in found:
            raise DataError(
                f"{folder} has two files of {_PARTS[part]} texts, {found[part].name} and {path.name}; "
                "remove one of them, or give one file"
            )
        found[part] = path
    if found and "train" not in found:
        names = ", ".join(path.name for path in found.values())
        raise DataError(f"{folder} has {names}, but no training texts: add train.txt, or give one file")
    kinds = {TEXT_SUFFIXES[text_suffix(path)] for path in found.values()}
    if len(kinds) > 1:
        raise DataError(f"{folder} has files of words (.txt) and of SMILES (.smi); expected one kind")
    return found


def text_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options for texts (`length`, `vocabulary_size`, `graphs`) whose value is not None."""
    return {key: options[key] for key in TEXT_OPTIONS if options.get(key) is not None}


def check_not_texts(options: Mapping[str, Any], what: str) -> None:
    """Raise a ConfigError if options for texts are given for data that are not texts.

    `what` is the name of the data in the message.
    """
    if given := [name for name in TEXT_OPTIONS if options.get(name)]:
        raise ConfigError(f"{', '.join(given)} is for texts; {what} holds none: leave it out")


def _clean(texts: Iterable[Any], part: str, kind: type[Vocabulary]) -> list[str]:
    """Remove white space at both ends of each text.

    If the vocabulary is for molecules, also remove the name that may follow the SMILES string. `part` is
    "train", "val" or "test", for error messages.
    """
    if isinstance(texts, str | bytes | Mapping):
        raise DataError(
            f"the {_PARTS[part]} texts are a {type(texts).__name__}; expected a list of texts"
        )
    found = []
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise DataError(
                f"{_PARTS[part]} text {place} is a {type(text).__name__}; expected a list of str"
            )
        found.append((text.split(None, 1) or [""])[0] if kind.molecules else text.strip())
    return found


def _complete(
    parts: dict[str, list[str]], forms: Mapping[str, str], *, name: str, seed: int, need_test: bool
) -> dict[str, list[str]]:
    """Take missing validation and test texts at random out of the training texts.

    All texts with the same normal form are put into the same part, so that no validation example is also
    a training example. A missing test part is made only if `need_test` is true.

    Args:
        parts: {"train": texts}, also with "val" and "test" if they are not missing.
        forms: {text: its normal form}.
    """
    missing = [key for key in ("val", "test") if key not in parts and (key == "val" or need_test)]
    if not missing:
        return parts
    different = list(dict.fromkeys(forms[text] for text in parts["train"]))
    if len(different) <= len(missing):
        raise DataError(
            f"{name}: {len(parts['train']):,} text(s), {len(different)} of them different, cannot be "
            f"split into {len(missing) + 1} parts; give at least {len(missing) + 1} different texts, or "
            "give each part"
        )
    _, *held_out = split(len(different), name=name, seed=seed, parts=len(missing))
    part_of = {different[row]: key for key, rows in zip(missing, held_out, strict=True) for row in rows}
    sorted_texts: dict[str, list[str]] = {"train": [], **{key: [] for key in missing}}
    for text in parts["train"]:
        sorted_texts[part_of.get(forms[text], "train")].append(text)
    return parts | sorted_texts


def _vocabulary(made: type[Vocabulary], texts: Sequence[str], options: Mapping[str, Any]) -> Vocabulary:
    length, size = options.get("length"), options.get("vocabulary_size")
    if issubclass(made, TokenVocabulary):
        return made.from_texts(texts, length, size)
    if size is not None:
        raise ConfigError(f"vocabulary_size is for sequences, not for {made.kind}: leave it out")
    found: Vocabulary = made.from_texts(texts, length)  # type: ignore[attr-defined]
    return found


def _notes(
    parts: Mapping[str, Sequence[str]],
    forms: Mapping[str, str],
    total: int,
    left_out: Mapping[str, int],
    changed: Mapping[str, int],
    options: Mapping[str, Any],
    length_note: str,
) -> Iterable[str]:
    """Yield the notes of a data set of texts, which become `Data.notes`.

    `forms` is {text: its normal form}, and `total` is the number of texts before any were left out.
    `left_out` and `changed` are {problem: number of texts}, of texts that were left out or kept.
    `length_note` says where the length of examples comes from.
    """
    if all(is_number(word) for texts in parts.values() for text in texts for word in text.split()):
        yield "all words are numbers: is this a table? Then save it as .csv or .npy"
    if left_out:
        said = ", ".join(f"{count:,} {problem}" for problem, count in left_out.items())
        yield f"{sum(left_out.values()):,} of {total:,} texts are left out ({said})"
        if options.get("length") is None and any("longer" in problem for problem in left_out):
            yield length_note
    for problem, count in changed.items():
        yield f"{count:,} texts {problem}"
    train = {forms[text] for text in parts["train"]}
    repeated = sum(len(texts) - len({forms[text] for text in texts}) for texts in parts.values())
    if repeated:
        yield f"{repeated:,} texts are copies of another text of the same part"
    if known := sum(
        forms[text] in train for key, texts in parts.items() if key != "train" for text in texts
    ):
        yield f"{known:,} validation or test texts are also training texts"
