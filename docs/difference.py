"""The paired difference of two rows over splits, as the texts of the results give them.

    python docs/difference.py columns.json "ME(5)" "RME(5)" --dataset cifar10 --dim 20
    python docs/difference.py recursion_mnist20.json "RME(4), residual" RESIDUAL

It prints the mean of the first row minus the second one with its standard error, in nats, for the ELBO
and the IWAE-100 bound. Files are those of docs/results.
"""

from __future__ import annotations

import argparse
import math
import statistics
from pathlib import Path
from typing import Any

from study import read_json

RESULTS = Path(__file__).resolve().parent / "results"


def difference(one: list[float], two: list[float]) -> tuple[float, float]:
    """The mean of the differences over splits and its standard error.

    >>> difference([1.0, 3.0], [0.0, 0.0])
    (2.0, 1.0)
    """
    gains = [a - b for a, b in zip(one, two, strict=True)]
    return statistics.fmean(gains), statistics.stdev(gains) / math.sqrt(len(gains))


def bounds_of(row: dict[str, Any]) -> dict[str, list[float]]:
    """The ELBO and the IWAE-100 bound of a row for each split."""
    if "curve" in row and isinstance(row["curve"], dict):  # a row of docs/recursion_study.py
        return {"ELBO": row["elbo"], "IWAE-100": row["curve"]["100"]}
    return {"ELBO": row["elbos"], "IWAE-100": row["values"]}


def main() -> None:
    """Print the differences of two rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", help="name of a file in docs/results")
    parser.add_argument("row")
    parser.add_argument("other")
    parser.add_argument("--dataset", help="of a column, such as mnist")
    parser.add_argument("--dim", type=int, help="latent dimension of a column")
    given = parser.parse_args()
    rows = {
        row["row"]: bounds_of(row)
        for row in read_json(RESULTS / given.file).get("rows", [])
        if given.dataset in (None, row.get("dataset")) and given.dim in (None, row.get("dim"))
    }
    if missing := [row for row in (given.row, given.other) if row not in rows]:
        raise SystemExit(f"no such row: {', '.join(missing)}; there are {', '.join(rows)}")
    for name, values in rows[given.row].items():
        mean, error = difference(values, rows[given.other][name])
        print(f"{name}: {mean:+.2f} ± {error:.2f}")


if __name__ == "__main__":
    main()
