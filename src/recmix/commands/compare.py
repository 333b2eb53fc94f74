"""`recmix demo` and `recmix compare`: several methods and one table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from recmix.commands.terminal import Root, out, plain, print_scores

__all__ = ["compare_command", "demo_command"]


def demo_command(
    folder: Annotated[Path, typer.Option("--out", help="Folder for the runs and figures.")] = Path(
        "runs/demo"
    ),
    overwrite: Annotated[bool, typer.Option(help="Replace what is there.")] = False,
    quick: Annotated[bool, typer.Option(help="A few epochs only, to see that it works.")] = False,
) -> None:
    """Train a VAE, its continuation VAE+ and a recursive mixture on scikit-learn's digits."""
    from recmix.commands.demonstration import demo

    rows, figures = demo(folder, overwrite=overwrite, quick=quick)
    print_scores(rows, title="scikit-learn's handwritten digits, test images")
    out.print(f"runs and figures in {folder}:", ", ".join(path.name for path in figures))


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
    init: Annotated[Path | None, typer.Option(help="A trained VAE to start from.")] = None,
    vae_epochs: Annotated[int, typer.Option(help="Epochs of the VAE, if it is trained here.")] = 2000,
    epochs: Annotated[int, typer.Option(help="Epochs of all that start from it.")] = 20,
    learning_rate: Annotated[float, typer.Option(help="Their learning rate.")] = 1e-6,
    samples: Annotated[int, typer.Option(help="K of IWAE-K.")] = 100,
    seed: Annotated[int, typer.Option(help="Weights, data order, noise.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda ...")] = "auto",
    data_root: Root = None,
) -> None:
    """Train every method from one VAE under one schedule and print one table, VAE+ in it."""
    from recmix.commands.comparison import compare
    from recmix.data import load

    both = {"seed": seed, "device": device}
    rows = compare(
        load(data, root=data_root),
        folder,
        entries or [],
        init=init,
        vae={"latent": latent, "epochs": vae_epochs, **both},
        second={"epochs": epochs, "learning_rate": learning_rate, **both},
        samples=samples,
        progress=True,
    )
    table = Table("model", "ELBO", f"IWAE-{samples}", "over VAE+", "ms per batch", "best epoch")
    for row in rows:
        if "iwae" not in row:
            table.add_row(row["model"], f"[red]failed[/]: {plain(row['reason'])}")
            continue
        table.add_row(
            row["model"],
            f"{row['elbo']:.2f} ± {row['elbo_se']:.2f}",
            f"{row['iwae']:.2f} ± {row['iwae_se']:.2f}",
            "" if row["gain"] is None else f"{row['gain']:+.2f}",
            f"{row['milliseconds']:.2f}",
            str(row["best_epoch"]),
        )
    out.print(table)
    out.print(f"runs, compare.json and compare.md in {folder}", highlight=False)
