"""Draw the first picture of README.md: one VAE before and after refinement.

python docs/before_after.py                       # MNIST from RECMIX_DATA; a few minutes on two cores
python docs/before_after.py --run runs/my-vae     # with a VAE that is already trained on MNIST

The VAE is trained on 6,000 images of MNIST. Nothing is trained for the refinement: the same weights
are used with four Gauss-Newton steps for each test image.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
from matplotlib import pyplot as plt

import recmix

HERE = Path(__file__).resolve().parent
IMAGES, TRAIN, STEPS, COLUMNS = 1000, 6000, 4, 6
SETTINGS = {"latent": 20, "epochs": 40, "learning_rate": 1e-3, "schedule": "cosine", "patience": 0}
GREY, BLUE = "#9aa3ad", "#1f6feb"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="folder of a trained VAE of MNIST")
    parser.add_argument("--out", type=Path, default=HERE / "images" / "before_after.png")
    given = parser.parse_args()
    data = recmix.data.load("mnist")
    if given.run is None or not (given.run / "spec.json").exists():
        few = recmix.data.from_arrays(data.x_train[:TRAIN], name="mnist-6000", hold_out_test=False)
        vae = recmix.fit("vae", few, seed=0, out=given.run, progress=True, **SETTINGS)
    else:
        vae = recmix.load(given.run)
    x = data.x_test[:IMAGES]
    refined = vae.refined(STEPS)
    before, after = vae.bounds(x, 100), refined.bounds(x, 100)
    gains = (after[0] - before[0]).argsort(descending=True)
    rows = [*range(COLUMNS), *gains[:COLUMNS].tolist()]
    pictures = [x[rows], *(m.reconstruct(x[rows]).numpy(force=True) for m in (vae, refined))]
    names = ["test image", "the VAE's encoder", f"the same VAE,\n{STEPS} refinement steps"]
    means = {
        "ELBO": (float(before[0].mean()), float(after[0].mean())),
        "IWAE-100": (float(before[1].mean()), float(after[1].mean())),
    }
    print(means, "gain of each of the shown:", (after[0] - before[0])[rows].tolist())
    draw(pictures, names, means, given.out)


def draw(pictures: list[Any], names: list[str], means: dict[str, Any], path: Path) -> None:
    figure = plt.figure(figsize=(11, 2.7), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[2.8, 1])
    grid = left.subplots(3, 2, gridspec_kw={"wspace": 0.06, "hspace": 0.04})
    titles = ("the first six test images", "the six that gain most, of 1,000")
    for axes, images, name in zip(grid, pictures, names, strict=True):
        for axis, start in zip(axes, (0, COLUMNS), strict=True):
            row = np.concatenate([*images[start : start + COLUMNS, 0]], axis=1)  # (28, 6 * 28)
            axis.imshow(row, cmap="gray_r", vmin=0, vmax=1)
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
        axes[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=10)
    for axis, title in zip(grid[0], titles, strict=True):
        axis.set_title(title, fontsize=10)
    axis = right.subplots()
    for place, (name, pair) in enumerate(means.items()):
        bars = axis.barh([0.18 - place, -0.18 - place], pair, 0.34, color=[GREY, BLUE])
        axis.bar_label(bars, labels=[f"{value:,.0f}" for value in pair], padding=3, fontsize=10)
        axis.annotate(name, (0, -place), (-6, 0), textcoords="offset points", ha="right", va="center")
    axis.set(yticks=[], xticks=[], xlim=(0, 1.25 * means["ELBO"][1]))
    axis.set_title("bound on log p(x) (nats)\ngrey before, blue after", fontsize=10)
    axis.spines[:].set_visible(False)
    figure.savefig(path, dpi=150)
    print("wrote", path)


if __name__ == "__main__":
    main()
