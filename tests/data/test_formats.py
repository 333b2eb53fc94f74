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

SHARED = settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])


@SHARED
@given(hnp.arrays(np.uint8, hnp.array_shapes(max_dims=4, max_side=6)), st.booleans())
def test_idx_round_trip(tmp_path, write_idx, array, zipped):
    path = tmp_path / "a-idx"
    write_idx(path, array, zipped)
    read = read_idx(path)
    np.testing.assert_array_equal(read, array)
    assert read.flags.writeable


@SHARED
@given(st.data())
def test_a_truncated_idx_is_never_read(tmp_path, write_idx, data):
    path = tmp_path / "a-idx"
    blob = write_idx(path, np.arange(24, dtype=np.uint8).reshape(2, 3, 4))
    path.write_bytes(blob[: data.draw(st.integers(0, len(blob) - 1))])
    with pytest.raises(DataError, match="a-idx"):
        read_idx(path)


def test_idx_that_is_too_long_or_of_another_type(tmp_path, write_idx):
    path = tmp_path / "a-idx"
    blob = write_idx(path, np.zeros((2, 3), np.uint8))
    path.write_bytes(blob + b"x")
    with pytest.raises(DataError, match=r"promises 6 bytes.*holds 7"):
        read_idx(path)
    path.write_bytes(b"\0\0\x0d" + blob[3:])
    with pytest.raises(DataError, match="not an IDX file of bytes: it begins with 00 00 0d 02"):
        read_idx(path)


def test_md5_is_of_the_content(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"abc"))
    right = hashlib.md5(b"abc").hexdigest()
    assert read_bytes(path, right) == b"abc"
    with pytest.raises(DataError, match=rf"a\.gz is not the published file.*{right}.*expected 0000"):
        read_bytes(path, "0000")


@pytest.mark.parametrize("damage", ["cut", "flipped", "header"])
def test_damaged_gzip(tmp_path, damage):
    path = tmp_path / "a.gz"
    blob = bytearray(gzip.compress(np.random.default_rng(0).bytes(5000)))
    if damage == "cut":
        del blob[2000:]
    elif damage == "flipped":
        blob[-6] ^= 255
    else:
        blob[2] = 99
    path.write_bytes(blob)
    with pytest.raises(DataError, match=r"a\.gz is not a whole gzip file"):
        read_bytes(path)


