"""Fill the tables of README.md and docs/*.md from the measurements in docs/results.

python docs/build.py            # rewrite what stands between <!-- table:NAME --> and <!-- /table -->
python docs/build.py --check    # fail if something would change
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from pathlib import Path

from recmix.commands.comparison import markdown
from recmix.evaluation.gap import QUANTITIES
from recmix.reports.forms import to_markdown
from recmix.reports.frontier import frontiers
from recmix.reports.reach import frontier_table, reach_table
from recmix.reports.records import Record, Row
from recmix.reports.runs import read_runs
from recmix.reports.statistics import summarise
from recmix.reports.summary import panels, summary, to_json
from recmix.reports.tables import gain_table, likelihood_table

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
BLOCK = re.compile(r"(<!-- table:([\w-]+) -->\n)(.*?)(<!-- /table -->)", re.DOTALL)


def compared(name: str) -> list[dict]:
    return json.loads((RESULTS / f"{name}.json").read_text())["rows"]


SHORT = {
    "VAE": "the encoder alone",
    "VAE+": "the same, trained on: the control",
    "VAE+ calibrated": "the control, as wide as validation images ask for",
    "IAF(2)": "an encoder and a flow",
    "ME(3)": "three encoders, blind",
    "RME(5)": "five encoders, grown recursively",
    "RESIDUAL": "three corrections by the residual, forward only",
    "SA(4)": "four gradient steps for each image",
    "VLAE(2)": "two Gauss-Newton steps for each image",
    "REFINED": "four, and a decoder trained for it",
}
"""Rows of the readme's table, and what they do when they meet an image."""


