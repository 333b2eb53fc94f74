"""Figures as PNG or SVG files, from plain arrays and histories."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray

mpl.use("Agg")

from matplotlib import patheffects
from matplotlib import pyplot as plt
from matplotlib.ticker import LogLocator, NullFormatter

from recmix.reports.labels import Box, place_labels

__all__ = [
    "frontier",
    "learning_curves",
    "mixture",
    "reconstructions",
    "samples",
    "save",
]

COLOURS = ("#0b5fa5", "#d1495b", "#2e7d4f", "#8e6bb0", "#c98a1b", "#4a4a4a")
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "figure.dpi": 150,
}
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
COMPONENTS = ("#e00000", "#00b8d4", "#8e6bb0", "#c98a1b", "#2e7d4f", "#4a4a4a")
"""Components of a mixture; the first two are red and cyan, as in the paper's Figure 1."""
History = Sequence[Mapping[str, float]]
Images = NDArray[Any]
Array = NDArray[Any]


def learning_curves(
    histories: Mapping[str, History],
    path: Path,
    *,
    after: Mapping[str, int] | None = None,
    title: str = "Learning curves",
) -> Path:
    """Validation bounds over the epochs, a line for each run.

    Args:
        histories: the rows of each run, by its name.
        path: of the figure.
        after: how many epochs came before the first of a run (those of the run it started from).
        title: above the figure.
    """
    after = after or {}
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
        top = []
        for (name, rows), colour in zip(histories.items(), _colours(len(histories)), strict=True):
            epochs = [row["epoch"] + after.get(name, 0) for row in rows]
            bound = [row["val_iwae"] for row in rows]
            top += bound[len(bound) // 5 :]
            few = len(rows) < 40
            axes.plot(epochs, bound, color=colour, label=name, lw=1.6, marker="." if few else None)
        if top:
            spread = max(top) - min(top) or 1.0
            axes.set_ylim(min(top) - 0.05 * spread, max(top) + 0.08 * spread)
        axes.set(xlabel="epoch", ylabel="validation bound (nats per image)", title=title)
        axes.legend(frameon=False, loc="lower right")
        return save(figure, path)


def reconstructions(
    originals: Images, made: Mapping[str, Images], path: Path, *, title: str = "Reconstructions"
) -> Path:
    """Originals in the first row, what each model makes of them below.

    Args:
        originals: (N, C, H, W) in [0, 1].
        made: reconstructions of the same shape, by model.
        path: of the figure.
        title: above the figure.
    """
    rows = {"original": originals, **made}
    with plt.rc_context({**STYLE, "axes.grid": False}):
        columns = len(originals)
        size = (0.62 * columns + 1.1, 0.66 * len(rows) + 0.5)
        figure, grid = plt.subplots(
            len(rows), columns, figsize=size, layout="constrained", squeeze=False
        )
        for line, (name, images) in zip(grid, rows.items(), strict=True):
            for axes, image in zip(line, images, strict=True):
                _show(axes, image)
            line[0].set_ylabel(name, rotation=0, ha="right", va="center")
        figure.suptitle(title, fontsize=11)
        return save(figure, path)


def samples(images: Images, path: Path, *, title: str = "Samples from the prior") -> Path:
    """A square of images (N, C, H, W)."""
    side = math.ceil(math.sqrt(len(images)))
    with plt.rc_context({**STYLE, "axes.grid": False}):
        figure, grid = plt.subplots(
            math.ceil(len(images) / side),
            side,
            figsize=(0.6 * side, 0.6 * math.ceil(len(images) / side) + 0.4),
            layout="constrained",
            squeeze=False,
        )
        for axes, image in zip(grid.flat, images, strict=False):
            _show(axes, image)
        for axes in grid.flat[len(images) :]:
            axes.axis("off")
        figure.suptitle(title, fontsize=11)
        return save(figure, path)


def frontier(
    points: Sequence[tuple[str, float, float, float | None]],
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
    points = sorted(points, key=lambda point: (point[1], -point[2]))
    looks = _looks([name for name, *_ in points])
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7.5, 5), layout="constrained")
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
        axes.set(xlabel=f"milliseconds per batch of {batch}", title=title)
        axes.set_ylabel(f"test IWAE-{samples} (nats per image)")
        _label(figure, axes, points, looks)
        return save(figure, path)


def _looks(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and mark of each method by its name, such as RME(5)."""
    others: list[str] = []
    found = {}
    for name in names:
        family = name.split("(")[0]
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


def mixture(weights: Array, divergence: Array, path: Path, *, title: str = "The mixture") -> Path:
    """Mixing weights of the components as bars, and KL between each two of them as a map.

    Args:
        weights: (K,) means, or (N, K) with one row for each image: then bars show the quartiles too.
        divergence: (K, K) of KL(row ‖ column), nats.
        path: of the figure.
        title: above the figure.
    """
    weights, divergence = np.asarray(weights, dtype=float), np.asarray(divergence, dtype=float)
    count = weights.shape[-1]
    names = [f"$q_{{{m}}}$" for m in range(count)]
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(
            1, 2, figsize=(7.5, 3.2), layout="constrained", width_ratios=(1.1, 1)
        )
        means = weights if weights.ndim == 1 else weights.mean(0)
        colours = [COMPONENTS[m % len(COMPONENTS)] for m in range(count)]
        left.bar(names, means, color=colours, width=0.7)
        top = means
        if weights.ndim == 2:
            low, high = np.quantile(weights, (0.25, 0.75), axis=0)
            left.vlines(range(count), low, high, color="#222222", lw=1.2)
            top = np.maximum(means, high)
        for m, (mean, above) in enumerate(zip(means, top, strict=True)):
            left.annotate(
                f"{mean:.3f}",
                (m, above),
                xytext=(0, 4),
                textcoords="offset points",
                ha="center",
                fontsize=9,
            )
        left.set(ylabel="mixing weight", ylim=(0, 1.15 * float(top.max())), title="weights")
        left.grid(visible=False, axis="x")
        shown = np.where(np.eye(count, dtype=bool), np.nan, divergence)
        image = right.imshow(shown, cmap="Blues", vmin=0)
        middle = float(np.nanmax(shown)) / 2 if count > 1 else 0.0
        for (i, j), value in np.ndenumerate(shown):
            if np.isfinite(value):
                ink = "white" if value > middle else "#222222"
                right.text(j, i, f"{value:.3g}", ha="center", va="center", color=ink, fontsize=9)
        right.set(xticks=range(count), yticks=range(count), xticklabels=names, yticklabels=names)
        right.set_title("KL(row ‖ column), nats")
        right.grid(visible=False)
        figure.colorbar(image, ax=right, shrink=0.85)
        figure.suptitle(title, fontsize=11)
        return save(figure, path)


def _colours(n: int) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(n)]


def _show(axes: Any, image: Images) -> None:
    picture = np.clip(np.moveaxis(np.asarray(image), 0, -1), 0, 1)
    if picture.shape[-1] == 3:
        axes.imshow(picture, interpolation="nearest")
    else:
        axes.imshow(picture[..., 0], cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(False)


def save(figure: Any, path: Path) -> Path:
    """Write a figure; the ending of the path picks PNG or SVG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)
    return path