def test_a_file_that_cannot_be_opened(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*No such file"):
        read_bytes(tmp_path / "none")
    with pytest.raises(DataError, match=r"cannot read .*directory"):
        read_bytes(tmp_path)


@pytest.mark.parametrize("line", ["{} \n", "{}\r\n", "{}\n\n"])
def test_amat_round_trip(tmp_path, rng, line):
    values = rng.integers(0, 2, (7, 784), dtype=np.uint8)
    path = tmp_path / "a.amat"
    text = "".join(line.format(" ".join(map(str, row))) for row in values)
    path.write_bytes(text.encode())
    np.testing.assert_array_equal(read_amat(path), values)
    path.write_bytes(gzip.compress(text.rstrip().encode()))
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
def test_damaged_amat(tmp_path, text, message):
    path = tmp_path / "a.amat"
    path.write_bytes(text.encode())
    with pytest.raises(DataError, match=rf"a\.amat,? {message}"):
        read_amat(path, columns=2)


def test_cifar_round_trip_and_damage(tmp_path, rng):
    images = rng.integers(0, 256, (3, 3, 32, 32), dtype=np.uint8)
    labels = np.array([[0], [9], [5]], np.uint8)
    records = np.concatenate([labels, images.reshape(3, -1)], axis=1)
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(records.tobytes())
    np.testing.assert_array_equal(read_cifar(path), images)
    path.write_bytes(records.tobytes()[:-1])
    with pytest.raises(DataError, match=r"data_batch_1\.bin has 9218 bytes.*multiple of 3073"):
        read_cifar(path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match="has 0 bytes"):
        read_cifar(path)
    records[1, 0] = 10
    path.write_bytes(records.tobytes())
    with pytest.raises(DataError, match="label of 10"):
        read_cifar(path)


@pytest.mark.parametrize("compressed", [False, True])
def test_mat_by_key(tmp_path, compressed):
    path = tmp_path / "a.mat"
    scipy.io.savemat(path, {"data": np.eye(3), "X": np.eye(2)}, do_compression=compressed)
    x, data = read_mat(path, "X", "data")
    assert (x.shape, data.shape) == ((2, 2), (3, 3))
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert read_mat(path, "X")[0].shape == (2, 2)


@pytest.mark.parametrize("blob", [b"", b"garbage", b"garbage" * 100, bytes(1000)])
def test_a_mat_that_is_garbage(tmp_path, blob):
    path = tmp_path / "a.mat"
    path.write_bytes(blob)
    with pytest.raises(DataError, match=r"a\.mat"):
        read_mat(path, "X")


@pytest.mark.parametrize("compressed", [False, True])
def test_a_mat_that_is_cut_short(tmp_path, rng, compressed):
    path = tmp_path / "a.mat"
    scipy.io.savemat(path, {"X": rng.random((50, 50))}, do_compression=compressed)
    blob = path.read_bytes()
    for length in (100, 130, 200, len(blob) // 2):
        path.write_bytes(blob[:length])
        with pytest.raises(DataError, match=r"a\.mat"):
            read_mat(path, "X")


@pytest.mark.parametrize("head", [b"MATLAB 7.3 MAT-file, Platform: GLNXA64", b"\x89HDF\r\n\x1a\n"])
def test_a_mat_of_version_7_3(tmp_path, head):
    path = tmp_path / "a.mat"
    path.write_bytes(head.ljust(600))
    with pytest.raises(DataError, match=r"7\.3 \(HDF5\).*-v7"):
        read_mat(path, "X")


@pytest.mark.parametrize("value", [None, "text", {"a": 1}, [[np.eye(2)]]])
def test_a_mat_without_the_array(tmp_path, value):
    path = tmp_path / "a.mat"
    content = {"Y": np.eye(2)} if value is None else {"X": np.array(value, object)}
    scipy.io.savemat(path, content)
    with pytest.raises(DataError, match="no array of numbers named 'X'"):
        read_mat(path, "X")


def test_npy(tmp_path, rng):
    path = tmp_path / "a.npy"
    np.save(path, rng.random((5, 8, 8)))
    assert read_npy(path).shape == (5, 8, 8)
    blob = path.read_bytes()
    for length in (0, 5, 60, len(blob) - 1):
        path.write_bytes(blob[:length])
        with pytest.raises(DataError, match=r"a\.npy is not a readable \.npy"):
            read_npy(path)
    path.write_bytes(b"garbage" * 100)
    with pytest.raises(DataError, match=r"a\.npy is not a readable \.npy"):
        read_npy(path)


def test_nothing_is_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return pytest.fail, ("it was unpickled",)

    array = np.array([Trap()], object)
    np.save(tmp_path / "a.npy", array)
    np.savez(tmp_path / "a.npz", x_train=array)
    (tmp_path / "b.npy").write_bytes(pickle.dumps(Trap()))
    for name, read in (("a.npy", read_npy), ("b.npy", read_npy), ("a.npz", read_npz)):
        with pytest.raises(DataError, match=name):
            read(tmp_path / name)


def test_npz(tmp_path, rng):
    x = rng.random((5, 8, 8))
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x_train=x, x_test=x[:2], y_train=np.zeros(5))
    assert {part: len(array) for part, array in read_npz(path).items()} == {"x_train": 5, "x_test": 2}
    np.savez(path, x)
    np.testing.assert_array_equal(read_npz(path)["x_train"], x)
    np.savez(path, a=x, b=x)
    with pytest.raises(DataError, match="holds a, b; expected x_train"):
        read_npz(path)
    blob = path.read_bytes()
    for length in (0, 100, len(blob) - 10):
        path.write_bytes(blob[:length])
        with pytest.raises(DataError, match=r"a\.npz is not a readable"):
            read_npz(path)
    damaged = bytearray(blob)
    damaged[300] ^= 255
    path.write_bytes(damaged)
    with pytest.raises(DataError, match=r"a\.npz"):
        read_npz(path)
    with pytest.raises(DataError, match="cannot read"):
        read_npz(tmp_path / "none.npz")


def test_an_npz_called_npy(tmp_path, rng):
    np.savez(tmp_path / "a.npz", rng.random((5, 8, 8)))
    (tmp_path / "a.npz").rename(tmp_path / "a.npy")
    with pytest.raises(DataError, match=r"rename it to \.npz"):
        read_npy(tmp_path / "a.npy")
