import numpy as np
import pytest
import torch
from scipy import sparse
from torch.utils.data import DataLoader, TensorDataset

from recmix.data import check_examples, from_arrays
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
        (np.zeros((4, 5)), (7,), "5 values, expected 7 values.*the same shape"),
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


def event(*shape):
    return np.arange(5 * np.prod(shape), dtype=np.float32).reshape(5, *shape)


@pytest.mark.parametrize(
    ("given", "shape", "numpy_advice", "torch_advice"),
    [
        ((1, 20, 12), (1, 12, 20), "swapaxes(2, 3)", "swapaxes(2, 3)"),
        ((20, 12), (1, 12, 20), "swapaxes(1, 2)", "swapaxes(1, 2)"),
        ((20, 12, 1), (1, 12, 20), "swapaxes(1, 2)", "swapaxes(1, 2)"),
        ((6, 4), (4, 6), "swapaxes(1, 2)", "swapaxes(1, 2)"),
        ((12, 20, 3), (3, 12, 20), "transpose(0, 3, 1, 2)", "permute(0, 3, 1, 2)"),
        ((16, 16, 3), (3, 16, 16), "transpose(0, 3, 1, 2)", "permute(0, 3, 1, 2)"),
        ((3, 16, 16), (16, 16, 3), "transpose(0, 2, 3, 1)", "permute(0, 2, 3, 1)"),
        ((16, 3, 16), (3, 16, 16), "swapaxes(1, 2)", "swapaxes(1, 2)"),
        ((20, 12, 3), (3, 12, 20), "swapaxes(1, 3)", "swapaxes(1, 3)"),
        ((7, 9, 11, 3), (7, 3, 9, 11), "transpose(0, 1, 4, 2, 3)", "permute(0, 1, 4, 2, 3)"),
        ((784,), (1, 28, 28), "reshape(-1, 1, 28, 28)", "reshape(-1, 1, 28, 28)"),
        ((28, 28), (784,), "reshape(-1, 784)", "reshape(-1, 784)"),
    ],
)
def test_advice_for_a_wrong_shape_gives_the_right_examples(given, shape, numpy_advice, torch_advice):
    """The advice is run, and must not mix up the values of an example."""
    x = event(*given)
    for array, advice in ((x, numpy_advice), (torch.from_numpy(x), torch_advice)):
        with pytest.raises(DataError) as caught:
            check_examples(array, shape=shape)
        code = f"x.{advice}"
        assert str(caught.value).endswith(f"use {code}")
        found = check_examples(eval(code, {"x": array}), shape=shape)
        assert found.shape == (5, *shape)
        order = {
            "swapaxes(2, 3)": (0, 1, 3, 2),
            "swapaxes(1, 2)": (0, 2, 1, 3),
            "swapaxes(1, 3)": (0, 3, 2, 1),
            "transpose(0, 3, 1, 2)": (0, 3, 1, 2),
            "transpose(0, 2, 3, 1)": (0, 2, 3, 1),
            "transpose(0, 1, 4, 2, 3)": (0, 1, 4, 2, 3),
        }.get(numpy_advice, range(x.ndim))
        np.testing.assert_array_equal(found, x.transpose(order[: x.ndim]).reshape(5, *shape))


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        ((1, 8, 32), (1, 16, 16)),
        ((4, 8, 8), (1, 16, 16)),
        ((16, 3, 16, 3), (3, 3, 16, 16)),  # more than one order is possible
        ((3, 5), (5, 4)),
        ((12, 20, 3), (1, 12, 20)),
    ],
)
def test_no_change_of_shape_is_advised_where_none_is_safe(given, shape):
    with pytest.raises(
        DataError, match="expected .*: all examples of a data set, .* the same shape"
    ) as caught:
        check_examples(event(*given), shape=shape)
    assert not any(word in str(caught.value) for word in ("reshape", "swap", "transpose", "[None]"))


@pytest.mark.parametrize(
    ("given", "shape", "advice"),
    [
        ((32, 32, 3), (3, 32, 32), "x.transpose(2, 0, 1)[None]"),
        ((784,), (1, 28, 28), "x.reshape(1, 1, 28, 28)"),
        ((28, 28), (1, 28, 28), "x[None]"),
        ((28, 28), (784,), "x.reshape(1, 784)"),
        ((5,), (1,), "x.reshape(-1, 1)"),
    ],
)
def test_advice_for_a_missing_axis_of_examples(given, shape, advice):
    x = np.zeros(given)
    with pytest.raises(DataError) as caught:
        check_examples(x, shape=shape)
    assert f"use {advice}" in str(caught.value)
    assert check_examples(eval(advice, {"x": x}), shape=shape).shape[1:] == shape


