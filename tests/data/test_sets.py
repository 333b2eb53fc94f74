import dataclasses
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile

import numpy as np
import pytest
import scipy.io

import recmix.data
from recmix.data import (
    SETS,
    ArrayExamples,
    DataWarning,
    FileImages,
    data_root,
    inventory,
    load,
    rebuild,
)
from recmix.errors import ConfigError, DataError


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Forbid downloads; a test that downloads allows them and uses local URLs."""
    monkeypatch.setenv("RECMIX_OFFLINE", "1")


@pytest.fixture
def small_mnist(rng, write_idx, monkeypatch):
    """Write sixty training and twenty test images in MNIST's format and register their MD5 sums."""

    def write(folder, zipped=False):
        files = []
        images = {}
        for file, count in zip(SETS["mnist"].files, (60, 20), strict=True):
            images[file.name] = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
            content = write_idx(folder / (file.name + ".gz" * zipped), images[file.name], zipped)
            files.append(dataclasses.replace(file, md5=hashlib.md5(content).hexdigest()))
        for name in ("mnist", "binary-mnist"):
            monkeypatch.setitem(SETS, name, dataclasses.replace(SETS[name], files=tuple(files)))
        return images

    return write


def counts(data):
    return tuple(data.counts.values())


def entry_of(name, root):
    return next(entry for entry in inventory(root) if entry.name == name)


