"""`recmix summary`: write the scores of all runs in a folder as small files for version control."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from recmix.commands.terminal import err, out, plain
from recmix.errors import RunError

__all__ = ["summary_command"]


def summary_command(
    source: Annotated[Path, typer.Argument(help="Store of runs, or a frontier_runs.json of one.")],
    folder: Annotated[
        Path, typer.Option("--out", help="Folder for frontier_runs.json, summary.json, frontier.png.")
    ] = Path("results"),
    samples: Annotated[
        int | None,
        typer.Option(help="K of IWAE-K (default 100, or the K with which the runs are scored)."),
    ] = None,
) -> None:
    """Write the results of a folder of runs as small files."""
    from recmix.reports.frontier import frontiers
    from recmix.reports.notes import other_epochs
    from recmix.reports.read_store import read_store
    from recmix.reports.runs import read_runs, write_runs
    from recmix.reports.statistics import choose_samples, summarise
    from recmix.reports.summary import gains, panels, summary, to_json, why_no_panel
    from recmix.runs.files import make_folder, write_bytes

    if source.is_dir():
        store = read_store(source)
        records = store.records
        notes = list(store.problems)
    else:
        records, notes = read_runs(source), []
    chosen, missing = choose_samples(records, samples)
    rows = summary(records, samples=chosen)
    if not rows:
        raise RunError(f"{source} has no results: {missing}")
    for note in filter(None, [*notes, missing]):
        err.print(f"note: {note}", style="yellow", markup=False)
    make_folder(folder)
    written = []
    if source.is_dir():
        written.append(folder / "frontier_runs.json")
        write_runs(records, written[-1])
    written.append(folder / "summary.json")
    write_bytes(written[-1], to_json(rows, samples=chosen).encode())
    if points := panels(rows):
        written.append(frontiers(points, folder / "frontier.png", samples=chosen))
    else:
        err.print(
            f"note: frontier.png is not written: {why_no_panel(rows)}", style="yellow", markup=False
        )
    heads, lines = gains(rows)
    for column, some in groupby(lines, key=lambda line: line[0]):
        table = Table(*heads[1:], title=plain(column))
        for _, model, *cells in some:
            table.add_row(plain(model), *cells)
        out.print(table)
    for note in other_epochs(summarise(records, samples=chosen)):
        err.print(f"note: {note}", style="yellow", markup=False)
    if any(line[-1].startswith("(") for line in lines):
        out.print("ms in brackets: other programs may have used the machine during the measurement")
    out.print("wrote", ", ".join(map(str, written)), highlight=False)
