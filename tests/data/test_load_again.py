"""Data of a run that were arrays in memory are found again in a file."""

import numpy as np
import pytest

from recmix.data import from_arrays, has_same_examples, load_again, rebuild


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
    trained = from_arrays(x)
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
