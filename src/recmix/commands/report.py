"""`recmix report` writes a page about many runs; `recmix figure1` draws the paper's Figure 1."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recmix.commands.terminal import Root, err, out

__all__ = ["figure_one_command", "report_command"]


def figure_one_command(
    data: Annotated[str, typer.Option(help="Named data set or path.")] = "digits",
    folder: Annotated[Path, typer.Option("--out", help="Folder for the figures.")] = Path("figures"),
    init: Annotated[Path | None, typer.Option(help="A trained VAE with --latent 2.")] = None,
    vae_epochs: Annotated[int, typer.Option(help="Epochs of the VAE, if it is trained here.")] = 100,
    epochs: Annotated[int, typer.Option(help="Epochs of the second component.")] = 16,
    learning_rate: Annotated[float, typer.Option(help="Learning rate of the second component.")] = 5e-4,
    bound: Annotated[float, typer.Option(help="C of the recursion.")] = 5.0,
    eps_max: Annotated[
        float, typer.Option(help="Largest mixing weight of the recursion's second component.")
    ] = 0.1,
    component: Annotated[
        str, typer.Option(help="Kind of the recursion's second component: gaussian or residual.")
    ] = "gaussian",
    seed: Annotated[int, typer.Option(help="Seed of everything.")] = 0,
    data_root: Root = None,
) -> None:
    """Draw the paper's Figure 1: how a second component is learned."""
    from recmix.api import load
    from recmix.commands.figure_one import figure_one
    from recmix.data import load as load_data

    made = figure_one(
        load_data(data, root=data_root),
        folder,
        vae_epochs=vae_epochs,
        epochs=epochs,
        learning_rate=learning_rate,
        bound=bound,
        eps_max=eps_max,
        component=component,
        seed=seed,
        init=None if init is None else load(init),
        progress=True,
    )
    out.print("wrote", ", ".join(str(path) for path in made), highlight=False)


def report_command(
    store: Annotated[Path, typer.Argument(help="Folder of run folders.")],
    file: Annotated[
        Path | None,
        typer.Option("--out", help="File to write (default report.html; text goes to the terminal)."),
    ] = None,
    form: Annotated[str, typer.Option("--format", help="html, markdown, latex or terminal.")] = "html",
    samples: Annotated[
        int | None,
        typer.Option(help="K of IWAE-K (default 100, or the K with which the runs are scored)."),
    ] = None,
    holm: Annotated[
        bool, typer.Option(help="Correct p-values for their number within a column (Holm).")
    ] = False,
) -> None:
    """Write a page about a folder of runs: tables, figures, curves."""
    from recmix.reports.write_report import write_report

    write_report(store, out=file, form=form, samples=samples, holm=holm, console=out, errors=err)
