"""Stop a grid on Ctrl-C, on SIGTERM, or after a time limit."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Stop", "stopping"]


class Stop:
    """Says whether the runs of a grid must stop, and why.

    ``bool(stop)`` becomes true if `ask` is called or the time limit is reached.

    Args:
        hours: the time limit from now on; None for no limit.

    Attributes:
        why: the reason to stop, in words; empty while the runs need not stop.
        at_once: whether `ask` was called twice, which means to stop without saving.
    """

    def __init__(self, hours: float | None = None) -> None:
        self.why = ""
        self.at_once = False
        self._hours = hours
        self._deadline = math.inf if hours is None else time.monotonic() + 3600 * hours

    def __bool__(self) -> bool:
        if not self.why and time.monotonic() >= self._deadline:
            self.why = f"the limit of {self._hours:g} hours"
        return bool(self.why)

    def ask(self, why: str) -> None:
        """Request that the runs are saved and stopped, for the reason `why`.

        If there was a reason to stop already, request that they stop at once, without saving.
        """
        self.at_once = bool(self.why)
        self.why = self.why or why


@contextmanager
def stopping(hours: float | None = None) -> Iterator[Stop]:
    """Context that yields a `Stop`, which becomes true on SIGINT, on SIGTERM, or after `hours`."""
    stop = Stop(hours)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handler(number: int, frame: Any) -> None:
        stop.ask("Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name)

    before = {s: signal.signal(s, handler) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, old in before.items():
            signal.signal(number, old)
