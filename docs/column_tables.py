"""Tables of docs/results/columns.json: the columns of the paper, ours beside the paper's figures."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from code_tables import table
from columns import ROWS, SCORED

from recmix.reports.paired import FEWEST_PAIRS, compare
from recmix.reports.published import Published, figures

__all__ = ["TABLES", "column_table", "comparison", "rates"]

RESULTS = Path(__file__).resolve().parent / "results"
Line = dict[str, Any]

TITLES = {
    "mnist": "MNIST",
    "binary-mnist": "Binary MNIST",
    "omniglot": "OMNIGLOT (rebuilt)",
    "svhn": "SVHN (rebuilt, 20,000 training images)",
    "cifar10": "CIFAR-10 (40,000 training images, batch 5 held out)",
    "celeba": "CelebA (9,000 training images, half-size copies)",
}
"""The data sets of the paper's tables, with what differs from the paper's."""
CONTROL = "VAE+"
NONE = "–"


def columns() -> list[Line]:
    """The rows of docs/results/columns.json; none before a column was run."""
    path = RESULTS / "columns.json"
    rows: list[Line] = json.loads(path.read_text())["rows"] if path.exists() else []
    return rows


def _paper() -> dict[tuple[str, int, str], Published]:
    """The paper's log-likelihoods with convolutional decoders, by data set, dimension and row."""
    tables = ("log_likelihood", "binary_mnist")
    found = (f for f in figures() if f.table in tables and f.network == "conv")
    return {(f.data, f.latent, str(f.row)): f for f in found}


def comparison(rows: Sequence[Line]) -> str:
    """For each data set ours beside the paper's figures; cells that were not run are dashes."""
    ours = {(row["dataset"], row["dim"], row["row"]): row for row in rows}
    paper = _paper()
    run = sum(key in ours for key in paper)
    text = [
        f"{run} of the paper's {len(paper)} log-likelihoods have a value of ours. {len(ours) - run} "
        "values of ours have no figure in the paper. Cells that were not run are dashes.\n"
    ]
    for data, title in TITLES.items():
        dims = sorted({dim for name, dim, _ in paper if name == data})
        heads = [f"dim {dim}: {who}" for dim in dims for who in ("ours", "paper (difference)")]
        names = dict.fromkeys([*SCORED, *(name for where, _, name in paper if where == data)])
        lines = []
        for name in sorted(names, key=_order):
            keys = [(data, dim, name) for dim in dims]
            if any(key in ours or key in paper for key in keys):
                cells = [cell for key in keys for cell in _pair(ours.get(key), paper.get(key))]
                lines.append([name, *cells])
        text.append(f"\n#### {title}\n\n{table(['row', *heads], lines, numbers=len(heads))}")
    return "".join(text)


def _order(name: str) -> tuple[Any, ...]:
    """Controls first, then the paper's methods in its order, then ours."""
    controls = [row for row in SCORED if row.startswith(("VAE", "WIDE"))]
    if name in controls:
        return 0, controls.index(name)
    label, _, setting = name.partition("(")
    paper = ["SA", "IAF", "HF", "ME", "BVI-ER1", "BVI-ER2", "RME", "VLAE"]
    if label in paper:
        return 1, paper.index(label), int(setting.rstrip(")"))
    return 2, list(SCORED).index(name)


def _pair(ours: Line | None, theirs: Published | None) -> tuple[str, str]:
    """The cells of ours and of the paper."""
    own = NONE if ours is None else _spread(ours["mean"], ours["std"])
    if theirs is None:
        return own, ""
    places = _places(theirs.mean)
    printed = f"{theirs.mean:.{places}f}"
    if ours is None:
        return own, printed
    return own, f"{printed} ({ours['mean'] - theirs.mean:+.{places}f})"


def column_table(rows: Sequence[Line]) -> str:
    """For each column that was run: bounds, gains over VAE+ and times."""
    by_column: dict[tuple[str, int], list[Line]] = {}
    for row in rows:
        by_column.setdefault((row["dataset"], row["dim"]), []).append(row)
    if not by_column:
        return "No column was run yet.\n"
    places = list(TITLES)
    ordered = sorted(by_column, key=lambda key: (places.index(key[0]), key[1]))
    return "\n".join(_one_column(by_column[key]) for key in ordered)


def _one_column(rows: list[Line]) -> str:
    """The table of one column, with what must be known about it."""
    first = rows[0]
    found = {row["row"]: row for row in rows}
    control = found.get(CONTROL)
    lines = []
    for name in sorted(found, key=_order):
        row = found[name]
        many = row.get("many")
        places = _places(row["mean"])
        lines.append(
            [
                name,
                _spread(row["mean"], row["std"]),
                _gain(row, control, "values"),
                f"{row['elbo']:.{places}f}",
                _gain(row, control, "elbos"),
                NONE if not many else f"{many['mean']:.{places}f}",
                f"{row['milliseconds']:.2f}" if row["alone"] else f"({row['milliseconds']:.2f})",
                _epochs(row),
            ]
        )
    heads = ["row", "IWAE-100", "over VAE+", "ELBO", "over VAE+", "IWAE-1000", "ms", "best epoch"]
    splits = sorted({row["splits"] for row in rows})
    about = f"Splits: {', '.join(map(str, splits))}. {first['device']}. `{first['command']}`"
    title = f"#### {TITLES[first['dataset']]}, dim {first['dim']}"
    body = table(heads, lines, numbers=len(heads) - 1)
    return f"{title}\n\n{about}{_still_rising(found.get('VAE'))}\n\n{body}"


