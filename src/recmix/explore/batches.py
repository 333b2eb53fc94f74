"""Requests that wait at the same time go through the model together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from recmix.explore.wire import Array, Refused

__all__ = ["Batcher"]

Work = Callable[[Array], dict[str, Any]]
"""Rows in; named results out: arrays with a row each, or values that hold for all rows."""


@dataclass(eq=False)
class _Waiting:
    kind: Hashable  # None: it is answered alone
    work: Callable[..., Any]
    rows: Array | None
    answer: asyncio.Future[Any]


class Batcher:
    """One thread for the model, and the requests that wait for it.

    A request is begun at once when the thread is free. While it is busy requests gather; when it is free
    again the oldest goes, and with it all others of its kind (run and operation) up to `most` rows, as
    one forward pass. So nobody waits for company, and the busier the server, the larger its batches.

    Args:
        most: rows of one pass; 0 answers every request by itself.
        queue: requests that may wait; one more is refused with status 429.
        begin: called once in the thread before anything else.

    >>> def double(rows):
    ...     return {"twice": 2 * rows, "of": len(rows)}
    >>> async def ask():
    ...     batcher = Batcher()
    ...     found = await batcher.rows("double", double, np.ones((1, 2)))
    ...     batcher.close()
    ...     return found
    >>> asyncio.run(ask())["twice"]
    array([[2., 2.]])
    """

    def __init__(
        self, *, most: int = 128, queue: int = 256, begin: Callable[[], None] = lambda: None
    ) -> None:
        self.most = most
        self.queue = queue
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model", initializer=begin)
        self._waiting: deque[_Waiting] = deque()
        self._busy = False
        self.passes = 0
        self.answered = 0

    async def rows(self, kind: Hashable, work: Work, rows: Array) -> dict[str, Any]:
        """What `work` makes of these rows, perhaps together with others of this kind."""
        found: dict[str, Any] = await self._ask(kind, work, rows)
        return found

    async def alone(self, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What `work` gives, in the model's thread."""
        found: dict[str, Any] = await self._ask(None, work, None)
        return found

    def close(self) -> None:
        """Wait for what is being computed, and stop the thread."""
        self._thread.shutdown(wait=True)

    def state(self) -> dict[str, int]:
        """How many wait, have been answered, and in how many passes."""
        return {"waiting": len(self._waiting), "answered": self.answered, "passes": self.passes}

    def _ask(self, kind: Hashable, work: Callable[..., Any], rows: Array | None) -> asyncio.Future[Any]:
        if len(self._waiting) >= self.queue:
            raise Refused(429, f"{self.queue} requests wait already: try again in a moment")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(kind, work, rows, answer))
        if not self._busy:
            self._next()
        return answer

    def _next(self) -> None:
        """Begin the next pass, if anyone waits."""
        group = self._take()
        self._busy = bool(group)
        if not group:
            return
        loop = asyncio.get_running_loop()
        self.passes += 1
        done = loop.run_in_executor(self._thread, _compute, group)
        done.add_done_callback(lambda passed: self._finish(group, passed))

    def _take(self) -> list[_Waiting]:
        """The oldest request that someone still wants, and those that can go with it."""
        while self._waiting and self._waiting[0].answer.done():  # its client went away
            self._waiting.popleft()
        if not self._waiting:
            return []
        first = self._waiting.popleft()
        group = [first]
        if first.kind is None or first.rows is None or not self._waiting:
            return group
        count = len(first.rows)
        left: deque[_Waiting] = deque()
        for one in self._waiting:
            fits = one.kind == first.kind and one.rows is not None and count + len(one.rows) <= self.most
            if fits and not one.answer.done() and one.rows is not None:
                group.append(one)
                count += len(one.rows)
            else:
                left.append(one)
        self._waiting = left
        return group

    def _finish(self, group: list[_Waiting], passed: asyncio.Future[list[Any]]) -> None:
        self._next()
        error = passed.exception()
        answers = [None] * len(group) if error is not None else passed.result()
        for one, found in zip(group, answers, strict=True):
            self.answered += 1
            if one.answer.done():
                continue
            if error is None:
                one.answer.set_result(found)
            else:
                one.answer.set_exception(error)


def _compute(group: list[_Waiting]) -> list[Any]:
    first = group[0]
    if first.rows is None:
        return [first.work()]
    if len(group) == 1:
        return [first.work(first.rows)]
    counts = [len(one.rows) for one in group if one.rows is not None]
    whole = first.work(np.concatenate([one.rows for one in group if one.rows is not None]))
    ends = np.cumsum(counts).tolist()
    return [
        {
            name: value[end - count : end] if isinstance(value, np.ndarray) else value
            for name, value in whole.items()
        }
        for count, end in zip(counts, ends, strict=True)
    ]
