"""`recmix data` and `recmix methods`: list the data sets and the methods."""

from __future__ import annotations

import json

from rich.table import Table

from recmix.commands.terminal import Json, Root, out

__all__ = ["data_command", "methods_command"]


def data_command(data_root: Root = None, as_json: Json = False) -> None:
    """List the data sets, and which of their files are on this machine."""
    from dataclasses import asdict

    from recmix.data import inventory

    entries = inventory(data_root)
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
    out.print("looked in:", *[f"  {folder}" for folder in looked], sep="\n", highlight=False)
    out.print("Missing files are downloaded when a set is first used, unless RECMIX_OFFLINE=1.")


def methods_command(as_json: Json = False) -> None:
    """List the methods and their options."""
    from recmix.methods.registry import METHODS
    from recmix.training.arguments import growth_options, method_options

    found = [
        {
            "name": name,
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
        for name, cls in sorted(METHODS.items())
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
    out.print(
        "curvature, with --init RUN, trains a network for the refinement `learned` of any method's run."
    )
    out.print("All options with their defaults: recmix train --help, or recmix methods --json.")
