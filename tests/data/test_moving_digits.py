"""Clips of moving digits."""

import numpy as np
import pytest

import recmix
from recmix.data import moving_digits
from recmix.errors import ConfigError, DataError

DOT = np.ones((1, 1, 1, 1), np.float32)


def places(clip):
    """Row and column of the brightest pixel of each frame."""
    return np.stack([np.unravel_index(frame.argmax(), frame.shape[-2:]) for frame in clip[:, 0]])


def test_clips_depend_only_on_the_arguments():
    images = recmix.data.load("digits").x_train
    first, second = (moving_digits(images, 5, frames=4, seed=3) for _ in range(2))
    assert first.shape == (5, 4, 1, 16, 16)
    assert first.dtype == np.uint8
    np.testing.assert_array_equal(first, second)
    assert (moving_digits(images, 5, frames=4, seed=4) != first).any()


def test_a_digit_moves_by_the_speed_and_bounces():
    clips = moving_digits(DOT, 30, frames=40, side=32, digits=1, speed=0.1)
    assert (clips.reshape(30, 40, -1).astype(bool).sum(2) == 1).all()  # always inside the frame
    for clip in clips:
        steps = np.linalg.norm(np.diff(places(clip), axis=0), axis=1)
        assert steps.max() < 3.2 + 1.5  # rounded positions
        assert steps.mean() > 1.5
        turned = np.diff(np.sign(np.diff(places(clip), axis=0)), axis=0)
        assert (np.abs(turned) == 2).any()  # it bounced


def test_number_of_digits():
    one, two = (moving_digits(DOT, 50, frames=1, side=32, digits=n) for n in (1, 2))
    assert (one.astype(bool).sum((1, 2, 3, 4)) == 1).all()
    assert two.astype(bool).sum((1, 2, 3, 4)).max() == 2
    mixed = moving_digits(DOT, 50, frames=1, side=32).astype(bool).sum((1, 2, 3, 4))
    assert set(mixed) == {1, 2}


def test_digits_keep_their_values():
    images = np.zeros((1, 1, 4, 4), np.uint8)
    images[0, 0, 1] = (10, 200, 30, 255)
    clip = moving_digits(images, 1, frames=3, side=8, digits=1)[0]
    for frame in clip:
        np.testing.assert_array_equal(np.sort(frame[frame > 0]), [10, 30, 200, 255])


def test_wrong_arguments_are_refused():
    with pytest.raises(DataError, match="expected grey images"):
        moving_digits(np.zeros((3, 3, 8, 8), np.float32))
    with pytest.raises(ConfigError, match="side=4: expected 8 to 64"):
        moving_digits(DOT, 1, side=4)
    with pytest.raises(ConfigError, match="no less than the side of the digits, 8"):
        moving_digits(np.zeros((1, 1, 8, 8), np.float32), 1, side=65)
    with pytest.raises(ConfigError, match="expected positive numbers"):
        moving_digits(DOT, 1, digits=(2, 1))


def test_clips_are_data():
    clips = moving_digits(recmix.data.load("digits").x_train, 20, frames=3)
    data = recmix.data.from_arrays(clips, name="clips")
    assert data.shape == (3, 1, 16, 16)
    assert data.kind == "unit"
    np.testing.assert_allclose(data.x_train[:].max(), 1)
    with pytest.raises(DataError, match=r"channels-last; expected clips of shape \(N, T, C, H, W\)"):
        recmix.data.from_arrays(clips.transpose(0, 1, 3, 4, 2))


def test_clips_are_read_from_files(tmp_path):
    clips = moving_digits(recmix.data.load("digits").x_train, 20, frames=3)
    np.save(tmp_path / "clips.npy", clips)
    assert recmix.data.load(tmp_path / "clips.npy").shape == (3, 1, 16, 16)
