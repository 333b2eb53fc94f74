"""`recmix grid`: train and score the many models that one TOML file describes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recmix.commands.terminal import Device, Root

__all__ = ["grid_command"]


def grid_command(
    file: Annotated[Path, typer.Argument(help="TOML file of the grid.")],
    store: Annotated[Path, typer.Option(help="Folder of the runs.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be done, and how long it will take.")
    ] = False,
    status: Annotated[bool, typer.Option("--status", help="Only print the states of the runs.")] = False,
    workers: Annotated[
        int | None, typer.Option(help="Runs at a time (default: one per GPU, or one per core).")
    ] = None,
    limit_hours: Annotated[float | None, typer.Option(help="Save and stop after this time.")] = None,
    ray: Annotated[str | None, typer.Option(help="local, or the address of a Ray cluster.")] = None,
    device: Device = "auto",
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try failed runs again.")] = False,
    timing: Annotated[
        bool,
        typer.Option("--time", help="Only measure inference times of finished runs, one at a time."),
    ] = False,
    data_root: Root = None,
) -> None:
    """Do all runs that a TOML file describes, or continue them."""
    arguments = dict(locals())
    from recmix.experiments.driver import run_grid

    raise typer.Exit(run_grid(**arguments))
