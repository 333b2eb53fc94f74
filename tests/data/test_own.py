import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from recmix.data import ArrayImages, FileImages, as_data, from_arrays, load
from recmix.errors import ConfigError, DataError


def everything(data):
    """All images of a data set, in an order of their own."""
    parts = [part[:] for part in (data.x_train, data.x_val, data.x_test) if part is not None]
    return sorted(image.tobytes() for part in parts for image in part)


def same(images):
    return sorted((image[None] / np.float32(255)).astype(np.float32).tobytes() for image in images)


class Items(Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


SOURCES = {
    "array": lambda grey: grey,
    "with channel": lambda grey: grey[:, None],
    "tensor": torch.from_numpy,
    "list of arrays": list,
    "list of tensors": lambda grey: list(torch.from_numpy(grey)),
    "list of pictures": lambda grey: [Image.fromarray(image) for image in grey],
    "list of lists": lambda grey: (grey / 255).tolist(),
    "list of pairs": lambda grey: [(image, 3) for image in grey],
    "data set": Items,
    "data set of pairs": lambda grey: Items([(Image.fromarray(image), 3) for image in grey]),
    "data set of lists": lambda grey: Items([[torch.from_numpy(image)] for image in grey]),
    "tensor data set": lambda grey: TensorDataset(torch.from_numpy(grey), torch.zeros(len(grey))),
    "subset": lambda grey: Subset(Items(grey), range(len(grey))),
    "images": lambda grey: ArrayImages(grey[:, None]),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_all_kinds_of_images_in_memory(grey, kind):
    for data in (from_arrays(SOURCES[kind](grey)), as_data(SOURCES[kind](grey))):
        assert data.name == "arrays"
        assert data.shape == (1, 28, 28)
        assert data.counts == {"train": 36, "val": 4, "test": None}
        assert everything(data) == same(grey)
        assert not data.dynamic
        assert not data.binary


def test_given_parts_stay_as_they_are(grey):
    data = from_arrays(grey[:20], grey[20:25], grey[25:], name="mine")
    assert (data.name, data.counts) == ("mine", {"train": 20, "val": 5, "test": 15})
    np.testing.assert_array_equal(data.x_train.raw[:, 0], grey[:20])
    np.testing.assert_array_equal(data.x_val.raw[:, 0], grey[20:25])
    np.testing.assert_array_equal(data.x_test.raw[:, 0], grey[25:])


def test_black_and_white_is_noticed(grey):
    assert from_arrays(grey > 127).binary
    assert from_arrays((grey > 127).astype(np.float64)).binary
    assert set(np.unique(from_arrays(grey > 127).x_train[:])) == {0.0, 1.0}


def test_colour_pictures(rng):
    pixels = rng.integers(0, 256, (5, 20, 16, 3), dtype=np.uint8)
    data = from_arrays([Image.fromarray(image) for image in pixels], pixels.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(data.x_train.raw, data.x_val.raw)


class Stream(IterableDataset):
    def __iter__(self):
        yield torch.zeros(8, 8)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Items([]), "has no images"),
        ([], "no images"),
        (Items([np.zeros((8, 8)), np.zeros((8, 9))]), r"x_train\[1\] is .*\(8, 9\), x_train\[0\]"),
        (Items([np.zeros((8, 8)), np.zeros((8, 8), np.uint8)]), r"x_train\[1\] is uint8"),
        (Items([{"image": 1, "label": 2}]), "keys image, label"),
        (Items(["a"]), r"x_train\[0\] is a str"),
        (Stream(), "without a length"),
        (np.zeros((1, 28, 28)), "1 image.s. where at least 2"),
        ({"x_train": np.zeros((5, 28, 28))}, "is a dict"),
        (None, "is a NoneType"),
        (7, "is a int"),
    ],
)
def test_images_in_memory_that_are_refused(source, message):
    with pytest.raises(DataError, match=message):
        from_arrays(source)
    with pytest.raises(DataError, match=message):
        as_data(source)


def test_parts_that_do_not_match(grey):
    with pytest.raises(DataError, match=r"x_test is .*1x27x28, expected 1x28x28"):
        from_arrays(grey, grey, grey[:, 1:])
    with pytest.raises(DataError, match=r"x_val has images of shape \(1, 27, 28\)"):
        from_arrays(grey, ArrayImages(grey[:, None, 1:]))


def test_what_as_data_does_not_take(grey):
    data = from_arrays(grey)
    assert as_data(data) is data
    with pytest.raises(DataError, match=r"tuple of 2.*from_arrays"):
        as_data((grey, grey))
    with pytest.raises(DataError, match=r"DataLoader.*dataset"):
        as_data(DataLoader(Items(grey)))
    with pytest.raises(DataError, match=r"load was given a ndarray.*from_arrays"):
        load(grey)


def test_npy(tmp_path, grey):
    path = tmp_path / "mine.npy"
    np.save(path, grey)
    data = load(path)
    assert (data.name, data.counts) == ("mine", {"train": 32, "val": 4, "test": 4})
    assert everything(data) == same(grey)
    assert everything(as_data(str(path))) == same(grey)
    assert data.fingerprint == load(str(path)).fingerprint
    assert data.fingerprint != load(path, seed=1).fingerprint


@pytest.mark.parametrize(
    ("parts", "counts"),
    [
        (("x_train",), (32, 4, 4)),
        (("x_train", "x_test"), (36, 4, 40)),
        (("x_train", "x_val"), (36, 40, 4)),
        (("x_train", "x_val", "x_test"), (40, 40, 40)),
        (("images",), (32, 4, 4)),
    ],
)
def test_npz(tmp_path, grey, parts, counts):
    np.savez(tmp_path / "mine.npz", **dict.fromkeys(parts, grey))
    assert tuple(load(tmp_path / "mine.npz").counts.values()) == counts


