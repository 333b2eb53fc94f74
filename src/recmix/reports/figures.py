"""Draw learning curves, reconstructions and samples as PNG or SVG files, from plain arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray

from recmix.errors import ConfigError

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.patheffects import withStroke
from matplotlib.ticker import LogLocator, NullFormatter

__all__ = ["COLOURS", "MARKERS", "STYLE", "label_points", "learning_curves", "reconstructions"]
__all__ += ["samples", "save", "show_times"]

COLOURS = ("#0b5fa5", "#d1495b", "#2e7d4f", "#8e6bb0", "#c98a1b", "#4a4a4a")
MARKERS = ("o", "D", "s", "^", "v", "P", "X")
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
    """Draw the validation bound against the epoch, with one line for each run.

    Args:
        histories: {name of the run: one mapping per epoch} with the keys ``epoch`` and ``val_iwae``,
            the IWAE bound on validation data in nats per image.
        path: the file to write. Its suffix selects PNG or SVG.
        after: {name of the run: epoch at which its line starts}, for a run that continued another one.
        title: title of the figure.
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
    """Draw original images in the first row, and below it a row of reconstructions for each model.

    Args:
        originals: images (N, C, H, W) with values from 0 to 1.
        made: {name of the model: its reconstructions of these images, in the same shape}.
        path: the file to write. Its suffix selects PNG or SVG.
        title: title of the figure.
    """
    rows = {"original": originals, **made}
    size = (0.62 * len(originals) + 1.1, 0.66 * len(rows) + 0.5)
    return _images(list(rows.values()), path, title, size, names=list(rows))


def samples(images: Examples, path: Path, *, title: str = "Samples from the prior") -> Path:
    """Draw images (N, C, H, W) with values from 0 to 1 side by side in a square, as PNG or SVG."""
    side = math.ceil(math.sqrt(len(images)))
    rows = [images[start : start + side] for start in range(0, len(images), side)]
    return _images(rows, path, title, (0.6 * side, 0.6 * len(rows) + 0.4))


def _images(
    rows: Sequence[Examples],
    path: Path,
    title: str,
    size: tuple[float, float],
    names: Sequence[str] = (),
) -> Path:
    """Draw rows of images in a figure of `size` inches, with a name to the left of each row.

    No row may be longer than the first row.
    """
    with plt.rc_context({**STYLE, "axes.grid": False}):
        figure, grid = plt.subplots(
            len(rows), len(rows[0]), figsize=size, layout="constrained", squeeze=False
        )
        for axes in grid.flat:
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
        for line, images in zip(grid, rows, strict=True):
            for axes, image in zip(line, images, strict=False):
                if np.ndim(image) != 3:
                    raise ConfigError(
                        f"this figure shows images (C, H, W), got an example of shape {np.shape(image)}"
                    )
                picture = np.clip(np.moveaxis(np.asarray(image), 0, -1), 0, 1)  # one channel or three
                axes.imshow(picture, cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
        for line, name in zip(grid, names, strict=False):
            line[0].set_ylabel(name, rotation=0, ha="right", va="center")
        figure.suptitle(title, fontsize=11)
        return save(figure, path)


def save(figure: Any, path: Path) -> Path:
    """Write a matplotlib figure to a file and close it. The suffix of the path selects PNG or SVG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": "recmix"}):  # the same figure gives the same file
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
    return path


def show_times(axes: Any, steps: Sequence[float], digits: str) -> None:
    """Show times on a logarithmic x axis of a matplotlib figure.

    Args:
        axes: the matplotlib axes.
        steps: positions of the ticks in each power of ten: 1, 2 and 5 give 1, 2, 5, 10, 20, 50, ...
        digits: format of the numbers, such as ``g``.
    """
    axes.xaxis.set_major_locator(LogLocator(subs=steps))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:{digits}}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def label_points(
    axes: Any,
    labels: Sequence[tuple[tuple[float, float], str, str]],
    obstacles: Sequence[tuple[float, float]],
    *,
    offset: tuple[float, float],
    expand: tuple[float, float],
    **style: Any,
) -> list[Any]:
    """Write labels near points, so that labels do not cover other labels or points.

    A line joins a label to its point if the two are far apart.

    Args:
        axes: the matplotlib axes, in their final layout.
        labels: one tuple (point, text, colour) for each label.
        obstacles: points that no label may cover.
        offset: (x, y) from a point to its label before labels are moved, in pixels.
        expand: size of the area kept free around a label, relative to the label.
        **style: options of matplotlib texts.

    Returns:
        The matplotlib texts.
    """
    from adjustText import adjust_text  # type: ignore[import-untyped]

    targets = [point for point, _, _ in labels]
    starts = axes.transData.inverted().transform(axes.transData.transform(targets) + offset)
    style |= {"path_effects": [withStroke(linewidth=2, foreground="white")]}
    texts = [
        axes.text(*start, text, color=colour, **style)
        for start, (_, text, colour) in zip(starts, labels, strict=True)
    ]
    xs, ys = zip(*obstacles, strict=True)
    target_xs, target_ys = zip(*targets, strict=True)
    adjust_text(
        list(texts),
        xs,
        ys,
        target_x=target_xs,
        target_y=target_ys,
        ax=axes,
        expand=expand,
        force_text=(0.3, 0.5),
        force_static=(0.15, 0.3),
        prevent_crossings=False,  # it moves labels back onto others
        iter_lim=500,  # a time limit would not give the same figure again
        arrowprops={"arrowstyle": "-", "color": "#999999", "lw": 0.7},
    )
    return texts
