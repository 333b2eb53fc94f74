import numpy as np
import pytest
import torch
from scipy import sparse

from recmix.data import ArrayExamples, Data, SparseExamples, check_values, from_arrays
from recmix.data.values import kind_of
from recmix.errors import ConfigError, DataError

COUNTS = np.array([[0, 3], [1, 9]])


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (np.array([[0, 1], [1, 1]]), "binary"),
        (np.array([[0.0, 1.0]]), "binary"),
        (np.array([[True, False]]), "binary"),
        (np.zeros((2, 3)), "binary"),
        (np.array([[0, 0.5]]), "unit"),
        (np.full((1, 8, 8), 7, np.uint8), "unit"),
        (COUNTS, "counts"),
        (COUNTS.astype(np.float64), "counts"),
        (COUNTS.astype(np.uint8), "counts"),
        (-COUNTS, "real"),
        (COUNTS + 0.5, "real"),
        (np.array([[0.5, -0.5]]), "real"),
        (np.array([[1e9, 3e9]]), "real"),  # float32 has no fractions there
        (sparse.csr_array(COUNTS), "counts"),
        (sparse.csr_array(COUNTS > 0), "binary"),
        (sparse.csr_array((2, 3)), "binary"),
        (sparse.csr_array(COUNTS / 10), "unit"),
        (sparse.csr_array(-COUNTS), "real"),
    ],
)
def test_kind_of_values(array, kind, monkeypatch):
    monkeypatch.setattr("recmix.data.examples._CHUNK_VALUES", 1)
    data = from_arrays(array, array, array)
    assert data.kind == kind
    assert data.binary == (kind == "binary")


def test_chunks_agree_on_one_kind(monkeypatch):
    monkeypatch.setattr("recmix.data.examples._CHUNK_VALUES", 1)
    for rows, kind in (
        ([0, 0.5, 1], "unit"),
        ([0, 2, 1], "counts"),
        ([0, 0.5, 2], "real"),
        ([2, 0.5], "real"),
    ):
        assert kind_of(ArrayExamples(np.float32(rows)[:, None])) == kind


def test_kind_of_dynamic_data_and_fields():
    grey = ArrayExamples(np.full((3, 1, 8, 8), 100, np.uint8))
    assert Data("a", grey, grey, None).kind == "unit"
    assert Data("a", grey, grey, None, dynamic=True, binary=True).kind == "binary"
    assert from_arrays({"a": np.zeros((5, 2)), "b": np.zeros(5)}).kind == "fields"


def test_number_of_classes_is_that_of_all_parts():
    data = from_arrays(np.array([[0, 3], [1, -1]]), x_val=np.array([[2, 2]]), x_test=np.array([[6, 0]]))
    assert data.classes == 7
    assert from_arrays(np.full((3, 8, 8), True)).classes == 2


GREY = np.arange(256, dtype=np.uint8)[None]
FITTING = {
    "real": [np.array([[-3.5, 1e30]]), GREY, COUNTS, sparse.csr_array(-COUNTS)],
    "unit": [np.array([[0, 0.5, 1]]), GREY, COUNTS > 2, sparse.csr_array(COUNTS / 9)],
    "counts": [COUNTS, COUNTS.astype(np.float64), sparse.csr_array(COUNTS), torch.tensor(COUNTS)],
    "classes:10": [COUNTS, torch.tensor(COUNTS), sparse.csr_array(COUNTS), np.arange(10)],
    "padded_classes:10": [COUNTS, -COUNTS],
    "classes": [COUNTS, -COUNTS, torch.tensor(COUNTS)],
    "graph:3*3+2*3": [
        np.array([[1, 2, 2, 1, 0, 1], [2, 1, 0, 1, -1, -1], [0, -1, -1, -1, -1, -1]]),
        np.array([[1, 0, -1, -1, -1, -1]], np.float32),
    ],
    "eight_bit": [GREY, GREY / 255, np.array([[False, True]])],
}


@pytest.mark.parametrize("requirement", FITTING)
def test_fitting_values_are_accepted(requirement):
    for array in FITTING[requirement]:
        check_values(array, requirement, "some")


