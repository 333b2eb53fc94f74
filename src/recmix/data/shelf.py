"""Where a named set's files lie under the data root, and how missing ones get there."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from recmix.data import fetch
from recmix.data.images import Images
from recmix.data.splits import held_out
from recmix.errors import DataError

__all__ = ["Archive", "DataFile", "Entry", "NamedSet", "Parts", "data_root", "entry", "locate", "obtain"]

Parts = tuple[Images, Images | None, Images | None]  # training, validation, test


@dataclass(frozen=True)
class DataFile:
    """A file of a named set, as it is published.

    Attributes:
        name: Its published name, without ".gz".
        urls: Where it can be fetched.
        md5: MD5 sum of its content once decompressed, where we know it for certain.
        required: Whether the set can do without it.
        also: Other names under which its content is accepted, such as an unpacked folder.
    """

    name: str
    urls: tuple[str, ...] = ()
    md5: str | None = None
    required: bool = True
    also: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """All names under which it is accepted."""
        gzipped = [] if self.name.endswith(".zip") else [f"{self.name}.gz"]
        return [self.name, *gzipped, *self.also]


@dataclass(frozen=True)
class Archive:
    """A tar archive that holds all files of a named set.

    Attributes:
        name: Its published name.
        folder: The folder under the root where it goes.
        urls: Where it can be fetched.
        md5: MD5 sum of the archive itself.
    """

    name: str
    folder: str
    urls: tuple[str, ...]
    md5: str | None = None


@dataclass(frozen=True, kw_only=True)
class NamedSet:
    """A data set known by name.

    Attributes:
        name: What it is called here.
        shape: (C, H, W) of its images.
        published: Its published counts: training, validation or None, test or None; what is None is
            held out of the training images by seed.
        files: Its files; none if it comes with a library.
        folders: Folders under the root to look in; the first is where files are put.
        read: From the files found, by published name, to the images.
        archive: The archive to fetch, where the files do not come one by one.
        dynamic: Training images are grey and to be binarised afresh each time they are used.
        binary: Images are 0 and 1.
        page: Where people find it.
        citation: What to cite.
        note: What a user should know.
    """

    name: str
    shape: tuple[int, int, int]
    published: tuple[int, int | None, int | None]
    read: Callable[[Mapping[str, Path]], Parts]
    citation: str
    files: tuple[DataFile, ...] = ()
    folders: tuple[str, ...] = ()
    archive: Archive | None = None
    dynamic: bool = False
    binary: bool = False
    page: str = ""
    note: str = ""

    @property
    def counts(self) -> dict[str, int]:
        """How many images the complete set has for training, validation and test."""
        train, val, test = self.published
        size = held_out(train)
        rest = train - size * ((val is None) + (test is None))
        return {
            "train": rest,
            "val": size if val is None else val,
            "test": size if test is None else test,
        }


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What is on the shelf of one named set.

    Attributes:
        name: The set's name.
        state: "present", "partly" or "missing".
        usable: Whether it can be loaded as it is.
        files: How many files were found.
        bytes: Their size on disk.
        missing: Published names of the files that were not found.
        looked: Folders that were looked in.
        shape: (C, H, W).
        counts: Images for training, validation and test of the complete set.
        citation: What to cite.
        page: Where people find it.
        note: What a user should know.
    """

    name: str
    state: str
    usable: bool
    files: int
    bytes: int
    missing: tuple[str, ...]
    looked: tuple[Path, ...]
    shape: tuple[int, int, int]
    counts: dict[str, int]
    citation: str
    page: str
    note: str


def data_root(root: str | Path | None = None) -> Path:
    """The folder under which named sets lie: the argument, else RECMIX_DATA, else a cache folder.

    >>> data_root("/data").as_posix()
    '/data'
    """
    if root is None:
        root = os.environ.get("RECMIX_DATA") or "~/.cache/recmix/data"
    return Path(root).expanduser().absolute()


