"""`recmix export`: write a trained model as files that other programs can run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recmix.commands.own_parts import Networks, load_run
from recmix.commands.terminal import err, out, plain

__all__ = ["export_command"]


def export_command(
    run: Annotated[str, typer.Argument(help="Folder of a run, or its address hf://user/name.")],
    form: Annotated[str, typer.Option("--format", help="pt2, onnx or torchscript.")] = "pt2",
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
    networks: Networks = None,
) -> None:
    """Write a run as files that need no recmix, such as ONNX."""
    from recmix.exports.serialise import check_format

    check_format(form)
    model = load_run(run, networks, device="cpu")
    written = model.inference.refine and model.inference.traceable
    if written and form != "torchscript":  # a TorchScript file is written in seconds
        err.print("note: the steps of the refinement are written too, which can take minutes")
    made = model.export(folder, format=form, fuse=fuse, overwrite=overwrite)
    files = ", ".join(sorted(path.name for path in made.iterdir()))
    out.print(f"wrote {files} in {plain(made)}", highlight=False)
