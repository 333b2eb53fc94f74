"""Compute QR decompositions, log Γ and derivatives of convolutions by operations that ONNX has.

Each function has the signature of the torch operator that it replaces; `ELEMENTARY` and `BACKWARD` list
these operators. Cholesky factors and triangular systems are in `recmix.exports.onnx_operators`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["BACKWARD", "ELEMENTARY", "convolution_backward", "lgamma", "qr"]

SHIFT = 8  # Stirling's series for log Γ is evaluated at x + SHIFT, where it is accurate


def qr(matrix: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    """Decompose matrices (..., D, D) into Q R by the modified Gram-Schmidt method.

    Q is orthogonal. R is upper triangular with a positive diagonal. R is as accurate as with Householder
    reflections, but Q is less exactly orthogonal if the matrix is ill-conditioned.

    >>> qr(torch.tensor([[3.0, 1.0], [4.0, 1.0]]))[1]
    tensor([[5.0000, 1.4000],
            [0.0000, 0.2000]])
    """
    _require(mode, "reduced", f"mode {mode!r}")
    columns, rows, rest = [], [], matrix
    for j in range(matrix.shape[-1]):
        column = rest[..., :1]
        column = column / column.square().sum(-2, keepdim=True).sqrt()
        row = (column * rest).sum(-2, keepdim=True)  # (..., 1, D - j)
        columns.append(column)
        rows.append(F.pad(row, (j, 0)))
        rest = rest[..., 1:] - column * row[..., 1:]
    return torch.cat(columns, -1), torch.cat(rows, -2)


def lgamma(x: Tensor) -> Tensor:
    """Compute log Γ(x) for x > 0, elementwise.

    The result is log Γ(x + 8), from Stirling's series, minus log x + log(x + 1) + ... + log(x + 7).

    >>> lgamma(torch.tensor([1.0, 4.0, 0.5]))
    tensor([0.0000, 1.7918, 0.5724])
    """
    factors = x.log()
    for shift in range(1, SHIFT):
        factors = factors + (x + shift).log()
    y = x + SHIFT
    inverse = 1 / y
    series = inverse * (1 / 12 - inverse.square() * (1 / 360 - inverse.square() / 1260))
    return (y - 0.5) * y.log() - y + 0.5 * math.log(2 * math.pi) + series - factors


def convolution_backward(
    slope: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor, None, None]:
    """Compute the gradient of a loss with respect to the input of a convolution.

    The gradient is a transposed convolution of `slope`, the gradient of the loss with respect to the
    output. The arguments are those of torch's operator ``aten.convolution_backward``. The results for
    kernel and bias are None: `output_mask` must exclude them.
    """
    _require(list(output_mask), [True, False, False], "derivatives in the weights")
    extra = [0] * len(stride)
    if not transposed:  # rows and columns that the stride left out
        kernel = weight.shape[2:]
        sizes = zip(slope.shape[2:], x.shape[2:], kernel, stride, padding, dilation, strict=True)
        extra = [
            int(size) - ((int(n) - 1) * step - 2 * pad + spread * (int(k) - 1) + 1)
            for n, size, k, step, pad, spread in sizes
        ]
    found: Tensor = torch.ops.aten.convolution(
        slope, weight, None, stride, padding, dilation, not transposed, extra, groups
    )
    return found, None, None


def _require(given: object, expected: object, what: str) -> None:
    if given != expected:
        raise NotImplementedError(f"{what} is not supported by the elementary operators")


aten = torch.ops.aten
BACKWARD: dict[Any, Callable[..., Any]] = {aten.convolution_backward.default: convolution_backward}
"""Operators of torch that compute derivatives, and the functions that replace them in a graph."""
ELEMENTARY: dict[Any, Callable[..., Any]] = {
    aten.linalg_qr.default: qr,
    aten.lgamma.default: lgamma,
}
"""Operators of torch, and the functions that replace them in an ONNX graph."""
