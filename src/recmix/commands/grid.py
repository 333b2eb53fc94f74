"""`recmix grid`: many runs from one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recmix.commands.terminal import Root

__all__ = ["grid_command"]


def grid_command(
    file: Annotated[Path, typer.Argument(help="TOML file of the grid.")],
    store: Annotated[Path, typer.Option(help="Folder of the runs.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    status: Annotated[bool, typer.Option("--status", help="Only say how the runs stand.")] = False,
    workers: Annotated[
        int | None, typer.Option(help="Runs at a time; one per GPU or core if not given.")
    ] = None,
    limit_hours: Annotated[float | None, typer.Option(help="Save and stop after so long.")] = None,
    ray: Annotated[str | None, typer.Option(help="local, or the address of a Ray cluster.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda ...")] = "auto",
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try failed runs again.")] = False,
    timing: Annotated[
        bool,
        typer.Option(
            "--time", help="Only time finished runs again, alone: a grid's runs share the machine."
        ),
    ] = False,
    data_root: Root = None,
) -> None:
    """Do the runs of a grid; start it again to continue."""
    from recmix.experiments.driver import run_grid

    code = run_grid(
        file,
        store,
        dry_run=dry_run,
        status=status,
        workers=workers,
        limit_hours=limit_hours,
        ray=ray,
        device=device,
        retry_failed=retry_failed,
        timing=timing,
        data_root=data_root,
    )
    raise typer.Exit(code)
