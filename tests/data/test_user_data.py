import json
import shutil

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from scipy import sparse
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    default_convert,
)

from recmix.data import ArrayExamples, FileImages, as_data, as_examples, from_arrays, load, rebuild
from recmix.errors import ConfigError, DataError
from recmix.model.fields import Fields


def sorted_images(data):
    """All images of a data set as bytes, sorted."""
    parts = [part[:] for part in (data.x_train, data.x_val, data.x_test) if part is not None]
    return sorted(image.tobytes() for part in parts for image in part)


def expected_images(grey):
    return sorted((image[None] / np.float32(255)).astype(np.float32).tobytes() for image in grey)


class Items(Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


class Stream(IterableDataset):
    def __iter__(self):
        yield torch.zeros(8, 8)


class CountedStream(Stream):
    def __len__(self):
        return 5


SOURCES = {
    "array": lambda grey: grey,
    "with channel": lambda grey: grey[:, None],
    "tensor": torch.from_numpy,
    "list of arrays": list,
    "list of tensors": lambda grey: list(torch.from_numpy(grey)),
    "list of pillow images": lambda grey: [Image.fromarray(image) for image in grey],
    "list of lists": lambda grey: (grey / 255).tolist(),
    "list of pairs": lambda grey: [(image, 3) for image in grey],
    "data set": Items,
    "data set of pairs": lambda grey: Items([(Image.fromarray(image), 3) for image in grey]),
    "data set of lists": lambda grey: Items([[torch.from_numpy(image)] for image in grey]),
    "tensor data set": lambda grey: TensorDataset(torch.from_numpy(grey), torch.zeros(len(grey))),
    "subset": lambda grey: Subset(Items(grey), range(len(grey))),
    "images": lambda grey: ArrayExamples(grey[:, None]),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_kind_of_images_in_memory_is_accepted(grey, kind):
    for data in (from_arrays(SOURCES[kind](grey)), as_data(SOURCES[kind](grey))):
        assert (data.name, data.shape) == ("arrays", (1, 28, 28))
        assert data.counts == {"train": 32, "val": 4, "test": 4}
        assert sorted_images(data) == expected_images(grey)
        assert (data.dynamic, data.binary) == (False, False)


def test_given_parts_are_not_split(grey):
    data = from_arrays(grey[:20], grey[20:25], grey[25:], name="mine")
    assert (data.name, data.counts) == ("mine", {"train": 20, "val": 5, "test": 15})
    np.testing.assert_array_equal(data.x_train.raw[:, 0], grey[:20])
    np.testing.assert_array_equal(data.x_val.raw[:, 0], grey[20:25])
    np.testing.assert_array_equal(data.x_test.raw[:, 0], grey[25:])


def test_binary_images_are_detected(grey):
    assert from_arrays(grey > 127).binary
    assert from_arrays((grey > 127).astype(np.float64)).binary
    assert set(np.unique(from_arrays(grey > 127).x_train[:])) == {0.0, 1.0}


def test_colour_pillow_images_equal_arrays(rng):
    pixels = rng.integers(0, 256, (5, 20, 16, 3), dtype=np.uint8)
    data = from_arrays([Image.fromarray(image) for image in pixels], *2 * [pixels.transpose(0, 3, 1, 2)])
    np.testing.assert_array_equal(data.x_train.raw, data.x_val.raw)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Items([]), "has no examples"),
        ([], "no examples"),
        (Items([np.zeros((8, 8)), np.zeros((8, 9))]), r"x_train\[1\] is .*\(8, 9\), x_train\[0\]"),
        (Items([np.zeros((8, 8)), np.zeros((8, 8), np.uint8)]), r"x_train\[1\] is uint8"),
        (Items([{"a": 1}, {"b": 1}]), r"x_train\[1\] has the fields b, x_train\[0\] has a"),
        (Items([{"a": "text"}] * 3), r"x_train\[0\]\['a'\] is a str"),
        (Items([{"a": [1]}, {"a": [1, 2]}]), r"x_train\[1\], field 'a', is int64 of shape \(2,\)"),
        (Items(["a"]), r"x_train\[0\] is a str"),
        (Stream(), "without a length"),
        (CountedStream(), "without a length or without an index.*read by index"),
        (DataLoader(CountedStream()), "without a length or without an index"),
        (np.zeros((1, 28, 28)), "1 example.s., expected at least 3"),
        ({"x_train": np.zeros((5, 28, 28))}, r"dict with the keys x_train.*from_arrays\(\*\*parts\)"),
        ({}, "empty dict"),
        ({"a": np.zeros((4, 2)), "b": np.zeros(3)}, r"'b' has \(3,\) examples"),
        ({"a": np.zeros((1, 2))}, "1 example.s., expected at least 3"),
        ({"a": np.array([[1.0], [np.nan], [1.0]])}, "NaN or infinite.* example 1"),
        ({"a": np.array([1, 2**25])}, r"field 'a' has the integer 33554432.*2\*\*24"),
        ({"a": sparse.csr_array(np.eye(3))}, r"x_train\['a'\] is a sparse matrix.*toarray"),
        ({"a": 3}, r"x_train\['a'\] is a int"),
        ({"a": np.zeros((0, 3))}, r"x_train\['a'\] is .*\(0, 3\)"),
        (None, "is a NoneType"),
        (7, "is a int"),
    ],
)
def test_invalid_images_in_memory_are_rejected(source, message):
    for function in (from_arrays, as_data):
        with pytest.raises(DataError, match=message):
            function(source)


