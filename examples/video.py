"""A VAE of short clips with one latent vector for each clip, and better inference for it.

python examples/video.py                       # under a minute on two cores
python examples/video.py --long --figure FILE  # a few minutes; draws clips and reconstructions

The clips show one of scikit-learn's digits that moves and bounces. Test clips are made of other digits
than training clips.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import recmix


class Settings(NamedTuple):
    """Sizes of the data, of training and of evaluation."""

    clips: int  # training clips
    epochs: int
    test: int  # test clips


QUICK = Settings(clips=1000, epochs=4, test=20)
LONG = Settings(clips=5000, epochs=32, test=60)
FRAMES = 5
SIDE = 12
SAMPLES = 50
STEPS = (1, 2, 4)
SHOWN = 3  # clips of the figure


def make_data(settings: Settings) -> recmix.data.Data:
    """Clips of digits in black and white, as training, validation and test examples."""
    digits = recmix.data.load("digits")
    sizes = {"train": settings.clips, "val": 100, "test": settings.test}
    parts = [
        recmix.data.moving_digits(
            getattr(digits, f"x_{name}"), size, frames=FRAMES, side=SIDE, digits=1, seed=seed
        )
        for seed, (name, size) in enumerate(sizes.items())
    ]
    return recmix.data.from_arrays(*(part > 127 for part in parts), name="moving digits")


def bounds_table(model: recmix.Model, data: recmix.data.Data) -> Table:
    """ELBO and IWAE of the test clips, with the encoder alone and with refinement."""
    x = np.asarray(data.x_test)
    table = Table("posterior", "ELBO", f"IWAE-{SAMPLES}", "s")
    kinds = {"encoder": model}
    kinds |= {f"refined, {n} step{'s' * (n > 1)}": model.refined(n) for n in STEPS}
    for name, one in kinds.items():
        start = time.perf_counter()
        elbo, iwae = one.bounds(x, SAMPLES)
        seconds = time.perf_counter() - start
        table.add_row(name, f"{elbo.mean():.2f}", f"{iwae.mean():.2f}", f"{seconds:.1f}")
    return table


def draw(model: recmix.Model, x: Any, file: Path) -> None:
    """Draw test clips: the frames, those of the reconstruction, and those after refinement."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    gains = model.refined(4).elbo(x) - model.elbo(x)
    chosen = gains.argsort(descending=True)[: 2 * SHOWN : 2].numpy()  # where refinement gains most
    clips = torch.from_numpy(x[chosen])
    rows = {
        "clip": clips,
        "encoder": model.reconstruct(clips),
        "refined": model.refined(4).reconstruct(clips),
    }
    size = (1.0 + 0.75 * FRAMES, 0.75 * SHOWN * len(rows) + 0.4)
    figure, axes = pyplot.subplots(SHOWN * len(rows), FRAMES, figsize=size, squeeze=False)
    for n in range(SHOWN):
        for place, (name, shown) in enumerate(rows.items()):
            row = axes[n * len(rows) + place]
            row[0].set_ylabel(name, rotation=0, ha="right", va="center")
            for t, plot in enumerate(row):
                plot.imshow(shown[n, t, 0], cmap="gray", vmin=0, vmax=1)
                plot.set(xticks=[], yticks=[])
                if n == place == 0:
                    plot.set_title(f"t = {t + 1}", fontsize=9)
    figure.subplots_adjust(left=0.13, right=0.99, top=0.95, bottom=0.01, wspace=0.05, hspace=0.05)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def main() -> None:
    """Train, print the table, and draw the figure if a file is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--long", action="store_true", help="more clips and epochs")
    parser.add_argument("--figure", type=Path, help="file for a picture of reconstructions")
    given = parser.parse_args()
    settings = LONG if given.long else QUICK
    data = make_data(settings)
    start = time.perf_counter()
    model = recmix.fit(
        "vae", data, latent=16, epochs=settings.epochs, learning_rate=2e-3, batch_size=16, progress=False
    )
    console = Console(width=80)
    shape = " x ".join(map(str, data.shape))
    console.print(
        f"{settings.clips} clips of shape {shape}, network {model.spec.model.network}, "
        f"{settings.epochs} epochs in {time.perf_counter() - start:.0f} s"
    )
    console.print(bounds_table(model, data))
    if given.figure is not None:
        draw(model, np.asarray(data.x_test), given.figure)


if __name__ == "__main__":
    main()
