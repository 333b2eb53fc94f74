"""Write the tables of README.md and docs/*.md: results from docs/results, options from the code.

python docs/build.py            # rewrite the text between <!-- table:NAME --> and <!-- /table -->
python docs/build.py --check    # fail if something would change
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import code_tables
import column_tables
import result_tables
import scale_tables
import time_tables
from paper.to_latex import latex

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- table:([\w-]+) -->\n)(.*?)(<!-- /table -->)", re.DOTALL)
TABLES = {
    **code_tables.TABLES,
    **result_tables.TABLES,
    **scale_tables.TABLES,
    **column_tables.TABLES,
    **time_tables.TABLES,
}


def filled(text: str) -> str:
    """The text with new tables."""
    return BLOCK.sub(lambda m: f"{m[1]}{TABLES[m[2]]()}{m[4]}", text)


def pages() -> list[Path]:
    """The pages of the documentation that may have tables."""
    return sorted((ROOT / "docs").glob("*.md"))


def main() -> None:
    check = "--check" in sys.argv
    stale = []
    paper = ROOT / "docs" / "paper" / "paper.md"
    made = {path: filled(path.read_text()) for path in [ROOT / "README.md", *pages(), paper]}
    made[paper.with_suffix(".tex")] = latex(made[paper])
    for path, after in made.items():
        if not path.exists() or after != path.read_text():
            stale.append(path.name)
            if not check:
                path.write_text(after)
    print("changed:" if stale else "all tables are up to date", *stale)
    if stale and check:
        sys.exit(1)


if __name__ == "__main__":
    main()