def files_in(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_digits():
    data = load("digits")
    assert data.counts == {"train": 1350, "val": 150, "test": 297} == SETS["digits"].counts
    assert data.shape == (1, 8, 8)
    values = np.asarray(data.x_train) * 16
    np.testing.assert_array_equal(values, values.round())
    assert values.max() == 16
    assert not data.binary


@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw", "."])
@pytest.mark.parametrize("zipped", [False, True])
def test_mnist_is_found_in_every_folder(tmp_path, small_mnist, folder, zipped):
    written = small_mnist(tmp_path / folder, zipped)
    data = load("mnist", root=tmp_path)
    assert data.counts == {"train": 54, "val": 6, "test": 20}
    np.testing.assert_array_equal(data.x_test.raw[:, 0], written["t10k-images-idx3-ubyte"])
    assert data.x_train.raw.dtype == np.uint8
    assert (data.dynamic, data.binary) == (False, False)


def test_mnist_with_wrong_md5_is_rejected(tmp_path, write_idx, rng):
    for file in SETS["mnist"].files:
        write_idx(tmp_path / "mnist" / file.name, rng.integers(0, 256, (20, 28, 28)))
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte is not the published file: .*MD5"):
        load("mnist", root=tmp_path)


def test_binary_mnist_has_fixed_validation_and_test_images(tmp_path, small_mnist):
    written = small_mnist(tmp_path)
    one, again, other = (load("binary-mnist", tmp_path, seed) for seed in (0, 0, 1))
    assert (one.dynamic, one.binary) == (True, True)
    for data in (one, other):
        assert set(np.unique(data.x_val[:])) == {0.0, 1.0}
        assert set(np.unique(data.x_test[:])) == {0.0, 1.0}
        assert len(np.unique(data.x_train[:])) > 100  # grey: the training loop binarises
    assert one.fingerprint == again.fingerprint
    np.testing.assert_array_equal(one.x_test[:], other.x_test[:])  # the same for every seed
    assert not np.array_equal(one.x_val[:], other.x_val[:])
    grey = written["t10k-images-idx3-ubyte"][:, None]
    drawn = one.x_test.raw == 255
    assert not drawn[grey == 0].any()
    assert drawn[grey == 255].all()
    # A pixel is 1 with its grey value as probability: 15,680 draws, four standard errors.
    assert abs(drawn.mean() - grey.mean() / 255) < 4 * 0.5 / np.sqrt(drawn.size)


def test_static_mnist_is_read_with_its_validation_part(tmp_path, rng):
    written = {}
    for part, count in {"train": 12, "valid": 5, "test": 4}.items():
        written[part] = rng.integers(0, 2, (count, 784))
        path = tmp_path / "static-mnist" / f"binarized_mnist_{part}.amat"
        path.parent.mkdir(exist_ok=True)
        np.savetxt(path, written[part], fmt="%d")
    data = load("static-mnist", root=tmp_path)
    assert counts(data) == (12, 5, 4)
    assert (data.dynamic, data.binary) == (False, True)
    np.testing.assert_array_equal(data.x_val[:].reshape(5, 784), written["valid"])


def test_omniglot_is_upright(tmp_path, rng):
    images = rng.random((30, 28, 28))
    columns = images.transpose(0, 2, 1).reshape(30, 784).T  # column-major, as in MATLAB
    (tmp_path / "omniglot").mkdir()
    path = tmp_path / "omniglot" / "chardata.mat"
    scipy.io.savemat(path, {"data": columns, "testdata": columns[:, :9]})
    data = load("omniglot", root=tmp_path)
    assert counts(data) == (27, 3, 9)
    np.testing.assert_array_equal(data.x_test[:][:, 0], images[:9].astype(np.float32))
    scipy.io.savemat(path, {"data": columns.T, "testdata": columns})
    with pytest.raises(DataError, match=r"chardata\.mat.*shape \(30, 784\), expected \(784, N\)"):
        load("omniglot", root=tmp_path)
    scipy.io.savemat(path, {"data": 255 * columns, "testdata": columns})
    with pytest.raises(DataError, match=r"chardata\.mat: .*expected \[0, 1\]"):
        load("omniglot", root=tmp_path)


def cifar_records(rng, count):
    return rng.integers(0, 10, (count, 3073), dtype=np.uint8)


def test_fashion_mnist_is_read_from_its_own_folder(tmp_path, rng, write_idx):
    folder = tmp_path / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    for name, count in (("train", 20), ("t10k", 5)):
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        write_idx(folder / f"{name}-images-idx3-ubyte", images)
    data = load("fashion-mnist", root=tmp_path)
    assert counts(data) == (18, 2, 5)
    np.testing.assert_array_equal(data.x_test.raw[:, 0], images)


@pytest.mark.parametrize("folder", ["cifar10/cifar-10-batches-bin", "cifar-10-batches-bin"])
def test_cifar10_uses_the_batches_that_exist(tmp_path, rng, folder):
    (tmp_path / folder).mkdir(parents=True)
    first, third, test = (cifar_records(rng, count) for count in (20, 10, 5))
    first.tofile(tmp_path / folder / "data_batch_1.bin")
    test.tofile(tmp_path / folder / "test_batch.bin")
    with pytest.warns(DataWarning, match=r"4 of 6 files are left out.*data_batch_2.bin"):
        data = load("cifar10", root=tmp_path)
    assert counts(data) == (18, 2, 5)
    np.testing.assert_array_equal(data.x_test.raw.reshape(5, 3072), test[:, 1:])
    third.tofile(tmp_path / folder / "data_batch_3.bin")
    with pytest.warns(DataWarning, match=r"3 of 6 files"):
        assert counts(load("cifar10", root=tmp_path)) == (27, 3, 5)
    entry = entry_of("cifar10", tmp_path)
    assert (entry.state, entry.usable, entry.files) == ("partly", True, 3)
    assert entry.missing == ("data_batch_2.bin", "data_batch_4.bin", "data_batch_5.bin")
    assert entry.bytes == 35 * 3073


def test_svhn_axes_are_in_order(tmp_path, rng):
    x = rng.integers(0, 256, (32, 32, 3, 20), dtype=np.uint8)
    (tmp_path / "svhn").mkdir()
    for name in ("train", "test"):
        scipy.io.savemat(tmp_path / "svhn" / f"{name}_32x32.mat", {"X": x, "y": np.zeros(20)})
    data = load("svhn", root=tmp_path)
    assert counts(data) == (18, 2, 20)
    np.testing.assert_array_equal(data.x_test.raw[7, 2], x[:, :, 2, 7])
    scipy.io.savemat(tmp_path / "svhn" / "test_32x32.mat", {"X": x[:31]})
    with pytest.raises(DataError, match=r"test_32x32\.mat: X is uint8 of shape \(31, 32, 3, 20\)"):
        load("svhn", root=tmp_path)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("stream", [True, "auto"])
def test_celeba_is_cropped_and_rebuilt(tmp_path, write_image_files, zipped, stream):
    names = [f"img_align_celeba/{number:06d}.jpg" for number in range(1, 21)]
    folder = write_image_files(tmp_path / "celeba", names, (218, 178))
    if zipped:
        shutil.make_archive(str(folder / "img_align_celeba"), "zip", folder, "img_align_celeba")
        shutil.rmtree(folder / "img_align_celeba")
    data = load("celeba", root=tmp_path, stream=stream)
    assert counts(data) == (16, 2, 2)
    assert data.shape == (3, 64, 64)
    assert isinstance(data.x_train, FileImages if stream is True else ArrayExamples)
    assert data.x_train[:4].shape == (4, 3, 64, 64)
    assert data.fingerprint == load("celeba", root=tmp_path, stream=stream).fingerprint
    wide = load("celeba", root=tmp_path, crop=148, size=32)
    assert wide.shape == (3, 32, 32)
    same = rebuild(json.loads(json.dumps(wide.describe())), root=tmp_path)
    assert same.fingerprint == wide.fingerprint
    entry = entry_of("celeba", tmp_path)
    assert (entry.state, entry.files) == ("present", 1 if zipped else 20)


def test_celeba_that_is_not_aligned_is_rejected(tmp_path, write_image_files):
    folder = write_image_files(tmp_path / "celeba" / "img_align_celeba", ["1.jpg"], (300, 200))
    with pytest.raises(DataError, match=r"1\.jpg is 300x200.*expected 218x178"):
        load("celeba", root=tmp_path)
    (folder / "1.jpg").unlink()
    with pytest.raises(DataError, match="has no images"):
        load("celeba", root=tmp_path)


def test_error_names_missing_files_folders_and_urls(tmp_path):
    with pytest.raises(DataError) as caught:
        load("mnist", root=tmp_path)
    message = str(caught.value)
    for part in (
        "mnist: 2 of 2 files are missing",
        f"Put these files into {tmp_path / 'mnist'}:",
        "train-images-idx3-ubyte or train-images-idx3-ubyte.gz",
        "t10k-images-idx3-ubyte",
        str(tmp_path / "MNIST" / "raw"),
        *(url for file in SETS["mnist"].files for url in file.urls),
        "RECMIX_OFFLINE",
    ):
        assert part in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [name for name, spec in SETS.items() if spec.files])
