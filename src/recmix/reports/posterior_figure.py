"""The paper's Figure 1: two components learn the true posterior in a two-dimensional latent space."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.patches import Ellipse
from numpy.typing import NDArray
from PIL import Image

from recmix.reports.figures import COMPONENTS, STYLE, save

__all__ = ["FigureStage", "Instance", "posterior_animation", "posterior_stages"]

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class FigureStage:
    """A mixture of Gaussians over a two-dimensional z after some epochs of learning.

    Attributes:
        name: its title, such as ``epoch 3``.
        means: (K, 2).
        covariances: (K, 2, 2), or (K, 2) with the variances of diagonal ones.
        weights: (K,) of the mixture; components with less weight are drawn thinner.
    """

    name: str
    means: Array
    covariances: Array
    weights: Array | None = None


@dataclass(frozen=True, kw_only=True)
class Instance:
    """An image whose posterior is shown.

    Attributes:
        name: such as ``instance 1``.
        x: (G,) coordinates of the grid along the first dimension of z.
        y: (H,) along the second.
        density: (H, G) of the true posterior on that grid, up to a factor; row j, column i is at
            (x[i], y[j]).
        recursive: stages of learning the second component.
        blind: stages of learning both at once; as many as `recursive`.
    """

    name: str
    x: Array
    y: Array
    density: Array
    recursive: Sequence[FigureStage]
    blind: Sequence[FigureStage]


def posterior_stages(
    instances: Sequence[Instance],
    path: Path,
    *,
    title: str = "",
    names: tuple[str, str] = ("recursive", "blind mixture"),
) -> Path:
    """The paper's Figure 1: the recursive mixture in the upper row, the blind mixture in the lower.

    Contours show the true posterior, ellipses one and two standard deviations of q_0 (red) and q_1
    (cyan). Stages go from left to right, and instances are side by side.

    Args:
        instances: one or more.
        path: of the figure; its suffix selects PNG or SVG.
        title: above the figure.
        names: of the two rows.
    """
    counts = [max(len(one.recursive), len(one.blind)) for one in instances]
    with plt.rc_context({**STYLE, "axes.grid": False}):
        size = (1.75 * sum(counts) + 0.5 * len(counts), 4.1)
        figure = plt.figure(figsize=size, layout="constrained")
        blocks = figure.subfigures(1, len(instances), width_ratios=counts, squeeze=False)[0]
        for place, (block, one, count) in enumerate(zip(blocks, instances, counts, strict=True)):
            grid = block.subplots(2, count, squeeze=False, sharex=True, sharey=True)
            block.suptitle(one.name, fontsize=11)
            for line, stages, name in zip(grid, (one.recursive, one.blind), names, strict=True):
                for axes in line[len(stages) :]:
                    axes.axis("off")
                for axes, stage in zip(line, stages, strict=False):
                    _posterior(axes, one, stage)
                    axes.set_title(stage.name, fontsize=9)
                if place == 0:
                    line[0].set_ylabel(name)
        if title:
            figure.suptitle(title, fontsize=12)
        return save(figure, path)


def posterior_animation(
    instances: Sequence[Instance],
    path: Path,
    *,
    milliseconds: int = 500,
    names: tuple[str, str] = ("recursive", "blind mixture"),
) -> Path:
    """The same as an animated GIF: one frame for each stage. The last one is shown longer.

    Args:
        instances: one or more.
        path: of the GIF.
        milliseconds: duration of a frame.
        names: of the two rows.
    """
    count = max(max(len(one.recursive), len(one.blind)) for one in instances)
    frames = []
    for at in range(count):
        with plt.rc_context({**STYLE, "axes.grid": False, "figure.dpi": 110}):
            figure, grid = plt.subplots(
                2,
                len(instances),
                figsize=(2.9 * len(instances) + 0.4, 6),
                layout="constrained",
                squeeze=False,
            )
            for column, one in enumerate(instances):
                for row, stages in enumerate((one.recursive, one.blind)):
                    axes = grid[row][column]
                    stage = stages[min(at, len(stages) - 1)]
                    _posterior(axes, one, stage)
                    head = f"{one.name}\n{stage.name}" if row == 0 else stage.name
                    axes.set_title(head, fontsize=10)
                    if column == 0:
                        axes.set_ylabel(names[row])
            buffer = io.BytesIO()
            figure.savefig(buffer, format="png")
            plt.close(figure)
        with Image.open(buffer) as picture:
            frames.append(picture.convert("P", palette=Image.Palette.ADAPTIVE, colors=128))
    path.parent.mkdir(parents=True, exist_ok=True)
    held = [milliseconds] * (count - 1) + [4 * milliseconds]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=held, loop=0)
    return path


def _posterior(axes: Any, one: Instance, stage: FigureStage) -> None:
    """Contours of the true posterior and the ellipses of one mixture."""
    density = np.asarray(one.density, dtype=float)
    top = float(density.max())
    if top > 0:
        levels = top * np.array([0.05, 0.2, 0.4, 0.6, 0.8, 0.95])
        axes.contourf(one.x, one.y, density, levels=[*levels, 1.01 * top], cmap="Greys", alpha=0.35)
        axes.contour(one.x, one.y, density, levels=levels, colors="#6b7280", linewidths=0.7)
    means, spread = np.asarray(stage.means, float), np.asarray(stage.covariances, float)
    weights = np.ones(len(means)) if stage.weights is None else np.asarray(stage.weights, float)
    for m, (mean, covariance, weight) in enumerate(zip(means, spread, weights, strict=True)):
        full = np.diag(covariance) if covariance.ndim == 1 else covariance
        values, vectors = np.linalg.eigh(full)
        angle = math.degrees(math.atan2(vectors[1, 1], vectors[0, 1]))
        colour = COMPONENTS[m % len(COMPONENTS)]
        for deviations in (1, 2):
            width, height = 2 * deviations * np.sqrt(np.maximum(values[::-1], 0))
            ellipse = Ellipse(mean, width, height, angle=angle, fill=False, ec=colour)
            ellipse.set(linewidth=0.8 + 1.2 * weight, alpha=1.0 if deviations == 1 else 0.55)
            axes.add_patch(ellipse)
        axes.plot(*mean, marker="+", color=colour, ms=6)
    axes.set(xlim=(one.x[0], one.x[-1]), ylim=(one.y[0], one.y[-1]), xticks=[], yticks=[])
    axes.set_aspect("equal", adjustable="box")
    for spine in axes.spines.values():
        spine.set(visible=True, color="#c8ccd2")