def test_parts_of_different_shapes_are_rejected(grey):
    with pytest.raises(DataError, match=r"x_test is .*1x27x28, expected 1x28x28"):
        from_arrays(grey, grey, grey[:, 1:])
    with pytest.raises(DataError, match=r"x_val has examples of shape \(1, 27, 28\)"):
        from_arrays(grey, ArrayExamples(grey[:, None, 1:]))


def test_as_data_returns_image_data_and_rejects_tuples(grey):
    data = from_arrays(grey)
    assert as_data(data) is data
    with pytest.raises(DataError, match=r"tuple of 2.*from_arrays"):
        as_data((grey, grey))
    with pytest.raises(DataError, match=r"load got a ndarray.*from_arrays"):
        load(grey)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 7, "shuffle": True, "drop_last": True},
        {"batch_size": None, "collate_fn": default_convert},
    ],
)
def test_only_the_data_set_of_a_data_loader_is_used(grey, options):
    loader = DataLoader(Items(grey), **options)
    expected = as_data(Items(grey)).fingerprint
    assert as_data(loader).fingerprint == from_arrays(loader).fingerprint == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": SubsetRandomSampler(range(20))}, "sampler, SubsetRandomSampler.*Subset"),
        ({"batch_sampler": BatchSampler(range(20), 5, drop_last=False)}, "its own batch_sampler"),
        ({"collate_fn": list}, "its own collate_fn.*items are what collate_fn makes"),
        ({"sampler": SequentialSampler(range(20))}, "sampler, SequentialSampler"),
        ({"sampler": RandomSampler(range(40))}, "sampler, RandomSampler"),
    ],
)
def test_data_loader_that_chooses_or_changes_examples_is_rejected(grey, options, message):
    for function in (from_arrays, as_data):
        with pytest.raises(DataError, match=message):
            function(DataLoader(Items(grey), **options))


@pytest.mark.parametrize("many", [20, 40])
def test_data_loader_that_repeats_examples_is_rejected(grey, many):
    items = Items(grey)
    sampler = RandomSampler(items, replacement=True, num_samples=many)
    with pytest.raises(DataError, match="its own sampler, RandomSampler"):
        as_data(DataLoader(items, sampler=sampler))


def test_npy_file_is_loaded_and_split_by_seed(tmp_path, grey):
    path = tmp_path / "mine.npy"
    np.save(path, grey)
    data = load(path)
    assert (data.name, data.counts) == ("mine", {"train": 32, "val": 4, "test": 4})
    assert sorted_images(data) == sorted_images(as_data(str(path))) == expected_images(grey)
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
def test_missing_parts_of_npz_file_are_held_out(tmp_path, grey, parts, counts):
    np.savez(tmp_path / "mine.npz", **dict.fromkeys(parts, grey))
    assert tuple(load(tmp_path / "mine.npz").counts.values()) == counts


