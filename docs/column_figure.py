"""Draw the gain over VAE+ against the time of a posterior: ``python docs/column_figure.py``.

One panel for each column of docs/results/columns.json whose times were measured alone. Calibrated rows
are left out: they take as long as VAE+.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from column_tables import CONTROL, TITLES, columns

from recmix.reports.frontier import frontiers
from recmix.reports.summary import Point

FIGURE = Path(__file__).resolve().parent / "images" / "columns.png"


def panels() -> dict[str, list[Point]]:
    """The points of each panel by its title, with the standard error of each gain."""
    rows = [row for row in columns() if row["alone"] and "calibrated" not in row["row"]]
    control = {(r["dataset"], r["dim"]): r["values"] for r in rows if r["row"] == CONTROL}
    found: dict[str, list[Point]] = {}
    for row in rows:
        gains = [a - b for a, b in zip(row["values"], control[row["dataset"], row["dim"]], strict=True)]
        error = statistics.stdev(gains) / len(gains) ** 0.5
        title = f"{TITLES[row['dataset']].partition(' (')[0]}, dim {row['dim']}"
        point = Point(row["row"], row["method"], row["milliseconds"], statistics.fmean(gains), error)
        found.setdefault(title, []).append(point)
    return found


if __name__ == "__main__":
    frontiers(panels(), FIGURE)
