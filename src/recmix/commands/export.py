"""`recmix export`: write a trained model as files that other programs can run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recmix.commands.own_parts import check_no_own_parts
from recmix.commands.terminal import out, plain

__all__ = ["export_command"]


def export_command(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    form: Annotated[str, typer.Option("--format", help="onnx, torchscript or pt2.")] = "onnx",
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder for the files (default: one named after the format, in RUN)."
        ),
    ] = None,
    fuse: Annotated[
        bool, typer.Option(help="Evaluate the networks of a mixture as one, where possible.")
    ] = True,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing export.")] = False,
) -> None:
    """Write a run's posterior and decoder as files that need no recmix, with a description."""
    from recmix.exports import export
    from recmix.runs.folder import Run

    advice = "export it from Python with recmix.load(run, encoder=…, decoder=…).export(…)"
    check_no_own_parts(Run(run).spec(), run, advice)
    made = export(run, folder, format=form, fuse=fuse, overwrite=overwrite)
    files = ", ".join(sorted(path.name for path in made.iterdir()))
    out.print(f"wrote {files} in {plain(made)}", highlight=False)
