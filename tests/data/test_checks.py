import numpy as np
import pytest
import torch

from recmix.data import check_examples
from recmix.errors import DataError

OK = np.zeros((4, 1, 28, 28), np.float32)


@pytest.mark.parametrize(
    ("x", "dtype"),
    [
        (np.zeros((4, 28, 28)), np.float32),
        (np.zeros((4, 3, 8, 128), np.float16), np.float32),
        (np.zeros((4, 28, 28), ">f4"), np.float32),
        (np.full((4, 28, 28), 200, np.uint8), np.uint8),
        (np.ones((4, 28, 28), bool), np.uint8),
        (torch.zeros(4, 1, 28, 28, dtype=torch.bfloat16), np.float32),
        (torch.rand(4, 28, 28, requires_grad=True), np.float32),
        ([[[0.0] * 8] * 8] * 4, np.float32),
    ],
)
def test_accepted_types_become_native_writable_4d_arrays(x, dtype):
    array = check_examples(x)
    assert (array.dtype, array.ndim, len(array)) == (dtype, 4, 4)
    assert array.dtype.isnative
    assert array.flags.writeable
    assert array.flags.c_contiguous


def test_valid_array_is_returned_without_copy():
    assert check_examples(OK) is OK


def test_read_only_array_becomes_writable():
    x = OK.copy()
    x.flags.writeable = False
    torch.from_numpy(check_examples(x))  # warns about a read-only array; warnings are errors


def test_booleans_become_0_and_255():
    assert check_examples(np.eye(8, dtype=bool)[None]).max() == 255


def test_float64_rounding_error_above_one_is_accepted():
    assert check_examples(np.full((2, 8, 8), 1 + 1e-12)).max() == 1


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((4, 28, 28, 1)), r"channels-last.*x\.transpose\(0, 3, 1, 2\)"),
        (np.zeros((4, 32, 32, 3)), r"x\.transpose\(0, 3, 1, 2\)"),
        (np.zeros((32, 32, 3)), r"one channels-last image.*transpose\(2, 0, 1\)"),
        (np.zeros((4, 784)), r"flat.*x\.reshape\(-1, 1, 28, 28\)"),
        (np.zeros((4, 3072)), r"flat.*x\.reshape\(-1, 3, 32, 32\)"),
        (np.zeros((4, 785)), r"flat.*x\.reshape\(N, C, H, W\)"),
        (np.zeros(784), r"shape \(784,\), 1 dimensions.*\(N, C, H, W\)"),
        (np.zeros((1, 1, 1, 28, 28)), "5 dimensions"),
        (np.zeros((0, 1, 28, 28)), "no images"),
        (np.zeros((4, 1, 0, 28)), "no images"),
        (np.zeros((4, 1, 7, 28)), "7x28.*8 to 128"),
        (np.zeros((4, 1, 28, 129)), "28x129.*8 to 128"),
        (np.zeros((4, 5, 5)), "5x5.*8 to 128"),
        (np.full((4, 28, 28), 2.5), r"from 2\.5 to 2\.5.*uint8, or divide by 255"),
        (np.linspace(-1, 1, 4 * 64).reshape(4, 8, 8), r"from -1 to 1.*\(x \+ 1\) / 2"),
        (np.full((4, 28, 28), 1.001), r"clip\(0, 1\)"),
        (np.full((4, 28, 28), -300.0), r"from -300 to -300.*rescale.*divide by 255"),
        (np.zeros((4, 28, 28), np.int64), r"int64.*astype\('uint8'\).*astype\('float32'\)"),
        (np.zeros((4, 28, 28), complex), "complex128.*expected numbers"),
        (np.zeros((4, 28, 28), object), "Python objects.*numpy.stack"),
        (np.ones((4, 28, 28), np.uint8), r"only 0 and 1.*astype\(bool\)"),
        ([np.zeros((8, 8)), np.zeros((9, 9))], "cannot be converted to one array.*one size"),
        (torch.zeros(4, 28, 28).to_sparse(), "cannot be converted to one array"),
        ("mnist", "is a str.*numpy array or a torch tensor"),
        (None, "is a NoneType"),
        ({"x": OK}, "is a dict"),
    ],
)
def test_invalid_images_are_rejected(x, message):
    with pytest.raises(DataError, match=message) as caught:
        check_examples(x)
    assert str(caught.value).startswith("x")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_error_names_first_image_with_non_finite_value(value, monkeypatch):
    monkeypatch.setattr("recmix.data.examples._CHUNK_VALUES", 1000)
    x = np.zeros((9, 1, 28, 28))
    x[7, 0, 3, 3] = value
    with pytest.raises(DataError, match=r"x_val is float64 .*NaN or infinite.* image 7"):
        check_examples(x, what="x_val")


def test_error_gives_range_over_all_chunks(monkeypatch):
    monkeypatch.setattr("recmix.data.examples._CHUNK_VALUES", 1000)
    x = np.zeros((9, 1, 28, 28))
    x[0, 0, 0, 0], x[8, 0, 0, 0] = -0.25, 7
    with pytest.raises(DataError, match=r"from -0\.25 to 7"):
        check_examples(x)


def test_wrong_image_shape_is_rejected():
    with pytest.raises(DataError, match="1x28x28, expected 3x32x32"):
        check_examples(OK, shape=(3, 32, 32))


def test_too_few_images_are_rejected():
    with pytest.raises(DataError, match="1 image.s., expected at least 2"):
        check_examples(OK[:1], at_least=2)
