"""Read examples from the image files of a folder or zip file. Each image is decoded when it is used."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import math
import os
import threading
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from numbers import Integral
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recmix.data.examples import Array, ArrayExamples, Examples, Index, rows
from recmix.data.limits import check_file, check_members, check_regular, check_size, read_at_most
from recmix.data.transparency import may_be_transparent, on_white, opacity
from recmix.errors import ConfigError, DataError, shown

__all__ = [
    "SUFFIXES",
    "FileImages",
    "ImageFolder",
    "check_no_resize",
    "check_resize",
    "from_pillow",
]

MEMORY_LIMIT = 1 << 30  # images that need more bytes as float32 stay in their files by default
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP")  # pillow runs other programs for some formats
_RESIZE_HINT = (
    "all must have one size: give size=..., for example size=64, to crop each image to its centred "
    "square and resize it"
)

Crop = int | Literal["square"] | None

_MODES_16_BIT = ("I", "I;16", "I;16B", "I;16L", "I;16N")
_GREY_MODES = ("1", "L", "LA", "La", *_MODES_16_BIT)
_MAX_BYTES = 1 << 28  # limit for one image file
_SCANNED = 10_000  # at most this many image files are decoded to look for transparent pixels
_ORIENTATION = 0x0112  # EXIF tag for the orientation of the camera


class ImageHeader(NamedTuple):
    """What the header of an image file says."""

    channels: int  # 1 for grey, 3 for colour
    height: int
    width: int
    may_be_transparent: bool


class ImageFolder:
    """The image files of a folder or a zip file.

    Methods name an image file by its path relative to the folder. Several threads and processes can
    read at the same time.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self.is_folder = self.root.is_dir()
        # (process, archive, lock). One attribute, so that a thread always sees three that match.
        self._opened: tuple[int, zipfile.ZipFile, threading.Lock] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root, "is_folder": self.is_folder, "_opened": None}

    def names(self) -> list[str]:
        """Return the sorted relative paths of all image files, without hidden files and folders."""
        found = self._walk() if self.is_folder else self._archive()[0].namelist()
        names = sorted(name for name in found if _is_image_name(name))
        if not names:
            texts = ", or texts in train.txt, val.txt and test.txt" if self.is_folder else ""
            raise DataError(
                f"{self.root} has no images; expected files that end in {', '.join(SUFFIXES)}{texts}"
            )
        return names

    def location(self, name: str) -> str:
        """Return the full name of an image file for error messages."""
        return str(self.root / name) if self.is_folder else f"{name} in {self.root}"

    def file_size(self, name: str) -> int:
        """Return the size of an image file in bytes."""
        with self._as_data_error(name):
            if self.is_folder:
                return (self.root / name).stat().st_size
            return self._archive()[0].getinfo(name).file_size

    def header(self, name: str) -> ImageHeader:
        """Read the header of an image file, without decoding its pixels."""
        from PIL import Image

        with (
            self._as_data_error(name),
            self._open(name) as stream,
            Image.open(stream, formats=_FORMATS) as image,
        ):
            width, height = image.size
            if _orientation(image) > 4:  # rotated by 90 degrees
                width, height = height, width
            channels = 1 if image.mode in _GREY_MODES else 3
            return ImageHeader(channels, height, width, may_be_transparent(image))

    def common_header(
        self, names: Sequence[str], *, any_size: bool
    ) -> tuple[tuple[int, int, int], list[str]]:
        """Read the headers of all images; return one (channels, height, width) for them.

        There are 3 channels if any image is in colour. The height and width are those of the first
        image. Raise a DataError if another image has another size, unless `any_size` is true. The second
        part of the result names the images that can have transparent pixels.
        """
        channels, height, width, first = self.header(names[0])
        unclear = [names[0]] if first else []
        for name in names[1:]:
            other = self.header(name)
            channels = max(channels, other.channels)
            if other.may_be_transparent:
                unclear.append(name)
            if not any_size and (other.height, other.width) != (height, width):
                raise DataError(
                    f"{self.location(name)} is {other.height}x{other.width} (height x width), "
                    f"{names[0]} is {height}x{width}; {_RESIZE_HINT}"
                )
        return (channels, height, width), unclear

    def first_transparent(self, names: Sequence[str]) -> str | None:
        """Decode images, and return the name of the first one with a transparent pixel, if any.

        Of more than 10,000 names, 10,000 at equal distances are decoded.
        """
        chosen = [
            names[i] for i in np.linspace(0, len(names) - 1, min(len(names), _SCANNED)).astype(int)
        ]
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            for start in range(0, len(chosen), 64):  # stop soon after the first one
                part = chosen[start : start + 64]
                for name, found in zip(part, pool.map(self._is_transparent, part), strict=True):
                    if found:
                        return name
        return None

    def _is_transparent(self, name: str) -> bool:
        with self._decoded(name) as image:
            return opacity(image) is not None

    def pixels(self, name: str, channels: int, size: tuple[int, int], crop: Crop) -> Array:
        """Decode an image to uint8 (C, H, W).

        Args:
            name: path of the image file relative to the folder.
            channels: C, 1 for grey or 3 for colour.
            size: (H, W), to which the image is resized after the crop.
            crop: the part of the image that is used, see `FileImages`.
        """
        from PIL import ImageOps

        with self._decoded(name) as image:
            upright = ImageOps.exif_transpose(image) if _orientation(image) > 1 else image
            return from_pillow(upright, channels, size, crop, self.location(name))

    @contextlib.contextmanager
    def _decoded(self, name: str) -> Iterator[Any]:
        """Decode an image file to a pillow image. Errors in this context name the image file."""
        from PIL import Image

        with self._as_data_error(name):
            with self._open(name) as stream:
                content = read_at_most(stream, self.location(name), _MAX_BYTES)
            with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
                image.load()
                yield image

    @contextlib.contextmanager
    def _as_data_error(self, name: str) -> Iterator[None]:
        """Turn any error in this context into a DataError that names the image file."""
        try:
            yield
        except (ConfigError, DataError, MemoryError):
            raise
        except FileNotFoundError as error:
            raise DataError(f"{self.location(name)} does not exist any more") from error
        except Exception as error:  # pillow and zipfile raise many different types
            raise DataError(
                f"{self.location(name)} cannot be read as an image ({error}); "
                f"it is damaged or not an image ({', '.join(_FORMATS)}): replace or remove it"
            ) from error

    @contextlib.contextmanager
    def _open(self, name: str) -> Iterator[IO[bytes]]:
        if self.is_folder:
            path = self.root / name
            if path.exists():  # a missing file has its own message
                check_file(path, _MAX_BYTES)
            with path.open("rb") as stream:
                yield stream
            return
        archive, lock = self._archive()
        member = archive.getinfo(name)
        check_members(self.root, [member])
        check_size(self.location(name), member.file_size, _MAX_BYTES)
        with lock, archive.open(member) as stream:
            content = read_at_most(stream, self.location(name), _MAX_BYTES)
        yield io.BytesIO(content)

    def _archive(self) -> tuple[zipfile.ZipFile, threading.Lock]:
        opened = self._opened
        if opened is None or opened[0] != os.getpid():  # a fork shares the file position: open again
            check_regular(self.root)
            try:
                archive = zipfile.ZipFile(self.root)
            except (OSError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
                raise DataError(
                    f"{self.root} is not a readable zip file ({error}); "
                    "it may be incomplete: download or create it again"
                ) from error
            self._opened = opened = (os.getpid(), archive, threading.Lock())
        return opened[1], opened[2]

    def _walk(self) -> Iterator[str]:
        def fail(error: OSError) -> None:
            raise DataError(f"cannot list {error.filename}: {error.strerror}") from error

        seen: set[str] = set()
        for folder, subfolders, names in os.walk(self.root, onerror=fail, followlinks=True):
            real = os.path.realpath(folder)
            if real in seen:  # a link to a folder above
                subfolders.clear()
                continue
            seen.add(real)
            relative = Path(folder).relative_to(self.root)
            yield from ((relative / name).as_posix() for name in names)


class FileImages(Examples):
    """Images that are decoded from their files each time they are read. None stays in memory.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Image.new("L", (40, 30), 255).save(Path(folder) / "a.png")
    ...     files = ImageFolder(folder)
    ...     images = FileImages(files, files.names(), size=(8, 8), channels=1, crop="square")
    ...     images.shape, float(images[0].max())
    ((1, 1, 8, 8), 1.0)

    Args:
        folder: The folder or zip file.
        names: Paths of the image files, relative to `folder`.
        size: (H, W) of the images.
        channels: 1 for grey, 3 for colour. Images are converted; transparent pixels are put on white.
        crop: Side of the square that is cut from the centre of each image and resized to `size`;
            "square" for the largest square. None means that the images must already have this size.
    """

    in_memory = False

    def __init__(
        self,
        folder: ImageFolder,
        names: Sequence[str],
        *,
        size: tuple[int, int],
        channels: int,
        crop: Crop = None,
    ) -> None:
        if channels not in (1, 3):
            raise DataError(f"channels is {channels}; image files are read with 1 or 3 channels")
        self.folder = folder
        self.names = names
        self.size = size
        self.channels = channels
        self.crop = crop
        self._selected: NDArray[np.int64] = np.arange(len(names))

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(N, C, H, W): number of images, channels, height and width."""
        return len(self._selected), self.channels, *self.size

    def take(self, index: Index) -> NDArray[np.uint8]:
        """Decode the images at `index` (a slice, integer array or mask) to uint8 (B, C, H, W)."""
        chosen = self._selected[rows(index, len(self))]
        out = np.empty((len(chosen), *self.shape[1:]), np.uint8)
        for row, number in enumerate(chosen):
            out[row] = self._pixels(number)
        return out

    def subset(self, index: Index) -> FileImages:
        """Return the selected images as a new object."""
        other = copy.copy(self)
        other._selected = self._selected[rows(index, len(self))]
        return other

    def resized(self, size: int | None = None, crop: Crop = None) -> FileImages:
        """Return an object that reads the same images with another size or crop.

        Args:
            size: Side of the square images; None keeps the present size.
            crop: See `FileImages`; None keeps the present crop.
        """
        other = copy.copy(self)
        other.size = self.size if size is None else (size, size)
        other.crop = self.crop if crop is None else crop
        return other

    def loaded(self, stream: bool | str = False) -> Examples:
        """Return the same images, either decoded into memory as uint8 or left in their files.

        Args:
            stream: False decodes the images now. True leaves them in their files. "auto" leaves them
                there if they need more than `MEMORY_LIMIT` bytes as float32.
        """
        if stream not in (True, False, "auto"):
            raise ConfigError(f"stream is {stream!r}; expected True, False or 'auto'")
        if stream == "auto":
            stream = 4 * math.prod(self.shape) > MEMORY_LIMIT
        if stream:
            return self
        out = np.empty(self.shape, np.uint8)

        def fill(row: int) -> None:
            out[row] = self._pixels(self._selected[row])

        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # decoders release the GIL
            for start in range(0, len(self), 1024):  # after an error, at most 1024 more are decoded
                list(pool.map(fill, range(start, min(start + 1024, len(self)))))
        return ArrayExamples(out)

    def fingerprint(self) -> str:
        """Return a SHA-256 hash of the files' names and sizes, the image shape and the crop.

        The pixels are not read: files with the same names and sizes have the same hash.
        """
        digest = hashlib.sha256(f"{self.shape} {self.crop}".encode())
        for name in (self.names[int(number)] for number in self._selected):
            digest.update(f"{name} {self.folder.file_size(name)}\n".encode())
        return digest.hexdigest()

    def _pixels(self, number: int) -> Array:
        return self.folder.pixels(self.names[number], self.channels, self.size, self.crop)


def check_resize(size: Any, crop: Any) -> None:
    """Raise a ConfigError if the option `size` or `crop` is given and no positive whole number."""
    for name, value in (("size", size), ("crop", crop)):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise ConfigError(
                f"{name} is {shown(value)}; expected one whole number, the side of a square: write "
                f"{name}=64"
            )
        if value < 1:
            raise ConfigError(f"{name} is {value}; expected 1 pixel or more")


def check_no_resize(options: Mapping[str, Any], why: str) -> None:
    """Raise a ConfigError if `options` have a value for `size` or `crop`.

    These options are for image files only, and the caller has data of another kind. `why` is the end of
    the message: it says which data these are.
    """
    if options.get("size") is not None or options.get("crop") is not None:
        raise ConfigError(f"size and crop are for image files; {why}")


def from_pillow(
    image: Any,
    channels: int | None = None,
    size: tuple[int, int] | None = None,
    crop: Crop = None,
    location: str = "the image",
) -> NDArray[np.uint8]:
    """Convert a pillow image to uint8 (C, H, W). Transparent pixels are put on a white background.

    >>> from PIL import Image
    >>> from_pillow(Image.new("RGB", (178, 218)), 3, (64, 64), 108).shape
    (3, 64, 64)

    Args:
        image: The pillow image.
        channels: 1 for grey, 3 for colour; by default 1 for a grey image, else 3.
        size: (H, W) of the result; by default the size of the image after the crop.
        crop: See `FileImages`.
        location: Name of the image in error messages.
    """
    from PIL import Image

    if channels is None:
        channels = 1 if image.mode in _GREY_MODES else 3
    mask = opacity(image)
    if image.mode in _MODES_16_BIT:
        image = Image.fromarray((np.asarray(image).astype(np.int64) >> 8).astype(np.uint8))
    elif image.mode == "P":
        image = image.convert("RGBA")  # a palette may have a transparent colour
    if mask is not None:
        image = on_white(image, mask)
    image = image.convert("L" if channels == 1 else "RGB")
    width, height = image.size
    given = f"{location} is {height}x{width} (height x width)"
    if crop is not None:
        side = min(width, height) if crop == "square" else crop
        if side > min(width, height):
            raise DataError(
                f"{given}, too small for a crop of {side}x{side}; remove it or give a smaller crop"
            )
        left, top = (width - side) // 2, (height - side) // 2
        image = image.crop((left, top, left + side, top + side))
        if size is not None and image.size != (size[1], size[0]):
            image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    elif size is not None and (height, width) != size:
        raise DataError(f"{given}, expected {size[0]}x{size[1]}; {_RESIZE_HINT}")
    pixels = np.asarray(image, np.uint8)
    return np.ascontiguousarray(pixels[None] if channels == 1 else pixels.transpose(2, 0, 1))


def _is_image_name(name: str) -> bool:
    path = PurePosixPath(name)
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in path.parts)
    return path.suffix.lower() in SUFFIXES and not hidden and not name.endswith("/")


def _orientation(image: Any) -> int:
    if image.format not in ("JPEG", "MPO"):  # getexif would decode the whole PNG
        return 1
    return int(image.getexif().get(_ORIENTATION, 1))
