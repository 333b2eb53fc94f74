"""Layer normalisation whose forward-mode and higher derivatives are correct."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["LayerNorm"]


class LayerNorm(nn.LayerNorm):
    """Layer normalisation over the last axis, with correct second derivatives.

    Torch's kernel has a forward-mode derivative, but the derivative of this derivative is wrong: it
    treats the mean and the variance as constants. So `torch.func` transformations use elementary
    operations here. Training on Gauss-Newton curvature needs the second derivative.

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
