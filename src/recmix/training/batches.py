"""Make batches of examples on a device.

The examples are stored on the device if they fit there. Otherwise each batch is copied when needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from recmix.data import ArrayExamples, Examples

__all__ = ["Batches", "mix"]

AHEAD = 4
"""Number of batches that streaming reads in advance."""


class Batches:
    """Makes batches of examples, as float tensors on a device; uint8 values become value / 255.

    If the examples are one array in memory that fits on the device, the whole array is copied there
    (as uint8 or float), and batches are selected on the device. Otherwise threads read the next
    batches in advance.

    Args:
        examples: the data set, N examples (N, ...).
        binarise: whether the caller samples each pixel from a Bernoulli with its grey value as the
            mean. This class does no sampling: it only stores the flag.
    """

    def __init__(
        self,
        examples: Examples,
        *,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        binarise: bool = False,
    ) -> None:
        self.examples = examples
        self.device = device
        self.dtype = dtype
        self.binarise = binarise
        self._stored: Tensor | None = None
        if isinstance(examples, ArrayExamples):
            raw = torch.from_numpy(np.ascontiguousarray(examples.raw))
            if _fits(raw, device):
                self._stored = raw.to(device)

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def resident(self) -> bool:
        """Whether all examples are on the device."""
        return self._stored is not None

    def steps(self, batch_size: int) -> int:
        """Number of full batches of `batch_size` examples in an epoch; 1 if there are fewer examples."""
        return len(self) // min(batch_size, len(self))

    def order(self, batch_size: int, *, seed: int, epoch: int) -> Tensor:
        """Return the random example indices of each batch of an epoch, (steps, batch).

        The indices depend only on `seed` and `epoch`. Every batch is full, so a few examples can be
        left out of an epoch. Which ones are left out changes from epoch to epoch.
        """
        generator = torch.Generator().manual_seed(mix(seed, epoch))
        size = min(batch_size, len(self))
        return torch.randperm(len(self), generator=generator)[: self.steps(batch_size) * size].view(
            -1, size
        )

    def take(self, rows: Tensor) -> Tensor:
        """Return the examples with the indices `rows` (B,), as (B, ...).

        All examples must be on the device; see `resident`.
        """
        assert self._stored is not None
        return self._as_float(self._stored.index_select(0, rows))

    def stream(self, order: Iterable[Tensor]) -> Iterator[Tensor]:
        """Yield the batches of an epoch, (B, ...) each. Threads read them in advance.

        Args:
            order: the example indices of each batch, (B,) each.
        """
        with ThreadPoolExecutor(max_workers=AHEAD) as pool:
            waiting: deque[Future[np.ndarray]] = deque()
            try:
                for rows in order:
                    waiting.append(pool.submit(self.examples.__getitem__, rows.numpy()))
                    if len(waiting) > AHEAD:
                        yield self._as_float(torch.from_numpy(waiting.popleft().result()))
                while waiting:
                    yield self._as_float(torch.from_numpy(waiting.popleft().result()))
            finally:
                for future in waiting:
                    future.cancel()

    def in_order(self, batch_size: int) -> Iterator[Tensor]:
        """Return batches of all examples in their stored order; the last batch may be smaller."""
        return self.read(torch.arange(len(self)).split(batch_size))

    def read(self, order: Iterable[Tensor]) -> Iterator[Tensor]:
        """Return the batches, (B, ...) each, from the device or, if they are not there, by streaming.

        Args:
            order: the example indices of each batch, (B,) each.
        """
        if self.resident:
            return (self.take(rows.to(self.device)) for rows in order)
        return self.stream(order)

    def _as_float(self, rows: Tensor) -> Tensor:
        x = rows.to(self.device, self.dtype)
        return x / 255 if rows.dtype == torch.uint8 else x


def _fits(examples: Tensor, device: torch.device) -> bool:
    """Whether the examples need less than half of the free memory of a GPU; always true on a CPU."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return examples.numel() * examples.element_size() < free // 2


def mix(*numbers: int) -> int:
    """Combine several whole numbers to one 63-bit seed; similar numbers give unrelated seeds."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))
