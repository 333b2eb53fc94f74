"""Draw accuracy against inference time: for methods, and for refinements of one model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

from recmix.reports.figures import COLOURS, MARKERS, STYLE, label_points, save, show_times
from recmix.reports.records import PAPER_ORDER
from recmix.reports.statistics import TIMED_BATCH
from recmix.reports.summary import Point

__all__ = ["RefinementPoint", "frontiers", "refinement_times"]

ACROSS = 3
"""Largest number of panels in a row of the figure."""
OFFSET = (10, 6)
"""Distance (x, y) from a point to its label, in pixels, before overlapping labels are moved."""


def frontiers(panels: Mapping[str, Sequence[Point]], path: Path, *, samples: int = 100) -> Path:
    """Draw the gain in test log-likelihood over VAE+ against the inference time, one point per method.

    VAE+ is the plain VAE that was trained further. A dashed line joins the methods that have a higher
    gain than every faster method. Labels are moved so that they do not overlap.

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
            places = [(point.milliseconds, point.nats) for point in points]
            colours = [looks[point.label][0] for point in points]
            labels = list(zip(places, [point.name for point in points], colours, strict=True))
            label_points(axes, labels, places, offset=OFFSET, expand=(1.1, 1.5), fontsize=8)
        return save(figure, path)


def _looks(labels: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return {label of a method: (its colour, its marker)}.

    The methods of Kim and Pavlovic (2020) have the same colours and markers in every figure.
    """
    found = list(dict.fromkeys([*PAPER_ORDER, *labels]))
    return {
        label: (COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]) for i, label in enumerate(found)
    }


def _draw(axes: Any, points: Sequence[Point], looks: Mapping[str, tuple[str, str]]) -> None:
    """Draw the points of a panel, their standard deviations, and the line that joins the best points.

    The best points have a higher gain than every faster point. `looks` is the result of `_looks`.
    """
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


@dataclass(frozen=True, kw_only=True)
class RefinementPoint:
    """One way to refine the posterior q(z | x), as a point in the figure of IWAE bound against time."""

    how: str  # kind of refinement; ``none`` for the encoder's own posterior
    steps: int  # number of refinement steps
    milliseconds: float  # time to compute the posterior, per example
    bound: float  # IWAE bound, in nats per example
    error: float  # standard error of the bound minus the bound of the encoder's own posterior
    efficient: bool  # whether no faster refinement has a higher bound
    chosen: bool  # whether this refinement was chosen from all points; it is marked in the figure


def refinement_times(
    points: Sequence[RefinementPoint],
    path: Path,
    *,
    limit: float,
    samples: int,
    title: str = "Refinement",
) -> Path:
    """Draw the IWAE bound of each refinement against the time to compute the posterior of an example.

    The marker of a point shows the kind of refinement. The label of a point shows the number of steps.
    A dashed line joins the points with `efficient`, which have a higher bound than every faster point.

    Args:
        points: the refinements whose IWAE bound was computed.
        path: the file to write. Its suffix selects PNG or SVG.
        limit: the time limit in milliseconds per example, shown as a vertical line.
        samples: K of the IWAE-K bound, for the label of the axis.
        title: title of the figure.
    """
    kinds = list(dict.fromkeys(point.how for point in sorted(points, key=lambda p: p.how != "none")))
    styles = list(zip(COLOURS, MARKERS, strict=False))
    looks = {how: styles[(i - 1) % len(styles)] for i, how in enumerate(kinds)}
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7.5, 4.8), layout="constrained")
        bound = f"validation IWAE-{samples} (nats per example)"
        axes.set(xscale="log", title=title, xlabel="time per example (ms)", ylabel=bound)
        _draw_refinements(axes, points, looks, limit)
        handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        names = [*(_name(how) for how in kinds), "chosen", "efficient", "time limit"]
        shown = [name for name in names if name in handles]
        style: dict[str, Any] = {"fontsize": 9, "title_fontsize": 9, "frameon": False}
        style |= {"title": "numbers: steps", "loc": "upper left", "bbox_to_anchor": (1, 1)}
        axes.legend([handles[name] for name in shown], shown, **style)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # labels are placed in the final layout
        places = [(point.milliseconds, point.bound) for point in points]
        labels = [
            ((point.milliseconds, point.bound), str(point.steps), looks[point.how][0])
            for point in points
            if point.steps
        ]
        if labels:
            look = {"fontsize": 9, "zorder": 6}
            label_points(axes, labels, places, offset=(10, 8), expand=(1.3, 1.6), **look)
        return save(figure, path)


def _name(how: str) -> str:
    return "no refinement" if how == "none" else how


def _draw_refinements(
    axes: Any, points: Sequence[RefinementPoint], looks: Mapping[str, tuple[str, str]], limit: float
) -> None:
    """Draw the points with their standard errors, the line of efficient points, and the time limit.

    Args:
        axes: the matplotlib axes.
        points: the refinements.
        looks: {kind of refinement: (colour, marker)}.
        limit: the time limit in milliseconds per example.
    """
    times = [*(point.milliseconds for point in points), limit]
    axes.set_xlim(min(times) / 1.3, max(times) * 1.3)
    for how, (colour, marker) in looks.items():
        mine = [(point.milliseconds, point.bound, point.error) for point in points if point.how == how]
        style = {"color": colour, "mec": "white", "mew": 0.6, "ms": 7.5, "elinewidth": 1, "zorder": 4}
        axes.errorbar(*zip(*mine, strict=True), fmt=marker, label=_name(how), **style)
    front = sorted((point.milliseconds, point.bound) for point in points if point.efficient)
    line = {"color": "#777777", "lw": 1, "ls": "--", "zorder": 1}
    axes.step(*zip(*front, strict=True), where="post", label="efficient", **line)
    axes.axvline(limit, color="#4a4a4a", lw=1, ls=":", zorder=1, label="time limit")
    for point in points:
        if point.chosen:
            circle = {"mfc": "none", "mec": "#111111", "ms": 14, "mew": 1.2, "zorder": 3}
            axes.plot([point.milliseconds], [point.bound], "o", ls="none", label="chosen", **circle)
    wide = math.log10(max(times) / min(times)) >= 1
    show_times(axes, (1, 2, 5) if wide else (1, 1.5, 2, 3, 4, 5, 7), ".3g")
    axes.margins(y=0.12)
