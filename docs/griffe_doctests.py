"""A griffe extension: doctests of a docstring become blocks of code.

Without it, Markdown reads ``>>>`` as a quotation.
"""

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"^( *)>>> .*\n?(?:^\1(?! *$).*\n?)*", re.M)


def fenced(text: str) -> str:
    """The text with a fence around each block that begins with ``>>>``."""

    def block(found: re.Match[str]) -> str:
        margin = found[1]
        return f"\n{margin}```pycon\n{found[0].rstrip()}\n{margin}```\n"

    return DOCTEST.sub(block, text)


class Doctests(griffe.Extension):
    """Fences the doctests of every docstring."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring and ">>>" in obj.docstring.value:
            obj.docstring.value = fenced(obj.docstring.value)
