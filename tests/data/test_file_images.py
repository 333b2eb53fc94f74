import pickle
import re
import shutil
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from recmix.data import load
from recmix.data.file_images import FileImages, ImageFolder, check_resize, from_pillow
from recmix.errors import ConfigError, DataError

NAMES = [f"{number:02d}.png" for number in range(12)]


@pytest.fixture(params=["folder", "zip"])
def store(request, tmp_path, write_image_files):
    """A folder of twelve 20x16 image files, and the path to read: the folder or a zip file of it."""
    folder = write_image_files(tmp_path / "files", NAMES, (20, 16))
    if request.param == "folder":
        return folder, folder
    return folder, shutil.make_archive(str(tmp_path / "zipped"), "zip", folder)


def images_of(store, **options):
    folder = ImageFolder(store[1])
    return FileImages(folder, folder.names(), **{"size": (20, 16), "channels": 3, **options})


def test_every_way_of_reading_gives_the_pixels_of_the_files(store):
    images = images_of(store)
    expected = np.stack([np.asarray(Image.open(store[0] / name)) for name in NAMES])
    expected = expected.transpose(0, 3, 1, 2)
    assert images.shape == (12, 3, 20, 16)
    np.testing.assert_array_equal(images.take(slice(None)), expected)
    np.testing.assert_array_equal(images[[5, -1]], (expected[[5, -1]] / 255).astype(np.float32))
    assert images[3].shape == (3, 20, 16)
    np.testing.assert_array_equal(images.loaded().raw, expected)
    np.testing.assert_array_equal(images.subset([7, 2]).subset([1]).take([0]), expected[[2]])


def test_threads_and_worker_processes_read_the_same_pixels(store, monkeypatch):
    images = images_of(store)
    expected = images.take(slice(None))
    with ThreadPoolExecutor(8) as pool:
        for row, read in enumerate(pool.map(lambda row: images.take([row % 12])[0], range(96))):
            np.testing.assert_array_equal(read, expected[row % 12])
    spawned = pickle.loads(pickle.dumps(images))
    np.testing.assert_array_equal(spawned.take(slice(None)), expected)
    before = images.folder._opened
    monkeypatch.setattr("os.getpid", lambda: -1)  # as in a forked process
    np.testing.assert_array_equal(images.take(slice(None)), expected)
    if before is not None:
        assert images.folder._opened[1] is not before[1]
        assert images.folder._opened[2] is not before[2]


def test_mean_is_exact_for_few_images_and_fixed_for_a_sample(store, monkeypatch):
    images = images_of(store)
    whole = images.mean()
    np.testing.assert_allclose(whole, np.asarray(images, np.float64).mean(0), atol=1e-6)
    monkeypatch.setattr("recmix.data.examples._SAMPLE", 4)
    some = images.mean()
    np.testing.assert_array_equal(some, images.mean())
    assert not np.array_equal(some, whole)
    assert images.variance(whole) == pytest.approx(1 / 12, rel=0.2)


def test_fingerprint_depends_on_names_size_and_crop(store):
    images = images_of(store)
    assert images.fingerprint() == images_of(store).fingerprint()
    assert images.fingerprint() != images.subset(slice(1, None)).fingerprint()
    assert images.fingerprint() != images_of(store, size=(8, 8), crop="square").fingerprint()


def test_names_are_sorted_image_files_that_are_not_hidden(tmp_path, write_image_files):
    names = ["b/2.PNG", "b/1.jpeg", "a.webp", "c.bmp", "d.gif", ".hidden/x.png", "__MACOSX/._a.png"]
    folder = write_image_files(tmp_path / "p", names)
    (folder / "notes.txt").write_text("not an image")
    (folder / "b" / "loop").symlink_to(folder)
    expected = ["a.webp", "b/1.jpeg", "b/2.PNG", "c.bmp", "d.gif"]
    assert ImageFolder(folder).names() == expected
    (folder / "b" / "loop").unlink()
    (folder / "folder.png").mkdir()
    assert ImageFolder(shutil.make_archive(str(tmp_path / "z"), "zip", folder)).names() == expected


def test_image_is_cropped_at_the_centre_and_resized():
    pixels = np.zeros((218, 178), np.uint8)
    pixels[55:163, 35:143] = 255  # the centred 108x108
    image = Image.fromarray(pixels)
    cropped = from_pillow(image, 3, (64, 64), 108)
    assert cropped.shape == (3, 64, 64)
    assert cropped.min() == 255
    assert from_pillow(image, 1, (64, 64), 110).min() < 255
    tall = np.zeros((30, 20), np.uint8)
    tall[5:25] = 200
    np.testing.assert_array_equal(from_pillow(Image.fromarray(tall), 1, (10, 10), "square"), 200)


@pytest.mark.parametrize(
    ("mode", "channels", "value"),
    [("1", 1, 255), ("L", 1, 77), ("LA", 1, 77), ("RGB", 3, 77), ("RGBA", 3, 77), ("I;16", 1, 77)],
)
def test_image_modes_are_converted(tmp_path, mode, channels, value):
    path = tmp_path / "a.png"
    if mode == "I;16":
        Image.fromarray(np.full((8, 9), 77 * 256 + 3, np.uint16)).save(path)
    else:
        Image.fromarray(np.full((8, 9), value, np.uint8)).convert(mode).save(path)
    folder = ImageFolder(tmp_path)
    assert folder.header("a.png") == (channels, 8, 9, mode in ("LA", "RGBA"))
    for wanted in (1, 3):
        pixels = folder.pixels("a.png", wanted, (8, 9), None)
        assert pixels.shape == (wanted, 8, 9)
        assert (pixels == value).all()