def test_every_set_reports_missing_files(tmp_path, monkeypatch, name):
    monkeypatch.delenv("RECMIX_OFFLINE")
    with pytest.raises(DataError, match=r"files are missing[\s\S]*download=False"):
        load(name, root=tmp_path, download=False)


def test_celeba_must_be_downloaded_in_a_browser(tmp_path, monkeypatch):
    monkeypatch.delenv("RECMIX_OFFLINE")
    with pytest.raises(DataError, match=r"img_align_celeba\.zip[\s\S]*CelebA\.html[\s\S]*in a browser"):
        load("celeba", root=tmp_path)


@pytest.fixture
def change_set(monkeypatch):
    """Change fields of a named set and allow downloads."""

    def change(name, **changes):
        monkeypatch.delenv("RECMIX_OFFLINE", raising=False)
        monkeypatch.setitem(SETS, name, dataclasses.replace(SETS[name], **changes))

    return change


@pytest.fixture
def publish_mnist(server, small_mnist, change_set):
    """Serve a small MNIST; `urls` gives the URLs of a file from its name, below the server's address."""

    def publish(urls, zipped=False, **changes):
        folder, address = server
        small_mnist(folder, zipped)
        files = []
        for file in SETS["mnist"].files:
            changes["urls"] = tuple(f"{address}/{url}" for url in urls(file.name))
            files.append(dataclasses.replace(file, **changes))
        change_set("mnist", files=tuple(files))
        return folder

    return publish


