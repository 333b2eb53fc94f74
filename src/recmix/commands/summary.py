"""`recmix summary`: write the results of a folder of runs as small files for version control."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from recmix.commands.terminal import err, out, plain
from recmix.errors import ConfigError, RunError

__all__ = ["summary_command"]


def summary_command(
    source: Annotated[Path, typer.Argument(help="Store of runs, or a frontier_runs.json of one.")],
    folder: Annotated[
        Path, typer.Option("--out", help="Folder for frontier_runs.json, summary.json, frontier.png.")
    ] = Path("results"),
    samples: Annotated[int, typer.Option(help="K of IWAE-K.")] = 100,
) -> None:
    """Write the results of a folder of runs as small files."""
    from recmix.reports.frontier import frontiers
    from recmix.reports.reach import gains
    from recmix.reports.read_store import read_store
    from recmix.reports.runs import read_runs, write_runs
    from recmix.reports.summary import panels, summary, to_json
    from recmix.runs.files import write_bytes

    if samples < 1:
        raise ConfigError(f"samples must be positive, got {samples}")
    if source.is_dir():
        store = read_store(source)
        records = store.records
        for problem in store.problems:
            err.print(f"note: {problem}", style="yellow", markup=False)
    else:
        records = read_runs(source)
    rows = summary(records, samples=samples)
    if not rows:
        raise RunError(f"{source} has no run that is done and scored with {samples} samples yet")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"could not make the folder {folder}: {error.strerror}") from error
    written = []
    if source.is_dir():
        written.append(folder / "frontier_runs.json")
        write_runs(records, written[-1])
    written.append(folder / "summary.json")
    write_bytes(written[-1], to_json(rows, samples=samples).encode())
    if points := panels(rows):
        written.append(frontiers(points, folder / "frontier.png", samples=samples))
    heads, lines = gains(rows)
    for column, some in groupby(lines, key=lambda line: line[0]):
        table = Table(*heads[1:6], "ms", title=plain(column))
        for _, model, kind, *numbers, _, milliseconds, _ in some:
            table.add_row(plain(model), kind.partition(",")[0], *numbers, milliseconds)
        out.print(table)
    if any(line[-2].startswith("(") for line in lines):
        out.print("ms in brackets: other programs may have used the machine during the measurement")
    out.print("wrote", ", ".join(map(str, written)), highlight=False)
