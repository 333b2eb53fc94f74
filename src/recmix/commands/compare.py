"""`recmix compare`: compare methods in one table.

All methods start from the same trained VAE and are trained with the same schedule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from recmix.commands.own_parts import Networks, check_can_load, load_run, make_own_parts
from recmix.commands.terminal import Device, Root, err, out, plain
from recmix.errors import ConfigError, NonFiniteError
from recmix.runs.data_options import DATA_OPTIONS
from recmix.runs.files import write_bytes, write_json

if TYPE_CHECKING:
    from torch import Tensor

    from recmix.api import Model
    from recmix.data import Data
    from recmix.evaluation.bounds import Bounds

__all__ = ["compare", "compare_command", "markdown", "parse_entry"]

Row = dict[str, Any]


def compare_command(
    entries: Annotated[
        list[str] | None,
        typer.Argument(help="Methods: name, or name:option=value,... (default: every method)."),
    ] = None,
    data: Annotated[str, typer.Option(help="Named data set or path.")] = "digits",
    folder: Annotated[Path, typer.Option("--out", help="Folder for the runs and the table.")] = Path(
        "runs/compare"
    ),
    latent: Annotated[int, typer.Option(help="Dimension of z.")] = 20,
    init: Annotated[
        str | None, typer.Option(help="A trained VAE to start from: folder or hf://user/name.")
    ] = None,
    vae_epochs: Annotated[int, typer.Option(help="Epochs of the VAE, if it is trained here.")] = 2000,
    epochs: Annotated[int, typer.Option(help="Epochs of each method, which starts from the VAE.")] = 20,
    learning_rate: Annotated[
        float | None, typer.Option(help="Learning rate of each method (default 1e-6, as in the paper).")
    ] = None,
    samples: Annotated[int, typer.Option(help="K of IWAE-K.")] = 100,
    seed: Annotated[int, typer.Option(help="Weights, data order, noise.")] = 0,
    device: Device = "auto",
    networks: Networks = None,
    data_root: Root = None,
    size: Annotated[int | None, typer.Option(help=DATA_OPTIONS["size"][1])] = None,
    crop: Annotated[int | None, typer.Option(help=DATA_OPTIONS["crop"][1])] = None,
    length: Annotated[int | None, typer.Option(help=DATA_OPTIONS["length"][1])] = None,
    vocabulary_size: Annotated[int | None, typer.Option(help=DATA_OPTIONS["vocabulary_size"][1])] = None,
    graphs: Annotated[bool | None, typer.Option(help=DATA_OPTIONS["graphs"][1])] = None,
) -> None:
    """Train methods from the same VAE, and print one table of scores."""
    from recmix.data import load_for_training
    from recmix.training.choices import about_rate
    from recmix.training.request import SECOND_STAGE

    both = {"seed": seed, "device": device}
    for text in entries or []:
        parse_entry(text)  # errors come before the data are read
    if init is not None:
        check_can_load(init, own=networks is not None)
    texts: dict[str, Any] = {"length": length, "vocabulary_size": vocabulary_size, "graphs": graphs}
    found = load_for_training(data, root=data_root, start=init, size=size, crop=crop, **texts)
    for note in found.notes:
        err.print(plain(note), highlight=False)
    if learning_rate is None:
        learning_rate = SECOND_STAGE["learning_rate"]
        err.print(about_rate(learning_rate, len(found.x_train)), highlight=False)
    rows = compare(
        found,
        folder,
        entries or [],
        init=init,
        networks=networks,
        vae={"latent": latent, "epochs": vae_epochs, **both},
        second={"epochs": epochs, "learning_rate": learning_rate, **both},
        samples=samples,
        progress=True,
    )
    table = Table("model", box=SIMPLE_HEAD, padding=0, show_edge=False)  # fits 80 columns
    for head in ("ELBO", f"IWAE-{samples}", "over VAE+", "ms per\nexample", "best\nepoch"):
        table.add_column(head, no_wrap=True)
    for row in rows:
        if "iwae" not in row:
            table.add_row(row["model"], "[red]failed[/]")
        else:
            table.add_row(row["model"], *_cells(row, f"{row['milliseconds'] / row['batch']:.3g}"))
    out.print(table)
    for row in rows:
        if "iwae" not in row:
            out.print(f"{row['model']} failed: {plain(row['reason'])}", highlight=False)
    out.print(f"runs, compare.json and compare.md in {folder}", highlight=False)


def parse_entry(text: str) -> tuple[str, dict[str, Any]]:
    """Read a method's name and its options from ``name`` or ``name:option=value,option=value``.

    >>> parse_entry("rme:order=2,eps_max=0.2")
    ('rme', {'order': 2, 'eps_max': 0.2})
    """
    from recmix.methods.registry import find_method
    from recmix.training.arguments import read_options

    if Path(text).is_dir():
        raise ConfigError(
            f"{text} is a folder, and compare trains methods such as rme:order=2. To compare trained "
            f"runs, score each with `recmix evaluate`, then: recmix summary {Path(text).parent}"
        )
    name, _, rest = text.partition(":")
    given = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise ConfigError(f"{text!r}: expected option=value after the colon, got {part!r}")
        given[key.strip()] = value.strip()
    read = read_options(find_method(name), given)
    own = {k: read.method[k] for k in given if k in read.method}
    return name, own | read.model | read.training | read.inference


def compare(
    data: Data,
    folder: Path,
    entries: Sequence[str] = (),
    *,
    init: str | Path | None = None,
    networks: str | None = None,
    vae: dict[str, Any] | None = None,
    second: dict[str, Any] | None = None,
    samples: int = 100,
    progress: bool | None = None,
) -> list[Row]:
    """Train several methods from the same VAE, and score all models on the test data.

    First a VAE is trained. Then each method is trained from this VAE. As a control, the VAE itself
    is also trained further with the same schedule; this model is called VAE+. If the folder has
    finished runs, they are not repeated. Interrupted runs are continued.

    Args:
        folder: folder for the runs, ``compare.json`` and ``compare.md``.
        entries: the methods, as texts that `parse_entry` reads; by default every method with its
            default options.
        init: folder of a trained VAE, which is used instead of training a new VAE.
        networks: function that makes the user's own networks of the VAE, as ``module:function``.
        vae: options of `recmix.fit` for the VAE.
        second: options of `recmix.fit` for VAE+ and the methods.
        samples: K of the IWAE bound.
        progress: whether to show progress, as in `recmix.fit`.

    Returns:
        A dictionary {name: value} for each model. It has the scores of the model, and its ``gain`` in
        the IWAE bound over VAE+. ``gain_se`` is the standard error of the gain, from the differences of
        single examples. If the training failed, the dictionary has its ``reason`` instead.
    """
    from recmix.api import fit
    from recmix.methods.registry import METHODS, find_method
    from recmix.methods.vae import VAE
    from recmix.runs.hub import open_run
    from recmix.runs.training_options import Training
    from recmix.training.arguments import read_options

    if data.x_test is None:
        raise ConfigError(f"the data {data.name} have no test part to compare on")
    if samples < 1:
        raise ConfigError(f"samples must be at least 1, got {samples}")
    Training(**read_options(VAE, second or {}).training)  # errors come before hours of training
    if init is not None:
        spec = open_run(init).spec()
        if spec.method != VAE.name or spec.shape != data.shape:
            raise ConfigError(
                f"init must be a VAE of examples of shape {data.shape}; {init} is {spec.method} of "
                f"examples of shape {spec.shape}: give another --init, or none to train a VAE here"
            )
    chosen = [parse_entry(text) for text in entries or sorted(set(METHODS) - {VAE.name})]
    both: dict[str, Any] = {"resume": True, "progress": progress}
    if init:
        first = load_run(init, networks)
    else:
        own = {} if networks is None else make_own_parts(networks)
        first = fit(VAE, data, out=folder / "vae", **own, **(vae or {}), **both)
    row, bound = _row(VAE.name.upper(), first, data, samples)
    rows, bounds = [row], [bound]
    plus: tuple[str, str, dict[str, Any]] = (f"{VAE.name.upper()}+", VAE.name, {})
    for label, name, options in [plus, *((_label(n, o), n, o) for n, o in chosen)]:
        request = (second or {}) | options
        if "learning_rate" in (second or {}) and "learning_rate" not in options:
            request["learning_rate"] *= find_method(name).rate_factor
        try:
            model = fit(name, data, init=first, out=folder / _folder(label), **request, **both)
            shown = label.replace("(auto)", f"(auto: {model.spec.options.get('order')})")
            row, bound = _row(shown, model, data, samples)
        except NonFiniteError as error:
            row, bound = {"model": label, "reason": str(error)}, None
        rows.append(row)
        bounds.append(bound)
        for row, bound in zip(rows, bounds, strict=True):
            row.update(_gain(bound, bounds[1]))
        write_json(folder / "compare.json", {"data": data.describe(), "rows": rows})
        write_bytes(folder / "compare.md", markdown(rows).encode())
    return rows


def markdown(rows: Sequence[Row]) -> str:
    """Write the results that `compare` returns as a Markdown table, with a row for each model.

    The columns are ELBO, IWAE bound, gain over VAE+ (the plain VAE that was trained further), inference
    time in milliseconds per batch, and best epoch. For a failed training, the row has the reason.
    """
    samples, batch = rows[0]["samples"], rows[0]["batch"]
    lines = [
        f"| model | ELBO | IWAE-{samples} | over VAE+ | ms per batch of {batch} | best epoch |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        if "iwae" in row:
            cells = _cells(row, f"{row['milliseconds']:.2f}")
        else:
            cells = [f"failed: {row['reason']}", "", "", "", ""]
        lines.append(f"| {' | '.join([row['model'], *cells])} |")
    return "\n".join(lines) + "\n"


def _cells(row: Row, time: str) -> list[str]:
    gain = "" if row["gain"] is None else f"{row['gain']:+.2f}"
    if row.get("gain_se") is not None:  # files of earlier versions do not have it
        gain += f" ± {row['gain_se']:.2f}"
    return [
        f"{row['elbo']:.2f} ± {row['elbo_se']:.2f}",
        f"{row['iwae']:.2f} ± {row['iwae_se']:.2f}",
        gain,
        time,
        "" if row["best_epoch"] is None else str(row["best_epoch"]),  # a wrapped model has none
    ]


def _row(label: str, model: Model, data: Data, samples: int) -> tuple[Row, Tensor | None]:
    """Score a model on the test data, and store the scores in its run folder, if it has one.

    Returns:
        The scores with the name `label`, and the IWAE bound of each test example, (N,).
    """
    import torch

    from recmix.evaluation.score import score
    from recmix.runs.folder import Run
    from recmix.runs.scores import ScoreKey

    assert data.x_test is not None
    parts: list[Tensor] = []

    def take(found: Bounds) -> None:
        parts.append(found.iwae.double().cpu())

    found = score(model.method, data.x_test, model.inference, samples=samples, take=take)
    status: dict[str, Any] = {}
    if model.folder is not None:
        run = Run(model.folder)
        run.add_score(str(ScoreKey("test", samples, model.inference)), found)
        status = run.status()
    kept = {key: status.get(key) for key in ("best_epoch", "best_validation")}
    return {"model": label, **kept, **found}, torch.cat(parts)


def _gain(bounds: Tensor | None, control: Tensor | None) -> Row:
    """Return the mean gain in the IWAE bound of a model over VAE+, and its standard error.

    VAE+ is the control: the VAE, trained further with the same schedule as the methods.

    Args:
        bounds: the model's IWAE bound of each of N test examples, (N,); None if its training failed.
        control: the bounds of VAE+ for the same examples, (N,); None if its training failed.

    Returns:
        {"gain": mean, "gain_se": standard error}. Both are None if `bounds` or `control` is None.
    """
    if bounds is None or control is None:
        return {"gain": None, "gain_se": None}
    gain = bounds - control
    error = float(gain.std()) / math.sqrt(len(gain)) if len(gain) > 1 else math.nan
    return {"gain": float(gain.mean()), "gain_se": error}


def _label(name: str, options: dict[str, Any]) -> str:
    from recmix.methods.registry import find_method
    from recmix.training.arguments import read_options

    cls = find_method(name)
    shown = dict(options)
    label = cls.name.upper()
    if cls.setting:
        default = read_options(cls, {}).method[cls.setting]
        label += f"({shown.pop(cls.setting, default)})"
    return label + "".join(f" {key}={option}" for key, option in shown.items())


def _folder(label: str) -> str:
    """Make a folder name from the label of a model; signs that are unsafe in paths become ``-``."""
    return "".join(c if c.isalnum() or c in "+-_." else "-" for c in label.lower()).strip("-")
