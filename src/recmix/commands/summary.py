"""`recmix summary`: the figures of a store as files that can be kept."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from recmix.errors import ConfigError, RunError

__all__ = ["summary_command"]


def summary_command(
    source: Annotated[Path, typer.Argument(help="Store of runs, or a file of runs it was made into.")],
    folder: Annotated[
        Path, typer.Option("--out", help="Folder for frontier_runs.json, summary.json, frontier.png.")
    ] = Path("docs/results"),
    samples: Annotated[int, typer.Option(help="K of IWAE-K.")] = 100,
) -> None:
    """Write every run of a store, what they amount to, and what accuracy costs, as small files."""
    from recmix.reports.frontier import frontiers
    from recmix.reports.reach import gains
    from recmix.reports.runs import read_runs, write_runs
    from recmix.reports.store import read_store
    from recmix.reports.summary import panels, summary, to_json
    from recmix.runs.files import write_bytes

    if samples < 1:
        raise ConfigError(f"samples must be positive, got {samples}")
    out, err = Console(soft_wrap=True), Console(stderr=True, soft_wrap=True)
    made = []
    if source.is_dir():
        store = read_store(source)
        for problem in store.problems:
            err.print(f"note: {problem}", style="yellow", markup=False)
        records = store.records
    else:
        records = read_runs(source)
    rows = summary(records, samples=samples)
    if not rows:
        raise RunError(f"{source} has no run that is done and scored with {samples} samples yet")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"could not make the folder {folder}: {error.strerror}") from error
    if source.is_dir():
        made.append(folder / "frontier_runs.json")
        write_runs(records, made[-1])
    made.append(folder / "summary.json")
    write_bytes(made[-1], to_json(rows, samples=samples).encode())
    if points := panels(rows):
        made.append(frontiers(points, folder / "frontier.png", samples=samples))
    heads, lines = gains(rows)
    for column, some in groupby(lines, key=lambda line: line[0]):
        table = Table(*heads[1:6], "ms", title=column)
        for _, model, kind, *figures, _, milliseconds, _ in some:
            table.add_row(model, kind.partition(",")[0], *figures, milliseconds)
        out.print(table)
    out.print("wrote", ", ".join(map(str, made)), highlight=False)