def test_invalid_array_files_are_rejected(tmp_path, grey):
    np.save(tmp_path / "a.npy", grey[..., None])
    with pytest.raises(DataError, match=r"a\.npy: x_train.*use x_train\.transpose\(0, 3, 1, 2\)"):
        load(tmp_path / "a.npy")
    np.savez(tmp_path / "a.npz", x_train=grey, x_test=grey[:, 1:])
    with pytest.raises(DataError, match=r"a\.npz: x_test"):
        load(tmp_path / "a.npz")
    np.save(tmp_path / "two.npy", grey[:2])
    with pytest.raises(DataError, match="2 example.s., expected at least 3"):
        load(tmp_path / "two.npy")
    with pytest.raises(ConfigError, match="size and crop are for image files"):
        load(tmp_path / "two.npy", size=32)


@pytest.fixture(params=["folder", "zip"])
def as_source(request, tmp_path):
    """A function that returns a folder itself, or a zip file of it."""
    if request.param == "folder":
        return lambda folder: folder
    return lambda folder: shutil.make_archive(str(tmp_path / "zipped"), "zip", folder)


@pytest.mark.parametrize("stream", [True, False, "auto"])
def test_folder_of_image_files_is_split(tmp_path, write_image_files, as_source, stream):
    names = [f"{kind}/{number}.png" for kind in "ab" for number in range(10)]
    path = as_source(write_image_files(tmp_path / "p", names))
    data = load(path, stream=stream)
    assert data.counts == {"train": 16, "val": 2, "test": 2}
    assert data.shape == (3, 16, 16)
    for part in (data.x_train, data.x_test):
        assert isinstance(part, FileImages if stream is True else ArrayExamples)
    np.testing.assert_array_equal(data.x_train[:], load(path, stream=False).x_train[:])


@pytest.mark.parametrize("outer", ["", "outer/", "outer/inner/"])
@pytest.mark.parametrize("val", ["val", "valid", "Validation"])
def test_subfolders_are_the_parts(tmp_path, write_image_files, as_source, outer, val):
    counts = {"train": 7, val: 2, "test": 3}
    names = [f"{outer}{part}/{n % 2}/{n}.png" for part in counts for n in range(counts[part])]
    data = load(as_source(write_image_files(tmp_path / "p", names, mode="L")))
    assert tuple(data.counts.values()) == (7, 2, 3)
    assert data.shape == (1, 16, 16)


def test_image_outside_the_part_folders_is_rejected(tmp_path, write_image_files):
    write_image_files(tmp_path, ["train/1.png", "test/1.png", "stray.png"])
    with pytest.raises(DataError, match=r"stray\.png is not in train"):
        load(tmp_path)


def test_grey_and_colour_files_together_become_colour(tmp_path, write_image_files):
    write_image_files(tmp_path, ["1.png", "2.png", "3.png"], mode="L")
    assert load(tmp_path).shape == (1, 16, 16)
    write_image_files(tmp_path, ["4.png"])
    assert load(tmp_path).shape == (3, 16, 16)


def test_files_of_different_sizes_need_size(tmp_path, write_image_files, as_source):
    write_image_files(tmp_path / "p", ["a.png", "b.png"], (16, 16))
    path = as_source(write_image_files(tmp_path / "p", ["c.png"], (20, 24)))
    with pytest.raises(DataError, match=r"c\.png.* is 20x24 .*a\.png is 16x16.*size="):
        load(path)
    assert load(path, size=12).shape == (3, 12, 12)
    assert load(path, size=12, crop=10).describe()["options"]["crop"] == 10


def test_files_of_any_size_are_read(tmp_path, write_image_files):
    write_image_files(tmp_path / "large", ["a.png", "b.png", "c.png"], (200, 150))
    assert load(tmp_path / "large").shape == (3, 200, 150)
    assert load(tmp_path / "large", size=4).shape == (3, 4, 4)
    assert load(tmp_path / "large", size=64).shape == (3, 64, 64)


