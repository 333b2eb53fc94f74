"""Read the style sheet and the script that the report page and the explorer page share."""

from __future__ import annotations

from importlib.resources import files

__all__ = ["SHARED", "shared_text"]

SHARED = ("base.css", "dom.js")
"""Names of the shared files."""


def shared_text(name: str) -> str:
    """Return the text of a file that the report page and the explorer page both use.

    Args:
        name: name of the file, one of `SHARED`.

    >>> "color-scheme" in shared_text("base.css")
    True
    """
    return (files(__name__) / name).read_text(encoding="utf-8")