@pytest.mark.parametrize("zipped", [False, True])
def test_missing_files_are_downloaded_once(tmp_path, publish_mnist, monkeypatch, zipped):
    publish_mnist(lambda name: ("none", name + ".gz" * zipped), zipped)
    data = load("mnist", root=tmp_path / "root")
    assert counts(data) == (54, 6, 20)
    monkeypatch.setenv("RECMIX_OFFLINE", "1")
    assert load("mnist", root=tmp_path / "root").fingerprint == data.fingerprint


@pytest.mark.parametrize(
    ("ending", "reason"), [("x", "answered 404"), (".half", "stopped"), ("", "expected wrong")]
)
def test_failed_download_gives_reason_and_leaves_no_file(tmp_path, publish_mnist, ending, reason):
    folder = publish_mnist(lambda name: (name + ending,), md5="wrong")
    for file in SETS["mnist"].files:
        shutil.copy(folder / file.name, folder / f"{file.name}.half")
    with pytest.raises(DataError, match=rf"2 of 2 files are missing[\s\S]*failed:[\s\S]*{reason}"):
        load("mnist", root=tmp_path / "root")
    assert files_in(tmp_path / "root") == []


def test_root_that_cannot_be_written_is_reported(tmp_path, publish_mnist):
    publish_mnist(lambda name: (name,))
    (tmp_path / "root").write_text("a file where a folder should be")
    with pytest.raises(DataError, match=r"2 of 2 files are missing[\s\S]*cannot write train-images"):
        load("mnist", root=tmp_path / "root")


@pytest.fixture
def cifar_archive(tmp_path, rng):
    folder = tmp_path / "build" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for file in SETS["cifar10"].files:
        cifar_records(rng, 4).tofile(folder / file.name)
    (folder / "readme.html").write_text("x")
    path = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(folder, "cifar-10-batches-bin")
    return path


def test_cifar10_is_downloaded_and_unpacked(tmp_path, server, cifar_archive, change_set):
    folder, address = server
    shutil.copy(cifar_archive, folder)
    archive = dataclasses.replace(
        SETS["cifar10"].archive,
        urls=(f"{address}/cifar-10-binary.tar.gz",),
        file_sum=f"md5:{hashlib.md5(cifar_archive.read_bytes()).hexdigest()}",
    )
    change_set("cifar10", archive=archive)
    root = tmp_path / "root"
    assert counts(load("cifar10", root=root)) == (18, 2, 4)
    assert files_in(root) == [
        f"cifar10/cifar-10-batches-bin/{file.name}" for file in SETS["cifar10"].files
    ]


def test_damaged_archive_is_reported(tmp_path, cifar_archive):
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / cifar_archive.name).write_bytes(cifar_archive.read_bytes()[:100])
    with pytest.raises(DataError, match=r"6 of 6 files[\s\S]*is not a complete tar archive"):
        load("cifar10", root=tmp_path / "root")


@pytest.mark.parametrize("folder", ["cifar10", "."])
def test_existing_cifar10_archive_is_unpacked(tmp_path, cifar_archive, folder):
    root = tmp_path / "root"
    (root / folder).mkdir(parents=True)
    shutil.copy(cifar_archive, root / folder)
    assert counts(load("cifar10", root=root, download=False)) == (18, 2, 4)


def test_data_root_is_argument_then_variable_then_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RECMIX_DATA", str(tmp_path))
    assert data_root() == tmp_path
    assert data_root("/elsewhere").as_posix() == "/elsewhere"
    monkeypatch.delenv("RECMIX_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root() == tmp_path / ".cache" / "recmix" / "data"
    assert data_root("~/x") == tmp_path / "x"


def test_unknown_names_and_missing_paths_are_reported(tmp_path, monkeypatch, grey):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"unknown data set 'minst': did you mean 'mnist'.*Valid: "):
        load("minst")
    for name in ("none.npy", "folder/none", tmp_path / "none"):
        with pytest.raises(DataError, match=r"none.* does not exist; expected a \.npy"):
            load(name)
    np.save(tmp_path / "minst.npy", grey)
    (tmp_path / "minst.npy").rename(tmp_path / "minst")
    with pytest.raises(DataError, match="format that is not supported"):
        load("minst")  # the path exists, without a suffix


