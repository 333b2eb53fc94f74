import functools
import gzip
import hashlib
import pickle

import numpy as np
import pytest
import scipy.io
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from recmix.data.formats import read_amat, read_bytes, read_cifar, read_idx, read_mat, read_npy, read_npz
from recmix.errors import DataError

SHARED_FOLDER = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def assert_rejected(read, path, content, message):
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read(path)


def read_x(path):
    return read_mat(path, "X")


@SHARED_FOLDER
@given(hnp.arrays(np.uint8, hnp.array_shapes(max_dims=4, max_side=6)), st.booleans())
def test_idx_round_trip(tmp_path, write_idx, array, zipped):
    write_idx(tmp_path / "a-idx", array, zipped)
    read = read_idx(tmp_path / "a-idx")
    np.testing.assert_array_equal(read, array)
    assert read.flags.writeable


@SHARED_FOLDER
@given(st.data())
def test_truncated_idx_is_rejected(tmp_path, write_idx, data):
    path = tmp_path / "a-idx"
    content = write_idx(path, np.arange(24, dtype=np.uint8).reshape(2, 3, 4))
    assert_rejected(read_idx, path, content[: data.draw(st.integers(0, len(content) - 1))], "a-idx")


def test_idx_of_wrong_length_or_type_is_rejected(tmp_path, write_idx):
    path = tmp_path / "a-idx"
    content = write_idx(path, np.zeros((2, 3), np.uint8))
    assert_rejected(read_idx, path, content + b"x", r"has 7 values, expected 6 of shape \(2, 3\)")
    message = "not an IDX file of bytes: it begins with 00 00 0d 02"
    assert_rejected(read_idx, path, b"\0\0\x0d" + content[3:], message)


def test_md5_is_that_of_the_decompressed_content(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"abc"))
    right = hashlib.md5(b"abc").hexdigest()
    assert read_bytes(path, right) == b"abc"
    with pytest.raises(DataError, match=rf"a\.gz is not the published file.*{right}.*expected 0000"):
        read_bytes(path, "0000")


@pytest.mark.parametrize("damage", ["cut", "flipped", "header"])
def test_damaged_gzip_is_rejected(tmp_path, damage):
    content = bytearray(gzip.compress(np.random.default_rng(0).bytes(5000)))
    if damage == "cut":
        del content[2000:]
    elif damage == "flipped":
        content[-6] ^= 255
    else:
        content[2] = 99
    assert_rejected(read_bytes, tmp_path / "a.gz", content, r"a\.gz is not a complete gzip file")


def test_unreadable_path_is_reported(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*No such file"):
        read_bytes(tmp_path / "none")
    with pytest.raises(DataError, match=r"cannot read .*directory"):
        read_bytes(tmp_path)


@pytest.mark.parametrize("line", ["{} \n", "{}\r\n", "{}\n\n"])
def test_amat_round_trip(tmp_path, rng, line):
    values = rng.integers(0, 2, (7, 784), dtype=np.uint8)
    path = tmp_path / "a.amat"
    text = "".join(line.format(" ".join(map(str, row))) for row in values)
    for content in (text.encode(), gzip.compress(text.rstrip().encode())):
        path.write_bytes(content)
        np.testing.assert_array_equal(read_amat(path), values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 1\n0 2\n", "line 2: expected zeros and ones"),
        ("0 1\n01 \n", "line 2: expected zeros and ones"),
        ("0 1\n0 1\n0\n", "line 3: 1 values, expected 2"),
        ("0 1 1 0\n", "line 1: 4 values, expected 2"),
        ("", "is empty"),
        ("\n", "is empty"),
    ],
)
def test_damaged_amat_is_rejected(tmp_path, text, message):
    read = functools.partial(read_amat, columns=2)
    assert_rejected(read, tmp_path / "a.amat", text.encode(), rf"a\.amat,? {message}")


def test_cifar_round_trip_and_damage(tmp_path, rng):
    images = rng.integers(0, 256, (3, 3, 32, 32), dtype=np.uint8)
    labels = np.array([[0], [9], [5]], np.uint8)
    records = np.concatenate([labels, images.reshape(3, -1)], axis=1)
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(records.tobytes())
    np.testing.assert_array_equal(read_cifar(path), images)
    message = r"data_batch_1\.bin has 9218 bytes.*multiple of 3073"
    assert_rejected(read_cifar, path, records.tobytes()[:-1], message)
    assert_rejected(read_cifar, path, b"", "has 0 bytes")
    records[1, 0] = 10
    assert_rejected(read_cifar, path, records.tobytes(), "label 10")


