"""`recmix demo`: train three models on scikit-learn's digits.

They are a VAE, the same VAE trained further (VAE+, a control), and a recursive mixture that starts from
the VAE. The last two are also scored with refinement, which needs no training.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recmix.commands.terminal import out, print_scores
from recmix.errors import RunError

if TYPE_CHECKING:
    from recmix.api import Model

__all__ = ["demo_command"]

LATENT = 8
ORDER = 3
EPOCHS = 300
SECOND_EPOCHS = 30
SECOND_RATE = 1e-4
"""Learning rate of VAE+ and the mixture, a hundred times the default.

An epoch of the digits has only ten updates, an epoch of MNIST has over 400.
"""
SAMPLES = 100
STEPS = 2
"""Number of Gauss-Newton steps of the models that are scored with refinement."""


def demo_command(
    folder: Annotated[Path, typer.Option("--out", help="Folder for the runs and figures.")] = Path(
        "runs/demo"
    ),
    overwrite: Annotated[bool, typer.Option(help="Replace what is there.")] = False,
    quick: Annotated[bool, typer.Option(help="A few epochs only, to see that it works.")] = False,
) -> None:
    """Train a VAE, VAE+ and a recursive mixture on digits, in a minute."""
    from recmix.api import fit
    from recmix.data import load
    from recmix.evaluation.score import score
    from recmix.runs.files import make_folder
    from recmix.runs.folder import Run
    from recmix.runs.scores import ScoreKey

    make_folder(folder)
    if not overwrite and any(folder.iterdir()):
        raise RunError(f"{folder} is not empty: give another folder, or --overwrite to replace it")
    data = load("digits")
    second: dict[str, Any] = {"epochs": 2 if quick else SECOND_EPOCHS, "learning_rate": SECOND_RATE}
    both: dict[str, Any] = {"overwrite": overwrite, "progress": True}
    vae = fit("vae", data, latent=LATENT, epochs=3 if quick else EPOCHS, out=folder / "vae", **both)
    plus = fit("vae", data, init=vae, out=folder / "vae+", **second, **both)
    rme = fit("rme", data, order=ORDER, init=vae, out=folder / "rme", **second, **both)
    models = {vae.spec.label: vae, plus.spec.label: plus, f"{rme.spec.label}({ORDER})": rme}
    refined = {f"{name} refined": model.refined(STEPS) for name, model in [*models.items()][1:]}

    rows = []
    assert data.x_test is not None
    folders = [model.folder for model in (*models.values(), plus, rme)]
    for (name, model), place in zip((models | refined).items(), folders, strict=True):
        found = score(model.method, data.x_test, model.inference, samples=SAMPLES)
        assert place is not None
        Run(place).add_score(str(ScoreKey("test", SAMPLES, model.inference)), found)
        rows.append((name, found))
    print_scores(rows, title="scikit-learn's handwritten digits, test images")
    for line in _sentences(plus, rme, data.x_test):
        out.print(line, highlight=False, markup=False)
    look = f"Look at the models: recmix explore {folder / 'vae+'} {folder / 'rme'}"
    out.print(look, highlight=False, markup=False)
    figures = _draw(folder, models, data.x_test[:12])
    out.print(f"runs and figures in {folder}:", ", ".join(path.name for path in figures))


def _sentences(plus: Model, rme: Model, x: Any) -> list[str]:
    """Explain the table of scores in sentences: the gains of refinement and of the mixture over VAE+.

    `plus` is VAE+, the VAE that was trained further, and `rme` is the recursive mixture.
    """
    (elbo, iwae), refined = plus.bounds(x, SAMPLES), plus.refined(STEPS).elbo(x, SAMPLES)
    mixture = rme.log_likelihood(x, SAMPLES)
    return [
        "What this shows (nats per image, higher is better):",
        "- VAE+ is the same VAE, trained longer. It is the control: compare the other rows with it.",
        f"- Refinement changes the ELBO of VAE+ by {_change(refined - elbo)}. It uses the same weights "
        f"and takes {STEPS} Gauss-Newton steps for each image, so it is slower.",
        f"- The mixture changes IWAE-{SAMPLES} by {_change(mixture - iwae)}. This depends on the seed "
        "and on the number of threads: digits are few, and the training is short.",
    ]


def _change(difference: Any) -> str:
    error = float(difference.std()) / len(difference) ** 0.5
    return f"{float(difference.mean()):+.1f} ± {error:.1f}"


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
