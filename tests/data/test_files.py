import pickle
import shutil
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from recmix.data.files import FileImages, Pictures, check_cut, picture_array, settle
from recmix.errors import ConfigError, DataError

NAMES = [f"{number:02d}.png" for number in range(12)]


@pytest.fixture(params=["folder", "zip"])
def store(request, tmp_path, write_pictures):
    """Twelve 20x16 pictures in a folder and what to open: the folder, or a zip of it."""
    folder = write_pictures(tmp_path / "pictures", NAMES, (20, 16))
    if request.param == "folder":
        return folder, folder
    return folder, shutil.make_archive(str(tmp_path / "packed"), "zip", folder)


def images_of(store, **options):
    _, root = store
    options = {"size": (20, 16), "channels": 3, **options}
    return FileImages(Pictures(root), Pictures(root).names(), **options)


def test_pictures_are_read_as_they_are(store):
    folder, _ = store
    images = images_of(store)
    expected = np.stack([np.asarray(Image.open(folder / name)) for name in NAMES])
    expected = expected.transpose(0, 3, 1, 2)
    assert images.shape == (12, 3, 20, 16)
    np.testing.assert_array_equal(images.take(slice(None)), expected)
    np.testing.assert_array_equal(images[[5, -1]], (expected[[5, -1]] / 255).astype(np.float32))
    assert images[3].shape == (3, 20, 16)
    np.testing.assert_array_equal(images.loaded().raw, expected)
    np.testing.assert_array_equal(images.subset([7, 2]).subset([1]).take([0]), expected[[2]])


def test_many_threads_and_worker_processes_read_the_same(store, monkeypatch):
    images = images_of(store)
    expected = images.take(slice(None))
    with ThreadPoolExecutor(8) as pool:
        for row, read in enumerate(pool.map(lambda row: images.take([row % 12])[0], range(96))):
            np.testing.assert_array_equal(read, expected[row % 12])
    spawned = pickle.loads(pickle.dumps(images))
    np.testing.assert_array_equal(spawned.take(slice(None)), expected)
    before = images.pictures._opened
    monkeypatch.setattr("os.getpid", lambda: -1)  # as in a fork
    np.testing.assert_array_equal(images.take(slice(None)), expected)
    if before is not None:
        assert images.pictures._opened[1] is not before[1]
        assert images.pictures._opened[2] is not before[2]


def test_mean_of_a_sample_is_seeded_and_that_of_few_is_exact(store):
    images = images_of(store)
    whole = np.asarray(images, np.float64)
    np.testing.assert_allclose(images.mean(), whole.mean(0), atol=1e-6)
    some = images.mean(sample=4, seed=1)
    np.testing.assert_array_equal(some, images.mean(sample=4, seed=1))
    assert not np.array_equal(some, images.mean(sample=4, seed=2))
    assert images.variance(images.mean(), sample=4) == pytest.approx(1 / 12, rel=0.2)


def test_fingerprint_knows_names_and_sizes(store):
    images = images_of(store)
    assert images.fingerprint() == images_of(store).fingerprint()
    assert images.fingerprint() != images.subset(slice(1, None)).fingerprint()
    assert images.fingerprint() != images_of(store, size=(8, 8), crop="square").fingerprint()


def test_only_pictures_are_listed_sorted_and_not_hidden_ones(tmp_path, write_pictures):
    names = ["b/2.PNG", "b/1.jpeg", "a.webp", "c.bmp", "d.gif", ".hidden/x.png", "__MACOSX/._a.png"]
    folder = write_pictures(tmp_path / "p", names)
    (folder / "notes.txt").write_text("no picture")
    (folder / "b" / "loop").symlink_to(folder)
    expected = ["a.webp", "b/1.jpeg", "b/2.PNG", "c.bmp", "d.gif"]
    assert Pictures(folder).names() == expected
    (folder / "b" / "loop").unlink()
    assert Pictures(shutil.make_archive(str(tmp_path / "z"), "zip", folder)).names() == expected


def test_centre_crop_then_resize():
    pixels = np.zeros((218, 178), np.uint8)
    pixels[55:163, 35:143] = 255  # the centred 108x108
    image = Image.fromarray(pixels)
    cut = picture_array(image, 3, (64, 64), 108)
    assert cut.shape == (3, 64, 64)
    assert cut.min() == 255
    assert picture_array(image, 1, (64, 64), 110).min() < 255
    tall = np.zeros((30, 20), np.uint8)
    tall[5:25] = 200
    np.testing.assert_array_equal(picture_array(Image.fromarray(tall), 1, (10, 10), "square"), 200)


