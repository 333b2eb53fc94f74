"""Store examples in memory as a sparse matrix, for example word counts or gene counts."""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recmix.data.examples import Array, Examples, Index, one_if_constant, rows
from recmix.errors import DataError
from recmix.model.fields import check_exact

__all__ = ["SparseExamples", "is_sparse"]


class SparseExamples(Examples):
    """Examples in memory, stored as a sparse matrix (N, F): N examples with F values each.

    Only the examples that are read become dense. Values are used as they are. Integers must not exceed
    2**24, so that float32 holds them exactly.

    >>> from scipy import sparse
    >>> examples = SparseExamples(sparse.csr_array([[0, 0, 7], [1, 0, 0]]))
    >>> examples[0], examples.mean()
    (array([0., 0., 7.], dtype=float32), array([0.5, 0. , 3.5], dtype=float32))

    Args:
        matrix: A `scipy.sparse` matrix or array (N, F) of numbers, in any format.
        what: Name of `matrix` in error messages.
    """

    in_memory = True

    def __init__(self, matrix: Any, what: str = "x") -> None:
        self.raw = _canonical(matrix, what)

    @property
    def shape(self) -> tuple[int, int]:
        """(N, F): the number of examples, and the number of values of one example."""
        count, features = self.raw.shape
        return int(count), int(features)

    def take(self, index: Index) -> NDArray[np.float32]:
        """Return the values of the examples at `index` as a dense array, float32 (B, F)."""
        part = self.raw[index] if isinstance(index, slice) else self.raw[rows(index, len(self))]
        dense: NDArray[np.float32] = part.toarray()
        return dense

    def subset(self, index: Index) -> SparseExamples:
        """Return the examples at `index` as a new object with its own matrix."""
        other = SparseExamples.__new__(SparseExamples)
        other.raw = self.raw[rows(index, len(self))]
        return other

    def fingerprint(self) -> str:
        """Return a SHA-256 hash of the shape, the values that are not 0, and their positions."""
        digest = hashlib.sha256(f"sparse float32 {self.shape}".encode())
        for part in (self.raw.indptr.astype(np.int64), self.raw.indices.astype(np.int64), self.raw.data):
            digest.update(np.ascontiguousarray(part).data)
        return digest.hexdigest()

    def mean(self) -> NDArray[np.float32]:
        """Return the mean over the examples, (F,)."""
        return (self._sum(self.raw.data) / len(self)).astype(np.float32)

    def variance(self, mean: Array) -> float:
        """Return the mean of (x - mean)² over all examples and all their values; `mean` is (F,)."""
        return float(self._squares(np.asarray(mean, np.float64)).mean()) / len(self)

    def deviation(self) -> NDArray[np.float32]:
        """Return the standard deviation over the examples, (F,); 1 where all values are equal."""
        mean = self._sum(self.raw.data) / len(self)
        same_as_first = self.raw.data == self.take([0])[0][self.raw.indices]
        constant = (self._stored() == 0) | (self._sum(same_as_first) == len(self))
        return one_if_constant(np.sqrt(self._squares(mean) / len(self)), constant)

    def row_of(self, place: int) -> int:
        """Return the index of the example to which the stored value ``raw.data[place]`` belongs."""
        return int(np.searchsorted(self.raw.indptr, place, side="right")) - 1

    def _squares(self, mean: Array) -> Array:
        """Return the sum of (x - mean)² over the examples, (F,), without making the matrix dense."""
        stored = self._sum(np.square(self.raw.data - mean[self.raw.indices]))
        zeros: Array = len(self) - self._stored()
        return stored + zeros * np.square(mean)

    def _stored(self) -> NDArray[np.int64]:
        """Return, for each feature, the number of examples in which it is not 0, (F,)."""
        return np.bincount(self.raw.indices, minlength=self.shape[1])

    def _sum(self, values: Array) -> NDArray[np.float64]:
        """Sum `values`, one number for each stored value of the matrix, over the examples, (F,)."""
        return np.asarray(np.bincount(self.raw.indices, values, minlength=self.shape[1]), np.float64)


def is_sparse(x: Any) -> bool:
    """Whether `x` is a `scipy.sparse` matrix or array; does not import scipy."""
    sparse = sys.modules.get("scipy.sparse")
    return sparse is not None and bool(sparse.issparse(x))


def _canonical(matrix: Any, what: str) -> Any:
    """Convert a sparse matrix to float32 csr with sorted indices, no duplicates and no stored zeros.

    `what` is the name of the matrix in error messages.
    """
    if not is_sparse(matrix):
        raise DataError(
            f"{what} is a {type(matrix).__name__}; expected a scipy.sparse matrix, for example "
            "scipy.sparse.csr_array(x)"
        )
    given = f"{what} is a sparse {matrix.dtype} matrix of shape {matrix.shape}"
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise DataError(f"{given}; expected (N, F), one example per row, with N and F of 1 or more")
    if matrix.dtype.kind not in "biuf":
        raise DataError(f"{given}; expected numbers")
    if hasattr(matrix, "check_format"):
        try:
            matrix.check_format(full_check=True)  # a wrong index would access memory of others
        except ValueError as error:
            raise DataError(f"{given} with invalid indices ({error}): make the matrix again") from error
    exact = matrix.dtype.kind in "iu"
    csr = matrix.tocsr(copy=True)
    csr.sum_duplicates()  # also sorts the indices
    if exact and csr.nnz:
        advice = f"give floats, such as {what}.astype('float32')"
        check_exact(int(csr.data.min()), int(csr.data.max()), f"{given} and", advice)
    with np.errstate(over="ignore"):  # reported below
        csr = csr.astype(np.float32)
    csr.eliminate_zeros()
    if not np.isfinite(csr.data).all():
        row = int(np.searchsorted(csr.indptr, np.argmin(np.isfinite(csr.data)), side="right")) - 1
        raise DataError(
            f"{given} and has values that are NaN, infinite or too large for float32, the first in "
            f"example {row}: remove such examples"
        )
    return csr
