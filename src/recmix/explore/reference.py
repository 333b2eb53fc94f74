"""The interface described: parts of its OpenAPI document, and that document as a page."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

from recmix.explore.wire import JSON, NPY, Whole

__all__ = ["REFUSALS", "array", "body", "gives", "page", "parameters"]

ERROR = {
    "type": "object",
    "properties": {"error": {"type": "string"}},
    "required": ["error"],
}
REFUSALS = {
    400: "the request is damaged",
    401: "a token is needed",
    403: "another host or origin than this server's",
    404: "there is no such run, or its data are not here",
    405: "another method is needed",
    406: "the answer is not one array and cannot be .npy",
    408: "the body came too slowly",
    413: "the body is too large",
    415: "neither JSON nor .npy",
    422: "the content is not what is expected",
    429: "too many requests wait: try again in a moment",
}


def array(
    *axes: str, sizes: Mapping[str, int] | None = None, between: tuple[float, float] | None = None
) -> dict[str, Any]:
    """Nested lists of numbers with these axes.

    Args:
        axes: their names, the outermost first.
        sizes: how long they are, where that is known.
        between: the range of the numbers, where there is one.
    """
    schema: dict[str, Any] = {"type": "number"}
    if between is not None:
        schema |= {"minimum": between[0], "maximum": between[1]}
    for axis in reversed(axes):
        schema = {"type": "array", "items": schema}
        if sizes is not None:
            size = sizes.get(axis)
            schema |= {"minItems": 1} if size is None else {"minItems": size, "maxItems": size}
    return {**schema, "description": f"({', '.join(axes)})"}


def run_names(names: Sequence[str]) -> dict[str, Any]:
    """The field by which a run is chosen."""
    about = "Name of the run; by default the first."
    return {"type": "string", "enum": list(names), "description": about}


def body(
    rows: Mapping[str, Any], numbers: Mapping[str, Whole], runs: Sequence[str], *, npy: bool
) -> dict[str, Any]:
    """The body of a request: an object with these fields, or the array alone as ``.npy``."""
    known = {name: whole.schema() for name, whole in numbers.items()}
    schema = {
        "type": "object",
        "properties": {**rows, **known, "run": run_names(runs)},
        "required": list(rows),
        "additionalProperties": False,
    }
    content: dict[str, Any] = {JSON: {"schema": schema}}
    if npy:
        content[NPY] = {"schema": {"type": "string", "format": "binary"}}
    return {"content": content, "required": bool(rows)}


def parameters(numbers: Mapping[str, Whole], runs: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The same fields in the address, for ``.npy`` bodies."""
    known = {name: whole.schema() for name, whole in numbers.items()}
    if runs:
        known["run"] = run_names(runs)
    return [
        {"name": name, "in": "query", "required": False, "schema": schema}
        for name, schema in known.items()
    ]


def gives(
    about: str, fields: Mapping[str, Any], *, npy: bool = False
) -> dict[int | str, dict[str, Any]]:
    """The answers of a route: an object with these fields, or a refusal."""
    schema = {"type": "object", "properties": dict(fields), "required": list(fields)}
    content: dict[str, Any] = {JSON: {"schema": schema}}
    if npy:
        content[NPY] = {"schema": {"type": "string", "format": "binary"}}
    answers: dict[int | str, dict[str, Any]] = {200: {"description": about, "content": content}}
    for status, why in REFUSALS.items():
        answers[status] = {"description": why, "content": {JSON: {"schema": ERROR}}}
    return answers


def page(document: Mapping[str, Any]) -> str:
    """An OpenAPI document as HTML; it loads one style sheet of this server and nothing else."""
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>recmix: HTTP</title>"
        "<link rel='icon' href='data:,'><link rel='stylesheet' href='/docs.css'></head>"
        "<body><h1>HTTP interface</h1>",
        f"<p>{_text(document['info'].get('description', ''))}</p>",
        "<p>The same for programs: <a href='/openapi.json'>/openapi.json</a> (OpenAPI).</p>",
    ]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts.append(_operation(path, method, operation))
    return "".join([*parts, "</body></html>"])


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> str:
    parts = [
        f"<details><summary><code>{method.upper()} {_text(path)}</code> "
        f"{_text(operation.get('summary', ''))}</summary>",
        f"<p>{_text(operation.get('description', ''))}</p>",
    ]
    if given := operation.get("parameters"):
        rows = [f"<li><code>{_text(p['name'])}</code> {_text(_short(p['schema']))}</li>" for p in given]
        parts.append(f"<h3>in the address</h3><ul>{''.join(rows)}</ul>")
    if request := operation.get("requestBody"):
        parts += [_content("body", kind, form) for kind, form in request["content"].items()]
    for status, answer in operation.get("responses", {}).items():
        if str(status) == "200":
            parts += [_content("answer", kind, form) for kind, form in answer.get("content", {}).items()]
    refusals = [
        f"<li>{_text(status)}: {_text(answer['description'])}</li>"
        for status, answer in operation.get("responses", {}).items()
        if str(status) != "200"
    ]
    parts.append(f"<h3>refusals</h3><ul>{''.join(refusals)}</ul></details>")
    return "".join(parts)


def _content(what: str, kind: str, form: Mapping[str, Any]) -> str:
    shown = json.dumps(form.get("schema", {}), indent=1, ensure_ascii=False)
    return f"<h3>{what}: {_text(kind)}</h3><pre>{_text(shown)}</pre>"


def _short(schema: Mapping[str, Any]) -> str:
    said = schema.get("description") or schema.get("type", "")
    if "minimum" in schema:
        default = f", {schema['default']} by default" if "default" in schema else ""
        said = f"{schema['minimum']} to {schema['maximum']}{default}"
    return str(said)


def _text(content: object) -> str:
    return html.escape(str(content))