def test_array_of_one_axis_gets_no_advice_that_cannot_work():
    with pytest.raises(DataError, match=r"expected examples of 1x4x5, .*: give .*\(N, 1, 4, 5\)$"):
        check_examples(np.zeros(7), shape=(1, 4, 5))


def test_advice_is_for_the_type_that_was_given():
    nested = np.zeros((2, 6, 4)).tolist()
    with pytest.raises(DataError, match=r"use numpy\.asarray\(x\)\.swapaxes\(1, 2\)$"):
        check_examples(nested, shape=(4, 6))
    with pytest.raises(DataError, match=r"use x\.toarray\(\)\.reshape\(-1, 1, 2, 3\)$"):
        check_examples(sparse.csr_array(np.eye(6)), shape=(1, 2, 3))
    with pytest.raises(DataError, match=r"x\.permute\(0, 3, 1, 2\).*ArrayExamples\(x\.float\(\)\.numpy"):
        check_examples(torch.zeros(4, 28, 28, 1))


def test_validation_examples_with_swapped_axes_are_refused():
    with pytest.raises(
        DataError, match=r"x_val .*two axes seem to be swapped, use x_val\.swapaxes\(2, 3\)"
    ):
        from_arrays(np.zeros((9, 1, 12, 20)), x_val=np.zeros((4, 1, 20, 12)))


IMAGES, LABELS = torch.zeros(5, 1, 16, 16), torch.arange(5)


@pytest.mark.parametrize(
    "x",
    [
        [IMAGES, LABELS],
        (IMAGES, LABELS),
        [IMAGES.numpy(), LABELS.numpy()],
        [IMAGES, torch.nn.functional.one_hot(LABELS)],
        (IMAGES, LABELS, LABELS),
        (IMAGES[:1], LABELS[:1]),
    ],
)
def test_a_batch_with_labels_is_recognised(x):
    for shape in (None, (1, 16, 16), (3, 8, 8)):
        with pytest.raises(
            DataError, match=r"x is a (list|tuple) of .* with labels.*; .*: give x\[0\]$"
        ):
            check_examples(x, shape=shape)
    with pytest.raises(DataError, match=r"x_train\[0\]$"):
        from_arrays(x)


@pytest.mark.parametrize("x", [[IMAGES], [IMAGES, LABELS, IMAGES]])
def test_a_batch_in_a_list_is_recognised_by_the_shape_of_examples(x):
    with pytest.raises(DataError, match=r"looks like a batch (in a list|of examples with labels)"):
        check_examples(x, shape=(1, 16, 16))


def test_several_batches_are_to_be_joined():
    for x, join in (((IMAGES, IMAGES), "torch.cat"), ([IMAGES.numpy()] * 3, "numpy.concatenate")):
        with pytest.raises(DataError, match=rf"several batches; .*: give {join}\(x\), or x\[0\] if"):
            check_examples(x, shape=(1, 16, 16))


def test_images_of_two_kinds_are_no_batch_with_labels():
    mixed = [np.zeros((28, 28, 3)), np.zeros((28, 28))] * 5
    with pytest.raises(DataError, match="cannot be converted to one array"):
        check_examples(mixed)


def test_lists_of_examples_are_no_batches():
    one = np.zeros((1, 16, 16))
    assert check_examples([one, one], shape=(1, 16, 16)).shape == (2, 1, 16, 16)
    assert check_examples([one[0], one[0]], shape=(1, 16, 16)).shape == (2, 1, 16, 16)
    assert check_examples([np.zeros(3), np.ones(3)], shape=(3,)).shape == (2, 3)
    with pytest.raises(DataError, match="pad sequences"):
        check_examples([np.zeros((5, 3)), np.zeros((5, 4))])
    with pytest.raises(DataError, match="pad sequences"):
        check_examples([np.zeros((5, 3)), np.zeros(4)])


def test_a_data_loader_is_no_batch():
    loader = DataLoader(TensorDataset(IMAGES, LABELS), batch_size=2)
    with pytest.raises(DataError, match=r"x is a DataLoader; .*next\(iter\(x\)\), or .*\[0\] if"):
        check_examples(loader)
    assert check_examples(next(iter(loader))[0]).shape == (2, 1, 16, 16)
