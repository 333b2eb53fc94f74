"""`recmix generate`: draw new texts, molecules, pictures or arrays from a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recmix.commands.own_parts import Networks, load_run
from recmix.commands.terminal import Device, err, out, plain
from recmix.errors import ConfigError, RunError

if TYPE_CHECKING:
    from recmix.api import Model

__all__ = ["generate_command"]

PICTURES = (".png", ".svg", ".pdf")


def generate_command(
    run: Annotated[str, typer.Argument(help="Folder of a run, or its address hf://user/name.")],
    count: Annotated[int, typer.Option(help="How many examples.", min=1)] = 16,
    file: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="File to write: .txt or .smi for texts (default: the terminal), .png, .svg or .pdf for "
            "a grid of pictures (default samples.png), .npy for arrays (default samples.npy).",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random noise.", min=0)] = 0,
    device: Device = "auto",
    networks: Networks = None,
) -> None:
    """Draw new examples from a run: texts, molecules, pictures or arrays."""
    model = load_run(run, networks, device=device)
    try:
        make = _arrays if model.vocabulary is None else _texts
        make(model, count, file, seed)
    except OSError as error:
        raise RunError(f"could not write {file or 'the samples'}: {error.strerror}") from error


def _texts(model: Model, count: int, file: Path | None, seed: int) -> None:
    """Draw texts from the model, and print them or write them to a file, one on each line."""
    from recmix.model.sequence_vocabulary import NOT_SMILES

    if file is not None and file.suffix in (*PICTURES, ".npy"):
        raise ConfigError(f"--out {file}: this run makes texts: give a .txt or .smi file")
    drawn = model.sample_texts(count, seed=seed)
    texts = [text for text in drawn if text]
    if len(texts) < count:
        err.print(f"note: {count - len(texts)} of {count} draws are no text and are left out")
    vocabulary = model.vocabulary
    assert vocabulary is not None
    if vocabulary.molecules and texts:
        wrong = vocabulary.encode(texts).problems.get(NOT_SMILES, 0)
        err.print(
            f"note: {wrong} of these {len(texts)} do not have the syntax of a SMILES string. "
            "recmix evaluate RUN --report molecules says how many samples are valid molecules",
            highlight=False,
        )
    if file is None:
        for text in texts:
            out.print(plain(text), highlight=False, soft_wrap=True)
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    out.print(f"wrote {len(texts)} texts to {plain(file)}", highlight=False)


def _arrays(model: Model, count: int, file: Path | None, seed: int) -> None:
    """Draw z from the prior, and write the means E[x | z] to a file: a grid of pictures, or an array."""
    import numpy as np

    shape = model.latent_model.shape
    picture = len(shape) == 2 or (len(shape) == 3 and shape[0] in (1, 3))
    file = file or Path("samples.png" if picture else "samples.npy")
    if file.suffix not in (*PICTURES, ".npy"):
        raise ConfigError(f"--out {file}: expected a file that ends in {', '.join(PICTURES)} or .npy")
    if file.suffix in PICTURES and not picture:
        raise ConfigError(f"--out {file}: examples of shape {shape} are no pictures: give a .npy file")
    made = model.sample(count, seed=seed).cpu().numpy()
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".npy":
        np.save(file, made)
    else:
        from recmix.reports.figures import samples

        samples(made[:, None] if len(shape) == 2 else made, file)  # (H, W) is a grey picture
    out.print(f"wrote {count} examples to {plain(file)}", highlight=False)