NOT_FITTING = [
    ("real", np.nan, "finite numbers, but x has the value NaN .*: remove such"),
    ("unit", 1.5, r"values in \[0, 1\].* value 1\.5 .*/ 255, or .*gaussian"),
    ("unit", 300.0, "rescale"),
    ("unit", 1.005, r"clip\(0, 1\)"),
    ("unit", -0.5, r"negative value -0\.5 .*\(x \+ 1\) / 2"),
    ("unit", np.nan, "value NaN in example 17: remove such examples, .*nan_to_num"),
    ("counts", -1.3, r"counts .*, but x has the negative value -1\.3 in example 17: .*gaussian"),
    ("counts", 0.5, r"value 0\.5 in example 17"),
    ("counts", np.inf, "infinite value inf"),
    ("classes:5", 5, "whole numbers from 0 to 4.* value 5 in example 17.*number the classes"),
    ("classes:5", 0.5, r"value 0\.5"),
    ("classes:5", -1, "negative value -1"),
    ("classes", 0.5, "whole numbers; negative ones mark padding.* value 0.5 .*number the classes"),
    ("padded_classes:5", 5, "negative ones mark padding"),
    ("padded_classes:5", -0.5, "negative value"),
    ("eight_bit", 0.5, r"k / 255.*value 0\.5 .*uint8"),
    ("eight_bit", 2.0, "value 2"),
]


@pytest.mark.parametrize(
    "graph",
    [
        [1, 3, 2, 1, 0, 1],  # a class that does not exist
        [1, 2, 2, 1, 2, 1],
        [2, 0, 1, -1, -1, -1],  # a node after "no node"
        [2, 0, 0, -1, -1, -1],
        [2, 0, -1, 0, -1, -1],  # an edge of a node that does not exist
        [2, 1, -1, 1, -1, -1],  # no "no node" after the last one
        [1, 2, 2, 1, -1, 1],  # no class for an edge of two nodes
        [1, 2, 1.5, 1, 0, 1],
    ],
)
def test_graphs_that_the_likelihood_cannot_have_are_rejected(graph):
    x = np.array([[1, 2, 2, 1, 0, 1], graph])
    with pytest.raises(
        DataError, match=r"needs graphs \(3 nodes .* in example 1: see .*CategoricalGraph"
    ):
        check_values(x, "graph:3*3+2*3", "graph")


@pytest.mark.parametrize(("requirement", "value", "message"), NOT_FITTING)
@pytest.mark.parametrize("kind", ["array", "tensor", "examples", "sparse"])
def test_other_values_are_rejected(requirement, value, message, kind, monkeypatch):
    monkeypatch.setattr("recmix.data.examples._CHUNK_VALUES", 7)
    x = np.zeros((20, 3))
    x[17, 1] = value
    x[0, 0] = 1  # sparse examples have stored values before the wrong one
    if kind == "sparse" and not np.isfinite(value):
        pytest.skip("SparseExamples are finite")
    make = {
        "array": lambda: x,
        "tensor": lambda: torch.from_numpy(x),
        "examples": lambda: ArrayExamples(x.astype(np.float32)),
        "sparse": lambda: SparseExamples(sparse.csr_array(x)),
    }
    with pytest.raises(DataError, match=message) as caught:
        check_values(make[kind](), requirement, "poisson")
    assert str(caught.value).startswith("the poisson likelihood needs ")
    assert "in example 17: " in str(caught.value)


def test_all_parts_of_data_are_checked():
    x = np.ones((6, 2))
    check_values(from_arrays(x, x, x), "unit", "beta")
    for part in ("x_train", "x_val", "x_test"):
        parts = dict.fromkeys(("x_train", "x_val", "x_test"), x) | {part: 3 * x}
        with pytest.raises(
            DataError, match=f"the beta likelihood .*{part} has the value 3 in example 0"
        ):
            check_values(from_arrays(**parts), "unit", "beta")


def test_grey_images_are_not_counts_unless_they_are_binarised():
    grey = ArrayExamples(np.full((3, 1, 8, 8), 100, np.uint8))
    black = ArrayExamples(np.zeros((3, 1, 8, 8), np.uint8))
    with pytest.raises(DataError, match="x_train has the value 0.392157"):
        check_values(Data("a", grey, black, None), "classes:2", "categorical")
    check_values(Data("a", grey, black, None, dynamic=True), "classes:2", "categorical")


@pytest.mark.parametrize("requirement", ["cuonts", "classes:", "classes:0", "classes:x", ""])
def test_unknown_requirements_are_rejected(requirement):
    with pytest.raises(ConfigError, match="requirement"):
        check_values(COUNTS, requirement, "poisson")


def test_nan_is_named_before_values_that_can_be_clipped():
    """`clip` would keep NaN."""
    x = np.array([[0.0, 1.001], [0.5, np.nan]])
    with pytest.raises(DataError, match="value NaN in example 1: remove") as caught:
        check_values(x, "unit", "bernoulli", what="example")
    assert "clip" not in str(caught.value)


def test_nan_does_not_change_the_advice_for_other_values(monkeypatch):
    monkeypatch.setattr("recmix.data.examples._CHUNK_VALUES", 1)
    x = np.array([[100.0], [np.nan], [0.5]])
    with pytest.raises(DataError, match=r"value 100 in example 0: .*x / 255"):
        check_values(x, "unit", "bernoulli")