def short() -> str:
    """A few rows of MNIST at dimension 20."""
    here = [r for r in frontier_rows() if (r["dataset"], r["dim"]) == ("mnist", 20)]
    rows = {row["row"]: row for row in here}
    lines = [
        "| model | what it does with an image | test IWAE-100 | over VAE+ | splits |",
        "|---|---|---:|---:|---:|",
    ]
    for name, words in SHORT.items():
        row = rows[name]
        gain = "control" if name == "VAE+" else f"{row['difference']:+.1f} ± {row['difference_std']:.1f}"
        cells = (name, words, f"{row['mean']:.1f} ± {row['std']:.1f}", gain, row["splits"])
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def rates() -> str:
    """What the validation images say of the second stage's learning rate."""
    rows = {row["model"]: row for row in compared("mnist20_rates")}
    lines = [
        "| rate | VAE+, validation | RME(5), validation | VAE+, test | RME(5), test |",
        "|---|---:|---:|---:|---:|",
    ]
    for rate, plus, grown in (
        ("1e-5", "VAE+", "RME(5)"),
        ("3e-6", "VAE learning_rate=3e-06 epochs=8", "RME(5) learning_rate=3e-06 epochs=8"),
        ("1e-6", "VAE learning_rate=1e-06 epochs=12", "RME(5) learning_rate=1e-06 epochs=12"),
    ):
        a, b = rows[plus], rows[grown]
        lines.append(
            f"| {rate} | {a['best_validation']:.2f} | {b['best_validation']:.2f} "
            f"| {a['iwae']:.2f} | {b['iwae']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def fresh() -> str:
    """What a rate of their own does for parameters that start anew."""
    rows = {row["model"]: row for row in compared("mnist20_rates")}
    lines = ["| method | with the rate of all | 50 times faster |", "|---|---:|---:|"]
    for name in ("ME(3)", "IAF(2)", "HF(2)", "FULL", "RME(5)"):
        slow, fast = rows[name], rows[f"{name} fresh_rate=50.0"]
        lines.append(f"| {name} | {slow['best_validation']:.2f} | {fast['best_validation']:.2f} |")
    return "\n".join(lines) + "\n"


def residual() -> str:
    """What each part of the residual recursion is worth."""
    lines = ["| variant | validation IWAE-5 | validation ELBO |", "|---|---:|---:|"]
    lines += [
        f"| {r['variant']} | {r['iwae']:.1f} | {r['elbo']:.1f} |" for r in compared("mnist20_residual")
    ]
    return "\n".join(lines) + "\n"


def ablation() -> str:
    """What each part of training an encoder alone is worth: validation decides, the test set is told."""
    records = read_runs(RESULTS / "ablation_digits.json")
    bound = {(str(r.row), r.split): r.scores["val/5"]["iwae"] for r in records}
    splits = sorted({r.split for r in records})
    lines = [
        "| row | validation IWAE-5 | over VARIED | test ELBO | test IWAE-100 | over VAE+ | exact p "
        "| calibrated | factor |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    rows = {row["row"]: row for row in summary(records)}
    for name, row in rows.items():
        if row["calibrated"]:
            continue
        wide = rows.get(f"{name} calibrated")
        here = [bound[name, split] for split in splits]
        over = [found - bound["VARIED", split] for found, split in zip(here, splits, strict=True)]
        error = statistics.stdev(over) / len(over) ** 0.5
        p = row["p_vae_plus"]
        cells = (
            f"{name}",
            f"{statistics.fmean(here):.2f}",
            "–" if name == "VARIED" else f"{statistics.fmean(over):+.2f} ± {error:.2f}",
            f"{row['elbo']:.2f}",
            f"{row['mean']:.2f} ± {row['std']:.2f}",
            "control" if name == "VAE+" else f"{row['difference']:+.2f}",
            "–" if p is None else f"{p:.2g}",
            "–" if wide is None else f"{wide['mean']:.2f} ± {wide['std'] or 0:.2f}",
            "–" if wide is None else f"{wide['widen']:.2f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def gaps(name: str) -> str:
    """What `recmix evaluate --gap` measured."""
    found = json.loads((RESULTS / f"{name}.json").read_text())
    parts = found["summary"]
    heads = ["test - train" if part == "difference" else part for part in parts]
    lines = [f"| nats per image | {' | '.join(heads)} |", "|---|" + "---:|" * len(parts)]
    for key, words in QUANTITIES.items():
        cells = [f"{part[key]['mean']:.2f} ± {part[key]['se']:.2f}" for part in parts.values()]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    lines.append("")
    for part, check in found["check"].items():
        by = check["difference"]
        lines.append(
            f"Annealed importance sampling of {check['images']} {part} images puts log p(x) "
            f"{by['mean']:+.3f} ± {by['se']:.3f} nats from this estimate."
        )
    return "\n".join([*lines, "", f"> {found['advice']}"]) + "\n"


def frontier_rows() -> list[dict]:
    """What the runs of the frontier's grids amount to, and the paper's methods of `gpu_mnist20.toml`.

    The latter have a VAE and a VAE+ of their own, against which their gains are, and which stand in
    their own table.
    """
    runs = RESULTS / "frontier_runs.json"
    rows = summary(read_runs(runs)) if runs.exists() else []
    places = {column: i for i, column in enumerate(dict.fromkeys(row["column"] for row in rows))}
    rows += [row for row in summary(mnist20_runs()) if row["label"] not in ("VAE", "VAE+")]
    last = len(places)
    return sorted(
        rows, key=lambda r: (places.get(r["column"], last), Row(r["label"], r["setting"]).order)
    )


def mnist20_runs() -> list[Record]:
    """Those of `configs/gpu_mnist20.toml`."""
    return read_runs(RESULTS / "mnist20_grid" / "frontier_runs.json")


def mnist20_grid() -> str:
    """The tables of `configs/gpu_mnist20.toml`, as `recmix report --format markdown` gives them."""
    results = summarise(mnist20_runs())
    return "\n".join(to_markdown(table) for table in (likelihood_table(results), gain_table(results)))


def frontier() -> str:
    """Every row, and what accuracy costs."""
    rows = frontier_rows()
    if not rows:
        return "The runs are not in yet.\n"
    return f"![Gain over VAE+ against time](results/frontier.png)\n\n{frontier_table(rows)}"


def summarised(*, check: bool) -> bool:
    """Make summary.json and the figure from the runs; whether the summary changed."""
    rows = frontier_rows()
    file, figure = RESULTS / "summary.json", RESULTS / "frontier.png"
    changed = bool(rows) and (not file.exists() or file.read_text() != to_json(rows))
    if rows and not check and (changed or not figure.exists()):
        file.write_text(to_json(rows))
        frontiers(panels(rows), figure)
    return changed


TABLES = {
    "reach": lambda: reach_table(frontier_rows()),
    "frontier": frontier,
    "mnist20-grid": mnist20_grid,
    "gap-mnist20": lambda: gaps("mnist20_gap"),
    "gap-mnist20-refined": lambda: gaps("mnist20_gap_refined"),
    "gap-mnist20-residual": lambda: gaps("mnist20_gap_residual"),
    "readme": short,
    "mnist20-rates": rates,
    "mnist20-fresh": fresh,
    "residual": residual,
    "ablation": ablation,
    "mnist20": lambda: markdown(compared("mnist20")),
}


def filled(text: str) -> str:
    """The text with its tables made anew."""
    return BLOCK.sub(lambda m: f"{m[1]}{TABLES[m[2]]()}{m[4]}", text)


def main() -> None:
    stale = ["summary.json"] if summarised(check="--check" in sys.argv) else []
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
