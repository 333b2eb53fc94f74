"""Data of a run that were arrays in memory are found again in a file."""

from functools import partial

import numpy as np
import pytest

from recmix.data import (
    ArrayExamples,
    as_data,
    from_arrays,
    has_same_examples,
    load,
    load_again,
    load_for_training,
    rebuild,
)
from recmix.data.overlap import count_training_examples, write_training_examples
from recmix.errors import RunError


@pytest.fixture
def x():
    return np.random.default_rng(0).random((40, 1, 8, 8), np.float32)


def test_a_file_is_split_as_the_arrays_were(x, tmp_path):
    trained = from_arrays(x, seed=3)
    np.save(tmp_path / "mine.npy", x)
    found = load_again(tmp_path / "mine.npy", trained.describe())
    assert found.fingerprint == trained.fingerprint
    assert rebuild(found.describe()).fingerprint == trained.fingerprint


def test_test_examples_in_the_file_are_kept_if_the_run_had_none(x, tmp_path):
    trained = from_arrays(x, hold_out_test=False)
    np.savez(tmp_path / "mine.npz", x_train=x, x_test=x[:5])
    found = load_again(tmp_path / "mine.npz", trained.describe())
    assert has_same_examples(found, trained.describe())
    assert len(found.x_test) == 5


def test_other_examples_are_split_as_usual(x, tmp_path):
    np.save(tmp_path / "mine.npy", 1 - x)
    described = from_arrays(x).describe()
    found = load_again(tmp_path / "mine.npy", described)
    assert found.name == "mine"
    assert not has_same_examples(found, described)
    assert found.counts == {"train": 32, "val": 4, "test": 4}


def test_an_array_is_split_as_a_file_of_its_name(x, tmp_path):
    np.save(tmp_path / "mine.npy", x)
    assert (
        from_arrays(x, seed=2, name="mine").fingerprint
        == load(tmp_path / "mine.npy", seed=2).fingerprint
    )


def test_no_test_examples_are_held_out_of_a_continued_run_that_had_none(x):
    old = from_arrays(x, hold_out_test=False)
    assert old.counts == {"train": 36, "val": 4, "test": None}
    assert as_data(x, description=old.describe()).fingerprint == old.fingerprint
    assert as_data(x, description=from_arrays(x).describe()).counts["test"] == 4


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        ((8, 8), (8, 8)),
        ((8, 8), (1, 8, 8)),
        ((1, 8, 8), (8, 8)),
        ((1, 8, 8), (8, 8, 1)),
        ((8, 8, 1), (8, 8, 1)),  # refused for other shapes, because it looks channels-last
    ],
)
def test_examples_take_the_shape_that_the_model_was_made_for(x, tmp_path, given, shape):
    array, path = x.reshape(-1, *given), tmp_path / "mine.npy"
    np.save(path, array)
    described = from_arrays(array, shape=shape).describe()
    found = load_again(path, described, shape=shape)
    assert found.shape == as_data(array, shape=shape).shape == tuple(described["shape"]) == shape
    assert has_same_examples(found, described)
    assert rebuild(found.describe()).fingerprint == found.fingerprint


def test_named_sets_take_the_shape_and_other_shapes_stay(x, tmp_path):
    described = load("digits", shape=(8, 8)).describe()
    assert rebuild(described).shape == (8, 8)
    np.save(tmp_path / "mine.npy", x)
    assert load(tmp_path / "mine.npy", shape=(64,)).shape == (1, 8, 8)


def test_images_are_resized_as_those_of_the_run(tmp_path, write_image_files, x):
    write_image_files(tmp_path / "a", [f"{i}.png" for i in range(5)], (16, 16))
    write_image_files(tmp_path / "b", [f"{i}.png" for i in range(5)], (20, 18))
    described = load(tmp_path / "a", size=8, crop=12).describe()
    found = load_again(tmp_path / "b", described)
    assert found.shape == (3, 8, 8)
    assert found.source["options"]["crop"] == 12
    np.save(tmp_path / "mine.npy", x)  # numbers are not resized
    assert load_again(tmp_path / "mine.npy", described).shape == (1, 8, 8)


def test_training_examples_are_counted_whatever_file_they_are_in(tmp_path):
    grey = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    data = from_arrays(grey)
    write_training_examples(tmp_path, data)
    other = ArrayExamples((grey.reshape(40, 64) / 255).astype(np.float32)[::-1].copy())
    assert count_training_examples(other, data.describe(), folder=tmp_path) == 32
    assert count_training_examples(data.x_test, data.describe(), folder=tmp_path) == 0
    assert count_training_examples(other, data.describe()) is None
    np.save(tmp_path / "mine.npy", grey)
    described = load(tmp_path / "mine.npy").describe()
    assert count_training_examples(other, described, folder=tmp_path / "none") == 32
    np.save(tmp_path / "mine.npy", grey[:30])
    assert count_training_examples(other, described) is None
    (tmp_path / "training_examples.json").write_text('{"hashes": "!"}')
    with pytest.raises(RunError, match="damaged"):
        count_training_examples(other, data.describe(), folder=tmp_path)


def test_a_function_that_returns_data_is_called():
    lines = []
    data = as_data(partial(load_for_training, "digits", tell=lines.append))
    assert data.name == "digits"
    assert lines == ["digits: 1350 train, 150 val, 297 test"]
    assert as_data(lambda: data) is data
