"""Images with transparent pixels are read as on a white background."""

import shutil
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from recmix.data import DataWarning, from_arrays, load
from recmix.data.file_images import ImageFolder, from_pillow

COLOURS = np.array([[[10, 20, 30], [200, 0, 9]]] * 8, np.uint8)  # (8, 2, 3)
OPACITY = np.array([[255, 0]] * 7 + [[255, 51]], np.uint8)


def expected(colours, opacity):
    share = opacity[..., None] / 255
    return np.rint(colours * share + 255 * (1 - share)).transpose(2, 0, 1)


def test_colours_are_put_on_white():
    image = Image.fromarray(np.dstack([COLOURS, OPACITY]), "RGBA")
    found = from_pillow(image)
    np.testing.assert_allclose(found, expected(COLOURS, OPACITY), atol=1)
    np.testing.assert_array_equal(found[:, :, 0], COLOURS[:, 0].T)  # opaque pixels are unchanged
    np.testing.assert_array_equal(found[:, :7, 1], 255)  # and hidden colours are not seen


def test_grey_stays_grey():
    image = Image.fromarray(np.dstack([COLOURS[..., 0], OPACITY]), "LA")
    found = from_pillow(image)
    np.testing.assert_allclose(found, expected(COLOURS[..., :1], OPACITY), atol=1)
    np.testing.assert_array_equal(from_pillow(image, 3), np.repeat(found, 3, axis=0))
    premultiplied = from_pillow(image.convert("La"))
    np.testing.assert_allclose(premultiplied, found, atol=3)


@pytest.mark.parametrize("mode", ["P", "L", "RGB", "I;16"])
def test_a_transparent_colour_becomes_white(tmp_path, mode):
    """PNG files may name one colour, or the opacity of each colour of a palette."""
    if mode == "I;16":
        values = np.full((8, 9), 20_000, np.uint16)
        values[0] = 300
        image, key = Image.fromarray(values), 300
    else:
        image = Image.new("RGB", (9, 8), (90, 90, 90))
        image.paste((0, 0, 0), (0, 0, 9, 1))
        image = image.quantize(2) if mode == "P" else image.convert(mode)
        pixel = image.getpixel((0, 0))
        key = bytes(0 if i == pixel else 255 for i in range(256)) if mode == "P" else pixel
    image.save(tmp_path / "a.png", transparency=key)
    found = ImageFolder(tmp_path).pixels("a.png", 1, (8, 9), None)
    assert (found[0, 0] == 255).all()
    assert (found[0, 1:] == (78 if mode == "I;16" else 90)).all()
    assert ImageFolder(tmp_path).first_transparent(["a.png"]) == "a.png"


def icons(folder, opacities, mode="RGBA"):
    """Write black images that differ only in their opacity."""
    folder.mkdir(parents=True)
    for number, opacity in enumerate(opacities):
        pixels = np.zeros((8, 8, 4), np.uint8)
        pixels[..., 3] = opacity
        Image.fromarray(pixels, "RGBA").convert(mode).save(folder / f"{number:03d}.png")
    return folder


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
@pytest.mark.parametrize("zipped", [False, True])
def test_folders_in_memory_and_streamed_folders_give_the_same(tmp_path, mode, zipped):
    folder = icons(tmp_path / "icons", [255] * 3 + [np.eye(8) * 255] * 17, mode)
    path = shutil.make_archive(str(tmp_path / "z"), "zip", folder) if zipped else folder
    found = []
    for stream in (False, True):
        with pytest.warns(DataWarning, match="some images have transparent pixels") as caught:
            found.append(load(path, stream=stream))
        assert len(caught) == 1
    memory, streamed = found
    assert memory.notes == streamed.notes
    assert len(memory.notes) == 1
    assert "white background (for example 003.png): for another background" in memory.notes[0]
    assert memory.shape == streamed.shape == ((3 if mode == "RGBA" else 1), 8, 8)
    for name in ("x_train", "x_val", "x_test"):
        np.testing.assert_array_equal(getattr(memory, name), getattr(streamed, name))
    assert {float(x.mean()) for x in memory.x_train} <= {0.0, 1 - 1 / 8}


@pytest.mark.parametrize("stream", [False, True])
def test_opaque_images_with_an_alpha_channel_give_no_note(tmp_path, stream):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = load(icons(tmp_path / "icons", [255] * 4), stream=stream)
    assert data.notes == ()
    assert np.asarray(data.x_train).max() == 0


def test_transparent_pixels_are_composed_before_images_are_resized(tmp_path):
    pixels = np.full((16, 16, 4), 255, np.uint8)
    pixels[:, ::2] = (255, 0, 0, 0)  # hidden red
    (tmp_path / "a").mkdir()
    for number in range(3):
        Image.fromarray(pixels, "RGBA").save(tmp_path / "a" / f"{number}.png")
    with pytest.warns(DataWarning):
        data = load(tmp_path / "a", size=8)
    assert np.asarray(data.x_train).min() == 1


def test_of_many_images_a_fixed_number_is_searched(tmp_path, monkeypatch):
    names = sorted(p.name for p in icons(tmp_path / "i", [255] * 9 + [0]).iterdir())
    folder = ImageFolder(tmp_path / "i")
    assert folder.first_transparent(names) == "009.png"
    assert folder.first_transparent([]) is None
    monkeypatch.setattr("recmix.data.file_images._SCANNED", 2)
    decoded = []
    real = ImageFolder._decoded
    monkeypatch.setattr(
        ImageFolder, "_decoded", lambda self, name: [decoded.append(name), real(self, name)][1]
    )
    assert folder.first_transparent(names) == "009.png"
    assert sorted(decoded) == ["000.png", "009.png"]


def test_pillow_images_of_a_data_set_are_put_on_white():
    class Icons(torch.utils.data.Dataset):
        def __len__(self):
            return 10

        def __getitem__(self, index):
            return Image.new("RGBA", (8, 8), (0, 0, 0, 0 if index else 255)), 3

    data = from_arrays(Icons())
    means = [float(x.mean()) for part in (data.x_train, data.x_val, data.x_test) for x in part]
    assert sorted(means) == [0.0] + [1.0] * 9
