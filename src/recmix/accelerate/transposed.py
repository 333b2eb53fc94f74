"""The last layer of a decoder of grey images, quick on a CPU.

A transposed convolution gives every input pixel a patch of the output, and patches that overlap add up.
To one channel that is a small matrix product and a sum of patches (`fold`), which takes less time than
torch's convolution: that one is made for many channels.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.forward_ad import unpack_dual

__all__ = ["OneChannel"]


class OneChannel(nn.ConvTranspose2d):
    """A transposed convolution to one channel, without groups or dilation; the same numbers, sooner.

    On a GPU, and wherever something looks into it (tracing, compilation, `torch.func`, forward mode),
    it is torch's own.

    >>> layer = OneChannel(32, 1, 4, stride=2, padding=1)
    >>> layer(torch.zeros(2, 32, 7, 7)).shape
    torch.Size([2, 1, 14, 14])
    """

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        """(N, C, H, W) -> (N, 1, ...)."""
        if output_size is not None or not _plain(x):
            return super().forward(x, output_size)
        return self.folded(x, self.bias)

    def folded(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """The layer as a product and a sum of patches."""
        how = (self.stride, self.padding, self.output_padding)
        shown: Tensor = _Folded.apply(x, self.weight, bias, *how)
        return shown

    def without_bias(self, x: Tensor) -> Tensor:
        """What the layer does to a difference of inputs."""
        if _plain(x):
            return self.folded(x, None)
        shape: Any = (self.stride, self.padding, self.output_padding)
        return F.conv_transpose2d(x, self.weight, None, *shape)


def _plain(x: Tensor) -> bool:
    """Whether nothing but the numbers is wanted, on a CPU."""
    return (
        x.device.type == "cpu"
        and x.dim() == 4
        and x.dtype in (torch.float32, torch.float64)
        and not torch._C._get_tracing_state()
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and unpack_dual(x).tangent is None
    )


class _Folded(torch.autograd.Function):
    """Forward by product and fold, backward by torch's convolution, which is quick there."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: tuple[int, int],
        padding: tuple[int, int],
        extra: tuple[int, int],
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.how = (stride, padding, extra, None if bias is None else [1])
        kernel = weight.shape[2:]
        sides = tuple(
            (n - 1) * s - 2 * p + k + e
            for n, s, p, k, e in zip(x.shape[2:], stride, padding, kernel, extra, strict=True)
        )
        patches = weight.flatten(1).t() @ x.flatten(2)  # (N, pixels of a patch, H·W)
        shown = F.fold(patches, sides, kernel, padding=padding, stride=stride)
        return shown if bias is None else shown.add_(bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        stride, padding, extra, bias = ctx.how
        wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.needs_input_grad[2]]
        found = torch.ops.aten.convolution_backward(
            *(gradients[0], x, weight, bias, stride, padding, (1, 1), True, extra, 1, wanted)
        )
        return *found, None, None, None