def test_too_few_files_are_rejected(tmp_path, write_image_files):
    write_image_files(tmp_path / "few", ["a.png", "b.png"])
    with pytest.raises(DataError, match=r"few: .*2 example.*at least 3"):
        load(tmp_path / "few")
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match=r"none has no images.*\.png"):
        load(tmp_path / "none")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size is 0"),
        ({"crop": 8}, "size is missing"),
        ({"size": 8, "crop": -1}, "crop is -1"),
        ({"stream": "maybe"}, "stream is 'maybe'"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_options_out_of_range_are_rejected(tmp_path, write_image_files, options, message):
    write_image_files(tmp_path, ["a.png", "b.png", "c.png"])
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, **options)


def test_damaged_image_or_zip_is_rejected(tmp_path, write_image_files):
    damaged = write_image_files(tmp_path / "p", [f"{n}.jpg" for n in range(5)]) / "3.jpg"
    content = damaged.read_bytes()
    damaged.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"3\.jpg cannot be read as an image"):
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
        ("a.doc", "format that is not supported"),
    ],
)
def test_unsupported_files_are_rejected(tmp_path, name, message):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(DataError, match=message):
        load(tmp_path / name)


@pytest.mark.parametrize(
    ("x", "shape", "kind"),
    [
        (np.linspace(-3, 3, 40).reshape(10, 4), (4,), "real"),
        (np.linspace(-3, 3, 40).reshape(10, 4).tolist(), (4,), "real"),
        (torch.arange(40).view(10, 4), (4,), "counts"),
        (TensorDataset(torch.rand(10, 4), torch.zeros(10)), (4,), "unit"),
        ([np.arange(4)] * 10, (4,), "counts"),
        ([(0.5, 2.5)] * 10, (2,), "real"),
        (np.arange(40, dtype=np.uint8).reshape(10, 4), (4,), "counts"),
        (np.zeros((10, 2, 3, 4, 5)), (2, 3, 4, 5), "binary"),
        (sparse.csr_matrix(np.full((10, 4), 0.5)), (4,), "unit"),
    ],
)
def test_examples_of_any_shape_are_accepted(x, shape, kind):
    data = as_data(x)
    assert (data.shape, data.kind, data.fields, data.columns) == (shape, kind, None, None)
    assert data.counts == {"train": 8, "val": 1, "test": 1}


TOKENS = {"tokens": np.arange(30).reshape(10, 3), "length": np.arange(10), "edges": np.ones((10, 2, 2))}


@pytest.mark.parametrize(
    "source",
    [
        TOKENS,
        {name: torch.from_numpy(value) for name, value in TOKENS.items()},
        {name: value.tolist() for name, value in TOKENS.items()},
        Items([{name: value[row] for name, value in TOKENS.items()} for row in range(10)]),
        [{name: value[row] for name, value in TOKENS.items()} for row in range(10)],
        DataLoader(
            Items([({name: value[row] for name, value in TOKENS.items()}, 1) for row in range(10)])
        ),
    ],
    ids=["arrays", "tensors", "lists", "data set", "list of dicts", "data loader of pairs"],
)
def test_fields_are_stored_flat(source):
    data = as_data(source)
    assert data.fields == {"tokens": (3,), "length": (), "edges": (2, 2)}
    assert (data.shape, data.kind, data.binary) == ((8,), "fields", False)
    whole = np.concatenate([data.x_train[:], data.x_val[:], data.x_test[:]])
    found = Fields(data.fields).unpack(whole[np.argsort(whole[:, 0])])
    for name, value in TOKENS.items():
        np.testing.assert_array_equal(found[name], value)
    description = json.loads(json.dumps(data.describe()))
    assert Fields.from_json(description["fields"]) == Fields(data.fields)
    assert data.fingerprint == as_data(TOKENS).fingerprint


