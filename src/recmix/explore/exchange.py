"""Reading a request and sending its answer, in JSON or ``.npy`` as the client likes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from recmix.errors import RecmixError
from recmix.explore.wire import (
    JSON,
    NPY,
    Array,
    Refused,
    Whole,
    fields,
    from_json,
    from_npy,
    numbers,
    to_json,
    to_npy,
)

__all__ = ["add_refusals", "asked", "few", "send"]


async def asked(
    request: Request, rows: str | None, known: Mapping[str, Whole]
) -> tuple[dict[str, Any], Any]:
    """The fields of a request, and its array if it has one, from JSON or ``.npy`` and the address."""
    kind = request.headers.get("content-type", JSON).split(";")[0].strip().lower()
    content = await request.body()
    query: dict[str, Any] = dict(request.query_params)
    query.pop("token", None)
    if kind == NPY and rows is not None:
        return fields(query, known, rows=rows), from_npy(content)
    if kind != JSON and content:
        raise Refused(
            415, f"the body is {kind[:80]!r}; expected {JSON}" + (f" or {NPY}" if rows else "")
        )
    given = from_json(content) if content else {}
    if rows is None:
        return fields({**query, **given}, known), None
    if rows not in given:
        raise Refused(422, f"the field {rows!r} is missing: give it as nested lists of numbers")
    found = numbers(given.pop(rows), rows)
    return fields({**query, **given}, known, rows=rows), found


def few(rows: Array, most: int, what: str) -> Array:
    """These rows, refused if they are too many."""
    if rows.ndim and len(rows) > most:
        raise Refused(413, f"{len(rows)} {what} are too many: at most {most} at a time")
    return rows


def send(
    request: Request, run: str | None, found: Mapping[str, Any], single: str | None = None
) -> Response:
    """An answer as JSON, or its one array as ``.npy`` where that is what the request accepts."""
    if NPY in request.headers.get("accept", ""):
        if single is None:
            raise Refused(406, f"this answer is not one array: ask for {JSON}")
        return Response(to_npy(found[single]), media_type=NPY)
    return Response(to_json({"run": run, **found} if run is not None else found), media_type=JSON)


def add_refusals(app: FastAPI) -> None:
    """Every refusal is JSON with one field, ``error``."""

    async def refuse(_request: Request, error: Exception) -> Response:
        status = error.status if isinstance(error, Refused) else 422
        headers = {"retry-after": "1"} if status == 429 else None
        return Response(to_json({"error": str(error)}), status, headers, JSON)

    async def missing(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = f"{error.detail}: {request.method} {request.url.path[:200]}; /docs lists what there is"
        return Response(to_json({"error": message}), error.status_code, error.headers, JSON)

    app.add_exception_handler(RecmixError, refuse)
    app.add_exception_handler(RequestValidationError, refuse)
    app.add_exception_handler(HTTPException, missing)
