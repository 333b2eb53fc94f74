"""Train and score several columns at once on one GPU, until a time limit.

    python docs/many_columns.py mnist:10 svhn:100 --out DIR --seconds 560 -- --data-root ROOT

Each column is a process of docs/columns.py, with the log ``DIR/SET_DIM.log``. A column that is trained
is scored. Give the command again to go on. Options of docs/columns.py come last, after ``--``: for
example ``-- --many 0``. When all is scored, give that program ``--score --merge FILE`` for each column.

One column alone leaves the GPU idle while it starts, validates or writes files. NVIDIA's MPS lets
several processes use a GPU at the same moment; start it before: ``nvidia-cuda-mps-control -d``.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from columns import UNFINISHED

SCRIPT = Path(__file__).resolve().with_name("columns.py")
END = 8.0
"""Seconds that a process needs to end after its own time limit."""
SHORTEST = 30.0
"""Seconds below which no process is started."""


def run(column: str, out: Path, deadline: float, more: Sequence[str], script: Path = SCRIPT) -> str:
    """Train a column and score it; what is done at the end.

    Args:
        column: data set and dimension, such as ``mnist:10``.
        out: the folder for the column's folder and log.
        deadline: when the processes must have ended, as `time.time` counts.
        more: options of docs/columns.py.
        script: the program that trains or scores one column.
    """
    dataset, _, dim = column.partition(":")
    done = "nothing"
    for stage, options in (("trained", []), ("scored", ["--score"])):
        left = deadline - time.time()
        if left < SHORTEST:
            return f"{done}: no time is left"
        limit = [] if math.isinf(left) else ["--seconds", f"{left - END:.0f}"]
        words = [sys.executable, str(script), dataset, dim, "--out", str(out), *limit, *options, *more]
        with (out / f"{dataset}_{dim}.log").open("a") as log:
            status = subprocess.run(words, stdout=log, stderr=log, check=False).returncode
        if status == UNFINISHED:
            return f"{done}: not everything is {stage} yet"
        if status:
            return f"{done}: the process ended with status {status}, see {dataset}_{dim}.log"
        done = stage
    return done


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the columns that the options name, some of them at once."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    cut = words.index("--") if "--" in words else len(words)
    more = words[cut + 1 :]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("columns", nargs="+", metavar="SET:DIM", help="columns, the longest first")
    parser.add_argument("--out", type=Path, required=True, help="folder of the columns' folders")
    parser.add_argument("--seconds", type=float, default=math.inf, help="end before this time")
    parser.add_argument("--at-once", type=int, default=4, help="number of processes (default: 4)")
    given = parser.parse_args(words[:cut])
    if wrong := [name for name in given.columns if not name.partition(":")[2].isdigit()]:
        parser.error(f"expected SET:DIM, such as mnist:10, not {wrong[0]!r}")
    if "--merge" in more:
        parser.error(
            "several processes would write the file of --merge at once: merge when all is scored"
        )
    given.out.mkdir(parents=True, exist_ok=True)
    deadline = time.time() + given.seconds
    with ThreadPoolExecutor(given.at_once) as pool:
        ends = pool.map(lambda name: run(name, given.out, deadline, more), given.columns)
        for name, end in zip(given.columns, ends, strict=True):
            print(f"{name}: {end}", flush=True)


if __name__ == "__main__":
    main()
