"""Figures are written, and labels do not cover one another."""

import itertools
import xml.dom.minidom

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from recmix.reports import figures, frontier
from recmix.reports.labels import Box, place_labels
from recmix.reports.posterior_figure import Instance, Stage, posterior_animation, posterior_stages

METHODS = ["VAE", "VAE+", *(f"{m}({k})" for m in ("SA", "IAF", "HF", "ME", "RME") for k in (1, 2, 4, 8))]


def check_labels(points, sizes, bounds):
    boxes = place_labels(points, sizes, bounds)
    placed = [box for box in boxes if box is not None]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(placed, 2))
    assert all(box.within(bounds) for box in placed)
    for box in placed:
        assert not any(
            box.x < x < box.x + box.width and box.y < y < box.y + box.height for x, y in points
        )
    return boxes


@given(st.lists(st.tuples(st.floats(20, 380), st.floats(20, 280)), min_size=1, max_size=15))
@settings(deadline=None, max_examples=25)
def test_labels_overlap_neither_each_other_nor_points(points):
    check_labels(points, [(36.0, 10.0)] * len(points), Box(0, 0, 400, 300))


def test_every_label_of_a_tight_cluster_finds_a_place():
    rng = np.random.default_rng(0)
    points = [tuple(p) for p in rng.normal((150, 200), 8, (12, 2))]
    assert None not in check_labels(points, [(36.0, 10.0)] * 12, Box(0, 0, 450, 320))


def test_a_label_without_room_is_left_out():
    assert place_labels([(5.0, 5.0)], [(50.0, 10.0)], Box(0, 0, 20, 20)) == [None]


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_frontier(tmp_path, ending):
    rng = np.random.default_rng(0)
    points = [(name, 0.1 * 1.3**i, 930 + rng.normal(0, 5), 1.0) for i, name in enumerate(METHODS)]
    path = frontier.frontier([*points, ("own method", 3.0, 950.0, None)], tmp_path / f"f.{ending}")
    assert_image(path)


def test_all_labels_of_a_frontier_are_apart(tmp_path, monkeypatch):
    kept = []
    label = frontier._label

    def watch(figure, axes, *rest):
        texts = label(figure, axes, *rest)
        figure.canvas.draw()
        kept.extend(text.get_window_extent() for text in texts if text.get_visible())
        return texts

    monkeypatch.setattr(frontier, "_label", watch)
    rng = np.random.default_rng(1)
    points = [(name, rng.uniform(0.08, 0.2), rng.uniform(920, 945), 1.0) for name in METHODS]
    frontier.frontier(points, tmp_path / "f.png")
    assert len(kept) == len(METHODS)
    assert not any(a.overlaps(b) for a, b in itertools.combinations(kept, 2))


@pytest.mark.parametrize("shape", [(5,), (40, 5), (40, 1)])
def test_mixture(tmp_path, shape):
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(shape[-1]), shape[:-1])
    divergence = rng.uniform(0, 50, (shape[-1], shape[-1]))
    assert_image(figures.mixture(weights, divergence, tmp_path / "m.png"))


def instance(name, stages):
    x, y = np.linspace(-3, 3, 30), np.linspace(-2, 2, 20)
    density = np.exp(-(x[None] ** 2) - y[:, None] ** 2)

    def stage(i):
        covariances = np.array([[0.3, 0.2], [0.1, 0.2]])
        if i % 2:
            covariances = np.array([[[0.3, 0.1], [0.1, 0.2]], np.eye(2)])
        weights = None if i == 0 else np.array([0.9, 0.1])
        return Stage(
            name=f"epoch {i}", means=np.zeros((2, 2)) + i / 5, covariances=covariances, weights=weights
        )

    made = [stage(i) for i in range(stages)]
    return Instance(name=name, x=x, y=y, density=density, recursive=made, blind=made)


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_figure_one(tmp_path, ending):
    both = [instance("instance 1", 3), instance("instance 2", 2)]
    assert_image(posterior_stages(both, tmp_path / f"one.{ending}", title="MNIST"))


def test_figure_one_moves(tmp_path):
    path = posterior_animation([instance("a", 3), instance("b", 2)], tmp_path / "deep" / "one.gif")
    with Image.open(path) as picture:
        assert picture.n_frames == 3
        assert picture.info["loop"] == 0


def test_what_was_there_still_works(tmp_path):
    history = [{"epoch": e, "val_iwae": -1.0 / e} for e in range(1, 5)]
    assert_image(figures.learning_curves({"VAE": history}, tmp_path / "c.png"))
    images = np.random.default_rng(0).random((3, 1, 8, 8))
    assert_image(figures.reconstructions(images, {"VAE": images}, tmp_path / "r.png"))
    assert_image(figures.samples(images, tmp_path / "s.png"))


def assert_image(path):
    if path.suffix == ".svg":
        assert xml.dom.minidom.parse(str(path)).documentElement.tagName == "svg"
    else:
        with Image.open(path) as picture:
            assert min(picture.size) > 40
