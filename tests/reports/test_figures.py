"""Figures are written, and labels do not overlap."""

import itertools
import xml.dom.minidom

import numpy as np
import pytest
from PIL import Image

from recmix.errors import ConfigError
from recmix.reports import figures, frontier
from recmix.reports.posterior_figure import FigureStage, Instance, posterior_animation, posterior_stages
from recmix.reports.summary import Point

LABELS = ("SA", "IAF", "HF", "ME", "RME")
ROWS = [("VAE", "VAE"), ("VAE+", "VAE+"), *((m, f"{m}({k})") for m in LABELS for k in (1, 2, 4, 8))]


def assert_image(path):
    if path.suffix == ".svg":
        assert xml.dom.minidom.parse(str(path)).documentElement.tagName == "svg"
    else:
        with Image.open(path) as picture:
            assert min(picture.size) > 40


def cloud(seed):
    """Points close to one another, more than a column of the results has."""
    rng = np.random.default_rng(seed)
    return [
        Point(name, label, rng.uniform(0.08, 0.2), rng.uniform(920, 945), 1.0) for label, name in ROWS
    ]


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_frontier_is_written(tmp_path, ending):
    panels = {"MNIST": cloud(0)[:9], "OMNIGLOT": [Point("own method", "OWN", 3.0, 950.0)]}
    assert_image(frontier.frontiers(panels, tmp_path / f"f.{ending}"))


@pytest.mark.parametrize("seed", [0, 1])
def test_frontier_labels_do_not_overlap(tmp_path, monkeypatch, seed):
    boxes, frames = [], []
    label = frontier.label_points

    def watch(axes, *rest, **style):
        texts = label(axes, *rest, **style)
        axes.figure.draw_without_rendering()
        boxes.extend(text.get_window_extent() for text in texts)
        frames.append(axes.get_window_extent())
        return texts

    monkeypatch.setattr(frontier, "label_points", watch)
    frontier.frontiers({"all": cloud(seed)}, tmp_path / "f.png")
    assert len(boxes) == len(ROWS)
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    (frame,) = frames
    for box in boxes:
        assert frame.x0 - 1 <= box.x0 < box.x1 <= frame.x1 + 1
        assert frame.y0 - 1 <= box.y0 < box.y1 <= frame.y1 + 1


def test_frontier_is_the_same_each_time(tmp_path):
    first, second = (frontier.frontiers({"all": cloud(2)}, tmp_path / f"{i}.png") for i in range(2))
    assert first.read_bytes() == second.read_bytes()


def test_labels_of_the_paper_look_the_same_in_every_figure():
    one, other = frontier._looks(["RME", "OWN"]), frontier._looks(["OTHER", "VAE", "RME"])
    assert one["RME"] == other["RME"]
    assert len(set(frontier._looks([name for name, _ in ROWS]).values())) == len(frontier.PAPER_ORDER)


def instance(name, stages):
    x, y = np.linspace(-3, 3, 30), np.linspace(-2, 2, 20)
    density = np.exp(-(x[None] ** 2) - y[:, None] ** 2)

    def stage(i):
        variances, weights = np.array([[0.3, 0.2], [0.1, 0.2]]), np.array([0.9, 0.1])
        return FigureStage(
            name=f"epoch {i}", means=np.zeros((2, 2)) + i / 5, variances=variances, weights=weights
        )

    made = [stage(i) for i in range(stages)]
    return Instance(name=name, x=x, y=y, density=density, recursive=made, blind=made)


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_figure_one_is_written(tmp_path, ending):
    both = [instance("instance 1", 3), instance("instance 2", 2)]
    assert_image(posterior_stages(both, tmp_path / f"one.{ending}"))


def test_figure_one_animation_has_a_frame_per_stage(tmp_path):
    path = posterior_animation([instance("a", 3), instance("b", 2)], tmp_path / "deep" / "one.gif")
    with Image.open(path) as picture:
        assert picture.n_frames == 3
        assert picture.info["loop"] == 0


def test_curves_reconstructions_and_samples_are_written(tmp_path):
    history = [{"epoch": e, "val_iwae": -1.0 / e} for e in range(1, 5)]
    assert_image(figures.learning_curves({"VAE": history}, tmp_path / "c.png"))
    images = np.random.default_rng(0).random((3, 1, 8, 8))
    assert_image(figures.reconstructions(images, {"VAE": images}, tmp_path / "r.png"))
    assert_image(figures.samples(images, tmp_path / "s.png"))
    with pytest.raises(ConfigError, match=r"shows images \(C, H, W\), got an example of shape \(4, 1,"):
        figures.samples(np.zeros((2, 4, 1, 8, 8)), tmp_path / "clips.png")
