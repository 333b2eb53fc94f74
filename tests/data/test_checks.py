import numpy as np
import pytest
import torch
from scipy import sparse

from recmix.data import check_examples
from recmix.errors import DataError

OK = np.zeros((4, 1, 28, 28), np.float32)


@pytest.mark.parametrize(
    ("x", "shape", "dtype"),
    [
        (np.zeros((4, 28, 28)), (1, 28, 28), np.float32),
        (np.zeros((4, 3, 8, 128), np.float16), (3, 8, 128), np.float32),
        (np.zeros((4, 28, 28), ">f4"), (1, 28, 28), np.float32),
        (np.full((4, 28, 28), 200, np.uint8), (1, 28, 28), np.uint8),
        (np.ones((4, 28, 28), bool), (1, 28, 28), np.uint8),
        (torch.zeros(4, 1, 28, 28, dtype=torch.bfloat16), (1, 28, 28), np.float32),
        (torch.rand(4, 28, 28, requires_grad=True), (1, 28, 28), np.float32),
        ([[[0.0] * 8] * 8] * 4, (1, 8, 8), np.float32),
        (np.zeros((4, 3, 5, 2)), (3, 5, 2), np.float32),  # small
        (np.zeros((4, 1, 300, 200), np.float32), (1, 300, 200), np.float32),  # large
        (np.zeros((4, 17)), (17,), np.float32),
        (np.zeros((4, 17), bool), (17,), np.uint8),
        (np.zeros((4, 17), np.uint8), (17,), np.float32),
        (np.zeros((4, 17), np.int64), (17,), np.float32),
        (np.zeros((4, 100, 3)), (1, 100, 3), np.float32),  # not one image: it is not square
        (np.zeros((4, 2, 3, 8, 8), np.uint8), (2, 3, 8, 8), np.uint8),
        ([[1, 2, 3]] * 4, (3,), np.float32),
        (torch.zeros(4, 9, dtype=torch.int32), (9,), np.float32),
        (sparse.csr_array(np.eye(4, 6)), (6,), np.float32),
        (sparse.coo_matrix(np.eye(4, 6, dtype=int)), (6,), np.float32),
    ],
)
def test_accepted_types_become_native_writable_arrays(x, shape, dtype):
    array = check_examples(x)
    assert (array.dtype, array.shape) == (dtype, (4, *shape))
    assert array.dtype.isnative
    assert array.flags.writeable
    assert array.flags.c_contiguous


def test_valid_array_is_returned_without_copy():
    assert check_examples(OK) is OK


def test_read_only_array_becomes_writable():
    x = OK.copy()
    x.flags.writeable = False
    torch.from_numpy(check_examples(x))  # warns about a read-only array; warnings are errors


@pytest.mark.parametrize("shape", [(1, 8, 8), (8, 8)])
def test_booleans_become_0_and_255(shape):
    assert check_examples(np.ones(shape, dtype=bool)).max() == 255


def test_integers_and_floats_of_any_range_keep_their_values():
    for x in (np.array([[0, 3], [700, -2]]), np.array([[0.25, -1e30], [3e38, 1]]), np.uint8([[0, 1]])):
        np.testing.assert_array_equal(check_examples(x), x.astype(np.float32))