def test_size_is_rejected_for_sets_without_image_files():
    with pytest.raises(ConfigError, match="size and crop are for image files"):
        load("digits", size=16)


def test_rebuild_loads_the_same_data_or_reports_why_not(tmp_path, grey):
    np.save(tmp_path / "a.npy", grey)
    for data in (load("digits", seed=2), load(tmp_path / "a.npy", seed=2)):
        description = json.loads(json.dumps(data.describe()))
        assert rebuild(description).fingerprint == data.fingerprint
    np.save(tmp_path / "a.npy", grey[1:])
    with pytest.raises(DataError, match="a has changed"):
        rebuild(description)
    with pytest.raises(DataError, match="arrays in memory"):
        rebuild(recmix.data.from_arrays(grey).describe())
    with pytest.raises(DataError, match="no 'kind'"):
        rebuild({"name": "mnist"})


def test_inventory_of_an_empty_root(tmp_path):
    entries = {entry.name: entry for entry in inventory(tmp_path)}
    assert set(entries) == set(SETS)
    assert (entries["digits"].state, entries["digits"].usable) == ("present", True)
    for name, entry in entries.items():
        assert entry.counts["train"] > 0
        assert entry.citation
        if name != "digits":
            assert (entry.state, entry.usable, entry.bytes) == ("missing", False, 0)
            assert entry.missing
            assert all(str(folder).startswith(str(tmp_path)) for folder in entry.looked)
    assert entries["mnist"].counts == {"train": 54_000, "val": 6_000, "test": 10_000}
    assert entries["static-mnist"].counts == {"train": 50_000, "val": 10_000, "test": 10_000}
    assert sum(entries["celeba"].counts.values()) == 202_599


def test_inventory_does_not_import_large_libraries(tmp_path):
    code = (
        "import sys, recmix.data; recmix.data.inventory(sys.argv[1]); "
        "large = {'torch', 'scipy', 'sklearn', 'PIL', 'rich', 'matplotlib'} & set(sys.modules); "
        "sys.exit(', '.join(large) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_real_mnist(need):
    root = need("mnist/train-images-idx3-ubyte.gz", "mnist/t10k-images-idx3-ubyte.gz")
    data = load("mnist", root=root, download=False)
    assert data.counts == SETS["mnist"].counts
    mean = data.x_train.mean()
    assert float(mean.mean()) == pytest.approx(0.1307, abs=1e-3)
    assert data.x_train.variance(mean) == pytest.approx(0.0673, abs=1e-3)
    binary = load("binary-mnist", root=root, download=False)
    # The binary test images must never change.
    assert binary.x_test.fingerprint()[:16] == "1b5eefd1df61ddb8"


def test_real_omniglot(need):
    data = load("omniglot", root=need("omniglot/chardata.mat"), download=False)
    assert data.counts == SETS["omniglot"].counts
    assert data.x_train.raw.dtype == np.float32
    assert not data.binary


@pytest.mark.filterwarnings("ignore::recmix.data.DataWarning")  # some files may be missing
def test_real_cifar10_and_svhn(need):
    batches = [f"cifar10/cifar-10-batches-bin/{name}.bin" for name in ("data_batch_1", "test_batch")]
    root = need(*batches, "svhn/train_32x32.mat", "svhn/test_32x32.mat")
    for name in ("cifar10", "svhn"):
        data = load(name, root=root, download=False)
        assert data.shape == (3, 32, 32)
        # Neighbouring pixels of a photograph are similar in both directions if the axes are right.
        x = data.x_test[:200].astype(np.float64)
        for axis in (2, 3):
            assert np.abs(np.diff(x, axis=axis)).mean() < 0.5 * x.std()
