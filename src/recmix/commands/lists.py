"""`recmix data` and `recmix methods`: list the data sets and the methods."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.table import Table

from recmix.commands.terminal import Json, Root, out, plain
from recmix.errors import ConfigError, unknown

__all__ = ["data_command", "methods_command"]


def data_command(
    name: Annotated[
        str | None, typer.Argument(help="Show only this set, or what recmix reads from this file.")
    ] = None,
    data_root: Root = None,
    as_json: Json = False,
) -> None:
    """List the data sets, and which of their files are on this machine."""
    from dataclasses import asdict

    from recmix.data import inventory

    entries = inventory(data_root)
    if name is not None and name not in [entry.name for entry in entries]:
        _show_file(name, as_json=as_json)
        return
    entries = [entry for entry in entries if name in (None, entry.name)]
    if as_json:
        out.print_json(json.dumps([asdict(entry) for entry in entries], default=str))
        return
    table = Table("set", "state", "examples", "train / val / test", "missing files")
    colour = {"present": "green", "partly": "yellow", "missing": "red"}
    for entry in entries:
        size = "x".join(map(str, entry.shape))
        counts = " / ".join(f"{n:,}" for n in entry.counts.values())
        missing = ", ".join(entry.missing) or "-"
        table.add_row(entry.name, f"[{colour[entry.state]}]{entry.state}[/]", size, counts, missing)
    out.print(table)
    looked = sorted({str(folder) for entry in entries for folder in entry.looked})
    if looked:
        out.print("looked in:", *[f"  {folder}" for folder in looked], sep="\n", highlight=False)
    text = "Missing files are downloaded when a set is first used, unless RECMIX_OFFLINE=1"
    if by_hand := [entry.name for entry in entries if not entry.downloadable]:
        text += f". No download address: {', '.join(by_hand)}. Put their files into the folders above"
    out.print(text, highlight=False)


def _show_file(name: str, *, as_json: bool) -> None:
    """Read a user's data file; print the shape of its examples and the number of examples in each part.

    With `as_json`, print a description of the data as JSON instead.
    """
    from recmix.data import load_for_training

    data = load_for_training(name)
    if as_json:
        out.print_json(json.dumps(data.describe(), default=str))
        return
    shape = "x".join(map(str, data.shape))
    counts = ", ".join(f"{count:,} {part}" for part, count in data.counts.items() if count)
    out.print(f"{plain(name)}: examples of shape {shape} ({data.kind}); {counts}", highlight=False)
    for note in data.notes:
        out.print(plain(note), highlight=False)


def methods_command(
    name: Annotated[str | None, typer.Argument(help="Show this method with its options.")] = None,
    as_json: Json = False,
) -> None:
    """List the methods and their options."""
    from recmix.methods.method_options import growth_options, method_options
    from recmix.methods.registry import METHODS

    if name is not None and name not in METHODS:
        raise ConfigError(unknown("method", name, METHODS))
    found = [
        {
            "name": one,
            "title": cls.title,
            "setting": cls.setting,
            "tried": list(cls.tried),
            "starts_from": cls.starts_from,
            "reference": cls.reference,
            "options": {
                o.name: {"default": o.default, "help": o.help}
                for o in (method_options(cls) | growth_options(cls)).values()
            },
        }
        for one, cls in sorted(METHODS.items())
        if name in (None, one)
    ]
    if as_json:
        out.print_json(json.dumps(found))
        return
    table = Table("method", "what it is", "setting", "in the paper", "reference")
    for row in found:
        setting = row["setting"]
        shown = f"{setting} = {row['options'][setting]['default']}" if setting else "-"
        tried = ", ".join(map(str, row["tried"])) or "-"
        table.add_row(row["name"], row["title"], shown, tried, row["reference"])
    out.print(table)
    if name is not None:
        options = Table("option", "default", "what it is")
        for key, option in found[0]["options"].items():
            flag = f"--{key.replace('_', '-')}"
            options.add_row(flag, plain(option["default"]), plain(option["help"]).replace("``", ""))
        if options.row_count:
            out.print(options)
        out.print("Options of the model and of training: recmix train --help-all")
        return
    out.print(
        "curvature, with --init RUN, trains a network for the refinement `learned` of any method's run."
    )
    out.print("All options with their defaults: recmix train --help, or recmix methods --json.")
