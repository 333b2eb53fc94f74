"""Layer normalisation whose derivatives of any kind and order are right."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["LayerNorm"]


class LayerNorm(nn.LayerNorm):
    """Torch's layer normalisation over the last axis, written out within `torch.func` transformations.

    Torch's own kernel has a forward-mode derivative. But the derivative of this derivative is wrong: it
    treats the mean and the variance as constants. Training on Gauss-Newton curvature needs it.

    Args:
        units: size of the last axis.

    >>> LayerNorm(8)(torch.zeros(3, 8)).shape
    torch.Size([3, 8])
    """

    def __init__(self, units: int) -> None:
        super().__init__(units)

    def forward(self, h: Tensor) -> Tensor:
        """The values h (..., units) with mean 0 and variance 1 on the last axis, scaled and shifted."""
        if not torch._C._are_functorch_transforms_active():
            return super().forward(h)
        centred = h - h.mean(-1, keepdim=True)
        scale = (centred.square().mean(-1, keepdim=True) + self.eps).rsqrt()
        return centred * scale * self.weight + self.bias