@pytest.mark.parametrize("compressed", [False, True])
def test_mat_arrays_are_read_by_name(tmp_path, compressed):
    path = tmp_path / "a.mat"
    scipy.io.savemat(path, {"data": np.eye(3), "X": np.eye(2)}, do_compression=compressed)
    x, data = read_mat(path, "X", "data")
    assert (x.shape, data.shape) == ((2, 2), (3, 3))
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert read_mat(path, "X")[0].shape == (2, 2)


@pytest.mark.parametrize("content", [b"", b"garbage", b"garbage" * 100, bytes(1000)])
def test_garbage_mat_is_rejected(tmp_path, content):
    assert_rejected(read_x, tmp_path / "a.mat", content, r"a\.mat")


@pytest.mark.parametrize("compressed", [False, True])
def test_truncated_mat_is_rejected(tmp_path, rng, compressed):
    path = tmp_path / "a.mat"
    scipy.io.savemat(path, {"X": rng.random((50, 50))}, do_compression=compressed)
    content = path.read_bytes()
    for length in (130, len(content) // 2):  # in the header of the array; in its numbers
        assert_rejected(read_x, path, content[:length], r"a\.mat")


@pytest.mark.parametrize("head", [b"MATLAB 7.3 MAT-file, Platform: GLNXA64", b"\x89HDF\r\n\x1a\n"])
def test_mat_of_version_7_3_is_rejected(tmp_path, head):
    assert_rejected(read_x, tmp_path / "a.mat", head.ljust(600), r"7\.3 \(HDF5\).*-v7")


def test_mat_without_the_array_is_rejected(tmp_path):
    path = tmp_path / "a.mat"
    values = {"text": "text", "struct": {"a": 1}, "cells": np.array([[np.eye(2)]], object)}
    scipy.io.savemat(path, {"X": np.eye(2), **values})
    for key in ("Y", *values):
        with pytest.raises(DataError, match=f"no array of numbers named '{key}'"):
            read_mat(path, "X", key)


def test_npy_is_read_and_damage_is_rejected(tmp_path, rng):
    path = tmp_path / "a.npy"
    np.save(path, rng.random((5, 8, 8)))
    assert read_npy(path).shape == (5, 8, 8)
    content = path.read_bytes()
    cuts = [content[:length] for length in (0, 5, 60, len(content) - 1)]
    for damaged in (*cuts, b"garbage" * 100):
        assert_rejected(read_npy, path, damaged, r"a\.npy is not a readable \.npy")


def test_nothing_is_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return pytest.fail, ("it was unpickled",)

    array = np.array([Trap()], object)
    np.save(tmp_path / "a.npy", array)
    np.savez(tmp_path / "a.npz", x_train=array)
    np.savez(tmp_path / "b.npz", tokens=np.zeros(1), lengths=array)
    np.savez(tmp_path / "c.npz", format=array, shape=array, data=array)  # like a sparse matrix
    (tmp_path / "b.npy").write_bytes(pickle.dumps(Trap()))
    npz = [(name, read_npz) for name in ("a.npz", "b.npz", "c.npz")]
    for name, read in (("a.npy", read_npy), ("b.npy", read_npy), *npz):
        with pytest.raises(DataError, match=name):
            read(tmp_path / name)


def test_npz_is_read_and_damage_is_rejected(tmp_path, rng):
    x = rng.random((5, 8, 8))
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x_train=x, x_test=x[:2], y_train=np.zeros(5))
    assert {part: len(array) for part, array in read_npz(path).items()} == {"x_train": 5, "x_test": 2}
    np.savez(path, x)
    np.testing.assert_array_equal(read_npz(path)["x_train"], x)
    np.savez(path, x_val=x, b=x)
    np.savez(tmp_path / "named.npz", train=x, test=x[:2])
    with pytest.raises(DataError, match="holds train, test; expected x_train .*: name the parts so"):
        read_npz(tmp_path / "named.npz")
    with pytest.raises(DataError, match="holds x_val, b; expected x_train"):
        read_npz(path)
    np.savez(path, a=x, b=x)
    assert {name: len(array) for name, array in read_npz(path)["x_train"].items()} == {"a": 5, "b": 5}
    content = bytearray(path.read_bytes())
    for length in (0, 100, len(content) - 10):
        assert_rejected(read_npz, path, content[:length], r"a\.npz is not a readable")
    content[300] ^= 255
    assert_rejected(read_npz, path, content, r"a\.npz")
    with pytest.raises(DataError, match="cannot read"):
        read_npz(tmp_path / "none.npz")


def test_npz_with_npy_suffix_is_rejected(tmp_path, rng):
    np.savez(tmp_path / "a.npz", rng.random((5, 8, 8)))
    (tmp_path / "a.npz").rename(tmp_path / "a.npy")
    with pytest.raises(DataError, match=r"rename it to \.npz"):
        read_npy(tmp_path / "a.npy")
