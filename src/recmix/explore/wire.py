"""Read the HTTP requests of the explorer and write its responses, as JSON or ``.npy``.

No content of a request is unpickled or evaluated as Python.
"""

from __future__ import annotations

import io
import math
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from fastapi import FastAPI, Request, Response
from numpy.typing import NDArray
from starlette.exceptions import HTTPException

from recmix.errors import RecmixError, unknown

__all__ = ["JSON", "NPY", "Array", "Integer", "Limits", "Refused", "Texts", "from_npy", "to_json"]
__all__ += ["TEXT_FIELDS", "add_error_handlers", "read_fields", "read_request", "respond", "to_npy"]
__all__ += ["wants_npy"]

Array = NDArray[Any]
JSON = "application/json"
NPY = "application/x-npy"
TEXT_FIELDS = {"images": ("texts", "text"), "image": ("text",), "texts": ("texts", "text")}
TEXT_FIELDS["text"] = ("text",)
"""{field that a route takes: fields for texts, which requests to a model of texts have instead}."""


class Refused(RecmixError):
    """Raised when a request is not answered; the client gets the HTTP `status` and the message.

    >>> Refused(413, "too large").status
    413
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of the explorer's server: sizes, numbers and times.

    A request beyond a limit gets an error response.
    """

    body: int = 16 * 2**20  # bytes of one request
    answer: int = 128 * 2**20  # estimated bytes of one answer
    held: int = 512 * 2**20  # bytes of all requests and answers that are not yet sent completely
    held_by_client: int = 256 * 2**20  # the same for the requests of one client address
    seconds: float = 30.0  # time in which the body of a request must arrive
    queue: int = 256  # number of requests that may wait for the model
    images: int = 1024  # examples, latent vectors or prior samples of one request
    texts: int = 64  # texts of one request
    characters: int = 2000  # of one text
    searched: int = 1000  # test texts among which /neighbours searches
    neighbours: int = 50  # of one text
    samples: int = 10_000  # K of IWAE-K
    decodings: int = 100_000  # number of examples times number of samples, of one request to /score
    steps: int = 8  # Gauss-Newton steps of /explain
    grid: int = 120  # points along each side of the plane of /explain
    path: int = 64  # points of /interpolate


class Texts(tuple[str, ...]):
    """The texts in a request to the explorer, for a model whose examples are texts and not arrays.

    >>> Texts(["the cat"])
    ('the cat',)
    """

    __slots__ = ()


@dataclass(frozen=True)
class Integer:
    """An integer field of a request: its default, and its smallest and largest value.

    >>> Integer(100, low=1, high=1000).read("samples", "20")
    20
    """

    default: int
    low: int
    high: int

    def read(self, name: str, given: Any) -> int:
        """Return the value of the field `name` as an integer; raise `Refused` if it is not valid.

        The value `given` is a number from JSON or a text from the URL.
        """
        if isinstance(given, str) and re.fullmatch(r"-?[0-9]{1,20}", given):
            given = int(given)
        if isinstance(given, bool) or not isinstance(given, int) or not self.low <= given <= self.high:
            shown = reprlib.repr(given)
            raise Refused(422, f"{name} is a whole number from {self.low} to {self.high}, got {shown}")
        return given


async def read_request(
    request: Request, array: str | None, known: Mapping[str, Integer]
) -> tuple[dict[str, Any], Any]:
    """Read the fields of a request, and its array or its texts.

    A JSON body contains all of them. A ``.npy`` body contains only the array. The other fields are then
    in the URL.

    Args:
        request: the request.
        array: name of the field that holds the array; None if the request has no array. Instead of
            ``images`` and ``image`` a request can have the fields ``texts`` and ``text``.
        known: the integer fields that the request can have, by name.

    Returns:
        The fields (``run`` and the integer fields) as {name: value}, and the array, the `Texts`, or
        None if the request has neither.
    """
    kind = request.headers.get("content-type", JSON).split(";")[0].strip().lower()
    content = await request.body()
    given: dict[str, Any] = dict(request.query_params)
    given.pop("token", None)
    if kind == NPY and array is not None and array not in ("text", "texts"):
        return read_fields(given, known, array), from_npy(content)
    if kind != JSON and content:
        expected = JSON if array is None else f"{JSON} or {NPY}"
        raise Refused(415, f"the body is {kind[:80]!r}; expected {expected}")
    given |= _from_json(content) if content else {}
    if array is None:
        return read_fields(given, known), None
    names = [name for name in (array, *TEXT_FIELDS.get(array, ())) if name in given]
    if len(set(names)) > 1:
        raise Refused(422, f"the fields {' and '.join(map(repr, names))} were given: give one of them")
    if not names:
        form = "text" if array in ("text", "texts") else "nested lists of numbers"
        raise Refused(422, f"the field {array!r} is missing: give it as {form}")
    if names[0] in ("text", "texts"):
        texts = _to_texts(given.pop(names[0]), names[0])
        return read_fields(given, known, array), texts
    found = _to_array(given.pop(array), array)
    return read_fields(given, known, array), found


def read_fields(
    given: Mapping[str, Any], known: Mapping[str, Integer], array: str | None = None
) -> dict[str, Any]:
    """Check the fields of a request, except its array, and fill in the defaults.

    Args:
        given: the fields. Only ``run`` and the fields in `known` are accepted.
        known: the integer fields that the request can have, by name.
        array: name of the field that holds the array, for the error message.

    Returns:
        The fields as {name: value}: ``run``, which is None if it is not given, and all integer fields.
    """
    for name in given:
        if name != "run" and name not in known:
            raise Refused(422, unknown("field", name[:40], filter(None, [*known, "run", array])))
    run = given.get("run")
    if run is not None and not isinstance(run, str):
        raise Refused(422, f"run is the name of a run as text, got a {type(run).__name__}")
    return {"run": run, **{n: i.read(n, given.get(n, i.default)) for n, i in known.items()}}