def test_array_files_are_checked_and_named(tmp_path, grey):
    np.save(tmp_path / "a.npy", grey[..., None])
    with pytest.raises(DataError, match=r"a\.npy: x_train.*use x_train\.transpose\(0, 3, 1, 2\)"):
        load(tmp_path / "a.npy")
    np.savez(tmp_path / "a.npz", x_train=grey, x_test=grey[:, 1:])
    with pytest.raises(DataError, match=r"a\.npz: x_test"):
        load(tmp_path / "a.npz")
    np.save(tmp_path / "two.npy", grey[:2])
    with pytest.raises(DataError, match="2 image.s. where at least 3"):
        load(tmp_path / "two.npy")
    with pytest.raises(ConfigError, match="size and crop are for image files"):
        load(tmp_path / "two.npy", size=32)


@pytest.fixture(params=["folder", "zip"])
def packed(request, tmp_path):
    def pack(folder):
        if request.param == "folder":
            return folder
        return shutil.make_archive(str(tmp_path / "packed"), "zip", folder)

    return pack


@pytest.mark.parametrize("stream", [True, False, "auto"])
def test_a_folder_of_pictures(tmp_path, write_pictures, packed, stream):
    names = [f"{kind}/{number}.png" for kind in "ab" for number in range(10)]
    path = packed(write_pictures(tmp_path / "p", names))
    data = load(path, stream=stream)
    assert data.counts == {"train": 16, "val": 2, "test": 2}
    assert data.shape == (3, 16, 16)
    assert isinstance(data.x_train, FileImages if stream is True else ArrayImages)
    assert isinstance(data.x_test, FileImages if stream is True else ArrayImages)
    np.testing.assert_array_equal(data.x_train[:], load(path, stream=False).x_train[:])


@pytest.mark.parametrize("outer", ["", "outer/", "outer/inner/"])
@pytest.mark.parametrize("val", ["val", "valid", "Validation"])
def test_parts_by_folder(tmp_path, write_pictures, packed, outer, val):
    counts = {"train": 7, val: 2, "test": 3}
    names = [f"{outer}{part}/{n % 2}/{n}.png" for part in counts for n in range(counts[part])]
    data = load(packed(write_pictures(tmp_path / "p", names, mode="L")))
    assert tuple(data.counts.values()) == (7, 2, 3)
    assert data.shape == (1, 16, 16)


def test_a_picture_outside_the_parts(tmp_path, write_pictures):
    write_pictures(tmp_path, ["train/1.png", "test/1.png", "stray.png"])
    with pytest.raises(DataError, match=r"stray\.png outside of train"):
        load(tmp_path)


def test_grey_and_colour_together_are_colour(tmp_path, write_pictures):
    write_pictures(tmp_path, ["1.png", "2.png", "3.png"], mode="L")
    assert load(tmp_path).shape == (1, 16, 16)
    write_pictures(tmp_path, ["4.png"])
    assert load(tmp_path).shape == (3, 16, 16)


def test_pictures_of_different_sizes(tmp_path, write_pictures, packed):
    write_pictures(tmp_path / "p", ["a.png", "b.png"], (16, 16))
    path = packed(write_pictures(tmp_path / "p", ["c.png"], (20, 24)))
    with pytest.raises(DataError, match=r"c\.png.* is 20x24 .*a\.png is 16x16.*size="):
        load(path)
    assert load(path, size=12).shape == (3, 12, 12)
    assert load(path, size=12, crop=10).describe()["options"]["crop"] == 10


def test_pictures_that_are_too_large_or_too_few(tmp_path, write_pictures):
    write_pictures(tmp_path / "large", ["a.png", "b.png", "c.png"], (200, 150))
    with pytest.raises(DataError, match=r"a\.png is 200x150.*size=64"):
        load(tmp_path / "large")
    assert load(tmp_path / "large", size=64).shape == (3, 64, 64)
    write_pictures(tmp_path / "few", ["a.png", "b.png"])
    with pytest.raises(DataError, match=r"few: .*2 image.*at least 3"):
        load(tmp_path / "few")
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match=r"none has no images.*\.png"):
        load(tmp_path / "none")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 4}, "size is 4"),
        ({"size": 200}, "size is 200"),
        ({"crop": 8}, "without a size"),
        ({"size": 8, "crop": -1}, "crop is -1"),
        ({"stream": "maybe"}, "stream is 'maybe'"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_options_out_of_range(tmp_path, write_pictures, options, message):
    write_pictures(tmp_path, ["a.png", "b.png", "c.png"])
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, **options)


def test_damaged_pictures_and_zips(tmp_path, write_pictures):
    write_pictures(tmp_path / "p", [f"{n}.jpg" for n in range(5)])
    blob = (tmp_path / "p" / "3.jpg").read_bytes()
    (tmp_path / "p" / "3.jpg").write_bytes(blob[: len(blob) // 2])
    with pytest.raises(DataError, match=r"3\.jpg cannot be read as a picture"):
        load(tmp_path / "p")
    (tmp_path / "a.zip").write_bytes(b"PK garbage")
    with pytest.raises(DataError, match=r"a\.zip is not a readable zip"):
        load(tmp_path / "a.zip")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.png", "is one image.*the folder"),
        ("a.pkl", "pickle.*never read.*numpy.save"),
        ("a.pt", "pickle.*never read"),
        ("a.txt", "of a kind that is not read"),
    ],
)
def test_files_that_are_not_read(tmp_path, name, message):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(DataError, match=message):
        load(tmp_path / name)
