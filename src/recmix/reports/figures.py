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

from matplotlib import pyplot as plt

__all__ = [
    "COLOURS",
    "STYLE",
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
    with mpl.rc_context({"svg.hashsalt": "recmix"}):  # the same figure is the same file
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
    return path