def test_float64_rounding_error_above_one_is_rounded():
    assert check_examples(np.full((2, 8, 8), 1 + 1e-12)).max() == 1


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((4, 28, 28, 1)), r"channels-last.*x\.transpose\(0, 3, 1, 2\).*ArrayExamples"),
        (np.zeros((4, 32, 20, 3)), r"x\.transpose\(0, 3, 1, 2\)"),
        (np.zeros((32, 32, 3)), r"one channels-last image.*transpose\(2, 0, 1\)"),
        (np.zeros((32, 20, 3), np.uint8), "one channels-last image"),
        (np.zeros(784), r"shape \(784,\), 1 dimension.*\(N, \.\.\.\).*reshape\(-1, 1\)"),
        (np.zeros(()), "0 dimension"),
        (np.zeros((0, 1, 28, 28)), "no examples"),
        (np.zeros((4, 1, 0, 28)), "its examples have no values"),
        (np.zeros((10, 0)), "its examples have no values"),
        (np.full((4, 3), 2**24 + 1), r"integer 16777217.*2\*\*24.*astype\('float32'\)"),
        (np.full((4, 3), -(2**40)), "integer -1099511627776"),
        (np.zeros((4, 28, 28), complex), "complex128.*expected numbers"),
        (np.full((4, 2), "a"), "expected numbers"),
        (np.zeros((4, 28, 28), object), "Python objects.*numpy.stack"),
        (np.ones((4, 28, 28), np.uint8), r"only 0 and 1.*astype\(bool\)"),
        ([np.zeros((8, 8)), np.zeros((9, 9))], "cannot be converted to one array.*one shape"),
        ([[1, 2, 3], [4]], "one length.*lengths"),
        (torch.zeros(4, 28, 28).to_sparse(), "cannot be converted to one array"),
        ("mnist", "is a str.*numpy array or a torch tensor"),
        (None, "is a NoneType"),
        ({"x": OK}, "is a dict with the fields x.*no fields"),
    ],
)
def test_invalid_examples_are_rejected(x, message):
    with pytest.raises(DataError, match=message) as caught:
        check_examples(x)
    assert str(caught.value).startswith("x")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e39])
@pytest.mark.parametrize("shape", [(9, 1, 28, 28), (9, 784)])
def test_error_names_first_example_with_non_finite_value(value, shape, monkeypatch):
    monkeypatch.setattr("recmix.data.examples._CHUNK_VALUES", 1000)
    x = np.zeros(shape)
    x[7].flat[5] = value
    with pytest.raises(DataError, match=r"x_val is float64 .*NaN or infinite.* example 7"):
        check_examples(x, what="x_val")


@pytest.mark.parametrize(
    ("x", "shape", "message"),
    [
        (OK, (3, 32, 32), "1x28x28, expected 3x32x32"),
        (np.zeros((4, 784)), (1, 28, 28), r"flat vectors of 784.*use x\.reshape\(-1, 1, 28, 28\)"),
        (
            OK[:, 0],
            (784,),
            r"is 28x28, expected 784 values .*3 dimensions, expected 2.*reshape\(-1, 784\)",
        ),
        (OK[:, 0], (28, 30), r"each example is 28x28, expected 28x30: all examples"),
        (OK, (784,), r"1x28x28, expected 784 values .*4 dimensions, expected 2.*reshape\(-1, 784\)"),
        (np.zeros((4, 5)), (7,), "5 values, expected 7 values.*one shape"),
        (np.zeros((3, 8, 8)), (3, 8, 8), r"expected 3x8x8.*x\[None\]"),
        (np.zeros(7), (7,), r"x\[None\]"),
    ],
)
def test_wrong_event_shape_is_rejected(x, shape, message):
    with pytest.raises(DataError, match=message):
        check_examples(x, shape=shape)


def test_required_shape_decides_between_images_and_matrices():
    x = np.zeros((5, 28, 28))
    assert check_examples(x, shape=(28, 28)).shape == (5, 28, 28)
    assert check_examples(x, shape=(1, 28, 28)).shape == (5, 1, 28, 28)
    assert check_examples(x[..., None], shape=(28, 28, 1)).shape == (5, 28, 28, 1)


def test_too_few_examples_are_rejected():
    with pytest.raises(DataError, match="1 example.s., expected at least 2"):
        check_examples(OK[:1], at_least=2)


def test_dict_is_packed_with_the_given_fields():
    x = {"length": [2, 3], "tokens": torch.tensor([[5, 6], [7, 8]])}
    packed = check_examples(x, fields={"tokens": (2,), "length": ()}, shape=(3,))
    np.testing.assert_array_equal(packed, [[5, 6, 2], [7, 8, 3]])
    with pytest.raises(DataError, match=r"x: got the fields length.*expected tokens, length"):
        check_examples({"length": [1]}, fields={"tokens": (2,), "length": ()})
