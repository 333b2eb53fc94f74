"""Tables of the cost of refinement against the size of the problem, from benchmarks/results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from code_tables import NONE, table

__all__ = ["TABLES"]

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
NAME = "refinement_scale"
AXES = {
    "latents": "latent dimension",
    "sides": "image side, pixels",
    "batches": "images in a call",
    "examples": "images in all",
}
"""The tables: fields of the benchmark's detail, and the heads of their first columns."""


def measured(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """The results of the benchmark on each device, the CPU first."""
    files = sorted(folder.glob("*.json"), key=lambda path: (not path.stem.startswith("cpu"), path.stem))
    contents = [json.loads(path.read_text()) for path in files]
    return [content[NAME] for content in contents if NAME in content]


def growth(axis: str, folder: Path = FOLDER) -> str:
    """Time per example and peak memory against one size, a table for each device."""
    parts = []
    for entry in measured(folder):
        found = entry["detail"][axis]
        sizes = sorted({int(size) for costs in found.values() for size in costs})
        rows = [
            [f"{size:,}", *(_cost(costs.get(str(size))) for costs in found.values())] for size in sizes
        ]
        heads = [AXES[axis], *(f"`{how}`" for how in found)]
        parts.append(f"{_machine(entry, axis)}\n\n{table(heads, rows, numbers=len(heads))}")
    return "\n".join(parts) or f"*`{NAME}` has not been measured yet.*\n"


def exponents(folder: Path = FOLDER) -> str:
    """The exponents p of time ~ dimension^p, a row for each device."""
    entries = measured(folder)
    if not entries:
        return f"*`{NAME}` has not been measured yet.*\n"
    hows = list(entries[0]["detail"]["latents"])
    rows = []
    for entry in entries:
        for words, name in (("all", "exponents"), ("100 and more", "exponents_from_100")):
            found = entry["detail"][name]
            cells = [f"{found[how]:.2f}" if how in found else NONE for how in hows]
            rows.append([entry["device"], words, *cells])
    heads = ["device", "dimensions", *(f"`{how}`" for how in hows)]
    return table(heads, rows, numbers=len(hows))


def _machine(entry: Mapping[str, Any], axis: str) -> str:
    """The device and the sizes that do not vary, in one line."""
    detail = entry["detail"]
    fixed = {
        "latents": f"dimension {detail['latent']}",
        "sides": f"{detail['shape'][1]} x {detail['shape'][2]} pixels",
        "batches": f"{detail['batch']} images in a call",
    }
    fixed.pop(axis, None)
    threads = "" if "NVIDIA" in entry["device"] else f", threads: {entry['threads']}"
    return f"**{entry['device']}**{threads}; {', '.join(fixed.values())}:"


def _cost(cost: Mapping[str, float] | str | None) -> str:
    if cost is None:
        return NONE
    if isinstance(cost, str):
        why = cost.removeprefix("skipped: ")
        return "refused" if why.startswith("ConfigError") else why
    return f"{_number(cost['ms'])} ms, {_number(cost['mib'])} MiB"


def _number(value: float) -> str:
    """Two digits, or all digits before the point."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


TABLES: dict[str, Callable[[], str]] = {
    "scale-exponents": exponents,
    **{f"scale-{axis}": lambda axis=axis: growth(axis) for axis in AXES},
}
"""Functions that make each table, by its name in the pages."""
