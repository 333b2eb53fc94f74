"""Templates of the report page. Everything that they print is escaped."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

__all__ = ["environment", "template_text"]

FOLDER = Path(__file__).with_name("templates")


@cache
def environment() -> Environment:
    """Return the Jinja environment of the templates, with escaping switched on."""
    found = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["minus"] = minus
    return found


def minus(text: str) -> str:
    """Replace hyphens by minus signs, which are as wide as a plus.

    >>> minus("-1.5 [-2, +1]")
    '−1.5 [−2, +1]'
    """
    return text.replace("-", "−")


def template_text(name: str) -> str:
    """Return the text of a style sheet or script in the folder of the templates."""
    return (FOLDER / name).read_text(encoding="utf-8")
