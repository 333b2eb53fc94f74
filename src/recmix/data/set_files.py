"""Find the files of a named data set, such as "mnist", and download missing files.

The data root is the folder that holds all named data sets.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from recmix.data import fetch
from recmix.data.examples import Examples
from recmix.data.limits import check_path
from recmix.data.splits import holdout_size
from recmix.errors import DataError

__all__ = [
    "DataFile",
    "Entry",
    "NamedSet",
    "Parts",
    "TextParts",
    "data_root",
    "entry_of",
    "find_or_download",
]

Parts = tuple[Examples, Examples | None, Examples | None]  # training, validation, test
TextParts = tuple[list[str], list[str] | None, list[str] | None]


@dataclass(frozen=True)
class DataFile:
    """One published file of a named data set."""

    name: str  # published name, without ".gz"
    urls: tuple[str, ...] = ()  # where it can be downloaded
    md5: str | None = None  # MD5 sum of the decompressed content, if known
    file_sum: str | None = None  # checksum of the file at the URL, such as ``sha256:...``, if known
    required: bool = True  # whether the set cannot be loaded without this file
    other_names: tuple[str, ...] = ()  # other accepted names, such as that of the unpacked folder

    @property
    def names(self) -> list[str]:
        """Names that the file may have on disk: `name`, `name` with ".gz", and `other_names`."""
        gzipped = [] if self.name.endswith(".zip") else [f"{self.name}.gz"]
        return [self.name, *gzipped, *self.other_names]


@dataclass(frozen=True, kw_only=True)
class NamedSet:
    """A data set that is loaded by name.

    Attributes:
        name: Name of the set.
        shape: Shape of its examples, such as (C, H, W) for images.
        published_counts: Published numbers of training, validation and test examples. None means that
            the validation or test examples are held out of the training examples.
        read: Function that reads the training, validation and test examples: `Examples`, or lists of
            texts if there is a `vocabulary`. Its argument is {published name: path} of the files.
        files: Files of the set; none if an installed library contains the set.
        folders: Folders to search for the files, relative to the data root. Downloads go into the first.
        archive: A tar archive of all files, if they are not published one by one.
        dynamic: Whether training images are grey and are binarised again each time they are used.
        binary: Whether all values are 0 and 1.
        vocabulary: Kind of vocabulary if the examples are texts, such as "words" or "smiles"; else "".
        page: Web page of the set.
        citation: Publication to cite.
        note: What a user should know about the set.
    """

    name: str
    shape: tuple[int, ...]
    published_counts: tuple[int, int | None, int | None]
    read: Callable[[Mapping[str, Path]], Parts | TextParts]
    citation: str
    files: tuple[DataFile, ...] = ()
    folders: tuple[str, ...] = ()
    archive: DataFile | None = None
    dynamic: bool = False
    binary: bool = False
    vocabulary: str = ""
    page: str = ""
    note: str = ""

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of examples after the split, {"train": N, "val": N, "test": N}."""
        train, val, test = self.published_counts
        size = holdout_size(train)
        return {
            "train": train - size * ((val is None) + (test is None)),
            "val": size if val is None else val,
            "test": size if test is None else test,
        }


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Which files of a named data set were found on disk."""

    name: str
    state: str  # "present" if all files were found, "partly" if some were, else "missing"
    usable: bool  # whether the set can be loaded without a download
    downloadable: bool  # whether all files that are still needed have a download address
    files: int  # number of files found
    bytes: int  # size of these files on disk
    missing: tuple[str, ...]  # published names of the files that were not found
    looked: tuple[Path, ...]  # folders that were searched
    # the same as in `NamedSet`
    shape: tuple[int, ...]
    counts: dict[str, int]
    citation: str
    page: str
    note: str


def data_root(root: str | Path | None = None) -> Path:
    """Return the folder of the named data sets as an absolute path.

    The folder is `root` if given, else the environment variable RECMIX_DATA, else ~/.cache/recmix/data.
    """
    if root is None:
        root = os.environ.get("RECMIX_DATA") or "~/.cache/recmix/data"
    return check_path(root, "the folder of the named data sets").absolute()


def _find_files(spec: NamedSet, root: Path) -> dict[str, Path]:
    """Return {published name: path} of the files of a set that exist."""
    found: dict[str, Path] = {}
    for file in spec.files:
        paths = (root / folder / name for folder in spec.folders for name in file.names)
        if path := next(filter(Path.exists, paths), None):
            found[file.name] = path
    return found


def find_or_download(spec: NamedSet, root: Path, download: bool = True) -> dict[str, Path]:
    """Return the files of a named data set as {published name: path}. Missing files are downloaded.

    Raise a DataError if a required file is missing and cannot be downloaded.
    """
    found = _find_files(spec, root)
    missing = _missing_required(spec, found)
    if not missing:
        return found
    reason = ""
    if not download:
        reason = "Nothing was downloaded because of download=False."
    elif fetch.offline():
        reason = "Nothing was downloaded because the environment variable RECMIX_OFFLINE is set."
    try:
        if spec.archive is not None:
            _unpack_archive(spec, spec.archive, root, download=not reason)
        elif not reason:
            for file in missing:
                if not file.urls:
                    raise fetch.DownloadError("there is no URL for this file; download it in a browser")
                fetch.download(
                    file.urls, root / spec.folders[0] / file.name, md5=file.md5, file_sum=file.file_sum
                )
    except fetch.DownloadError as error:
        reason = "The download failed:\n    " + str(error).replace("\n", "\n    ")
    except DataError as error:  # the disk cannot be written, or the archive is damaged
        raise DataError(_missing_message(spec, _find_files(spec, root), root, str(error))) from error
    found = _find_files(spec, root)
    if _missing_required(spec, found):
        raise DataError(_missing_message(spec, found, root, reason))
    return found


def entry_of(spec: NamedSet, root: Path) -> Entry:
    """Find out which files of a set exist under `root`, the folder of the named data sets."""
    found = _find_files(spec, root)
    missing = tuple(file.name for file in spec.files if file.name not in found)
    needed = _missing_required(spec, found)
    below = (path.rglob("*") if path.is_dir() else [path] for path in found.values())
    sizes = [path.stat().st_size for paths in below for path in paths if path.is_file()]
    return Entry(
        name=spec.name,
        state="present" if not missing else "partly" if found else "missing",
        usable=not needed,
        downloadable=spec.archive is not None or all(file.urls for file in needed),
        files=len(sizes),
        bytes=sum(sizes),
        missing=missing,
        looked=tuple(root / folder for folder in spec.folders),
        shape=spec.shape,
        counts=spec.counts,
        citation=spec.citation,
        page=spec.page,
        note=spec.note,
    )


def _missing_required(spec: NamedSet, found: Mapping[str, Path]) -> list[DataFile]:
    return [file for file in spec.files if file.required and file.name not in found]


def _unpack_archive(spec: NamedSet, archive: DataFile, root: Path, *, download: bool) -> None:
    """Unpack the archive of a set into the folder of the set.

    If the archive is not on disk and `download` is true, it is downloaded, and deleted after unpacking.
    """
    names = [file.name for file in spec.files]
    folder = root / spec.folders[0]
    target = folder.parent / archive.name
    if existing := next(filter(Path.exists, (target, root / archive.name)), None):
        fetch.unpack(existing, folder, names)
    elif download:
        fetch.download(archive.urls, target, file_sum=archive.file_sum)
        fetch.unpack(target, folder, names)
        target.unlink(missing_ok=True)


def _missing_message(spec: NamedSet, found: Mapping[str, Path], root: Path, reason: str) -> str:
    missing = [file for file in spec.files if file.name not in found]
    urls = spec.archive.urls if spec.archive else [url for file in missing for url in file.urls]
    folder = root / spec.folders[0]
    lines = [
        f"{spec.name}: {len(missing)} of {len(spec.files)} files are missing.",
        f"  Put these files into {folder}:",
        *(f"    {' or '.join(f.names)}{'' if f.required else ' (optional)'}" for f in missing),
    ]
    if spec.archive:
        lines.append(f"  Or put the archive {spec.archive.name} into {folder.parent}.")
    lines.append(f"  Searched folders: {', '.join(str(root / folder) for folder in spec.folders)}")
    if urls:
        lines += ["  Download URLs:", *(f"    {url}" for url in urls)]
    if spec.page:
        lines.append(f"  Web page: {spec.page}")
    if reason:
        lines.append(f"  {reason}")
    lines.append(
        "  To use another data root, give root=... or set the environment variable RECMIX_DATA."
    )
    return "\n".join(lines)
