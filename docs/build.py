"""Fill the tables of README.md and docs/*.md from the measurements in docs/results.

python docs/build.py            # rewrite what stands between <!-- table:NAME --> and <!-- /table -->
python docs/build.py --check    # fail if something would change
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from recmix.compare import markdown

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
BLOCK = re.compile(r"(<!-- table:([\w-]+) -->\n)(.*?)(<!-- /table -->)", re.DOTALL)


def compared(name: str) -> list[dict]:
    return json.loads((RESULTS / f"{name}.json").read_text())["rows"]


def short(name: str, models: list[str]) -> str:
    """A few rows of a comparison, without errors."""
    rows = {row["model"]: row for row in compared(name)}
    lines = [
        "| model | test IWAE-100 | over VAE+ | posterior, ms per batch of 128 |",
        "|---|---:|---:|---:|",
    ]
    for model in models:
        row = rows[model]
        lines.append(f"| {model} | {row['iwae']:.1f} | {row['gain']:+.1f} | {row['milliseconds']:.1f} |")
    return "\n".join(lines) + "\n"


TABLES = {
    "readme": lambda: short("mnist20", ["VAE", "VAE+", "RME(5)", "IWAE(5)", "VLAE(2)"]),
    "mnist20": lambda: markdown(compared("mnist20")),
}


def filled(text: str) -> str:
    """The text with its tables made anew."""
    return BLOCK.sub(lambda m: f"{m[1]}{TABLES[m[2]]()}{m[4]}", text)


def main() -> None:
    stale = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        before = path.read_text()
        after = filled(before)
        if after != before:
            stale.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(after)
    print("changed:" if stale else "all tables are up to date", *stale)
    if stale and "--check" in sys.argv:
        sys.exit(1)


if __name__ == "__main__":
    main()