def locate(spec: NamedSet, root: Path) -> dict[str, Path]:
    """The files of a set that are there, gzipped or not, by published name."""
    found: dict[str, Path] = {}
    for file in spec.files:
        places = [root / folder / name for folder in spec.folders for name in file.names]
        place = next((place for place in places if place.exists()), None)
        if place is not None:
            found[file.name] = place
    return found


def obtain(spec: NamedSet, root: Path, download: bool = True) -> dict[str, Path]:
    """The files of a set by published name, fetched where they are missing.

    Raises:
        DataError: If a required file is missing and cannot be fetched; it says which files to put
            where, where they were looked for, and where they are published.
    """
    found = locate(spec, root)
    missing = _missing(spec, found)
    if not missing:
        return found
    why = ""
    if not download:
        why = "downloading was not asked for (download=False)"
    elif fetch.offline():
        why = "downloading is forbidden by the environment variable RECMIX_OFFLINE"
    try:
        if spec.archive is not None:
            _from_archive(spec, spec.archive, root, allowed=not why)
        elif not why:
            for file in missing:
                if not file.urls:
                    raise fetch.Unreachable("it has no address that a program can fetch from")
                fetch.download(file.urls, root / spec.folders[0] / file.name, md5=file.md5)
    except fetch.Unreachable as error:
        why = f"downloading failed:\n    {str(error).replace(chr(10), chr(10) + '    ')}"
    except DataError as error:  # the disk is full, or not to be written
        raise DataError(_message(spec, locate(spec, root), root, str(error))) from error
    found = locate(spec, root)
    if _missing(spec, found):
        raise DataError(_message(spec, found, root, why))
    return found


def entry(spec: NamedSet, root: Path) -> Entry:
    """What is on the shelf of one set."""
    found = locate(spec, root)
    missing = tuple(file.name for file in spec.files if file.name not in found)
    sizes = [size for place in found.values() for size in _sizes(place)]
    return Entry(
        name=spec.name,
        state="present" if not missing else "partly" if found else "missing",
        usable=not _missing(spec, found),
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


def _missing(spec: NamedSet, found: Mapping[str, Path]) -> list[DataFile]:
    return [file for file in spec.files if file.required and file.name not in found]


def _from_archive(spec: NamedSet, archive: Archive, root: Path, *, allowed: bool) -> None:
    """Unpack a set's archive, which may lie there already; what was fetched is deleted afterwards."""
    wanted = [file.name for file in spec.files]
    place = root / archive.folder / archive.name
    brought = [path for path in (place, root / archive.name) if path.exists()]
    if brought:
        fetch.unpack(brought[0], root / spec.folders[0], wanted)
    elif allowed:
        fetch.download(archive.urls, place, md5=archive.md5, of_content=False)
        fetch.unpack(place, root / spec.folders[0], wanted)
        place.unlink(missing_ok=True)


def _sizes(place: Path) -> list[int]:
    if not place.is_dir():
        return [place.stat().st_size]
    return [path.stat().st_size for path in place.rglob("*") if path.is_file()]


def _message(spec: NamedSet, found: Mapping[str, Path], root: Path, why: str) -> str:
    missing = [file for file in spec.files if file.name not in found]
    urls = spec.archive.urls if spec.archive else tuple(url for file in missing for url in file.urls)
    names = [
        " or ".join(file.names) + ("" if file.required else " (can be done without)") for file in missing
    ]
    lines = [
        f"{spec.name}: {len(missing)} of {len(spec.files)} files are missing.",
        f"  put into {root / spec.folders[0]}:",
        *(f"    {name}" for name in names),
    ]
    if spec.archive:
        lines.append(f"  or, for all of them, into {root / spec.archive.folder}: {spec.archive.name}")
    lines += [f"  looked in: {', '.join(str(root / folder) for folder in spec.folders)}"]
    if urls:
        lines += ["  published at:", *(f"    {url}" for url in urls)]
    if spec.page:
        lines.append(f"  see {spec.page}")
    if why:
        lines.append(f"  {why}")
    lines.append("  another root folder: root=... or the environment variable RECMIX_DATA")
    return "\n".join(lines)
