"""Files that are made to run programs, to crash or to fill the memory are refused with one message."""

import gzip
import io
import os
import signal
import struct
import subprocess
import sys
import zipfile
import zlib

import numpy as np
import pytest
import scipy.io
from PIL import EpsImagePlugin, Image
from scipy import sparse

from recmix.data import formats, limits, load
from recmix.data.file_images import ImageFolder
from recmix.data.formats import read_amat, read_bytes, read_cifar, read_idx, read_mat, read_npy, read_npz
from recmix.errors import ConfigError, DataError

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 16 16\n%%EndComments\nshowpage\n"
MEBI = 1 << 20


@pytest.fixture
def limit(monkeypatch):
    """Set the limit to one MiB."""
    monkeypatch.setenv("RECMIX_MAX_BYTES", str(MEBI))


def refused(read, *args, message):
    with pytest.raises(DataError, match=message) as caught:
        read(*args)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("zipped", [False, True])
def test_postscript_with_the_name_of_an_image_runs_no_program(
    tmp_path, monkeypatch, write_image_files, zipped
):
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: pytest.fail("gs was started"))
    folder = write_image_files(tmp_path / "p", ["a.png", "b.png", "c.png"], mode="L")
    (folder / "z.png").write_bytes(EPS)
    path = folder
    if zipped:
        path = tmp_path / "p.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for file in folder.iterdir():
                archive.write(file, file.name)
    refused(load, path, message=r"z\.png.* cannot be read as an image.*PNG, JPEG")
    for read in (
        ImageFolder(path).header,
        lambda name: ImageFolder(path).pixels(name, 1, (16, 16), None),
    ):
        refused(read, "z.png", message=r"z\.png.* cannot be read as an image")


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "gif", "webp"])
def test_every_documented_format_is_still_read(tmp_path, suffix):
    Image.new("L", (16, 12), 255).save(tmp_path / f"a.{suffix}")
    assert ImageFolder(tmp_path).header(f"a.{suffix}")[1:3] == (12, 16)
    assert ImageFolder(tmp_path).pixels(f"a.{suffix}", 1, (12, 16), None).min() == 255


def crashing_mat():
    """A MATLAB file on which `scipy.io.loadmat` crashes: the type of the text is wrong."""
    stream = io.BytesIO()
    scipy.io.savemat(stream, {"X": np.array([["ab"]])})
    content = bytearray(stream.getvalue())
    content[185] = 2
    return bytes(content)


def test_mat_that_crashes_scipy_is_rejected(tmp_path):
    path = tmp_path / "a.mat"
    path.write_bytes(crashing_mat())
    refused(read_mat, path, "X", message=r"a\.mat (is not a readable MATLAB 5 file|has no array)")


@pytest.mark.skipif(os.name == "nt", reason="no signals")
def test_crash_of_the_mat_process_is_named(tmp_path, monkeypatch):
    script = tmp_path / "crash.py"
    script.write_text(f"import os\nos.kill(os.getpid(), {int(signal.SIGSEGV)})\n")
    monkeypatch.setattr(formats.mat_process, "__file__", str(script))
    (tmp_path / "a.mat").write_bytes(bytes(1000))
    refused(read_mat, tmp_path / "a.mat", "X", message=r"a\.mat .*scipy crashed on it with SIGSEGV")


def test_mat_process_has_a_time_limit(tmp_path, monkeypatch):
    script = tmp_path / "slow.py"
    script.write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(formats.mat_process, "__file__", str(script))
    monkeypatch.setattr(formats, "_MAT_SECONDS", 0.2)
    (tmp_path / "a.mat").write_bytes(bytes(1000))
    refused(read_mat, tmp_path / "a.mat", "X", message=r"a\.mat was not read within 0\.2 seconds")


