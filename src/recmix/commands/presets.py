"""`recmix presets`: what `recmix train --preset` offers."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

__all__ = ["presets_command"]


def presets_command(
    name: Annotated[
        str | None, typer.Argument(help="Print the file of this one, to copy and change.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """List the presets: trainings of several stages that `recmix train --preset` does."""
    from recmix.training.presets import preset_file, presets, read_preset

    if name is not None and not as_json:
        read_preset(name)  # says what is wrong with it
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
    out.print("Their files: recmix presets NAME. Copy one, change it: recmix train --preset ./mine.toml")