def test_all_parts_have_the_fields_of_the_training_part():
    turned = dict(reversed(TOKENS.items()))
    data = from_arrays(TOKENS, turned, ArrayExamples(np.ones((3, 8), np.float32)))
    np.testing.assert_array_equal(
        data.x_val[:], np.concatenate([v.reshape(10, -1) for v in TOKENS.values()], 1)
    )
    with pytest.raises(DataError, match="x_val: got the fields tokens; expected tokens, length, edges"):
        from_arrays(TOKENS, {"tokens": TOKENS["tokens"]})
    with pytest.raises(DataError, match=r"x_val: field 'tokens' has shape \(10, 2\)"):
        from_arrays(TOKENS, TOKENS | {"tokens": TOKENS["tokens"][:, :2]})
    with pytest.raises(DataError, match="x_val is a dict .*no fields"):
        from_arrays(TOKENS["tokens"], TOKENS)


def test_uint8_in_fields_keeps_its_values_and_images_are_grey():
    adjacency = np.ones((4, 9, 9), np.uint8)
    assert from_arrays({"edges": adjacency}).x_train[:].max() == 1
    white = [{"image": Image.new("L", (5, 4), 255), "label": 7}] * 4
    data = from_arrays(white)
    assert data.fields == {"image": (1, 4, 5), "label": ()}
    np.testing.assert_array_equal(np.unique(data.x_train[:]), [1, 7])


def test_fingerprint_depends_on_the_fields():
    x = np.zeros((5, 4))
    prints = {
        from_arrays(fields).fingerprint
        for fields in ({"a": x}, {"b": x}, {"a": x[:, :2], "b": x[:, 2:]})
    }
    assert len(prints | {from_arrays(x).fingerprint}) == 4


def test_as_examples_reads_arrays_and_fields():
    assert as_examples(np.zeros((2, 28, 28))).shape == (2, 1, 28, 28)
    assert as_examples(TOKENS).shape == (10, 8)


def test_parts_must_have_the_shape_of_the_training_part():
    with pytest.raises(DataError, match="5 values, expected 4 values"):
        from_arrays(np.zeros((20, 4)), np.zeros((2, 5)))
    with pytest.raises(DataError, match=r"shape \(5,\), expected \(4,\)"):
        from_arrays(np.zeros((20, 4)), ArrayExamples(np.zeros((2, 5), np.float32)))


SHARED_FOLDER = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@SHARED_FOLDER
@given(
    hnp.arrays(
        st.sampled_from([np.float32, np.float64, np.int32, np.bool_]),
        hnp.array_shapes(min_dims=2, max_dims=4, min_side=3, max_side=5),
        elements={"min_value": -1000, "max_value": 1000},
    )
)
def test_array_files_round_trip(tmp_path, array):
    np.save(tmp_path / "a.npy", array)
    np.savez(tmp_path / "a.npz", x_train=array, x_val=array, x_test=array)
    np.savez(
        tmp_path / "b.npz",
        **{"x_train.a": array, "x_train.b": array[:, 0], "x_val.a": array[:1], "x_val.b": array[:1, 0]},
    )
    expected = array[:, None] if array.ndim == 3 else array
    np.testing.assert_array_equal(load(tmp_path / "a.npz").x_train[:], expected.astype(np.float32))
    data = load(tmp_path / "a.npy")
    parts = np.concatenate([data.x_train[:], data.x_val[:], data.x_test[:]])
    assert sorted(row.tobytes() for row in parts) == sorted(
        row.tobytes() for row in expected.astype(np.float32)
    )
    fields = load(tmp_path / "b.npz")
    assert fields.fields == {"a": array.shape[1:], "b": array.shape[2:]}
    unpacked = Fields(fields.fields).unpack(fields.x_val[:])
    np.testing.assert_array_equal(unpacked["a"], array[:1].astype(np.float32))
    assert rebuild(json.loads(json.dumps(fields.describe()))).fingerprint == fields.fingerprint


@SHARED_FOLDER
@given(
    hnp.arrays(np.int64, (5, 3), elements=st.integers(0, 3)),
    st.sampled_from(["csr", "csc", "coo", "bsr", "dia"]),
)
def test_sparse_files_round_trip(tmp_path, dense, form):
    sparse.save_npz(tmp_path / "a.npz", sparse.csr_array(dense).asformat(form))
    data = load(tmp_path / "a.npz")
    assert type(data.x_train).__name__ == "SparseExamples"
    parts = np.concatenate([data.x_train[:], data.x_val[:], data.x_test[:]])
    assert sorted(map(tuple, parts.tolist())) == sorted(map(tuple, dense.tolist()))
    assert rebuild(data.describe()).fingerprint == data.fingerprint


