"""The paper's tables of inference times, with ours on each device, from benchmarks/results."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from code_tables import NONE, table

__all__ = ["TABLES", "times"]

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
NAME = "paper_inference_times"
SETS = {
    "mnist": "MNIST",
    "omniglot": "OMNIGLOT",
    "cifar10": "CIFAR-10",
    "svhn": "SVHN",
    "celeba": "CelebA",
}
NETWORKS = {"dense": "fully connected decoder", "conv": "convolutional decoder"}
Cell = dict[str, Any]


def measured(folder: Path = FOLDER) -> dict[str, list[Cell]]:
    """The cells of each device, a GPU first."""
    files = sorted(folder.glob("*.json"), key=lambda path: (path.stem.startswith("cpu"), path.stem))
    entries = [json.loads(path.read_text()).get(NAME) for path in files]
    return {entry["device"]: entry["detail"]["cells"] for entry in entries if entry}


def times(name: str, folder: Path = FOLDER) -> str:
    """One of the paper's tables of inference times: ours on each device, and the paper's in brackets.

    Args:
        name: ``inference_ms`` or ``fc_inference_ms``.
        folder: the folder of the results.
    """
    devices = measured(folder)
    if not devices:
        return f"*`{NAME}` has not been measured yet.*\n"
    found = {
        device: {_place(cell): cell for cell in cells if cell["table"] == name}
        for device, cells in devices.items()
    }
    places = list(dict.fromkeys(place for cells in found.values() for place in cells))
    rows = list(dict.fromkeys(row for row, _ in places))
    columns = list(dict.fromkeys(column for _, column in places))
    lines = [[row, *(_words(list(found.values()), (row, c)) for c in columns)] for row in rows]
    heads = [_head(column) for column in columns]
    about = f"Ours on {' / '.join(devices)} (the paper's), milliseconds for a batch of 128.\n\n"
    return about + table(["row", *heads], lines, numbers=len(heads))


def _place(cell: Cell) -> tuple[str, tuple[Any, ...]]:
    """The row and the column of a cell."""
    if cell["table"] == "inference_ms":
        return cell["row"], (cell["data"],)
    return f"{cell['row']}, {NETWORKS[cell['network']]}", (cell["data"], cell["dim"])


def _head(column: tuple[Any, ...]) -> str:
    return SETS[column[0]] + "".join(f", dim {dim}" for dim in column[1:])


def _words(devices: Sequence[dict[Any, Cell]], place: tuple[Any, ...]) -> str:
    """The times of all devices, then the paper's."""
    cells = [cells.get(place) for cells in devices]
    if not any(cells):
        return NONE
    ours = " / ".join(NONE if cell is None else f"{cell['ms']:.3g}" for cell in cells)
    paper = next(cell["paper"] for cell in cells if cell)
    return f"{ours} ({paper:g})"


TABLES: dict[str, Callable[[], str]] = {
    "times": lambda: times("inference_ms"),
    "times-decoders": lambda: times("fc_inference_ms"),
}
"""Functions that make each table, by its name in the pages."""
