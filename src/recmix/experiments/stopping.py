"""When a driver is to stop: Ctrl-C, SIGTERM, or a limit of hours."""

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
    """Whether and why to stop.

    Attributes:
        why: empty until then.
        at_once: it was asked for twice.
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
        """Stop as soon as everything is saved; at once if asked again."""
        self.at_once = bool(self.why)
        self.why = self.why or why


@contextmanager
def stopping(hours: float | None = None) -> Iterator[Stop]:
    """A `Stop` that listens to SIGINT and SIGTERM."""
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
