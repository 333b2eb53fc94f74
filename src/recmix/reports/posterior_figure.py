"""Draw how a mixture of two Gaussians learns the true posterior p(z | x).

The figure is Figure 1 of Kim and Pavlovic, Recursive Inference for Variational Autoencoders, 2020.
A recursive mixture learns its components one after the other, a blind mixture learns both at once.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
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


ROWS = ("recursive", "blind mixture")
MILLISECONDS = 500
"""Time that the animation shows one stage; the last one is shown four times as long."""


@dataclass(frozen=True, kw_only=True)
class FigureStage:
    """The learned q(z | x) of one image after some epochs: a mixture of K two-dimensional Gaussians."""

    name: str  # its title in the figure, such as ``epoch 3``
    means: Array  # means of the components, (K, 2)
    variances: Array  # variances of the components, (K, 2)
    weights: Array  # mixing weights, (K,). Components with less weight are drawn thinner.


@dataclass(frozen=True, kw_only=True)
class Instance:
    """One image of the figure: its true posterior p(z | x) on a grid, and its learned mixtures."""

    name: str  # title of the image, such as ``instance 1``
    x: Array  # coordinates of the grid along the first dimension of z, (G,)
    y: Array  # coordinates of the grid along the second dimension of z, (H,)
    density: Array  # the true posterior at (x[i], y[j]) in row j, column i, (H, G), up to a factor
    recursive: Sequence[FigureStage]  # the recursive mixture after more and more epochs
    # the blind mixture, which learns both components at once; it has as many stages
    blind: Sequence[FigureStage]


def posterior_stages(instances: Sequence[Instance], path: Path) -> Path:
    """Draw how a recursive mixture (upper row) and a blind mixture (lower row) learn the posterior.

    A recursive mixture learns its two Gaussians one after the other, a blind mixture learns both at
    once. From left to right, the mixtures are trained for more epochs. Contours show the true posterior,
    ellipses one and two standard deviations of each Gaussian.

    Args:
        instances: the images, each with its true posterior and its mixtures.
        path: the file to write. Its suffix selects PNG or SVG.
    """
    counts = [len(one.recursive) for one in instances]
    with plt.rc_context({**STYLE, "axes.grid": False}):
        size = (1.75 * sum(counts) + 0.5 * len(counts), 4.1)
        figure = plt.figure(figsize=size, layout="constrained")
        blocks = figure.subfigures(1, len(instances), width_ratios=counts, squeeze=False)[0]
        for block, one, count in zip(blocks, instances, counts, strict=True):
            grid = block.subplots(2, count, squeeze=False, sharex=True, sharey=True)
            block.suptitle(one.name, fontsize=11)
            for line, stages, name in zip(grid, (one.recursive, one.blind), ROWS, strict=True):
                for axes, stage in zip(line, stages, strict=True):
                    _posterior(axes, one, stage)
                    axes.set_title(stage.name, fontsize=9)
                if one is instances[0]:
                    line[0].set_ylabel(name)
        return save(figure, path)


def posterior_animation(instances: Sequence[Instance], path: Path) -> Path:
    """Write an animated GIF that shows how mixtures of two Gaussians learn the true posterior.

    Each frame shows the mixtures of all `instances` (images) after the same number of epochs.
    """
    count = max(len(one.recursive) for one in instances)
    frames = []
    for at in range(count):
        with plt.rc_context({**STYLE, "axes.grid": False, "figure.dpi": 110}):
            size = (2.9 * len(instances) + 0.4, 6)
            figure, grid = plt.subplots(
                2, len(instances), figsize=size, layout="constrained", squeeze=False
            )
            for one, pair in zip(instances, grid.T, strict=True):
                for axes, stages in zip(pair, (one.recursive, one.blind), strict=True):
                    stage = stages[min(at, len(stages) - 1)]
                    _posterior(axes, one, stage)
                    axes.set_title(stage.name, fontsize=10)
                pair[0].set_title(f"{one.name}\n{pair[0].get_title()}", fontsize=10)
            for axes, name in zip(grid[:, 0], ROWS, strict=True):
                axes.set_ylabel(name)
            buffer = io.BytesIO()
            figure.savefig(buffer, format="png")
            plt.close(figure)
        with Image.open(buffer) as picture:
            frames.append(picture.convert("P", palette=Image.Palette.ADAPTIVE, colors=128))
    path.parent.mkdir(parents=True, exist_ok=True)
    held = [MILLISECONDS] * (count - 1) + [4 * MILLISECONDS]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=held, loop=0)
    return path


def _posterior(axes: Any, one: Instance, stage: FigureStage) -> None:
    """Draw the contours of the true posterior of the image `one`, and the ellipses of one mixture.

    The mixture is given by `stage`.
    """
    top = float(one.density.max())
    if top > 0:
        levels = top * np.array([0.05, 0.2, 0.4, 0.6, 0.8, 0.95])
        shades = [*levels, 1.01 * top]
        axes.contourf(one.x, one.y, one.density, levels=shades, cmap="Greys", alpha=0.35)
        axes.contour(one.x, one.y, one.density, levels=levels, colors="#6b7280", linewidths=0.7)
    parts = zip(stage.means, np.sqrt(stage.variances), stage.weights, cycle(COMPONENTS), strict=False)
    for mean, (width, height), weight, colour in parts:
        for deviations, alpha in ((1, 1.0), (2, 0.55)):
            ellipse = Ellipse(mean, 2 * deviations * width, 2 * deviations * height, fill=False)
            ellipse.set(edgecolor=colour, linewidth=0.8 + 1.2 * weight, alpha=alpha)
            axes.add_patch(ellipse)
        axes.plot(*mean, marker="+", color=colour, ms=6)
    axes.set(xlim=(one.x[0], one.x[-1]), ylim=(one.y[0], one.y[-1]), xticks=[], yticks=[])
    axes.set_aspect("equal", adjustable="box")
    for spine in axes.spines.values():
        spine.set(visible=True, color="#c8ccd2")
