"""Images on their way to the device: resident where they fit, streamed where they do not."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from recmix.data import ArrayImages, Images

__all__ = ["Batches", "mix"]

AHEAD = 4
"""Batches that streaming reads in advance."""


class Batches:
    """Batches of one set of images as float tensors in [0, 1] on a device.

    In-memory images live on the device in their stored form (uint8 where they came so) and are gathered
    there; others are read by threads ahead of their use.

    Args:
        images: the images.
        device: where batches are wanted.
        dtype: of the batches.
        binarise: each pixel is to be drawn afresh from a Bernoulli of its grey value (by the user).
    """

    def __init__(
        self,
        images: Images,
        *,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        binarise: bool = False,
    ) -> None:
        self.images = images
        self.device = device
        self.dtype = dtype
        self.binarise = binarise
        self._here: Tensor | None = None
        if isinstance(images, ArrayImages):
            raw = torch.from_numpy(np.ascontiguousarray(images.raw))
            if _fits(raw, device):
                self._here = raw.to(device)

    def __len__(self) -> int:
        return len(self.images)

    @property
    def resident(self) -> bool:
        """Whether the images live on the device."""
        return self._here is not None

    def steps(self, batch_size: int) -> int:
        """Batches in an epoch."""
        return len(self) // min(batch_size, len(self))

    def order(self, batch_size: int, *, seed: int, epoch: int) -> Tensor:
        """The images of each batch of an epoch, (steps, batch): a function of (seed, epoch) alone.

        Every batch is full: what is left over at the end of one epoch comes earlier in another.
        """
        generator = torch.Generator().manual_seed(mix(seed, epoch))
        size = min(batch_size, len(self))
        return torch.randperm(len(self), generator=generator)[: self.steps(batch_size) * size].view(
            -1, size
        )

    def take(self, rows: Tensor) -> Tensor:
        """The images of these numbers, which live on the device."""
        assert self._here is not None
        return self._as_float(self._here.index_select(0, rows))

    def stream(self, order: Iterable[Tensor]) -> Iterator[Tensor]:
        """One batch after the other, read ahead by threads."""
        with ThreadPoolExecutor(max_workers=AHEAD) as pool:
            waiting: deque[Future[np.ndarray]] = deque()
            try:
                for rows in order:
                    waiting.append(pool.submit(self.images.__getitem__, rows.numpy()))
                    if len(waiting) > AHEAD:
                        yield self._as_float(torch.from_numpy(waiting.popleft().result()))
                while waiting:
                    yield self._as_float(torch.from_numpy(waiting.popleft().result()))
            finally:
                for future in waiting:
                    future.cancel()

    def in_order(self, batch_size: int) -> Iterator[Tensor]:
        """All images, in their order, as they are."""
        rows = torch.arange(len(self)).split(batch_size)
        if self._here is None:
            yield from self.stream(rows)
        else:
            yield from (self.take(part.to(self.device)) for part in rows)

    def _as_float(self, rows: Tensor) -> Tensor:
        x = rows.to(self.device, self.dtype)
        return x / 255 if rows.dtype == torch.uint8 else x


def _fits(images: Tensor, device: torch.device) -> bool:
    """Whether the images may take a place on the device: at most half of what is free."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return images.numel() * images.element_size() < free // 2


def mix(*numbers: int) -> int:
    """One 63-bit number from several, so that neighbouring seeds and epochs share nothing."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))
