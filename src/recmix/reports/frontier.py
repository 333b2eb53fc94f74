"""Log-likelihood against time as a figure: what each method reaches, and what that costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import patheffects
from matplotlib import pyplot as plt
from matplotlib.ticker import LogLocator, NullFormatter

from recmix.reports.figures import COLOURS, STYLE, save
from recmix.reports.labels import Box, place_labels

__all__ = ["Point", "frontier", "frontiers"]

FAMILIES = {
    "VAE": ("#6b7280", "o"),
    "VAE+": ("#111827", "D"),
    "SA": ("#b45309", "s"),
    "IAF": ("#1d4ed8", "^"),
    "HF": ("#0f766e", "v"),
    "ME": ("#7e22ce", "P"),
    "RME": ("#c81e1e", "o"),
}
"""Colour and mark of the paper's methods; others follow in `COLOURS` and `MARKERS`."""
MARKERS = ("X", "p", "h", "<", ">", "*")
Point = tuple[str, float, float, float | None]
"""Name, milliseconds, nats and their standard deviation (or None)."""
ABREAST = 3
"""Panels beside one another."""


def frontier(
    points: Sequence[Point],
    path: Path,
    *,
    title: str = "Log-likelihood against time",
    samples: int = 100,
    batch: int = 128,
) -> Path:
    """Log-likelihood against time, one labelled point for each method; no label covers another.

    Args:
        points: name, milliseconds, mean log-likelihood and its standard deviation (or None).
        path: of the figure.
        title: above the figure.
        samples: K of IWAE-K.
        batch: images in the timed batch.
    """
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7.5, 5), layout="constrained")
        axes.set(xlabel=f"milliseconds per batch of {batch}", title=title)
        axes.set_ylabel(f"test IWAE-{samples} (nats per image)")
        _draw(figure, {axes: points})
        return save(figure, path)


def frontiers(
    panels: Mapping[str, Sequence[Point]], path: Path, *, samples: int = 100, batch: int = 128
) -> Path:
    """Gain over VAE+ against time, one panel for each data set and dimension.

    Args:
        panels: the points of each, by its title; nats are those over VAE+.
        path: of the figure.
        samples: K of IWAE-K.
        batch: images in the timed batch.
    """
    across = min(ABREAST, max(1, len(panels)))
    down = max(1, math.ceil(len(panels) / across))
    with plt.rc_context(STYLE):
        size = (5 * across, 3.7 * down + 0.3)
        figure, grid = plt.subplots(down, across, figsize=size, layout="constrained", squeeze=False)
        for axes in grid.flat[len(panels) :]:
            axes.axis("off")
        used = dict(zip(grid.flat, panels.values(), strict=False))
        for axes, title in zip(used, panels, strict=True):
            axes.axhline(0, color="#bbbbbb", lw=0.8, zorder=0)
            axes.set_title(title)
        figure.supxlabel(f"milliseconds per batch of {batch}", fontsize=10)
        figure.supylabel(f"test IWAE-{samples} over VAE+ (nats per image)", fontsize=10)
        _draw(figure, used)
        return save(figure, path)


def _draw(figure: Any, panels: Mapping[Any, Sequence[Point]]) -> None:
    """Points, their frontier and their names in each panel; the same method looks the same in all."""
    looks = _looks([name for points in panels.values() for name, *_ in points])
    for axes, given in panels.items():
        points = sorted(given, key=lambda point: (point[1], -point[2]))
        axes.set_xscale("log")
        for name, time, mean, spread in points:
            colour, marker = looks[name]
            if spread is not None:
                axes.vlines(time, mean - spread, mean + spread, color=colour, lw=1, alpha=0.5)
            axes.plot([time], [mean], marker, color=colour, mec="white", mew=0.6, ms=7.5, zorder=3)
        front, best = [], -math.inf
        for _, time, mean, _ in points:
            if mean > best:
                front.append((time, mean))
                best = mean
        if front:
            reached, means = zip(*front, strict=True)
            axes.step(reached, means, where="post", color="#777777", lw=1, ls="--", zorder=1)
            times = [time for _, time, _, _ in points]
            axes.set_xlim(min(times) / 1.4, max(times) * 1.6)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.margins(y=0.12)
    for axes, given in panels.items():
        _label(figure, axes, given, looks)


def _looks(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and mark of each method by its name, such as RME(5) or RES +2 steps."""
    others: list[str] = []
    found = {}
    for name in names:
        family = name.split("(")[0].split(" +")[0]
        if family not in FAMILIES and family not in others:
            others.append(family)
        i = others.index(family) if family in others else 0
        found[name] = FAMILIES.get(family, (COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]))
    return found


def _label(
    figure: Any, axes: Any, points: Sequence[Any], looks: Mapping[str, tuple[str, str]]
) -> list[Any]:
    """Put the name of each point where it is free, with a line to the point where it is not near."""
    figure.canvas.draw()  # places are known once the layout is
    scale = 72 / figure.dpi
    where = [tuple(axes.transData.transform((time, mean)) * scale) for _, time, mean, _ in points]
    frame = axes.get_window_extent()
    bounds = Box(frame.x0 * scale, frame.y0 * scale, frame.width * scale, frame.height * scale)
    sizes, texts = [], []
    for name, time, mean, _ in points:
        text = axes.annotate(
            name, (time, mean), xytext=(0, 0), textcoords="offset points", ha="center", va="center"
        )
        text.set(color=looks[name][0], fontsize=8.5)
        text.set_path_effects([patheffects.withStroke(linewidth=2, foreground="white")])
        extent = text.get_window_extent()
        sizes.append((extent.width * scale + 2, extent.height * scale + 1))
        texts.append(text)
    for text, point, box in zip(texts, where, place_labels(where, sizes, bounds), strict=True):
        if box is None:
            text.set_visible(False)
            continue
        x, y = box.centre
        text.set_position((x - point[0], y - point[1]))
        if box.distance(point) > 9:
            near = box.nearest(point)
            end = (near[0] - point[0], near[1] - point[1])
            axes.annotate(
                "",
                text.xy,
                xytext=end,
                textcoords="offset points",
                arrowprops={"arrowstyle": "-", "color": "#999999", "lw": 0.7},
            )
    return texts
