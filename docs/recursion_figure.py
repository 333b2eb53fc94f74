"""Draw docs/images/recursion_modes.png: true posteriors with several modes, and mixtures that fit them.

    python docs/recursion_figure.py DIR

DIR is the folder that docs/recursion_study.py was given as ``--out``, with ``folds`` and ``digits``. Of
the test examples of split 0 with the wanted number of modes, the one with the median gain of the
recursion over VAE+ is drawn.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from concept_figures import BLUE, COLOURS, IMAGES, ellipse
from grid_posterior import GridPosterior
from recursion_study import BATCH, CONTROL, INSTANCE, SETTINGS, examples
from study import Clock, Folder, read_json
from torch import Tensor

from recmix.methods.method import infer_no_grad

BLIND = "ME(4)"
COLUMNS = (("folds", 4, 4), ("folds", 2, 2), ("digits", 2, 9))
"""For each column the data set, and the fewest and the most modes."""


def pick(values: dict[str, np.ndarray], row: str, low: int, high: int) -> int:
    """The test example with the median gain of a row over VAE+, among those with low to high modes.

    Args:
        values: the scores of the test examples.
        row: the row.
        low: fewest modes.
        high: most modes.
    """
    wanted = np.flatnonzero((values["modes"] >= low) & (values["modes"] <= high))
    gain = (values[f"{row}|elbo"] - values[f"{CONTROL}|elbo"])[wanted]
    return int(wanted[np.argsort(gain)[len(gain) // 2]])


def window(grid: GridPosterior, probability: Tensor) -> tuple[float, float, float, float]:
    """The square of the plane with nearly all of the posterior: left, right, bottom, top."""
    seen = grid.z[probability > 1e-3 * probability.max()]
    centre = (seen.amax(0) + seen.amin(0)) / 2
    half = 0.65 * float((seen.amax(0) - seen.amin(0)).max())
    (a, b) = centre.tolist()
    return a - half, a + half, b - half, b + half


def main() -> None:
    """Draw the figure."""
    out = Path(sys.argv[1])
    warnings.simplefilter("ignore")
    figure, axes = plt.subplots(2, len(COLUMNS), figsize=(9.6, 6.6), layout="constrained")
    for column, (name, low, high) in enumerate(COLUMNS):
        setting, place = SETTINGS[name], out / f"recursion_{name}"
        folder = Folder(place, Clock(1e9), setting.parts)
        chosen = read_json(place / "chosen.json")
        best = INSTANCE if chosen["better"]["per_instance"] else BATCH
        with np.load(place / "scores_0.npz") as values:
            index = pick(dict(values), best, low, high)
            elbos = {row: float(values[f"{row}|elbo"][index]) for row in (CONTROL, BLIND, best)}
            evidence = float(values["log_evidence"][index])
        data = examples(name, 0, None, setting.sizes)
        x = torch.as_tensor(data.x_test[index : index + 1])
        start = folder.load("VAE", 0)
        grid = GridPosterior(start.latent_model, reach=setting.reach, points=setting.points)
        density = grid.measure(x).probability[:, 0]
        picture = density.unflatten(0, (grid.points, grid.points)).t()
        for line, row in enumerate((BLIND, best)):
            axis = axes[line, column]
            size = (-grid.reach, grid.reach) * 2
            axis.imshow(picture, origin="lower", extent=size, cmap="Greys", interpolation="bilinear")
            (control,) = infer_no_grad(folder.load(CONTROL, 0).method, x, start.inference).components
            ellipse(axis, control.mean[0], torch.diag(control.variance[0]), "black")
            axis.lines[-2].set(lw=1, ls="--")
            q = infer_no_grad(folder.load(row, 0).method, x, start.inference)
            for part, weight, colour in zip(q.components, q.weights[0].tolist(), COLOURS, strict=False):
                if weight >= 0.01:
                    ellipse(axis, part.mean[0], torch.diag(part.variance[0]), colour)
                    axis.lines[-2].set(lw=0.8 + 2.5 * weight**0.5, label=f"{100 * weight:.0f} %")
            left, right, bottom, top = window(grid, density)
            axis.set(xlim=(left, right), ylim=(bottom, top), xticks=[], yticks=[])
            axis.legend(fontsize=7, loc="upper right", title="weights", title_fontsize=7)
            short = "RME(4)" if row == best else row
            axis.set_title(
                f"{name}, {short}: ELBO {elbos[row]:.2f}\n"
                f"VAE+ {elbos[CONTROL]:.2f}, log p(x) {evidence:.2f}",
                fontsize=9,
                color=BLUE if row == best else "black",
            )
    figure.savefig(IMAGES / "recursion_modes.png", dpi=110)


if __name__ == "__main__":
    main()
