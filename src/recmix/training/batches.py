"""Images on their way to the device: resident where they fit, streamed where they do not."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from recmix.data import ArrayImages, Images

__all__ = ["Batches"]

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
        binarise: draw each pixel afresh from a Bernoulli of its grey value.
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
        self._resident: Tensor | None = None
        if isinstance(images, ArrayImages):
            self._resident = torch.from_numpy(np.ascontiguousarray(images.raw))
            if _fits(self._resident, device):
                self._resident = self._resident.to(device)

    def __len__(self) -> int:
        return len(self.images)

    def shuffled(
        self, batch_size: int, *, seed: int, epoch: int, start: int, generator: torch.Generator
    ) -> Iterator[Tensor]:
        """The batches of one epoch from number `start` on; the order depends on (seed, epoch) alone.

        Every batch is full: what is left over at the end of one epoch comes earlier in another.
        """
        order = torch.Generator().manual_seed(_mix(seed, epoch))
        index = torch.randperm(len(self), generator=order)
        size = min(batch_size, len(self))
        index = index[start * size : self.steps(batch_size) * size]
        for x in self._read(index.split(size) if len(index) else ()):
            yield torch.bernoulli(x, generator=generator) if self.binarise else x

    def steps(self, batch_size: int) -> int:
        """Batches in an epoch."""
        return len(self) // min(batch_size, len(self))

    def in_order(self, batch_size: int) -> Iterator[Tensor]:
        """All images, in their order, as they are."""
        yield from self._read(torch.arange(len(self)).split(batch_size))

    def _read(self, indices: tuple[Tensor, ...]) -> Iterator[Tensor]:
        if self._resident is None:
            yield from self._stream(indices)
            return
        for index in indices:
            rows = self._resident[index.to(self._resident.device)].to(self.device)
            yield self._as_float(rows)

    def _stream(self, indices: tuple[Tensor, ...]) -> Iterator[Tensor]:
        with ThreadPoolExecutor(max_workers=AHEAD) as pool:
            waiting: deque[Future[np.ndarray]] = deque()
            try:
                for index in indices:
                    waiting.append(pool.submit(self.images.__getitem__, index.numpy()))
                    if len(waiting) > AHEAD:
                        yield self._as_float(torch.from_numpy(waiting.popleft().result()))
                while waiting:
                    yield self._as_float(torch.from_numpy(waiting.popleft().result()))
            finally:
                for future in waiting:
                    future.cancel()

    def _as_float(self, rows: Tensor) -> Tensor:
        x = rows.to(self.device, self.dtype)
        return x / 255 if rows.dtype == torch.uint8 else x


def _fits(images: Tensor, device: torch.device) -> bool:
    """Whether the images may take a place on the device: at most half of what is free."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return images.numel() * images.element_size() < free // 2


def _mix(seed: int, epoch: int) -> int:
    """One 63-bit number from two, so that neighbouring seeds and epochs share nothing."""
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0] >> np.uint64(1))
