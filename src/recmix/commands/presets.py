"""`recmix presets`: list the presets, which are trainings in several stages."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

__all__ = ["presets_command"]


def presets_command(
    name: Annotated[
        str | None, typer.Argument(help="Print the file of this preset, to copy and change.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """List the presets, which are trainings in several stages."""
    from recmix.training.presets import preset_file, presets, read_preset

    if name is not None and not as_json:
        read_preset(name)  # checks it
        typer.echo(preset_file(name).read_text(encoding="utf-8"), nl=False)
        return
    found = [read_preset(each) for each in ([name] if name else presets())]
    if as_json:
        typer.echo(json.dumps({preset.name: preset.to_json() for preset in found}, indent=1))
        return
    out = Console(soft_wrap=True)
    table = Table("preset", "what it is", "stages")
    for preset in found:
        stages = ", ".join(f"{stage.name} ({stage.method})" for stage in preset.stages)
        table.add_row(preset.name, preset.title, stages)
    out.print(table)
    out.print(
        "Print one: recmix presets NAME. Copy and change it, then: recmix train --preset ./mine.toml"
    )
