"""Limit the memory that requests to the explorer and their answers use.

The module estimates the size of an answer before it is computed, and counts the bytes in memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from recmix.explore.catalogue import ServedRun
from recmix.explore.wire import Limits, Refused

__all__ = ["Account", "Memory", "check_answer", "numbers_in", "numbers_in_texts"]

ACCOUNT = "recmix.account"
"""Key under which the ASGI scope of a request has its `Account`."""
JSON_BYTES = {4: 16, 8: 25}
"""{bytes of a number in memory: largest number of characters in JSON, with the comma after it}."""
DRAWING = 4096
"""Estimated size of a drawing, as a count of numbers in JSON: 64 KiB, at 16 bytes for each number."""
DRAWS = 4
"""How many texts are drawn from p(x | z) at the posterior mean of a text."""


class Memory:
    """Counts the bytes of requests and answers in memory, over all clients and for each client address.

    >>> memory = Memory(Limits(held=100, held_by_client=60))
    >>> first = Account(memory, "10.0.0.1")
    >>> first.add(50)
    >>> Account(memory, "10.0.0.1").add(50)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    recmix.explore.wire.Refused: 50 bytes of this client's requests and answers are held already, ...
    >>> first.close()
    >>> memory.total
    0
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.total = 0
        self.by_client: Counter[str] = Counter()


@dataclass
class Account:
    """The bytes that one request and its answer hold in a `Memory`."""

    memory: Memory  # the `Memory` that counts the bytes of all requests
    client: str  # address of the client
    size: int = 0  # number of bytes counted so far

    def add(self, size: int) -> None:
        """Count `size` more bytes for this request; raise `Refused` if the total is above a limit."""
        memory, limits = self.memory, self.memory.limits
        own = memory.by_client[self.client]
        checks = (
            ("this client's requests and answers", own, limits.held_by_client),
            ("all requests and answers", memory.total, limits.held),
        )
        for whose, held, most in checks:
            if held + size > most:
                raise Refused(
                    429,
                    f"{held} bytes of {whose} are held already, and {size} more are needed, but at "
                    f"most {most} are allowed: read the answers, and try again in a moment",
                )
        self.size += size
        memory.total += size
        memory.by_client[self.client] = own + size

    def close(self) -> None:
        """Stop counting the bytes of this request: its answer is sent, or its client has left."""
        self.memory.total -= self.size
        self.memory.by_client[self.client] -= self.size
        if self.memory.by_client[self.client] <= 0:
            del self.memory.by_client[self.client]
        self.size = 0


def check_answer(numbers: int, *, itemsize: int, npy: bool, most: int) -> int:
    """Return an upper limit for the size of an answer in bytes; raise `Refused` if it is above `most`.

    Args:
        numbers: how many numbers the answer has.
        itemsize: bytes of one number in memory.
        npy: whether the answer is ``.npy`` and not JSON.
        most: largest size that is accepted, in bytes.

    >>> check_answer(100, itemsize=4, npy=False, most=2000)
    1600
    """
    each = itemsize if npy else JSON_BYTES[itemsize]
    if numbers * each > most:
        raise Refused(
            413,
            f"the answer has {numbers} numbers of up to {each} bytes, {numbers * each} bytes in all; "
            f"at most {most} are sent: ask for less at a time, such as fewer examples",
        )
    return numbers * each


def numbers_in(path: str, run: ServedRun, rows: int, fields: Mapping[str, int]) -> int:
    """Estimate how many numbers an answer has. `check_answer` converts the result to bytes.

    Args:
        path: the path of the route, such as ``/decode``.
        run: the model that computes the answer.
        rows: number of examples or latent vectors of the request.
        fields: the integer fields of the request.
    """
    k, d, values = run.components, run.latent, math.prod(run.decoded)
    steps, count, grid = (fields.get(name, 0) for name in ("steps", "count", "grid"))
    if path == "/draw":
        return rows * DRAWING
    if run.vocabulary is not None and path != "/posterior":
        return numbers_in_texts(run, rows * (2 + k) + steps + count + DRAWS)
    estimates = {
        "/posterior": rows * (k + d + 2 * k * d + (k * d * d if run.full else 0)),
        "/reconstruct": rows * (k + (1 + k) * values),
        "/decode": rows * values,
        "/sample": count * (values + d),
        "/interpolate": steps * (values + d),
        "/explain": (2 + k + steps) * (values + 2 * d) + 3 * grid * grid,
    }
    return estimates.get(path, 0)  # other answers are small


def numbers_in_texts(run: ServedRun, texts: int) -> int:
    """Estimate the size of an answer that contains `texts` texts.

    Like `numbers_in`, return a count of numbers: an answer with so many numbers needs as much memory.
    """
    return texts * (2 * math.prod(run.model.spec.shape) + 2 * run.latent + 32)