def test_palette_with_transparent_colour_is_converted(tmp_path):
    image = Image.new("P", (9, 8), 1)
    image.paste(0, (1, 0, 9, 8))
    image.putpalette([0, 0, 0, 10, 20, 30])
    image.save(tmp_path / "a.png", transparency=b"\xff\x00")
    pixels = ImageFolder(tmp_path).pixels("a.png", 3, (8, 9), None)
    np.testing.assert_array_equal(pixels[:, 0, 0], 255)
    np.testing.assert_array_equal(pixels[:, 0, 1], 0)


def test_rotated_photograph_is_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (30, 20)).save(tmp_path / "a.jpg", exif=exif)
    folder = ImageFolder(tmp_path)
    assert folder.header("a.jpg") == (3, 30, 20, False)
    assert folder.pixels("a.jpg", 3, (30, 20), None).shape == (3, 30, 20)


@pytest.mark.parametrize("suffix", ["jpg", "png", "gif", "bmp", "webp"])
@pytest.mark.parametrize("damage", ["cut", "garbage", "empty"])
def test_error_names_damaged_image(tmp_path, write_image_files, suffix, damage):
    path = write_image_files(tmp_path, [f"bad.{suffix}"], (64, 64)) / f"bad.{suffix}"
    content = path.read_bytes()
    damaged = {"cut": content[: len(content) // 2], "garbage": b"garbage" * 50, "empty": b""}[damage]
    path.write_bytes(damaged)
    images = FileImages(ImageFolder(tmp_path), [path.name], size=(64, 64), channels=3)
    for read in (lambda: images[0], images.loaded):
        with pytest.raises(DataError, match=rf"bad\.{suffix} cannot be read as an image"):
            read()


def test_error_names_damaged_image_in_zip(tmp_path, write_image_files):
    folder = write_image_files(tmp_path / "p", ["bad.jpg"], (64, 64))
    content = (folder / "bad.jpg").read_bytes()
    (folder / "bad.jpg").write_bytes(content[: len(content) // 2])
    path = shutil.make_archive(str(tmp_path / "z"), "zip", folder)
    images = FileImages(ImageFolder(path), ["bad.jpg"], size=(64, 64), channels=3)
    with pytest.raises(DataError, match=r"bad\.jpg in .*z\.zip cannot be read as an image"):
        images[0]


def test_error_names_damaged_zip(tmp_path, write_image_files):
    folder = write_image_files(tmp_path / "p", ["a.bmp"], (64, 64))
    path = tmp_path / "z.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(folder / "a.bmp", "a.bmp")
    content = bytearray(path.read_bytes())
    path.write_bytes(content[:-30])
    with pytest.raises(DataError, match=r"z\.zip is not a readable zip"):
        ImageFolder(path).names()
    content[500] ^= 255  # makes the checksum of the member wrong
    path.write_bytes(content)
    for name in ("a.bmp", "none.png"):
        with pytest.raises(DataError, match=rf"{name} in .*z\.zip"):
            ImageFolder(path).pixels(name, 3, (64, 64), None)


def test_error_names_removed_image(tmp_path):
    images = FileImages(ImageFolder(tmp_path), ["gone.png"], size=(8, 8), channels=1)
    with pytest.raises(DataError, match=r"gone\.png does not exist any more"):
        images[0]


def test_wrong_size_crop_or_channels_are_rejected(store):
    with pytest.raises(DataError, match=r"00\.png.* is 20x16 .*size="):
        images_of(store, size=(20, 20))[0]
    with pytest.raises(DataError, match=r"00\.png.* is 20x16 .*too small for a crop of 18x18"):
        images_of(store, size=(8, 8), crop=18)[0]
    with pytest.raises(DataError, match="channels is 2.*1 or 3 channels"):
        images_of(store, channels=2)


def test_stream_auto_depends_on_memory_limit(store, monkeypatch):
    images = images_of(store)
    assert images.loaded("auto").in_memory
    assert images.loaded(True) is images
    monkeypatch.setattr("recmix.data.file_images.MEMORY_LIMIT", 12 * 3 * 20 * 16 * 4 - 1)
    assert images.loaded("auto") is images
    assert images.loaded(False).in_memory
    with pytest.raises(ConfigError, match="stream is 'no'"):
        images.loaded("no")


@pytest.mark.parametrize(("size", "crop"), [(0, None), (-1, None), (64, 0)])
def test_size_and_crop_out_of_range_are_rejected(size, crop):
    with pytest.raises(ConfigError, match="expected"):
        check_resize(size, crop)


@pytest.mark.parametrize("value", [(16, 16), "16", 16.0, True])
@pytest.mark.parametrize("name", ["size", "crop"])
def test_size_and_crop_must_be_one_whole_number(name, value, tmp_path):
    Image.new("L", (20, 20)).save(tmp_path / "a.png")
    given = {"size": 16, name: value}
    message = rf"{name} is {re.escape(repr(value))}; expected one whole number, .*: write {name}=64"
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, **given)
