"""Write Cholesky factors and triangular systems with simple ONNX operators.

ONNX has no operators for them. `torch.onnx` calls a function of this module for each of them in a graph.
The function adds the operators of a loop over the latent dimension D. This is many times faster than to
write the loop in torch and to trace it. Each function has the signature of the torch operator that it
replaces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["onnx_operators"]

END = 2**31 - 1


def onnx_operators(opset: int) -> dict[Any, Callable[..., Any]]:
    """Return {torch operator: function that writes this operator into an ONNX graph}.

    `opset` is the version of the set of ONNX operators.
    """
    import onnxscript

    op: Any = getattr(onnxscript, f"opset{opset}")

    def numbers(*values: int) -> Any:
        return op.Constant(value_ints=list(values))

    def part(matrix: Any, rows: tuple[int, int], columns: tuple[int, int]) -> Any:
        """matrix[..., rows, columns]."""
        begin, end = numbers(rows[0], columns[0]), numbers(rows[1], columns[1])
        return op.Slice(matrix, begin, end, numbers(-2, -1))

    def cholesky_ex(matrix: Any, upper: bool = False, check_errors: bool = False) -> Any:
        """Lower Cholesky factors, and integers: 1 if a matrix is not positive definite, else 0."""
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

    aten = torch.ops.aten
    return {
        aten.linalg_cholesky_ex.default: cholesky_ex,
        aten.linalg_solve_triangular.default: solve_triangular,
    }


def _require(given: object, expected: object, what: str) -> None:
    if given != expected:
        raise NotImplementedError(f"{what} is not supported")
