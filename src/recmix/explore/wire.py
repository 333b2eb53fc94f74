"""Bodies of requests and answers: JSON and ``.npy``. Nothing is unpickled, nothing is evaluated."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from recmix.errors import RecmixError, unknown

__all__ = [
    "JSON",
    "NPY",
    "Array",
    "Limits",
    "Refused",
    "Whole",
    "fields",
    "from_json",
    "from_npy",
    "numbers",
    "to_json",
    "to_npy",
]

Array = NDArray[Any]
JSON = "application/json"
NPY = "application/x-npy"


class Refused(RecmixError):
    """A request that is answered with an error status and a message.

    >>> Refused(413, "too large").status
    413
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one request, and all that wait together, may cost.

    Args:
        body: bytes of one request.
        held: bytes of all requests that are being read or wait for their answer.
        seconds: in which a body must have arrived.
        queue: requests that wait for the model.
        images: of one request; also latent vectors and draws from the prior.
        samples: K of IWAE-K.
        decodings: images times samples of one request.
        steps: Gauss-Newton steps of one explanation.
        grid: points along each side of its plane.
        path: images of one interpolation.
    """

    body: int = 16 * 2**20
    held: int = 256 * 2**20
    seconds: float = 30.0
    queue: int = 256
    images: int = 1024
    samples: int = 10_000
    decodings: int = 100_000
    steps: int = 8
    grid: int = 120
    path: int = 64


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A whole number that a request may give: its default and its range.

    >>> Whole(default=100, low=1, high=1000).read("samples", "20")
    20
    """

    default: int
    low: int
    high: int

    def read(self, name: str, given: Any) -> int:
        """The number, from JSON or from the address."""
        if isinstance(given, str) and re.fullmatch(r"-?[0-9]{1,20}", given):
            given = int(given)
        if isinstance(given, bool) or not isinstance(given, int) or not self.low <= given <= self.high:
            shown = repr(given)
            shown = shown if len(shown) < 40 else f"{shown[:40]}…"
            raise Refused(422, f"{name} is a whole number from {self.low} to {self.high}, got {shown}")
        return given

    def schema(self) -> dict[str, Any]:
        """As in an OpenAPI document."""
        return {
            "type": "integer",
            "default": self.default,
            "minimum": self.low,
            "maximum": self.high,
        }


def fields(
    given: Mapping[str, Any], known: Mapping[str, Whole], *, rows: str | None = None
) -> dict[str, Any]:
    """The fields of a request: ``run`` and the whole numbers it knows. Anything else is refused.

    Args:
        given: without the array.
        known: the whole numbers.
        rows: the array's name, for the message.
    """
    for name in given:
        if name != "run" and name not in known:
            raise Refused(422, unknown("field", name[:40], [*known, "run", *([rows] if rows else [])]))
    run = given.get("run")
    if run is not None and not isinstance(run, str):
        raise Refused(422, f"run is the name of a run as text, got a {type(run).__name__}")
    numbers = {n: w.read(n, given[n]) if n in given else w.default for n, w in known.items()}
    return {"run": run, **numbers}


def from_json(body: bytes) -> dict[str, Any]:
    """The object in a JSON body; NaN and Infinity are no JSON."""
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refused(422, f"the body is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise Refused(422, f"the body is a JSON {type(content).__name__}, expected an object")
    return content


def numbers(content: Any, what: str) -> Array:
    """Nested lists of JSON numbers as an array of float64."""
    if not isinstance(content, list):
        raise Refused(422, f"{what} is a {type(content).__name__}, expected nested lists of numbers")
    try:
        array = np.asarray(content)
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise Refused(422, f"{what} does not become one array: its lists have unlike lengths") from None
    if array.dtype.kind not in "biuf":
        raise Refused(422, f"{what} must hold numbers only, in lists of equal length")
    return array.astype(np.float64)


MAGIC = b"\x93NUMPY"
HEADER = re.compile(
    rb"\{\s*'descr':\s*'([<>|=][a-z][0-9]{1,2})',\s*'fortran_order':\s*(True|False),"
    rb"\s*'shape':\s*\(([0-9, ]{0,100})\),?\s*\}\s*"
)
TYPES = ("<f2", "<f4", "<f8", ">f2", ">f4", ">f8", "|u1", "|b1")
LONGEST_HEADER = 1024


def from_npy(body: bytes) -> Array:
    """The array of a ``.npy`` body, sharing its memory; the header is matched, never evaluated.

    >>> from_npy(to_npy(np.zeros((2, 3), np.float32))).shape
    (2, 3)
    """
    if body[:6] != MAGIC or len(body) < 12 or body[6] not in (1, 2, 3):
        raise Refused(422, "the body is not a .npy file of version 1, 2 or 3")
    wide = 2 if body[6] == 1 else 4
    length = int.from_bytes(body[8 : 8 + wide], "little")
    start = 8 + wide + length
    found = HEADER.fullmatch(body[8 + wide : start]) if length <= LONGEST_HEADER else None
    if found is None:
        raise Refused(422, "the .npy header is damaged, or names objects or fields: give plain numbers")
    name = found[1].decode()
    if name not in TYPES:
        raise Refused(422, f"the .npy file has type {name!r}; expected one of {', '.join(TYPES)}")
    sides = [int(side) for side in found[3].decode().replace(" ", "").split(",") if side]
    kind = np.dtype(name)
    if len(sides) > 8 or math.prod(sides) * kind.itemsize != len(body) - start:
        raise Refused(
            422,
            f"the .npy header says {name} of shape {tuple(sides)[:8]}, "
            f"but {len(body) - start} bytes follow",
        )
    array: Array = np.frombuffer(body, kind, offset=start)
    array = array.reshape(sides, order="F" if found[2] == b"True" else "C")
    if kind.kind == "b":  # a byte other than 0 and 1 is no boolean
        array = array.view(np.uint8) != 0
    return array if kind.isnative else array.astype(kind.newbyteorder("="))


def to_json(content: Any) -> bytes:
    """JSON of plain values and arrays; what is not finite becomes null."""
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


def to_npy(array: Array) -> bytes:
    """A ``.npy`` file."""
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    return file.getvalue()
