"""Compute the answers to HTTP requests that wait at the same time, in one batch of the model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from recmix.explore.wire import Array, Refused

__all__ = ["Batcher"]

Answer = dict[str, Any]


@dataclass(eq=False)
class _Waiting:
    kind: Hashable  # None: it is computed alone
    work: Callable[..., Answer]
    rows: Array
    answer: asyncio.Future[Answer]
    turn: float  # the smallest is computed first


class Batcher:
    """Computes requests in one thread, and joins waiting requests into batches.

    A request has rows (examples or latent vectors) and a kind (its run and its operation). When the
    thread is free, it takes the waiting request with the smallest `turn`. It computes other waiting
    requests of the same kind in the same forward pass, up to `most` rows in all.

    The turn of a new request is its cost plus the turn of the request that was started last. The cost
    is the expected computing time in units of one row. So a cheap request can start before an
    expensive one, but an expensive one does not wait for ever (self-clocked fair queueing).

    Args:
        most: largest number of rows in one pass of several requests; 0 computes each request alone.
        queue: number of requests that may wait. If there is one more, the request with the largest
            turn gets an error response with HTTP status 429.
        begin: function that is called once in the thread, before all requests.

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
        self._waiting: list[_Waiting] = []
        self._busy = False
        self._turn = 0.0  # of the request that was started last
        self.passes = 0
        self.answered = 0

    async def rows(
        self, kind: Hashable, work: Callable[[Array], Answer], rows: Array, *, cost: float | None = None
    ) -> Answer:
        """Return ``work(rows)``, possibly computed in one call with other requests of this kind.

        Args:
            kind: requests of equal kind may be joined in one call, so they must have the same `work`.
                A request whose kind is None is computed alone.
            work: function that computes an answer {name: value} in the model's thread. Arrays in the
                answer have one row for each row of `rows`; other values hold for all rows.
            rows: examples or latent vectors of this request, one per row.
            cost: expected computing time in units of one row; by default the number of rows.
        """
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        turn = self._turn + (len(rows) if cost is None else cost)
        self._waiting.append(_Waiting(kind, work, rows, answer, turn))
        if not self._busy:
            self._start()
        elif len(self._waiting) > self.queue:
            self._refuse_one()
        return await answer

    async def alone(self, work: Callable[[], Answer], *, cost: float = 1) -> Answer:
        """Return ``work()``, computed in the model's thread and not joined with other requests.

        The expected computing time `cost` is in units of one row (example) of other requests.
        """
        return await self.rows(None, lambda _: work(), np.empty(0), cost=cost)

    def close(self) -> None:
        """Wait until the current forward pass is finished, and stop the model's thread."""
        self._thread.shutdown(wait=True)

    def state(self) -> dict[str, int]:
        """Return the numbers of waiting requests, of answered requests and of forward passes."""
        return {"waiting": len(self._waiting), "answered": self.answered, "passes": self.passes}

    def _start(self) -> None:
        """Start the next forward pass in the model's thread, if a request waits."""
        group = self._take()
        self._busy = bool(group)
        if group:
            self.passes += 1
            done = asyncio.get_running_loop().run_in_executor(self._thread, _compute, group)
            done.add_done_callback(lambda passed: self._finish(group, passed))

    def _refuse_one(self) -> None:
        """Remove one waiting request and answer it with the error HTTP status 429.

        It is the request that would be computed last: the one with the largest `turn`, see `Batcher`. If
        several requests have this turn, the newest of them is removed.
        """
        last = max(reversed(self._waiting), key=lambda one: one.turn)
        self._waiting.remove(last)
        if not last.answer.done():
            message = f"{self.queue} requests are waiting already: try again in a moment"
            last.answer.set_exception(Refused(429, message))

    def _take(self) -> list[_Waiting]:
        """Remove and return the next waiting request, and the requests that are computed with it.

        Requests whose clients have disconnected are removed too, but not returned.
        """
        rest = [one for one in self._waiting if not one.answer.done()]  # the client is still there
        group = []
        if rest:
            group = [min(rest, key=lambda one: one.turn)]  # of equal ones the oldest
            rest.remove(group[0])
            self._turn = max(self._turn, group[0].turn)
        self._waiting = []
        count = sum(len(one.rows) for one in group)
        for one in rest:
            fits = one.kind is not None and one.kind == group[0].kind
            if fits and count + len(one.rows) <= self.most:
                group.append(one)
                count += len(one.rows)
            else:
                self._waiting.append(one)
        return group

    def _finish(self, group: list[_Waiting], passed: asyncio.Future[list[Answer]]) -> None:
        self._start()
        self.answered += len(group)
        error = passed.exception()
        for i, one in enumerate(group):
            if one.answer.done():
                continue
            if error is None:
                one.answer.set_result(passed.result()[i])
            else:
                one.answer.set_exception(error)


def _compute(group: list[_Waiting]) -> list[Answer]:
    """Compute the answers of requests of the same kind with one call of their function `work`."""
    work = group[0].work
    if len(group) == 1:
        return [work(group[0].rows)]
    whole = work(np.concatenate([one.rows for one in group]))
    ends = np.cumsum([len(one.rows) for one in group]).tolist()
    return [
        {
            name: value[end - len(one.rows) : end] if isinstance(value, np.ndarray) else value
            for name, value in whole.items()
        }
        for one, end in zip(group, ends, strict=True)
    ]
