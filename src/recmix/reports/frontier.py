"""Draw the accuracy of methods against their inference time, with one labelled point per method."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

from recmix.reports.figures import COLOURS, MARKERS, STYLE, label_points, save, show_times
from recmix.reports.records import PAPER_ORDER
from recmix.reports.statistics import TIMED_BATCH
from recmix.reports.summary import Point

__all__ = ["frontiers"]

ACROSS = 3
"""Most panels in a row."""
OFFSET = (10, 6)
"""From a point to its label before labels are moved, in pixels: half a marker."""


def frontiers(panels: Mapping[str, Sequence[Point]], path: Path, *, samples: int = 100) -> Path:
    """Draw the gain in test log-likelihood over VAE+ against the inference time, one point per method.

    VAE+ is the plain VAE that was trained further. A dashed line joins the methods that no other
    method beats in both. Labels are moved so that they do not overlap.

    Args:
        panels: {title of the panel: its points}, from `recmix.reports.summary.panels`.
        path: the file to write. Its suffix selects PNG or SVG.
        samples: K of the IWAE-K bound, for the label of the axis.
    """
    down = max(1, math.ceil(len(panels) / ACROSS))
    across = max(1, math.ceil(len(panels) / down))
    looks = _looks(point.label for points in panels.values() for point in points)
    with plt.rc_context(STYLE):
        size = (7.5, 5) if len(panels) == 1 else (5 * across, 3.7 * down + 0.3)
        figure, grid = plt.subplots(down, across, figsize=size, layout="constrained", squeeze=False)
        for axes in grid.flat[len(panels) :]:
            axes.axis("off")
        figure.supxlabel(f"milliseconds per batch of {TIMED_BATCH}", fontsize=10)
        figure.supylabel(f"test IWAE-{samples} over VAE+ (nats per image)", fontsize=10)
        for axes, (title, points) in zip(grid.flat, panels.items(), strict=False):
            axes.set_title(title)
            _draw(axes, points, looks)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # labels are placed in the final layout
        for axes, points in zip(grid.flat, panels.values(), strict=False):
            _label(axes, points, looks)
        return save(figure, path)


def _looks(labels: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return colour and marker by label. The paper's methods have the same ones in every figure."""
    found = list(dict.fromkeys([*PAPER_ORDER, *labels]))
    return {
        label: (COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]) for i, label in enumerate(found)
    }


def _draw(axes: Any, points: Sequence[Point], looks: Mapping[str, tuple[str, str]]) -> None:
    """Draw the points of a panel, their standard deviations and the line of the best points."""
    axes.axhline(0, color="#bbbbbb", lw=0.8, zorder=0)
    axes.set_xscale("log")
    times = [point.milliseconds for point in points]
    axes.set_xlim(min(times) / 1.6, max(times) * 1.8)  # first: matplotlib warns if all times are equal
    front, best = [], -math.inf
    for point in sorted(points, key=lambda point: (point.milliseconds, -point.nats)):
        time, nats = point.milliseconds, point.nats
        colour, marker = looks[point.label]
        if point.std is not None:
            axes.vlines(time, nats - point.std, nats + point.std, color=colour, lw=1, alpha=0.5)
        axes.plot([time], [nats], marker, color=colour, mec="white", mew=0.6, ms=7.5, zorder=4)
        if nats > best:
            front.append((time, nats))
            best = nats
    axes.step(*zip(*front, strict=True), where="post", color="#777777", lw=1, ls="--", zorder=1)
    show_times(axes, (1, 2, 5), "g")
    axes.margins(y=0.15)


def _label(axes: Any, points: Sequence[Point], looks: Mapping[str, tuple[str, str]]) -> list[Any]:
    """Write the name of each point near the point, so that names do not overlap.

    A name far from its point gets a line to it. The matplotlib texts are returned.
    """
    places = [(point.milliseconds, point.nats) for point in points]
    names = [(point.name, looks[point.label][0]) for point in points]
    labels = [(place, *name) for place, name in zip(places, names, strict=True)]
    return label_points(axes, labels, places, offset=OFFSET, expand=(1.1, 1.5), fontsize=8)