def _from_json(body: bytes) -> dict[str, Any]:
    """Parse a JSON body. Raise `Refused` if it is not a JSON object, or contains NaN or Infinity."""
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refused(422, f"the body is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise Refused(422, f"the body is a JSON {type(content).__name__}, expected an object")
    return content


def _to_texts(content: Any, name: str) -> Texts:
    """Return the texts in the content of the field `name`; raise `Refused` if the content is not valid.

    The field ``text`` has one string, the field ``texts`` a list of strings.
    """
    texts = [content] if name == "text" else content
    if not isinstance(texts, list) or not texts or not all(isinstance(one, str) for one in texts):
        expected = "a text" if name == "text" else "a list of one text or more"
        shown = reprlib.repr(content)
        raise Refused(422, f"{name} is {shown}, expected {expected}")
    return Texts(texts)


def _to_array(content: Any, name: str) -> Array:
    """Convert the content of the field `name` to a float64 array.

    Raise `Refused` if the content is not nested lists of numbers.
    """
    if not isinstance(content, list):
        raise Refused(422, f"{name} is a {type(content).__name__}, expected nested lists of numbers")
    try:
        array = np.asarray(content)
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise Refused(422, f"{name} is not one array: its lists have different lengths") from None
    if array.dtype.kind not in "biuf":
        raise Refused(422, f"{name} must hold numbers only, in lists of equal length")
    return array.astype(np.float64)


HEADER = re.compile(
    rb"\{\s*'descr':\s*'([<>|=][a-z][0-9]{1,2})',\s*'fortran_order':\s*(True|False),"
    rb"\s*'shape':\s*\(([0-9, ]{0,100})\),?\s*\}\s*"
)
TYPES = ("<f2", "<f4", "<f8", ">f2", ">f4", ">f8", "|u1", "|b1")
LONGEST_HEADER = 1024


def from_npy(body: bytes) -> Array:
    """Read the array from the content of a ``.npy`` file.

    A regular expression reads the header, because numpy would evaluate the header as Python. If
    possible, the array uses the memory of `body` instead of a copy.

    >>> from_npy(to_npy(np.zeros((2, 3), np.float32))).shape
    (2, 3)
    """
    if body[:6] != b"\x93NUMPY" or len(body) < 12 or body[6] not in (1, 2, 3):
        raise Refused(422, "the body is not a .npy file of version 1, 2 or 3")
    begin = 10 if body[6] == 1 else 12
    length = int.from_bytes(body[8:begin], "little")
    start = begin + length
    found = HEADER.fullmatch(body[begin:start]) if length <= LONGEST_HEADER else None
    if found is None:
        raise Refused(422, "the .npy header is damaged, or names objects or fields: give plain numbers")
    name = found[1].decode()
    if name not in TYPES:
        raise Refused(422, f"the .npy file has type {name!r}; expected one of {', '.join(TYPES)}")
    shape = tuple(int(side) for side in found[3].decode().replace(" ", "").split(",") if side)
    kind, bytes_left = np.dtype(name), len(body) - start
    if 0 in shape:  # the other sides could be larger than numpy can represent
        raise Refused(422, "the .npy header says that a side is 0, so there are no numbers: give some")
    if len(shape) > 8 or math.prod(shape) * kind.itemsize != bytes_left:
        about = f"{name} of shape {shape[:8]}"
        raise Refused(422, f"the .npy header says {about}, but {bytes_left} bytes follow")
    array: Array = np.frombuffer(body, kind, offset=start)
    array = array.reshape(shape, order="F" if found[2] == b"True" else "C")
    if kind.kind == "b":  # a byte other than 0 and 1 is not a valid boolean
        array = array.view(np.uint8) != 0
    return array if kind.isnative else array.astype(kind.newbyteorder("="))


def to_json(content: Any) -> bytes:
    """Write plain values and numpy arrays as JSON; numbers that are not finite become null."""
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


def to_npy(array: Array) -> bytes:
    """Write an array as the content of a ``.npy`` file."""
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    return file.getvalue()


def wants_npy(request: Request) -> bool:
    """Whether the header Accept of a request names ``.npy``."""
    return NPY in request.headers.get("accept", "")


def respond(
    request: Request, found: Mapping[str, Any], *, run: str | None = None, array: str | None = None
) -> Response:
    """Make the response to a request, as JSON or ``.npy``.

    Args:
        request: the request. If its header Accept names ``.npy``, the response is ``.npy``.
        found: the fields of the answer, {name: value}.
        run: name of the run that computed the answer; it is added to the JSON.
        array: the field of `found` that is sent as ``.npy``. If it is None, a request for ``.npy``
            raises `Refused`.
    """
    if wants_npy(request):
        if array is None:
            raise Refused(406, f"this answer is not a single array: accept {JSON} instead of {NPY}")
        return Response(to_npy(found[array]), media_type=NPY)
    return Response(to_json(found if run is None else {"run": run, **found}), media_type=JSON)


def add_error_handlers(app: FastAPI) -> None:
    """Make the application answer every error with JSON that has one field, ``error``."""

    async def send_error(request: Request, error: Exception) -> Response:
        status, message, headers = getattr(error, "status", 422), str(error), None
        if isinstance(error, HTTPException):
            status, headers = error.status_code, error.headers
            where = f"{request.method} {request.url.path[:200]}"
            message = f"{error.detail}: {where}; /docs lists all paths"
        elif status == 429:
            headers = {"retry-after": "1"}
        return Response(to_json({"error": message}), status, headers, JSON)

    app.add_exception_handler(RecmixError, send_error)
    app.add_exception_handler(HTTPException, send_error)
