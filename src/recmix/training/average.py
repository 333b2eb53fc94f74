"""Compute a moving average of the weights during training.

The optimiser changes the weights themselves. Validation and the saved model use the averages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

__all__ = ["Average"]


class Average:
    """Exponential moving average of a module's parameters; call `update` after each optimiser step.

    Update number t (from 1) changes the average a towards the present parameter p by a <- a + w (p
    - a), with w = max(1 - decay, 1 / t). So the first 1 / (1 - decay) updates form a plain average,
    and the initial parameters have no weight.

    All tensors are on the device and change in place, so a CUDA graph can capture an update. This
    is why `torch.optim.swa_utils.AveragedModel` is not used: it reads its counter on the host at
    each update.

    Args:
        module: the module whose parameters are averaged. Buffers are not averaged.
        decay: at least 0, below 1.

    >>> layer = nn.Linear(1, 1)
    >>> average = Average(layer, 0.9)
    >>> for value in (1.0, 2.0, 6.0):
    ...     _ = layer.bias.data.fill_(value)
    ...     average.update()
    >>> average.tensors()["weights.bias"]
    tensor([3.])
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        named = dict(module.named_parameters())
        self.names = list(named)
        self.parameters: list[Tensor] = list(named.values())
        self.values = [p.detach().clone() for p in self.parameters]
        self.updates = torch.zeros((), dtype=torch.int64, device=self.parameters[0].device)

    def tensors(self) -> dict[str, Tensor]:
        """Return {"weights.<parameter name>": averaged parameter, "updates": number of updates}.

        The values are the tensors that `update` changes, not copies.
        """
        named = zip(self.names, self.values, strict=True)
        return {f"weights.{name}": value for name, value in named} | {"updates": self.updates}

    @torch.no_grad()
    def update(self) -> None:
        """Move the averages towards the present parameters, without waiting for the device."""
        self.updates.add_(1)
        share = self.updates.to(self.values[0].dtype).reciprocal().clamp_min(1 - self.decay)
        moved = list(torch._foreach_sub(self.parameters, self.values))
        torch._foreach_mul_(moved, share)
        torch._foreach_add_(self.values, moved)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Context in which the module's parameters have their averaged values."""
        kept = [p.detach().clone() for p in self.parameters]
        _fill(self.parameters, self.values)
        try:
            yield
        finally:
            _fill(self.parameters, kept)


@torch.no_grad()
def _fill(parameters: list[Tensor], values: list[Tensor]) -> None:
    torch._foreach_copy_(parameters, values)
