"""Draw the IWAE bound of a model against the time to compute its posterior q(z | x)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

from recmix.reports.figures import COLOURS, MARKERS, STYLE, label_points, save, show_times

__all__ = ["RefinementPoint", "refinement_times"]


@dataclass(frozen=True, kw_only=True)
class RefinementPoint:
    """One way to refine the posterior q(z | x), as a point in the figure of bound against time.

    Attributes:
        how: kind of refinement; ``none`` for the encoder's own posterior.
        steps: number of refinement steps.
        milliseconds: time to compute the posterior, per example.
        bound: IWAE bound, in nats per example.
        error: standard error of the bound minus the bound of the encoder's own posterior.
        efficient: whether no faster refinement has a higher bound.
        chosen: whether this refinement was chosen from all points; it is marked in the figure.
    """

    how: str
    steps: int
    milliseconds: float
    bound: float
    error: float
    efficient: bool
    chosen: bool


def refinement_times(
    points: Sequence[RefinementPoint],
    path: Path,
    *,
    limit: float,
    samples: int,
    title: str = "Refinement",
) -> Path:
    """Draw the IWAE bound against the time to compute the posterior of an example.

    The marker of a point shows the kind of refinement, its label the number of steps. A dashed line
    joins the refinements that no faster refinement exceeds in the bound.

    Args:
        points: the refinements that have a bound.
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
        axes.set(
            xscale="log",
            title=title,
            xlabel="time per example (ms)",
            ylabel=f"validation IWAE-{samples} (nats per example)",
        )
        _draw(axes, points, looks, limit)
        handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        names = [*(_name(how) for how in kinds), "chosen", "efficient", "time limit"]
        shown = [name for name in names if name in handles]
        axes.legend(
            [handles[name] for name in shown],
            shown,
            frameon=False,
            loc="upper left",
            bbox_to_anchor=(1, 1),
            fontsize=9,
            title="numbers: steps",
            title_fontsize=9,
        )
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # labels are placed in the final layout
        _label(axes, points, looks)
        return save(figure, path)


def _name(how: str) -> str:
    return "no refinement" if how == "none" else how


def _draw(
    axes: Any, points: Sequence[RefinementPoint], looks: Mapping[str, tuple[str, str]], limit: float
) -> None:
    """Draw the points with their errors, the efficient line and the time limit."""
    times = [*(point.milliseconds for point in points), limit]
    axes.set_xlim(min(times) / 1.3, max(times) * 1.3)
    for how, (colour, marker) in looks.items():
        mine = [point for point in points if point.how == how]
        axes.errorbar(
            [point.milliseconds for point in mine],
            [point.bound for point in mine],
            [point.error for point in mine],
            fmt=marker,
            color=colour,
            mec="white",
            mew=0.6,
            ms=7.5,
            elinewidth=1,
            zorder=4,
            label=_name(how),
        )
    front = sorted((point.milliseconds, point.bound) for point in points if point.efficient)
    axes.step(
        *zip(*front, strict=True),
        where="post",
        color="#777777",
        lw=1,
        ls="--",
        zorder=1,
        label="efficient",
    )
    axes.axvline(limit, color="#4a4a4a", lw=1, ls=":", zorder=1, label="time limit")
    for point in points:
        if point.chosen:
            axes.plot(
                [point.milliseconds],
                [point.bound],
                "o",
                mfc="none",
                mec="#111111",
                ms=14,
                mew=1.2,
                ls="none",
                zorder=3,
                label="chosen",
            )
    wide = math.log10(max(times) / min(times)) >= 1
    show_times(axes, (1, 2, 5) if wide else (1, 1.5, 2, 3, 4, 5, 7), ".3g")
    axes.margins(y=0.12)


def _label(
    axes: Any, points: Sequence[RefinementPoint], looks: Mapping[str, tuple[str, str]]
) -> list[Any]:
    """Write the number of steps near each point, so that numbers do not overlap.

    A number far from its point gets a line to it. The matplotlib texts are returned.
    """
    shown = [point for point in points if point.steps]
    if not shown:
        return []
    labels = [((p.milliseconds, p.bound), str(p.steps), looks[p.how][0]) for p in shown]
    obstacles = [(point.milliseconds, point.bound) for point in points]
    style = {"fontsize": 9, "zorder": 6}
    return label_points(axes, labels, obstacles, offset=(10, 8), expand=(1.3, 1.6), **style)
