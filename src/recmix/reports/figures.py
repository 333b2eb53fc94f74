"""Figures as PNG or SVG files, from plain arrays and histories."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray

mpl.use("Agg")

from matplotlib import pyplot as plt

__all__ = ["COLOURS", "STYLE", "learning_curves", "reconstructions", "samples", "save"]

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
"""Colours of a mixture's components; the first two are red and cyan, as in the paper's Figure 1."""
History = Sequence[Mapping[str, float]]
Examples = NDArray[Any]


def learning_curves(
    histories: Mapping[str, History],
    path: Path,
    *,
    after: Mapping[str, int] | None = None,
    title: str = "Learning curves",
) -> Path:
    """Validation bound by epoch, one line for each run.

    Args:
        histories: the rows of each run, by its name.
        path: of the figure.
        after: number of epochs before the first of a run (those of the run it started from).
        title: above the figure.
    """
    after = after or {}
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
        top = []
        for (name, rows), colour in zip(histories.items(), cycle(COLOURS), strict=False):
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
    originals: Examples, made: Mapping[str, Examples], path: Path, *, title: str = "Reconstructions"
) -> Path:
    """Originals in the first row, the reconstructions of each model below.

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


def samples(images: Examples, path: Path, *, title: str = "Samples from the prior") -> Path:
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


def _show(axes: Any, image: Examples) -> None:
    picture = np.clip(np.moveaxis(np.asarray(image), 0, -1), 0, 1)
    if picture.shape[-1] == 3:
        axes.imshow(picture, interpolation="nearest")
    else:
        axes.imshow(picture[..., 0], cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(False)


def save(figure: Any, path: Path) -> Path:
    """Write a figure. The suffix of the path selects PNG or SVG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": "recmix"}):  # the same figure gives the same file
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
    return path