@pytest.mark.parametrize(
    ("mode", "channels", "value"),
    [("1", 1, 255), ("L", 1, 77), ("LA", 1, 77), ("RGB", 3, 77), ("RGBA", 3, 77), ("I;16", 1, 77)],
)
def test_modes(tmp_path, mode, channels, value):
    path = tmp_path / "a.png"
    if mode == "I;16":
        Image.fromarray(np.full((8, 9), 77 * 256 + 3, np.uint16)).save(path)
    else:
        Image.fromarray(np.full((8, 9), value, np.uint8)).convert(mode).save(path)
    pictures = Pictures(tmp_path)
    assert pictures.header("a.png") == (channels, 8, 9)
    for wanted in (1, 3):
        pixels = pictures.pixels("a.png", wanted, (8, 9), None)
        assert pixels.shape == (wanted, 8, 9)
        assert (pixels == value).all()


def test_palettes_with_a_transparent_colour(tmp_path):
    image = Image.new("P", (9, 8), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    image.save(tmp_path / "a.png", transparency=b"\xff\x00")
    pixels = Pictures(tmp_path).pixels("a.png", 3, (8, 9), None)
    np.testing.assert_array_equal(pixels[:, 0, 0], [10, 20, 30])


def test_a_photograph_taken_sideways_is_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (30, 20)).save(tmp_path / "a.jpg", exif=exif)
    pictures = Pictures(tmp_path)
    assert pictures.header("a.jpg") == (3, 30, 20)
    assert pictures.pixels("a.jpg", 3, (30, 20), None).shape == (3, 30, 20)


@pytest.mark.parametrize("suffix", ["jpg", "png", "gif", "bmp", "webp"])
@pytest.mark.parametrize("damage", ["cut", "garbage", "empty"])
def test_a_damaged_picture_is_named(tmp_path, write_pictures, suffix, damage):
    name = f"bad.{suffix}"
    write_pictures(tmp_path, [name], (64, 64))
    blob = (tmp_path / name).read_bytes()
    damaged = {"cut": blob[: len(blob) // 2], "garbage": b"garbage" * 50, "empty": b""}[damage]
    (tmp_path / name).write_bytes(damaged)
    images = FileImages(Pictures(tmp_path), [name], size=(64, 64), channels=3)
    with pytest.raises(DataError, match=rf"bad\.{suffix} cannot be read as a picture"):
        images[0]
    with pytest.raises(DataError, match=rf"bad\.{suffix} cannot be read as a picture"):
        images.loaded()


def test_a_damaged_picture_in_a_zip_is_named(tmp_path, write_pictures):
    folder = write_pictures(tmp_path / "p", ["bad.jpg"], (64, 64))
    blob = (folder / "bad.jpg").read_bytes()
    (folder / "bad.jpg").write_bytes(blob[: len(blob) // 2])
    path = shutil.make_archive(str(tmp_path / "z"), "zip", folder)
    images = FileImages(Pictures(path), ["bad.jpg"], size=(64, 64), channels=3)
    with pytest.raises(DataError, match=r"bad\.jpg in .*z\.zip cannot be read as a picture"):
        images[0]


def test_damaged_zips(tmp_path, write_pictures):
    folder = write_pictures(tmp_path / "p", ["a.bmp"], (64, 64))
    path = tmp_path / "z.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(folder / "a.bmp", "a.bmp")
    blob = bytearray(path.read_bytes())
    path.write_bytes(blob[:-30])
    with pytest.raises(DataError, match=r"z\.zip is not a readable zip"):
        Pictures(path).names()
    blob[500] ^= 255  # the checksum of the member no longer fits
    path.write_bytes(blob)
    with pytest.raises(DataError, match=r"a\.bmp in .*z\.zip"):
        Pictures(path).pixels("a.bmp", 3, (64, 64), None)
    with pytest.raises(DataError, match=r"none\.png in .*z\.zip"):
        Pictures(path).pixels("none.png", 3, (64, 64), None)


def test_a_picture_that_was_removed_meanwhile(tmp_path):
    images = FileImages(Pictures(tmp_path), ["gone.png"], size=(8, 8), channels=1)
    with pytest.raises(DataError, match=r"gone\.png is no longer there"):
        images[0]


def test_sizes_that_do_not_fit(store):
    with pytest.raises(DataError, match=r"00\.png.* is 20x16 .*size="):
        images_of(store, size=(20, 20))[0]
    with pytest.raises(DataError, match=r"00\.png.* is 20x16 .*too small for a crop of 18x18"):
        images_of(store, size=(8, 8), crop=18)[0]
    with pytest.raises(DataError, match="1 or 3 channels, not 2"):
        images_of(store, channels=2)


def test_streaming_is_decided_by_memory(store, monkeypatch):
    images = images_of(store)
    assert settle(images).in_memory
    assert settle(images, True) is images
    monkeypatch.setattr("recmix.data.files.MEMORY", 12 * 3 * 20 * 16 * 4 - 1)
    assert settle(images) is images
    assert settle(images, False).in_memory
    with pytest.raises(ConfigError, match="stream is 'no'"):
        settle(images, "no")


@pytest.mark.parametrize(("size", "crop"), [(7, None), (129, None), (64, 0)])
def test_cuts_that_make_no_sense(size, crop):
    with pytest.raises(ConfigError, match="expected"):
        check_cut(size, crop)