def test_fields_of_an_npz_file_are_split(tmp_path):
    np.savez(tmp_path / "a.npz", **TOKENS)
    data = load(tmp_path / "a.npz")
    assert data.counts == {"train": 8, "val": 1, "test": 1}
    assert data.fields == {"tokens": (3,), "length": (), "edges": (2, 2)}
    np.savez(tmp_path / "a.npz", a=np.zeros((5, 2)), b=np.zeros(4))
    with pytest.raises(DataError, match=r"a\.npz: x_train: field 'b' has \(4,\) examples"):
        load(tmp_path / "a.npz")


def test_damaged_sparse_files_are_rejected(tmp_path):
    good = {
        "indices": [0, 1, 2],
        "indptr": [0, 1, 2, 3],
        "format": b"csr",
        "shape": [3, 3],
        "data": np.ones(3),
    }
    for wrong in (
        {"indices": [0, 9**8, 2]},
        {"indptr": [0, 1, 9**8, 3]},
        {"indptr": [0]},
        {"format": b"xyz"},
    ):
        np.savez(tmp_path / "a.npz", **good | wrong)
        with pytest.raises(DataError, match=r"a\.npz"):
            load(tmp_path / "a.npz")


def test_labels_next_to_images_are_not_used(tmp_path, rng):
    x, y = rng.random((20, 4, 4), np.float32), rng.integers(0, 3, 20)
    path = tmp_path / "mine.npz"
    np.savez(path, images=x, labels=y)
    data = load(path)
    assert (data.shape, data.fields) == ((1, 4, 4), None)
    assert data.notes[0].startswith("the examples are the array images; not used: labels.")
    assert load(path, seed=1).notes == data.notes
    np.savez(path, images=x, lengths=y)  # a number that is not a label is a field
    assert load(path).fields == {"images": (4, 4), "lengths": ()}
    np.savez(path, **{"x_train.images": x, "x_train.labels": y})  # fields that are named as such
    assert load(path).fields == {"images": (4, 4), "labels": ()}
    np.savez(path, images=x, labels=x)  # one value for each pixel
    assert load(path).fields == {"images": (4, 4), "labels": (4, 4)}


@pytest.mark.parametrize(
    "labels",
    [
        np.arange(20)[:, None] % 3,
        (np.arange(20)[:, None] % 2).astype(bool),
        np.full((20, 1), "cat"),
        np.eye(3)[np.arange(20) % 3],
        np.eye(3, dtype=np.uint8)[np.arange(20) % 3],
        np.eye(2, dtype=bool)[np.arange(20) % 2],
    ],
)
@pytest.mark.parametrize("name", ["labels", "y", "Class", "y_train", "train_labels"])
def test_labels_with_two_axes_are_not_used(tmp_path, rng, labels, name):
    path = tmp_path / "mine.npz"
    np.savez(path, **{"images": rng.random((20, 4, 4), np.float32), name: labels})
    data = load(path)
    assert (data.shape, data.fields) == ((1, 4, 4), None)
    assert f"not used: {name}." in data.notes[0]


@pytest.mark.parametrize(
    "values",
    [
        np.linspace(0, 1, 20)[:, None],  # numbers
        np.full((20, 3), 1 / 3),  # probabilities
        np.ones((20, 3)),
        np.zeros((20, 3)),
        2 * np.eye(3)[np.arange(20) % 3],
        np.array([[2, -1, 0]] * 20),
    ],
)
def test_other_arrays_with_the_name_of_labels_are_fields(tmp_path, rng, values):
    path = tmp_path / "mine.npz"
    np.savez(path, images=rng.random((20, 4, 4), np.float32), target=values)
    assert load(path).fields == {"images": (4, 4), "target": values.shape[1:]}


def test_one_array_with_the_name_of_labels_holds_the_examples(tmp_path):
    np.savez(tmp_path / "a.npz", y=np.eye(3)[np.arange(20) % 3])
    data = load(tmp_path / "a.npz")
    assert (data.shape, data.fields) == ((3,), None)