def test_large_array_in_a_small_mat_is_rejected(tmp_path, limit):
    path = tmp_path / "a.mat"
    scipy.io.savemat(path, {"X": np.zeros(MEBI // 4)}, do_compression=True)
    assert path.stat().st_size < MEBI // 10
    refused(
        read_mat,
        path,
        "X",
        message=r"a\.mat is not a readable MATLAB 5 file \(its arrays need 2097280 bytes",
    )


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit the memory")
def test_memory_of_the_mat_process_is_limited(tmp_path, limit):
    """An array of three GiB does not fit into the address space of the process."""
    zeros = zlib.compressobj(1)
    packed = [zeros.compress(struct.pack("<2I", 14, 3 << 30))]
    header = struct.pack("<4I", 6, 8, 9, 0) + struct.pack("<4I", 5, 8, 1, 3 << 30)  # uint8, (1, 3 GiB)
    header += struct.pack("<HH4s", 1, 1, b"X\0\0\0") + struct.pack("<2I", 2, 3 << 30)
    packed += [zeros.compress(header), zeros.flush()]
    element = b"".join(packed)
    start = b"MATLAB 5.0 MAT-file".ljust(124) + b"\0\x01IM"
    path = tmp_path / "a.mat"
    path.write_bytes(start + struct.pack("<2I", 15, len(element)) + element)
    refused(read_mat, path, "X", message=r"a\.mat .*it needs too much memory")


def test_mat_results_are_not_pickled(tmp_path):
    path = tmp_path / "a.mat"
    scipy.io.savemat(path, {"X": np.arange(6.0).reshape(2, 3), "n": np.array([[True]])})
    x, n = read_mat(path, "X", "n")
    np.testing.assert_array_equal(x, [[0, 1, 2], [3, 4, 5]])
    assert (x.dtype, n.dtype.kind) == (np.float64, "u")


def write_npz(path, arrays, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as stream:
                np.lib.format.write_array(stream, np.asarray(array))
    return path


@pytest.mark.parametrize(
    "names", [("x_train",), ("x_train", "x_test"), ("x_train.a",), ("a",), ("a", "b")]
)
def test_large_arrays_in_a_small_npz_are_rejected_before_they_are_read(
    tmp_path, monkeypatch, limit, names
):
    monkeypatch.setattr(formats, "StepReader", lambda *_: pytest.fail("it was read"))
    zeros = np.zeros((MEBI // 8 // len(names) + 1,))
    path = write_npz(tmp_path / "a.npz", dict.fromkeys(names, zeros))
    refused(read_npz, path, message=r"a\.npz holds \d+ bytes.*RECMIX_MAX_BYTES")


def test_arrays_that_are_not_needed_do_not_count(tmp_path, limit):
    path = write_npz(tmp_path / "a.npz", {"x_train": np.ones(4), "other": np.zeros(MEBI)})
    assert read_npz(path)["x_train"].tolist() == [1] * 4


def test_npz_member_that_is_larger_than_declared_is_read_in_steps(tmp_path, monkeypatch):
    """The member says 100,000 bytes, but decompresses to many more."""
    header = b"\x93NUMPY\x02\x00" + struct.pack("<I", (1 << 32) - 1)
    content = header + bytes(50 * MEBI)
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x_train.npy", content)
    data = path.read_bytes()
    size, crc = struct.pack("<I", len(content)), struct.pack("<I", zlib.crc32(content))
    assert data.count(size) == 2
    data = data.replace(size, struct.pack("<I", 100_000))
    path.write_bytes(data.replace(crc, struct.pack("<I", zlib.crc32(content[:100_000]))))
    asked = []
    read = zipfile.ZipExtFile._read1
    monkeypatch.setattr(zipfile.ZipExtFile, "_read1", lambda self, n: asked.append(n) or read(self, n))
    refused(read_npz, path, message=r"a\.npz is not a readable")
    assert max(asked) <= MEBI


def test_zip_members_with_other_compression_are_rejected(tmp_path):
    path = write_npz(tmp_path / "a.npz", {"x_train": np.zeros(4)}, zipfile.ZIP_BZIP2)
    refused(read_npz, path, message=r"x_train\.npy in .*method 12; expected stored")
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("a.png", b"x")
    refused(ImageFolder(tmp_path / "a.zip").header, "a.png", message=r"a\.png in .*method 12")


@pytest.mark.parametrize("kind", ["matrix", "array"])
def test_sparse_files_keep_their_kind(tmp_path, kind):
    dense = np.arange(6).reshape(2, 3)
    for form in ("csr", "csc", "coo", "bsr", "dia"):
        made = getattr(sparse, f"{form}_{kind}")(dense)
        sparse.save_npz(tmp_path / "a.npz", made)
        found = read_npz(tmp_path / "a.npz")["x_train"]
        assert type(found) is type(made)
        np.testing.assert_array_equal(found.toarray(), dense)


def test_gzip_bomb_is_rejected_while_it_is_read(tmp_path, monkeypatch, limit):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"0,0\n" * (5 * MEBI)))
    read = []
    real = gzip.GzipFile.read
    monkeypatch.setattr(gzip.GzipFile, "read", lambda self, n=-1: read.append(n) or real(self, n))
    refused(read_bytes, path, message=r"a\.csv\.gz holds \d+ bytes or more, expected at most 1048576")
    assert len(read) == 2
    assert set(read) == {MEBI}
    refused(load, path, message=r"expected at most 131072: .*RECMIX_MAX_BYTES to 8388608 or more")


@pytest.mark.parametrize("read", [read_idx, read_amat, read_cifar, lambda path: read_mat(path, "X")])
def test_formats_of_the_named_sets_have_a_fixed_limit(tmp_path, monkeypatch, read):
    monkeypatch.setattr(formats, "_SET_BYTES", MEBI)
    (tmp_path / "a.gz").write_bytes(gzip.compress(bytes(2 * MEBI)))
    refused(
        read, tmp_path / "a.gz", message=r"a\.gz holds 2097152 bytes or more, expected at most 1048576"
    )


def test_large_files_are_rejected_before_they_are_read(tmp_path, limit):
    for name, read in (("a.npy", read_npy), ("a.npz", read_npz), ("a.bin", read_bytes)):
        with (tmp_path / name).open("wb") as stream:
            stream.truncate(MEBI + 1)
        refused(read, tmp_path / name, message=rf"{name} holds 1048577 bytes or more")


def test_large_parquet_is_rejected_before_it_is_read(tmp_path, limit):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"a": np.zeros(MEBI, np.int8)}), path)
    refused(load, path, message=r"a\.parquet holds 8388608 bytes or more")


@pytest.mark.parametrize("zipped", [False, True])
def test_large_image_files_are_rejected(tmp_path, monkeypatch, zipped):
    monkeypatch.setattr("recmix.data.file_images._MAX_BYTES", 1000)
    content = io.BytesIO()
    Image.new("L", (100, 100)).save(content, "BMP")
    (tmp_path / "a.bmp").write_bytes(content.getvalue())
    path = tmp_path
    if zipped:
        path = tmp_path / "a.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(tmp_path / "a.bmp", "a.bmp")
    refused(ImageFolder(path).header, "a.bmp", message=r"a\.bmp.* holds \d+ bytes.*at most 1000: remove")


PIPES = """
import sys
from pathlib import Path
from recmix.data import fetch, load
from recmix.errors import DataError
folder = Path(sys.argv[1])
names = ["images", "a.zip", "a.npy", "a.npz", "a.csv", "a.csv.gz", "a.parquet"]
reads = [lambda name=name: load(folder / name) for name in names]
reads.append(lambda: fetch.unpack(folder / "a.npy", folder, ["x"]))
reads.append(lambda: fetch.md5_of(folder / "a.npy"))
for read in reads:
    try:
        read()
    except DataError as error:
        assert "it is a named pipe, expected a regular file" in str(error), error
        print("refused")
"""


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_named_pipes_are_not_opened(tmp_path):
    (tmp_path / "images").mkdir()
    names = ["images/a.png", "a.zip", "a.npy", "a.npz", "a.csv", "a.csv.gz", "a.parquet"]
    for name in names:
        os.mkfifo(tmp_path / name)
    command = [sys.executable, "-c", PIPES, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stderr, done.stdout.split()) == ("", ["refused"] * 9)


def test_devices_and_folders_are_not_read(tmp_path):
    refused(read_bytes, tmp_path, message="it is a directory")
    if os.path.exists("/dev/zero"):
        (tmp_path / "a.npy").symlink_to("/dev/zero")
        refused(load, tmp_path / "a.npy", message="it is a device")


@pytest.mark.parametrize("value", ["none", "0", "-1", "1.5"])
def test_wrong_limit_is_rejected(tmp_path, monkeypatch, value):
    monkeypatch.setenv("RECMIX_MAX_BYTES", value)
    (tmp_path / "a.npy").write_bytes(b"x")
    with pytest.raises(ConfigError, match=f"RECMIX_MAX_BYTES is '{value}'; expected a whole number"):
        load(tmp_path / "a.npy")


def test_default_limit_follows_the_memory(monkeypatch):
    monkeypatch.delenv("RECMIX_MAX_BYTES", raising=False)
    assert limits.max_bytes() > 256 * MEBI
    monkeypatch.delattr(os, "sysconf", raising=False)
    assert limits.max_bytes() == 1 << 33


def test_empty_name_is_rejected(tmp_path, monkeypatch, write_image_files):
    monkeypatch.chdir(write_image_files(tmp_path, ["a.png", "b.png", "c.png"]))
    refused(load, "", message="name of the data is empty; expected a path or one of digits")
    assert sum(load(".").counts.values()) == 3


@pytest.mark.parametrize(
    "name", ["a" * 10_000, "a/" * 5000, "a" * 300 + ".npy", "~nobody-of-this-name/a"]
)
def test_impossible_path_is_rejected(name):
    refused(load, name, message="cannot be read .*expected a path or one of digits")
    refused(load, "mnist", name, message="cannot be read .*expected the folder of the named data sets")


def test_every_download_has_a_checksum():
    from recmix.data.sets import SETS

    for spec in SETS.values():
        for file in (*spec.files, *([spec.archive] if spec.archive else [])):
            assert file.md5 or file.file_sum or not file.urls, file.name
