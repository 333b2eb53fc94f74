"""`recmix demo`: train three models on scikit-learn's digits.

They are a VAE, the same VAE trained further (VAE+, a control), and a recursive mixture.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recmix.commands.terminal import out, print_scores
from recmix.errors import RunError

if TYPE_CHECKING:
    from recmix.api import Model

__all__ = ["demo", "demo_command"]

LATENT = 8
ORDER = 3
EPOCHS = 300
SECOND_EPOCHS = 30
SECOND_RATE = 1e-4
"""Learning rate of VAE+ and the mixture, a hundred times the default.

An epoch of the digits has only ten updates, an epoch of MNIST has over 400.
"""
SAMPLES = 100


def demo_command(
    folder: Annotated[Path, typer.Option("--out", help="Folder for the runs and figures.")] = Path(
        "runs/demo"
    ),
    overwrite: Annotated[bool, typer.Option(help="Replace what is there.")] = False,
    quick: Annotated[bool, typer.Option(help="A few epochs only, to see that it works.")] = False,
) -> None:
    """Train a VAE, its continuation VAE+ and a recursive mixture on scikit-learn's digits."""
    rows, figures = demo(folder, overwrite=overwrite, quick=quick)
    print_scores(rows, title="scikit-learn's handwritten digits, test images")
    out.print(f"runs and figures in {folder}:", ", ".join(path.name for path in figures))


def demo(
    folder: Path, *, overwrite: bool = False, quick: bool = False
) -> tuple[list[tuple[str, dict[str, Any]]], list[Path]]:
    """Train three models on scikit-learn's digits, score them on the test images and draw figures.

    The models are a VAE, the same VAE trained further (VAE+), and a recursive mixture that starts
    from the VAE.

    Args:
        folder: folder for the runs and the figures.
        overwrite: replace existing runs.
        quick: train for a few epochs only.

    Returns:
        The name and the scores of each model, and the paths of the figures.
    """
    from recmix.api import fit
    from recmix.data import load
    from recmix.evaluation.score import score
    from recmix.runs.folder import Run
    from recmix.runs.scores import ScoreKey

    if not overwrite and folder.exists() and any(folder.iterdir()):
        raise RunError(f"{folder} is not empty: give another folder, or --overwrite to replace it")
    data = load("digits")
    second: dict[str, Any] = {"epochs": 2 if quick else SECOND_EPOCHS, "learning_rate": SECOND_RATE}
    both: dict[str, Any] = {"overwrite": overwrite, "progress": True}
    vae = fit("vae", data, latent=LATENT, epochs=3 if quick else EPOCHS, out=folder / "vae", **both)
    plus = fit("vae", data, init=vae, out=folder / "vae+", **second, **both)
    rme = fit("rme", data, order=ORDER, init=vae, out=folder / "rme", **second, **both)
    models = {vae.spec.label: vae, plus.spec.label: plus, f"{rme.spec.label}({ORDER})": rme}

    rows = []
    assert data.x_test is not None
    for name, model in models.items():
        found = score(model.method, data.x_test, samples=SAMPLES)
        assert model.folder is not None
        Run(model.folder).add_score(str(ScoreKey("test", SAMPLES)), found)
        rows.append((name, found))
    return rows, _draw(folder, models, data.x_test[:12])


def _draw(folder: Path, models: dict[str, Model], shown: Any) -> list[Path]:
    from recmix.reports import figures
    from recmix.runs.folder import Run

    first, *rest = models
    best = Run(models[first].folder or folder).status()["best_epoch"]
    grown = models[rest[-1]]
    return [
        figures.learning_curves(
            {name: model.history for name, model in models.items()},
            folder / "learning_curves.png",
            after=dict.fromkeys(rest, best),
            title="Validation IWAE-5 on the digits",
        ),
        figures.reconstructions(
            shown,
            {name: model.reconstruct(shown).numpy(force=True) for name, model in models.items()},
            folder / "reconstructions.png",
            title="Test images and their reconstructions",
        ),
        figures.samples(
            grown.sample(64, seed=0).numpy(force=True),
            folder / "samples.png",
            title=f"Samples of the prior, {rest[-1]}",
        ),
    ]
