"""Images that stay in their files: a folder or a zip of pictures, decoded when they are read."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import threading
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from recmix.data.checks import SIDES
from recmix.data.images import Array, ArrayImages, Images, Index, rows
from recmix.errors import ConfigError, DataError

__all__ = [
    "MEMORY",
    "SUFFIXES",
    "Crop",
    "FileImages",
    "Pictures",
    "check_cut",
    "picture_array",
    "settle",
]

MEMORY = 1 << 30  # pictures that take more bytes than this as float32 stay in their files

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")

Crop = int | Literal["square"] | None

_GREY = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N")
_DEEP = ("I", "I;16", "I;16B", "I;16L", "I;16N")  # 16 bits per pixel
_LARGEST = 1 << 28  # bytes of one picture's file; a zip member that claims more is not a picture
_ORIENTATION = 0x0112  # the EXIF tag that says how a camera was held


class Pictures:
    """The picture files below a folder or inside a zip, by their names relative to it.

    Reading is safe from many threads, and in forked and spawned worker processes.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Image.new("L", (28, 30)).save(Path(folder) / "a.png")
    ...     Pictures(folder).names()
    ['a.png']

    Args:
        root: A folder, or a zip file.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self.is_folder = self.root.is_dir()
        # (process, archive, lock): one attribute, so that all three always belong together.
        self._opened: tuple[int, zipfile.ZipFile, threading.Lock] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root, "is_folder": self.is_folder, "_opened": None}

    def names(self) -> list[str]:
        """Relative names of all pictures, sorted; hidden files and folders are left out."""
        found = self._walk() if self.is_folder else self._members()
        return sorted(name for name in found if _is_picture(name))

    def where(self, name: str) -> str:
        """How an error message names a picture."""
        return str(self.root / name) if self.is_folder else f"{name} in {self.root}"

    def size(self, name: str) -> int:
        """Bytes of a picture's file."""
        with self._reading(name):
            if self.is_folder:
                return (self.root / name).stat().st_size
            archive, _ = self._archive()
            return archive.getinfo(name).file_size

    def read(self, name: str) -> bytes:
        """The bytes of a picture's file."""
        with self._reading(name), self._open(name) as stream:
            return stream.read()

    def header(self, name: str) -> tuple[int, int, int]:
        """(channels, height, width) of a picture, from its first bytes only."""
        from PIL import Image

        with self._reading(name), self._open(name) as stream, Image.open(stream) as image:
            width, height = image.size
            if _orientation(image) > 4:  # lies on its side
                width, height = height, width
            return (1 if image.mode in _GREY else 3), height, width

    def pixels(self, name: str, channels: int, size: tuple[int, int], crop: Crop) -> Array:
        """A picture as uint8 (C, H, W); see `FileImages` for the arguments."""
        from PIL import Image

        blob = self.read(name)
        with self._reading(name), Image.open(io.BytesIO(blob)) as image:
            image.load()
            return picture_array(_upright(image), channels, size, crop, self.where(name))

    @contextlib.contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """Whatever goes wrong inside a decoder, the message names the file."""
        try:
            yield
        except (DataError, MemoryError):
            raise
        except FileNotFoundError as error:
            raise DataError(f"{self.where(name)} is no longer there") from error
        except Exception as error:  # pillow and zipfile raise a dozen different types
            raise DataError(
                f"{self.where(name)} cannot be read as a picture ({error}); "
                "it is damaged or not a picture: replace or remove it"
            ) from error

    @contextlib.contextmanager
    def _open(self, name: str) -> Iterator[IO[bytes]]:
        if self.is_folder:
            with (self.root / name).open("rb") as stream:
                yield stream
            return
        archive, lock = self._archive()
        if archive.getinfo(name).file_size > _LARGEST:
            raise DataError(f"{self.where(name)} claims to be larger than {_LARGEST} bytes")
        with lock, archive.open(name) as stream:
            yield stream

    def _archive(self) -> tuple[zipfile.ZipFile, threading.Lock]:
        opened = self._opened
        if opened is None or opened[0] != os.getpid():  # a fork shares the file's position: reopen
            try:
                archive = zipfile.ZipFile(self.root)
            except (OSError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
                raise DataError(
                    f"{self.root} is not a readable zip file ({error}); "
                    "it may be cut short: fetch or pack it again"
                ) from error
            opened = (os.getpid(), archive, threading.Lock())
            self._opened = opened
        return opened[1], opened[2]

    def _members(self) -> list[str]:
        archive, _ = self._archive()
        return [member.filename for member in archive.infolist() if not member.is_dir()]

    def _walk(self) -> Iterator[str]:
        seen: set[str] = set()

        def fail(error: OSError) -> None:
            raise DataError(f"cannot list {error.filename}: {error.strerror}") from error

        for folder, subfolders, names in os.walk(self.root, onerror=fail, followlinks=True):
            real = os.path.realpath(folder)
            if real in seen:  # a link that leads back up
                subfolders.clear()
                continue
            seen.add(real)
            inside = Path(folder).relative_to(self.root)
            yield from ((inside / name).as_posix() for name in names)


class FileImages(Images):
    """Images that are decoded from their files each time they are read; none is kept in memory.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Image.new("L", (40, 30), 255).save(Path(folder) / "a.png")
    ...     images = FileImages(Pictures(folder), ["a.png"], size=(8, 8), channels=1, crop="square")
    ...     images.shape, images[0].max()
    ((1, 1, 8, 8), np.float32(1.0))

    Args:
        pictures: The folder or zip.
        names: Which pictures, by their names in it.
        size: (H, W) of the images.
        channels: 1 for grey, 3 for colour; pictures are converted. Transparency is dropped.
        crop: Side of the centred square that is cut out and then resized to `size`; "square" for the
            largest one; None if the pictures already have that size, and others are an error.
        index: Which of the names these images are, in which order; all by default.
    """

    in_memory = False

    def __init__(
        self,
        pictures: Pictures,
        names: Sequence[str],
        *,
        size: tuple[int, int],
        channels: int,
        crop: Crop = None,
        index: Index | None = None,
    ) -> None:
        if channels not in (1, 3):
            raise DataError(f"pictures are read with 1 or 3 channels, not {channels}")
        self.pictures = pictures
        self.names = names
        self.size = size
        self.channels = channels
        self.crop = crop
        self._index = np.arange(len(names)) if index is None else rows(index, len(names))

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(N, C, H, W)."""
        return len(self._index), self.channels, *self.size

    def take(self, index: Index) -> NDArray[np.uint8]:
        """The decoded pixels of some images, uint8 (B, C, H, W)."""
        chosen = self._index[rows(index, len(self))]
        out = np.empty((len(chosen), *self.shape[1:]), np.uint8)
        for row, number in enumerate(chosen):
            out[row] = self._pixels(number)
        return out

    def subset(self, index: Index) -> FileImages:
        """These images restricted to an index."""
        return FileImages(
            self.pictures,
            self.names,
            size=self.size,
            channels=self.channels,
            crop=self.crop,
            index=self._index[rows(index, len(self))],
        )

    def resized(self, size: int | None = None, crop: int | None = None) -> FileImages:
        """The same pictures, cut or resized otherwise; None keeps what is."""
        return FileImages(
            self.pictures,
            self.names,
            size=self.size if size is None else (size, size),
            channels=self.channels,
            crop=self.crop if crop is None else crop,
            index=self._index,
        )

    def loaded(self) -> ArrayImages:
        """The same images, decoded once and held in memory as uint8."""
        out = np.empty(self.shape, np.uint8)

        def fill(row: int) -> None:
            out[row] = self._pixels(self._index[row])

        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # decoders release the lock
            for start in range(0, len(self), 1024):  # an error stops it within one such stretch
                for _ in pool.map(fill, range(start, min(start + 1024, len(self)))):
                    pass
        return ArrayImages(out)

    def fingerprint(self) -> str:
        """SHA-256 of the files' names and sizes and of how they are cut; not of their pixels."""
        digest = hashlib.sha256(f"{self.shape} {self.crop}".encode())
        for number in self._index:
            name = self.names[number]
            digest.update(f"{name} {self.pictures.size(name)}\n".encode())
        return digest.hexdigest()

    def _pixels(self, number: int) -> Array:
        return self.pictures.pixels(self.names[number], self.channels, self.size, self.crop)


def settle(images: FileImages, stream: bool | str = "auto") -> Images:
    """Pictures decoded into memory, or left in their files, as `stream` says.

    Args:
        images: The pictures.
        stream: True to leave them in their files, False to decode them now, "auto" to decide by
            whether they would take more than `MEMORY` bytes as float32.
    """
    if stream not in (True, False, "auto"):
        raise ConfigError(f"stream is {stream!r}; expected True, False or 'auto'")
    if stream == "auto":
        stream = 4 * int(np.prod(images.shape)) > MEMORY
    return images if stream else images.loaded()


def check_cut(size: int | None, crop: int | None) -> None:
    """Raise a ConfigError unless pictures can be cut and resized so.

    >>> check_cut(64, 108)
    """
    low, high = SIDES
    if size is not None and not low <= size <= high:
        raise ConfigError(f"size is {size}; expected {low} to {high} pixels")
    if crop is not None and crop < 1:
        raise ConfigError(f"crop is {crop}; expected 1 pixel or more")


def picture_array(
    image: Any,
    channels: int | None = None,
    size: tuple[int, int] | None = None,
    crop: Crop = None,
    where: str = "picture",
) -> NDArray[np.uint8]:
    """A pillow image as uint8 (C, H, W).

    >>> from PIL import Image
    >>> picture_array(Image.new("RGB", (178, 218)), 3, (64, 64), 108).shape
    (3, 64, 64)

    Args:
        image: A pillow image.
        channels: 1 or 3; by default whichever it has.
        size: (H, W) of the result; by default the picture's own.
        crop: As in `FileImages`.
        where: How error messages name it.
    """
    from PIL import Image

    if channels is None:
        channels = 1 if image.mode in _GREY else 3
    if image.mode in _DEEP:
        image = Image.fromarray((np.asarray(image).astype(np.int64) >> 8).astype(np.uint8))
    elif image.mode == "P":
        image = image.convert("RGBA")  # by way of RGBA, for palettes with a transparent colour
    image = image.convert("L" if channels == 1 else "RGB")
    width, height = image.size
    if crop is not None:
        side = min(width, height) if crop == "square" else crop
        if side > min(width, height):
            raise DataError(
                f"{where} is {height}x{width} (height x width), too small for a crop of {side}x{side}; "
                "remove it or give a smaller crop"
            )
        left, top = (width - side) // 2, (height - side) // 2
        image = image.crop((left, top, left + side, top + side))
        if size is not None and image.size != (size[1], size[0]):
            image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    elif size is not None and (height, width) != size:
        raise DataError(
            f"{where} is {height}x{width} (height x width), the first picture is "
            f"{size[0]}x{size[1]}; all must have one size: give size=..., for example size=64, to cut "
            "the centred square out of each and resize it"
        )
    pixels = np.asarray(image, np.uint8)
    return np.ascontiguousarray(pixels[None] if channels == 1 else pixels.transpose(2, 0, 1))


def _is_picture(name: str) -> bool:
    path = PurePosixPath(name)
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in path.parts)
    return path.suffix.lower() in SUFFIXES and not hidden


def _orientation(image: Any) -> int:
    if image.format not in ("JPEG", "MPO"):  # asking a PNG would decode all of it
        return 1
    return int(image.getexif().get(_ORIENTATION, 1))


def _upright(image: Any) -> Any:
    from PIL import ImageOps

    return ImageOps.exif_transpose(image) if _orientation(image) > 1 else image.copy()
