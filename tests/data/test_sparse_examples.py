import pickle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse

from recmix.data import ArrayExamples, SparseExamples, from_arrays
from recmix.errors import DataError

matrices = hnp.arrays(
    np.int64,
    hnp.array_shapes(min_dims=2, max_dims=2, max_side=6),
    elements=st.sampled_from([0, 0, 0, 1, 2, 500, -3]),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(matrices, st.sampled_from(["csr", "csc", "coo", "bsr", "dia", "lil", "dok"]), st.booleans())
def test_every_format_has_the_values_of_the_dense_matrix(dense, form, old):
    matrix = (sparse.csr_matrix if old else sparse.csr_array)(dense).asformat(form)
    examples = SparseExamples(matrix)
    other = ArrayExamples(dense.astype(np.float32))
    assert examples.shape == other.shape
    np.testing.assert_array_equal(np.asarray(examples), dense)
    assert examples.fingerprint() == SparseExamples(sparse.csr_array(dense)).fingerprint()
    np.testing.assert_allclose(examples.mean(), other.mean(), rtol=1e-6)
    np.testing.assert_allclose(examples.variance(other.mean()), other.variance(other.mean()), rtol=1e-5)
    np.testing.assert_allclose(examples.deviation(), other.deviation(), rtol=1e-6)


@pytest.fixture
def dense(rng):
    return rng.poisson(0.3, (40, 9))


def test_every_kind_of_index_reads_the_right_examples(dense):
    examples = SparseExamples(sparse.csr_array(dense))
    mask = np.arange(40) % 3 == 0
    for index in (3, np.int64(3), -1, slice(2, 7), slice(None, None, -1), [4, 1, 4], mask, []):
        read = examples[index]
        assert read.dtype == np.float32
        np.testing.assert_array_equal(read, dense[index])
    np.testing.assert_array_equal(np.stack(list(examples)), dense)
    with pytest.raises(IndexError):
        examples[40]


def test_statistics_and_splits_are_never_dense(dense, monkeypatch):
    examples = SparseExamples(sparse.csr_array(dense))
    expected = ArrayExamples(dense.astype(np.float32)).deviation()
    take, rows = SparseExamples.take, []

    def counted(self, index):
        found = take(self, index)
        rows.append(len(found))
        return found

    monkeypatch.setattr(SparseExamples, "take", counted)
    data = from_arrays(sparse.csr_array(dense), x_test=sparse.csc_matrix(dense[:5]))
    np.testing.assert_allclose(examples.deviation(), expected, rtol=1e-6)
    assert (data.kind, data.binary) == ("counts", False)
    assert data.classes == dense.max() + 1
    assert len(data.fingerprint) == 64
    assert data.counts == {"train": 36, "val": 4, "test": 5}
    assert sum(rows) <= 1


def test_split_and_pickle_keep_the_values(dense):
    data = from_arrays(sparse.csr_array(dense))
    assert isinstance(data.x_train, SparseExamples)
    same = from_arrays(dense)  # the same split
    for part, other in ((data.x_train, same.x_train), (data.x_val, same.x_val)):
        np.testing.assert_array_equal(part[:], other[:])
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(part))[:], other[:])


def test_fingerprint_depends_on_values_and_positions_only(dense):
    matrix = sparse.csr_array(dense)
    first = SparseExamples(matrix).fingerprint()
    coo = matrix.tocoo()
    twice = sparse.coo_array(  # each value in two halves, in another order, and a stored zero
        (
            np.r_[coo.data[::-1] / 2, coo.data / 2, 0],
            (np.r_[coo.coords[0][::-1], coo.coords[0], 0], np.r_[coo.coords[1][::-1], coo.coords[1], 0]),
        ),
        shape=matrix.shape,
    )
    assert SparseExamples(twice).fingerprint() == first
    assert SparseExamples(matrix).subset(slice(None, None, -1)).fingerprint() != first
    assert SparseExamples(matrix * 2).fingerprint() != first


def test_given_matrix_is_not_changed(dense):
    matrix = sparse.csr_array(dense.astype(np.float32))
    matrix.data[0] = 0
    stored = matrix.nnz
    SparseExamples(matrix)
    assert matrix.nnz == stored


def wrong_indices():
    matrix = sparse.csr_array(np.eye(3))
    matrix.indices[1] = 999_999_999
    return matrix


def with_value(value, dtype=np.float64):
    matrix = sparse.lil_array((4, 3), dtype=dtype)
    matrix[2, 1] = value
    return matrix


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.eye(3), "is a ndarray; expected a scipy.sparse"),
        (sparse.csr_array((0, 3)), r"shape \(0, 3\); expected \(N, F\)"),
        (sparse.coo_array(np.ones(3)), r"shape \(3,\); expected \(N, F\)"),
        (sparse.csr_array(np.eye(3, dtype=complex)), "expected numbers"),
        (with_value(np.nan), "NaN, infinite.*example 2"),
        (with_value(1e39), "too large for float32.*example 2"),
        (with_value(2**24 + 1, np.int64), r"integer 16777217.*2\*\*24"),
        (with_value(-(2**30), np.int64), "integer -1073741824"),
        (wrong_indices(), "invalid indices"),
    ],
)
def test_invalid_matrices_are_rejected(matrix, message):
    with pytest.raises(DataError, match=message):
        SparseExamples(matrix)


def test_parts_of_other_shapes_are_rejected(dense):
    matrix = sparse.csr_array(dense)
    with pytest.raises(DataError, match=r"x_test is a sparse matrix of shape \(40, 8\); .*\(9,\)"):
        from_arrays(matrix, x_test=matrix[:, :8])
    with pytest.raises(DataError, match=r"1 example\(s\), expected at least 3"):
        from_arrays(matrix[:1])
