"""A progress bar in a Jupyter notebook, made with IPython alone."""

from __future__ import annotations

import html
import sys
import time
from typing import Any

__all__ = ["NotebookBar", "in_notebook"]

SECONDS = 0.3
"""Seconds between two updates of the bar."""


def in_notebook() -> bool:
    """Whether the program runs in a Jupyter notebook, which can show HTML.

    >>> in_notebook()
    False
    """
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


class NotebookBar:
    """A progress bar in the output of a Jupyter notebook cell. It needs no widgets.

    Args:
        total: number of epochs or items.
        done: how many of them are already done.
    """

    def __init__(self, title: str, total: int, done: int = 0) -> None:
        from IPython.display import HTML, display  # type: ignore[import-not-found, unused-ignore]

        self.title, self.total, self.first, self.note = title, total, done, ""
        self.start, self.last = time.monotonic(), -SECONDS
        self._html = HTML
        self._shown: Any = display(HTML(self._text(done)), display_id=True)

    def __call__(self, done: float, note: str = "") -> None:
        """Show that `done` epochs or items are done.

        Args:
            done: how many, with a fraction for the epoch that is running.
            note: a short text to show, such as the validation bound.
        """
        self.note = note or self.note
        now = time.monotonic()
        if now - self.last >= SECONDS or (done >= self.total and (note or done == self.total)):
            self.last = now
            self._shown.update(self._html(self._text(done)))

    def _text(self, done: float) -> str:
        seconds = time.monotonic() - self.start
        left = seconds / max(done - self.first, 1e-9) * (self.total - done)
        when = f"{left:.0f} s left" if self.first < done < self.total else f"{seconds:.0f} s"
        words = f"{int(done)}/{self.total} {self.note}".strip()
        return (
            f"{html.escape(self.title)} <progress value='{done:g}' max='{self.total}'></progress> "
            f"{html.escape(words)}, {when}"
        )
