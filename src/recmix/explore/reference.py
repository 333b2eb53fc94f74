"""Make the reference of the explorer's HTTP interface: an OpenAPI document, and an HTML page of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from recmix.explore.wire import JSON, NPY, Integer

__all__ = ["any_array", "array", "page", "parameters", "request_body", "responses", "text_fields"]

ERRORS = {
    400: "the request is damaged",
    401: "a token is needed",
    403: "the host or the origin is not allowed",
    404: "there is no such run, or its data are not on this machine",
    405: "the path does not have this HTTP method",
    406: "the answer is not a single array, so it cannot be .npy",
    408: "the body arrived too slowly",
    413: "the body or the answer is too large",
    415: "the body is neither JSON nor .npy",
    422: "the content is not what is expected: shape, type, or values that the likelihood excludes",
    429: "too many requests are waiting: try again in a moment",
}


def array(
    axes: Sequence[str],
    *,
    sizes: Mapping[str, int] | None = None,
    limits: tuple[float, float] | None = None,
) -> dict[str, Any]:
    """Make the OpenAPI schema of an array, which is nested lists of numbers in JSON.

    Args:
        axes: names of the axes.
        sizes: {axis: its size}, for the axes of known size. None means that the array is part of an
            answer, in which numbers that are not finite are null.
        limits: smallest and largest value of the numbers; None for no limits.

    >>> array("BD")["description"]
    '(B, D)'
    """
    schema: dict[str, Any] = {"type": "number" if sizes is not None else ["number", "null"]}
    if limits is not None:
        schema |= {"minimum": limits[0], "maximum": limits[1]}
    for axis in reversed(axes):
        schema = {"type": "array", "items": schema}
        if sizes is not None:
            size = sizes.get(axis)
            schema |= {"minItems": 1} if size is None else {"minItems": size, "maxItems": size}
    return {**schema, "description": f"({', '.join(axes)})"}


def any_array(lead: str) -> dict[str, Any]:
    """Make the OpenAPI schema of an array of which only the first axes `lead` are known.

    >>> any_array("B")["description"]
    '(B, ...), see the shape of the run in /runs'
    """
    known = ", ".join([*lead, "..."])
    return {
        "type": "array",
        "description": f"({known}), see the shape of the run in /runs",
    }


def text_fields(names: Sequence[str], most: int, longest: int) -> dict[str, Any]:
    """Make the OpenAPI schemas of the fields ``text`` and ``texts`` of a request, {field: schema}.

    Args:
        names: which of the two fields the request can have.
        most: largest number of texts.
        longest: largest number of characters of a text.

    >>> text_fields(["text"], 8, 100)["text"]["maxLength"]
    100
    """
    text = {"type": "string", "minLength": 1, "maxLength": longest}
    several = {"type": "array", "items": text, "minItems": 1, "maxItems": most}
    about = "for a run of texts, instead of numbers"
    known = {"text": {**text, "description": about}, "texts": {**several, "description": about}}
    return {name: known[name] for name in names}


def request_body(
    arrays: Mapping[str, Any],
    integers: Mapping[str, Integer],
    runs: Sequence[str],
    *,
    texts: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Make the OpenAPI description of the body of a request: JSON, or the array alone as ``.npy``.

    Args:
        arrays: {name of the request's array: its schema}; empty if the request has no array.
        integers: the integer fields of the request, by name.
        runs: names of the runs that the field ``run`` can have.
        texts: the schemas of the fields ``text`` and ``texts``, by name. A request may have one of
            them instead of the array.
    """
    fields = {**arrays, **(texts or {}), **_schemas(integers, runs)}
    schema = _object(fields, required=[] if texts else arrays) | {"additionalProperties": False}
    if texts:
        schema["oneOf"] = [{"required": [name]} for name in (*arrays, *texts)]
    needed = bool(arrays or texts)
    return {"content": _content(schema, npy=bool(arrays)), "required": needed}


def parameters(integers: Mapping[str, Integer], runs: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Make the OpenAPI description of the optional query parameters of a route.

    If `runs` has names of runs, the parameters include ``run``.
    """
    known = _schemas(integers, runs).items()
    return [{"name": n, "in": "query", "required": False, "schema": schema} for n, schema in known]


def responses(
    about: str, fields: Mapping[str, Any], *, npy: bool = False, required: bool = True
) -> dict[int | str, dict[str, Any]]:
    """Make the OpenAPI description of the responses of a route, with all possible errors.

    Args:
        about: description of the successful response.
        fields: {field of the successful response: its schema}.
        npy: whether a client can also get the response as a ``.npy`` file.
        required: whether every successful response has all these fields.
    """
    content = _content(_object(fields, required=fields if required else ["run"]), npy=npy)
    error = _content(_object({"error": {"type": "string"}}, required=["error"]))
    found: dict[int | str, dict[str, Any]] = {200: {"description": about, "content": content}}
    return found | {code: {"description": why, "content": error} for code, why in ERRORS.items()}


def _object(fields: Mapping[str, Any], required: Mapping[str, Any] | Sequence[str]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(fields), "required": list(required)}


def _schemas(integers: Mapping[str, Integer], runs: Sequence[str]) -> dict[str, Any]:
    """Make the OpenAPI schemas of integer fields and, if there are runs, of the field ``run``."""
    known: dict[str, Any] = {
        name: {"type": "integer", "default": i.default, "minimum": i.low, "maximum": i.high}
        for name, i in integers.items()
    }
    if runs:
        about = "Name of the run; by default the first."
        known["run"] = {"type": "string", "enum": list(runs), "description": about}
    return known


def _content(schema: Mapping[str, Any], *, npy: bool = False) -> dict[str, Any]:
    """Describe a body for OpenAPI: JSON with this schema and, if `npy`, also a ``.npy`` file."""
    binary = {NPY: {"schema": {"type": "string", "format": "binary"}}}
    return {JSON: {"schema": schema}, **(binary if npy else {})}


def page(document: Mapping[str, Any]) -> str:
    """Write an OpenAPI document as an HTML page, which loads only one style sheet from the server."""
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>recmix: HTTP</title>"
        "<link rel='icon' href='data:,'><link rel='stylesheet' href='/docs.css'></head>"
        f"<body><h1>HTTP interface</h1><p>{escape(document['info']['description'])}</p>"
        "<p>The same for programs: <a href='/openapi.json'>/openapi.json</a> (OpenAPI).</p>"
    ]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            name, about = escape(f"{method.upper()} {path}"), escape(operation["description"])
            parts.append(f"<details><summary><code>{name}</code> {operation['summary']}</summary>")
            parts.append(f"<p>{about}</p>{_sections(operation)}</details>")
    errors = "".join(f"<li>{code}: {escape(why)}</li>" for code, why in ERRORS.items())
    return "".join([*parts, f"<h2>Errors</h2><ul>{errors}</ul></body></html>"])


def _sections(operation: Mapping[str, Any]) -> str:
    """Write the schemas of a route's parameters, request and answer as HTML."""
    sections = {"in the URL": {p["name"]: p["schema"] for p in operation.get("parameters", ())}}
    contents = {"body": operation.get("requestBody", {}), "answer": operation["responses"]["200"]}
    for title, part in contents.items():
        for kind, form in part.get("content", {}).items():
            sections[f"{title}: {kind}"] = form["schema"]
    shown = {title: json.dumps(s, indent=1, ensure_ascii=False) for title, s in sections.items() if s}
    return "".join(f"<h3>{title}</h3><pre>{escape(text)}</pre>" for title, text in shown.items())
