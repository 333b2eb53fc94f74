"""The templates of the report page, with everything escaped that comes from a store."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

__all__ = ["environment", "source"]

FOLDER = Path(__file__).with_name("templates")


@cache
def environment() -> Environment:
    """Where templates are found; what they print is escaped."""
    made = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["minus"] = minus
    return made


def minus(text: str) -> str:
    """Numbers with the sign that is as wide as a plus.

    >>> minus("-1.5 [-2, +1]")
    '−1.5 [−2, +1]'
    """
    return text.replace("-", "−")


def source(name: str) -> str:
    """The text of a style sheet or script of the page."""
    return (FOLDER / name).read_text(encoding="utf-8")
