"""Examples in memory that are stored as a sparse matrix, such as word or gene counts."""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recmix.data.examples import Array, Examples, Index, one_if_constant, rows
from recmix.errors import DataError
from recmix.model.fields import LARGEST_INTEGER

__all__ = ["SparseExamples", "is_sparse"]


class SparseExamples(Examples):
    """Examples in memory, stored as a sparse matrix (N, F); only the rows that are read become dense.

    Values are used as they are. Whole numbers must not exceed 2**24, so that float32 holds them exactly.

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
        """(N, F)."""
        count, features = self.raw.shape
        return int(count), int(features)

    def take(self, index: Index) -> NDArray[np.float32]:
        """Values of the selected examples, float32 (B, F)."""
        part = self.raw[index] if isinstance(index, slice) else self.raw[rows(index, len(self))]
        dense: NDArray[np.float32] = part.toarray()
        return dense

    def subset(self, index: Index) -> SparseExamples:
        """The selected examples as a new object with its own matrix."""
        other = SparseExamples.__new__(SparseExamples)
        other.raw = self.raw[rows(index, len(self))]
        return other

    def fingerprint(self) -> str:
        """SHA-256 of the shape and of the values that are not 0 with their positions."""
        digest = hashlib.sha256(f"sparse float32 {self.shape}".encode())
        for part in (self.raw.indptr.astype(np.int64), self.raw.indices.astype(np.int64), self.raw.data):
            digest.update(np.ascontiguousarray(part).data)
        return digest.hexdigest()

    def mean(self, sample: int = 10_000, seed: int = 0) -> NDArray[np.float32]:
        """The mean of each value, (F,). `sample` and `seed` have no effect: all examples are used."""
        return (self._sum(self.raw.data) / len(self)).astype(np.float32)

    def variance(self, mean: Array, sample: int = 10_000, seed: int = 0) -> float:
        """The mean of (x - mean)² over all examples and all F features, for a given `mean` (F,).

        `sample` and `seed` have no effect: all examples are used.
        """
        return float(self._squares(np.asarray(mean, np.float64)).mean()) / len(self)

    def deviation(self, sample: int = 10_000, seed: int = 0) -> NDArray[np.float32]:
        """The standard deviation of each value, (F,); 1 where the value is constant."""
        mean = self._sum(self.raw.data) / len(self)
        same_as_first = self.raw.data == self.take([0])[0][self.raw.indices]
        constant = (self._stored() == 0) | (self._sum(same_as_first) == len(self))
        return one_if_constant(np.sqrt(self._squares(mean) / len(self)), constant)

    def row_of(self, place: int) -> int:
        """The example to which the stored value number `place` belongs."""
        return int(np.searchsorted(self.raw.indptr, place, side="right")) - 1

    def _squares(self, mean: Array) -> Array:
        """The sum of squared deviations from `mean`, (F,); zeros are counted, not visited."""
        stored = self._sum(np.square(self.raw.data - mean[self.raw.indices]))
        zeros: Array = len(self) - self._stored()
        return stored + zeros * np.square(mean)

    def _stored(self) -> NDArray[np.int64]:
        """Number of stored values of each feature, (F,)."""
        return np.bincount(self.raw.indices, minlength=self.shape[1])

    def _sum(self, values: Array) -> NDArray[np.float64]:
        """The sum over examples of one number per stored value, (F,)."""
        return np.asarray(np.bincount(self.raw.indices, values, minlength=self.shape[1]), np.float64)


def is_sparse(x: Any) -> bool:
    """Whether `x` is a `scipy.sparse` matrix or array; does not import scipy."""
    sparse = sys.modules.get("scipy.sparse")
    return sparse is not None and bool(sparse.issparse(x))


def _canonical(matrix: Any, what: str) -> Any:
    """The matrix in csr form, float32, without duplicates and stored zeros, indices sorted."""
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
    if exact and csr.nnz and max(abs(int(csr.data.min())), int(csr.data.max())) > LARGEST_INTEGER:
        largest = max(int(csr.data.min()), int(csr.data.max()), key=abs)
        raise DataError(
            f"{given} and has the integer {largest}, but float32 holds whole numbers exactly only up to "
            f"2**24 = {LARGEST_INTEGER}: give floats, such as {what}.astype('float32')"
        )
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
