import pickle

import numpy as np
import pytest

from recmix.data import ArrayExamples
from recmix.data.examples import rows, to_unit
from recmix.data.values import kind_of
from recmix.errors import DataError

EVENTS = {
    "uint8": (2, 9, 8),
    "float32": (2, 9, 8),
    "indexed": (2, 3),
    "vectors": (7,),
    "video": (2, 1, 3, 4),
}


@pytest.fixture(params=EVENTS)
def examples(request, rng):
    array = rng.integers(0, 256, (30, *EVENTS[request.param]), dtype=np.uint8)
    if request.param == "float32":
        return ArrayExamples(to_unit(array))
    if request.param == "vectors":
        return ArrayExamples(rng.normal(-3, 20, array.shape).astype(np.float32))
    if request.param == "indexed":
        return ArrayExamples(array, np.arange(29, 3, -2))
    return ArrayExamples(array)


def test_every_kind_of_index_reads_the_right_images(examples):
    whole = np.asarray(examples)
    assert whole.dtype == np.float32
    assert whole.shape == examples.shape == (len(examples), *examples[0].shape)
    mask = np.arange(len(examples)) % 3 == 0
    for index in (3, np.int64(3), -1, slice(2, 7), slice(None, None, -1), [4, 1, 4], mask, []):
        read = examples[index]
        assert read.dtype == np.float32
        np.testing.assert_array_equal(read, whole[index])
    np.testing.assert_array_equal(np.stack(list(examples)), whole)


def test_changing_what_was_read_does_not_change_the_store(examples):
    before = np.array(examples)
    for index in (0, slice(0, 5), [1, 2]):
        examples[index][...] = 0.5
    np.asarray(examples)[...] = 0.5
    np.testing.assert_array_equal(np.array(examples), before)


@pytest.mark.parametrize("index", [30, -31, [0, 30], [0.5], [[0]], np.zeros(5, bool), "a"])
def test_invalid_index_raises_index_error(index, rng):
    examples = ArrayExamples(rng.random((30, 1, 8, 8), np.float32))
    with pytest.raises(IndexError):
        examples[index]


def test_numpy_array_protocol(examples):
    assert np.asarray(examples, np.float64).dtype == np.float64
    assert examples.__array__(copy=True).dtype == np.float32
    with pytest.raises(ValueError, match="without a copy"):
        examples.__array__(copy=False)


def test_uint8_is_divided_by_255_exactly():
    values = np.arange(256, dtype=np.uint8)
    expected = (values.astype(np.float64) / 255).astype(np.float32)
    np.testing.assert_array_equal(to_unit(values), expected)


def test_subsets_share_one_array_until_raw_is_read(rng):
    array = rng.integers(0, 256, (20, 1, 8, 8), dtype=np.uint8)
    whole = ArrayExamples(array)
    part = whole.subset([3, 5, 8]).subset([2, 0])
    assert part._store[0] is array
    assert whole.raw is array
    before = part[:]
    raw = part.raw
    assert raw is part.raw
    np.testing.assert_array_equal(raw, array[[8, 3]])
    np.testing.assert_array_equal(part[:], before)


def test_pickle_holds_only_the_selected_images(rng):
    array = rng.integers(0, 256, (1000, 1, 8, 8), dtype=np.uint8)
    part = ArrayExamples(array, [1, 2])
    pickled = pickle.dumps(part)
    assert len(pickled) < 1000
    np.testing.assert_array_equal(pickle.loads(pickled)[:], part[:])


def test_mean_and_variance_equal_those_of_numpy(examples, monkeypatch):
    monkeypatch.setattr("recmix.data.examples._CHUNK_VALUES", 50)  # several chunks
    whole = np.asarray(examples, np.float64)
    mean, deviation = examples.mean(), examples.deviation()
    assert (mean.dtype, deviation.dtype) == (np.float32, np.float32)
    np.testing.assert_allclose(mean, whole.mean(0), rtol=1e-6)
    np.testing.assert_allclose(examples.variance(mean), ((whole - mean) ** 2).mean(), rtol=1e-6)
    np.testing.assert_allclose(deviation, whole.std(0), rtol=1e-6)


def test_deviation_is_1_where_a_value_is_constant(rng):
    array = rng.normal(0, 5, (50, 4)).astype(np.float32)
    array[:, 1] = 0.1  # its mean in float64 is not exactly 0.1
    array[:, 2] = np.where(np.arange(50) % 2, 1e-44, 0)  # its square is 0 in float32
    deviation = ArrayExamples(array).deviation()
    np.testing.assert_array_equal(deviation[[1, 2]], 1)
    np.testing.assert_allclose(deviation[[0, 3]], array.astype(np.float64).std(0)[[0, 3]], rtol=1e-6)


def test_deviation_does_not_lose_digits_with_a_large_mean(rng):
    noise = rng.normal(0, 1, (1000, 3))
    array = (10_000 + noise).astype(np.float32)
    deviation = ArrayExamples(array).deviation()
    np.testing.assert_allclose(deviation, array.astype(np.float64).std(0), rtol=1e-6)


def test_fingerprint_depends_on_values_and_order_but_not_on_chunks(examples, monkeypatch):
    same = ArrayExamples(examples.raw.copy())
    first = examples.fingerprint()
    assert first == same.fingerprint()
    monkeypatch.setattr("recmix.data.examples._CHUNK_VALUES", 50)
    assert first == same.fingerprint()
    assert first != examples.subset(slice(None, None, -1)).fingerprint()
    changed = examples.raw.copy()
    changed.flat[-1] = 0 if changed.flat[-1] else 1
    assert first != ArrayExamples(changed).fingerprint()


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [(255, np.uint8, True), (254, np.uint8, False), (1, np.float32, True), (0.5, np.float32, False)],
)
def test_kind_tells_binary_values(value, dtype, expected):
    array = np.zeros((3, 1, 8, 8), dtype)
    array[2, 0, 7, 7] = value
    assert (kind_of(ArrayExamples(array)) == "binary") is expected


@pytest.mark.parametrize(
    "array", [np.zeros(3, np.uint8), np.zeros((3, 1, 8, 8)), np.zeros((3, 4), np.int64)]
)
def test_wrong_shape_or_type_is_rejected(array):
    with pytest.raises(DataError, match="check_examples"):
        ArrayExamples(array)


def test_mask_gives_row_numbers():
    np.testing.assert_array_equal(rows(np.array([True, False, True]), 3), [0, 2])


def test_repr_gives_the_shape(examples):
    assert repr(examples) == f"ArrayExamples(shape={examples.shape})"


def test_fingerprints_never_change():
    """Run folders hold fingerprints of data in uint8 and float32."""
    array = np.arange(128, dtype=np.uint8).reshape(2, 1, 8, 8)
    assert ArrayExamples(array).fingerprint().startswith("3908357e8ef1fd7b")
    assert ArrayExamples(to_unit(array)).fingerprint().startswith("07923a40849325df")
