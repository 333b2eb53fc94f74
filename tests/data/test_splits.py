import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recmix.data import ArrayExamples, Data, split
from recmix.data.splits import complete_parts, holdout_size
from recmix.errors import ConfigError, DataError

names = st.sampled_from(["mnist", "omniglot", "arrays", "ä"])
seeds = st.integers(0, 2**40)


@given(st.integers(3, 3000), names, seeds, st.integers(0, 2))
def test_parts_are_sorted_disjoint_and_complete(count, name, seed, parts):
    indices = split(count, name=name, seed=seed, parts=parts)
    assert len(indices) == parts + 1
    for index in indices:
        assert len(index) > 0
        assert (np.diff(index) > 0).all()
    np.testing.assert_array_equal(np.sort(np.concatenate(indices)), np.arange(count))
    assert all(len(index) == holdout_size(count) for index in indices[1:])


@given(st.integers(3, 3000), names, seeds)
def test_same_arguments_give_the_same_split(count, name, seed):
    first, second = (split(count, name=name, seed=seed) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


def test_split_depends_on_seed_and_name():
    base = split(1000, name="a", seed=0)[1]
    assert not np.array_equal(base, split(1000, name="a", seed=1)[1])
    assert not np.array_equal(base, split(1000, name="b", seed=0)[1])


def test_split_of_mnist_never_changes():
    """Results of earlier runs stay comparable only with the same split."""
    val = split(60_000, name="mnist", seed=0)[1]
    assert len(val) == 6000
    np.testing.assert_array_equal(val[:5], [13, 15, 17, 20, 21])


@pytest.mark.parametrize("seed", [-1, 0.5, "0", None])
def test_invalid_seed_is_rejected(seed):
    with pytest.raises(ConfigError, match="seed"):
        split(100, name="a", seed=seed)


@pytest.mark.parametrize(("count", "parts"), [(1, 1), (2, 2), (0, 1)])
def test_too_few_examples_are_rejected(count, parts):
    with pytest.raises(DataError, match=f"{count} example.*at least {parts + 1}"):
        split(count, name="a", parts=parts)


@pytest.fixture
def examples(rng):
    return ArrayExamples(rng.integers(0, 256, (50, 1, 8, 8), dtype=np.uint8))


@pytest.mark.parametrize(
    ("val", "test", "need_test", "counts"),
    [
        (False, False, False, (45, 5, None)),
        (False, False, True, (40, 5, 5)),
        (True, False, True, (45, 50, 5)),
        (False, True, True, (45, 5, 50)),
        (True, True, True, (50, 50, 50)),
    ],
)
def test_only_missing_parts_are_held_out(examples, val, test, need_test, counts):
    given = (examples, examples if val else None, examples if test else None)
    parts = complete_parts(*given, name="a", seed=0, need_test=need_test)
    assert tuple(None if part is None else len(part) for part in parts) == counts
    if not val and not test and need_test:
        together = np.concatenate([part.raw for part in parts])
        assert sorted(map(bytes, together)) == sorted(map(bytes, examples.raw))


def test_description_is_json_and_fingerprint_depends_on_examples(examples):
    data = Data("a", examples, examples, None, seed=3)
    description = json.loads(json.dumps(data.describe()))
    assert description["counts"] == {"train": 50, "val": 50, "test": None}
    assert (description["shape"], description["seed"]) == ([1, 8, 8], 3)
    assert len(description["fingerprint"]) == 64
    other = Data("a", examples.subset(slice(49)), examples, None, seed=3)
    assert other.fingerprint != data.fingerprint
    assert not {"fields", "columns"} & set(description)  # so that the specs of earlier runs stay equal


def test_fields_and_columns_must_fit_the_shape():
    x = ArrayExamples(np.zeros((4, 3), np.float32))
    data = Data("a", x, x, None, fields={"b": (2,), "c": ()})
    assert json.loads(json.dumps(data.describe()))["fields"] == [["b", [2]], ["c", []]]
    assert Data("a", x, x, None, columns=("b", "c", "d")).describe()["columns"] == ["b", "c", "d"]
    with pytest.raises(DataError, match=r"have 2 values, but an example has shape \(3,\)"):
        Data("a", x, x, None, fields={"b": (2,)})
    with pytest.raises(DataError, match=r"2 names of columns, but an example has shape \(3,\)"):
        Data("a", x, x, None, columns=("b", "c"))


def test_parts_of_different_shapes_are_rejected(examples):
    other = ArrayExamples(np.zeros((5, 1, 8, 9), np.uint8))
    with pytest.raises(DataError, match=r"x_test.*\(1, 8, 9\).*\(1, 8, 8\)"):
        Data("a", examples, examples, other)


def test_mean_and_variance_are_computed_once(examples, monkeypatch):
    data = Data("some", examples, examples, None)
    first = data.statistics()
    monkeypatch.setattr(type(examples), "mean", None)  # a second call would fail
    assert data.statistics().variance == first.variance
    assert data.statistics().centre is first.centre