def _still_rising(vae: Line | None) -> str:
    """A sentence if the VAE's validation bound still rose in the last tenth of its epochs."""
    if vae is None or len(vae["curve"]) < 10:
        return ""
    curve = vae["curve"]
    last = len(curve) - len(curve) // 10
    rise = max(curve[last:]) - max(curve[:last])
    if rise <= 1:
        return ""
    return f". The VAE's validation bound rose by {rise:.1f} nats in the last tenth of its epochs."


def _epochs(row: Line) -> str:
    """The smallest and the largest of the best epochs, and the number of epochs."""
    best = [epoch for epoch in row["best epoch"] if epoch is not None]
    if not best:
        return NONE
    shown = str(best[0]) if min(best) == max(best) else f"{min(best)} to {max(best)}"
    return f"{shown} of {max(row['epochs'])}"


def _gain(row: Line, control: Line | None, values: str) -> str:
    """The mean difference from the control with its standard error; p from six splits on."""
    if control is None:
        return NONE
    if row["row"] == CONTROL:
        return "control"
    one, two = (dict(zip(r["split numbers"], r[values], strict=True)) for r in (row, control))
    shared = sorted(one.keys() & two.keys())
    if not shared:
        return NONE
    differences = [one[s] - two[s] for s in shared]
    places = _places(row["mean"])
    text = f"{statistics.fmean(differences):+.{places}f}"
    if len(shared) > 1:
        text += f" ± {statistics.stdev(differences) / len(shared) ** 0.5:.{places}f}"
    if len(shared) >= FEWEST_PAIRS:
        text += f" (p = {compare(one, two).p:.2g})"
    return text


def _spread(mean: float, std: float | None) -> str:
    places = _places(mean)
    return f"{mean:.{places}f}" + ("" if std is None else f" ± {std:.{places}f}")


def _places(mean: float) -> int:
    """Decimals: two for small scores, as on binary images."""
    return 2 if abs(mean) < 200 else 1


SAME = ("component", "bound", "eps_max")
"""Options of a mixture that must agree for a trial to be of the same method."""
PAPER = {"component": "gaussian", "bound": 500.0, "eps_max": 0.1}


def rates() -> str:
    """For each row of the second stage: the rates in use, and what the pilot found for others."""
    files = ("pilot_mnist20.json", "pilot_rates.json")
    tried = [row for file in files for row in json.loads((RESULTS / file).read_text())["rows"]]
    vae = next(row["best_val_iwae"] for row in tried if not row["options"])
    lines = []
    for name, options in ROWS.items():
        found = {
            _words(row["options"]): _above_start(row, vae)
            for row in tried
            if row["options"] and _alike(row["options"], options)
        }
        used = _words(options)
        cells = [
            f"**{words}: {gain}**" if words == used else f"{words}: {gain}"
            for words, gain in found.items()
        ]
        lines.append([name, used, "; ".join(cells) or "not tried"])
    return table(["row", "in use", "tried: gain over the start"], lines)


def _above_start(row: Line, vae: float) -> str:
    """The gain of a trial over its start; the bound itself if the start was not recorded."""
    start = row.get("start", vae)
    best: float = row["best_val_iwae"]
    return f"{best:.2f}" if start is None else f"{best - start:+.2f}"


def _alike(one: Line, two: Line) -> bool:
    """Whether two sets of options are of the same method, with any rates, orders and steps."""
    if one["method"] != two["method"] or bool(one.get("refine")) != bool(two.get("refine")):
        return False
    if one["method"] != "rme":
        return True
    return all(one.get(key, PAPER[key]) == two.get(key, PAPER[key]) for key in SAME)


def _words(options: Line) -> str:
    """The rates of some options in words."""
    rate = f"{options['learning_rate']:.0e}".replace("e-0", "e-")
    fresh = options.get("fresh_rate")
    only = ", encoder only" if options.get("train") == "encoder" else ""
    return rate + (f" x{fresh:g}" if fresh else "") + only


def recursion() -> str:
    """Validation bounds of the recursion's settings, above VAE+, with 20 and with 2 dimensions."""
    rows = json.loads((RESULTS / "recursion_pilot.json").read_text())["rows"]
    found = {(row["row"], row["dim"]): row["val_iwae"] for row in rows}
    lines = []
    for name in dict.fromkeys(row["row"] for row in rows):
        gains = [
            f"{found[name, dim] - found['VAE+', dim]:+.1f}" if (name, dim) in found else "–"
            for dim in (20, 2)
        ]
        lines.append([name, *gains])
    return table(["row", "20 dimensions", "2 dimensions"], lines)


TABLES: dict[str, Callable[[], str]] = {
    "rates": rates,
    "recursion-pilot": recursion,
    "paper-cells": lambda: comparison(columns()),
    "columns": lambda: column_table(columns()),
}
"""Functions that make each table, by its name in the pages."""
