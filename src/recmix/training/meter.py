"""`Meter`: sums training metrics over an epoch, on the device."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["Meter"]


class Meter:
    """Sums the training metrics over an epoch, and records the first batch with a NaN or infinity.

    All tensors are on the device and change in place, so they can be part of a captured CUDA graph.
    Reading their values waits for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self.step = torch.zeros(1, dtype=torch.int64, device=device)
        self.names: list[str] = []
        self.sums = torch.zeros(0, dtype=torch.float64, device=device)
        self.first_bad = torch.zeros(0, dtype=torch.float64, device=device)

    def begin(self, step: int, sums: dict[str, float]) -> None:
        """Begin an epoch, or continue an epoch of which `step` batches are done.

        Args:
            step: number of batches of the epoch that are done.
            sums: {metric: its sum over these batches}; empty if `step` is 0.
        """
        self.step.fill_(step)
        if sums:
            self._name(list(sums))
            self.sums.copy_(torch.tensor(list(sums.values()), dtype=torch.float64))
        else:
            self.sums.zero_()
        self.first_bad.fill_(math.inf)

    def _name(self, names: list[str]) -> None:
        if names != self.names:
            self.names = names
            self.sums = torch.zeros(len(names), dtype=torch.float64, device=self.step.device)
            self.first_bad = torch.full_like(self.sums, math.inf)

    def add(self, metrics: dict[str, Tensor]) -> None:
        """Add the metrics of one batch to the sums."""
        self._name(list(metrics))
        values = torch.stack(list(metrics.values())).to(torch.float64)
        self.sums.add_(values)
        bad = torch.where(values.isfinite(), math.inf, self.step.to(torch.float64))
        torch.minimum(self.first_bad, bad, out=self.first_bad)
        self.step.add_(1)

    def totals(self) -> dict[str, float]:
        """Return {metric: its sum over the batches so far in this epoch}."""
        return dict(zip(self.names, self.sums.tolist(), strict=True))

    def not_finite(self) -> tuple[str, int] | None:
        """Return the name of a metric that was NaN or infinite, and the first batch where this happened.

        Batches are counted from 0. The result is None if all metrics were finite.
        """
        for name, step in zip(self.names, self.first_bad.tolist(), strict=True):
            if step < math.inf:
                return name, int(step)
        return None
