"""Replace operators of torch that ONNX files or traced programs cannot contain.

Each function has the signature of the torch operator that it replaces. `ELEMENTARY` and `BACKWARD` list
functions that compute the same result with other torch operators. `onnx_operators` is for Cholesky
factors and triangular systems, which need a loop over the latent dimension. Its functions write the
operators of this loop into an ONNX graph. This is many times faster than tracing the loop in torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["BACKWARD", "ELEMENTARY", "convolution_backward", "lgamma", "onnx_operators", "qr"]

aten = torch.ops.aten
END = 2**31 - 1
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

    The result is log Γ(x + 8), from Stirling's series, minus (log x + log(x + 1) + ... + log(x + 7)).

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
    found: Tensor = aten.convolution(
        slope, weight, None, stride, padding, dilation, not transposed, extra, groups
    )
    return found, None, None


def onnx_operators(opset: int) -> dict[Any, Callable[..., Any]]:
    """Return {torch operator: function that writes this operator into an ONNX graph}.

    `opset` is the version of the set of ONNX operators.
    """
    import onnxscript

    op: Any = getattr(onnxscript, f"opset{opset}")

    def numbers(*values: int) -> Any:
        return op.Constant(value_ints=list(values))

    def part(matrix: Any, rows: tuple[int, int], columns: tuple[int, int]) -> Any:
        """Return matrix[..., rows, columns]. `rows` and `columns` are pairs (begin, end)."""
        begin, end = numbers(rows[0], columns[0]), numbers(rows[1], columns[1])
        return op.Slice(matrix, begin, end, numbers(-2, -1))

    def cholesky_ex(matrix: Any, upper: bool = False, check_errors: bool = False) -> Any:
        """Return lower Cholesky factors, and 0 for each positive definite matrix, 1 for others."""
        _require(upper or check_errors, False, "an upper factor, or an error from inside a graph")
        order = list(range(len(matrix.shape)))
        order[-2:] = order[-1], order[-2]
        columns, bad, rest = [], [], matrix
        for j in range(matrix.shape[-1]):
            pivot = part(rest, (0, 1), (0, 1))
            bad.append(op.Not(op.Greater(pivot, op.CastLike(op.Constant(value_float=0.0), pivot))))
            column = op.Div(part(rest, (0, END), (0, 1)), op.Sqrt(pivot))  # (..., D - j, 1)
            columns.append(op.Pad(column, numbers(j, 0), None, numbers(-2)) if j else column)
            below = part(column, (1, END), (0, 1))
            outer = op.Mul(below, op.Transpose(below, perm=order))
            rest = op.Sub(part(rest, (1, END), (1, END)), outer)
        flags = op.Cast(op.Concat(*bad, axis=-1), to=6)  # int32
        info = op.Squeeze(op.ReduceMax(flags, numbers(-1)), numbers(-2, -1))
        return op.Concat(*columns, axis=-1), info

    def solve_triangular(
        matrix: Any, right: Any, upper: bool, left: bool = True, unitriangular: bool = False
    ) -> Any:
        """Solve A X = B for X, with triangular matrices A (..., D, D) and B (..., D, N)."""
        _require(left and not unitriangular, True, "an unknown on the right, or a unit diagonal")
        size = matrix.shape[-1]
        found: dict[int, Any] = {}
        for i in reversed(range(size)) if upper else range(size):
            row, pivot = part(right, (i, i + 1), (0, END)), part(matrix, (i, i + 1), (i, i + 1))
            found[i] = op.Div(row, pivot)  # (..., 1, N)
            right = op.Sub(right, op.Mul(part(matrix, (0, END), (i, i + 1)), found[i]))
        return op.Concat(*(found[i] for i in range(size)), axis=-2)

    return {
        aten.linalg_cholesky_ex.default: cholesky_ex,
        aten.linalg_solve_triangular.default: solve_triangular,
    }


def _require(given: object, expected: object, what: str) -> None:
    if given != expected:
        raise NotImplementedError(f"{what} is not supported")


BACKWARD: dict[Any, Callable[..., Any]] = {aten.convolution_backward.default: convolution_backward}
"""{torch operator that computes derivatives: function that replaces it in a traced program}."""
ELEMENTARY: dict[Any, Callable[..., Any]] = {
    aten.linalg_qr.default: qr,
    aten.lgamma.default: lgamma,
}
"""{torch operator: function that replaces it in an ONNX graph}."""
