"""Tables of docs/results/columns.json: the columns of the paper, ours beside the paper's figures."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from code_tables import NONE, table
from columns import FIXED, ROWS, SCORED, START, alike, rows_with_rates
from study import read_json

from recmix.reports.paired import FEWEST_PAIRS, compare
from recmix.reports.published import Published, figures
from recmix.reports.tables import decimals, with_spread

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
MAIN = 20
"""The number of dimensions that has a column for each set of grey or colour images."""


def columns(name: str = "columns.json") -> list[Line]:
    """The rows of a file of docs/results; none before a column was run."""
    path = RESULTS / name
    rows: list[Line] = json.loads(path.read_text())["rows"] if path.exists() else []
    return rows


def main_columns() -> list[Line]:
    """The rows of the columns with 20 dimensions."""
    return [row for row in columns() if row["dim"] == MAIN]


def other_columns() -> list[Line]:
    """The rows of the columns with other dimensions."""
    return [row for row in columns() if row["dim"] != MAIN]


def _paper(
    tables: Sequence[str] = ("log_likelihood", "binary_mnist"), network: str = "conv"
) -> dict[tuple[str, int, str], Published]:
    """The paper's log-likelihoods with one kind of decoder, by data set, dimension and row."""
    found = (f for f in figures() if f.table in tables and f.network == network)
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
    own = NONE if ours is None else with_spread(ours["mean"], ours["std"])
    if theirs is None:
        return own, ""
    places = decimals(theirs.mean)
    printed = f"{theirs.mean:.{places}f}"
    if ours is None:
        return own, printed
    return own, f"{printed} ({ours['mean'] - theirs.mean:+.{places}f})"


def column_table(rows: Sequence[Line]) -> str:
    """For each column that was run: bounds, gains over VAE+ and times."""
    by_column = _by_column(rows)
    if not by_column:
        return "No column was run yet.\n"
    return "\n".join(_one_column(list(found.values())) for found in by_column.values())


def _one_column(rows: list[Line]) -> str:
    """The table of one column, with what must be known about it."""
    first = rows[0]
    found = {row["row"]: row for row in rows}
    control = found.get(CONTROL)
    lines = []
    for name in sorted(found, key=_order):
        row = found[name]
        many = row.get("many")
        places = decimals(row["mean"])
        lines.append(
            [
                name,
                with_spread(row["mean"], row["std"]),
                _gain(row, control, "values"),
                f"{row['elbo']:.{places}f}",
                _gain(row, control, "elbos"),
                NONE if not many else f"{many['mean']:.{places}f}",
                _milliseconds(row),
                _epochs(row),
            ]
        )
    heads = ["row", "IWAE-100", "over VAE+", "ELBO", "over VAE+", "IWAE-1000", "ms", "best epoch"]
    splits = sorted({row["splits"] for row in rows})
    about = f"Splits: {', '.join(map(str, splits))}. {first['device']}. `{first['command']}`"
    title = f"#### {TITLES[first['dataset']]}, dim {first['dim']}"
    body = table(heads, lines, numbers=len(heads) - 1)
    return f"{title}\n\n{about}{_still_rising(found.get('VAE'))}\n\n{body}"


SHORT = {
    "VAE": "one pass through the encoder",
    "VAE+": "the same; trained longer (the control)",
    "VAE+ calibrated width": "the same, with calibrated standard deviations",
    "IAF(2)": "encoder, then two flow steps",
    "ME(5)": "five encoders, trained together",
    "RME(5)": "five encoders, added one at a time",
    "RESIDUAL": "encoder, then three residual corrections, forward only",
    "RME RESIDUAL(4)": "the recursion with four residual components",
    "SA(4)": "encoder, then four gradient steps",
    "VLAE(2)": "encoder, then two Gauss-Newton steps; trained with them",
    "REFINED": "encoder, then four Gauss-Newton steps; decoder trained with them",
}
"""The rows of the README's table, and what each computes for an image."""


def readme_column() -> str:
    """A few rows of the columns with 20 dimensions: gains over VAE+, and the bound of VAE+ itself."""
    by_data = {data: found for (data, _), found in _by_column(main_columns()).items()}
    lines = [
        [name, words, *(_gain_or_bound(found, name) for found in by_data.values())]
        for name, words in SHORT.items()
        if any(name in found for found in by_data.values())
    ]
    heads = ["model", "what it computes for an image", *(_title(data) for data in by_data)]
    splits = sorted({found[name]["splits"] for found in by_data.values() for name in found})
    counts = " or ".join(map(str, splits))
    return (
        f"{table(heads, lines, numbers=len(by_data))}\n{counts} splits, trained and scored by one "
        "protocol. VAE+: mean and standard deviation. Other rows: mean gain over VAE+ with its "
        "standard error.\n"
    )


def _title(data: str) -> str:
    """The name of a data set without what differs from the paper's."""
    return TITLES[data].partition(" (")[0]


def _gain_or_bound(found: dict[str, Line], name: str) -> str:
    """The gain of a row over VAE+ in one column; for VAE+ its bound."""
    row = found.get(name)
    if row is None:
        return NONE
    return (
        with_spread(row["mean"], row["std"])
        if name == CONTROL
        else _gain(row, found.get(CONTROL), "values")
    )


def column_gains(rows: Sequence[Line]) -> str:
    """IWAE-100 of VAE+ and the gains of all rows over it, with standard errors, for each column."""
    by_column = _by_column(rows)
    if not by_column:
        return "No column was run yet.\n"
    heads = [f"{_title(data)}, dim {dim}" for data, dim in by_column]
    names = dict.fromkeys(row["row"] for row in rows)
    lines = [
        [
            f"**{name}**: IWAE-100" if name == CONTROL else name,
            *(_gain_or_bound(found, name) for found in by_column.values()),
        ]
        for name in sorted(names, key=_order)
    ]
    return table(["gain over VAE+", *heads], lines, numbers=len(heads))


def _by_column(rows: Sequence[Line]) -> dict[tuple[str, int], dict[str, Line]]:
    """The rows of each column by name, the columns in the order of the paper."""
    found: dict[tuple[str, int], dict[str, Line]] = {}
    for row in rows:
        found.setdefault((row["dataset"], row["dim"]), {})[row["row"]] = row
    places = list(TITLES)
    return {key: found[key] for key in sorted(found, key=lambda key: (places.index(key[0]), key[1]))}


def not_run(rows: Sequence[Line]) -> str:
    """How many of the paper's log-likelihoods have a value of ours, for each data set."""
    ours = {(row["dataset"], row["dim"], row["row"]) for row in rows}
    paper = _paper()
    lines = []
    for data, title in TITLES.items():
        keys = [key for key in paper if key[0] == data]
        run = sum(key in ours for key in keys)
        extra = sum(key[0] == data and key not in paper for key in ours)
        lines.append([title, *(str(n) for n in (len(keys), run, len(keys) - run, extra))])
    totals = [sum(int(line[i]) for line in lines) for i in range(1, 5)]
    lines.append(["**all**", *(f"**{n}**" for n in totals)])
    heads = ["data", "figures in the paper", "ours", "not run", "rows of ours that the paper has not"]
    return table(heads, lines, numbers=4)


def decoders(rows: Sequence[Line]) -> str:
    """Rows with fully connected decoders, beside the paper's for both kinds of decoder."""
    dense, conv = (_paper(("fc_vs_conv_decoder",), network) for network in ("dense", "conv"))
    ours = {(row["dataset"], row["dim"], row["row"]) for row in rows}
    run = sum(key in ours for key in dense)
    text = [f"{run} of the paper's {len(dense)} figures with a fully connected decoder have ours.\n"]
    for (data, dim), found in _by_column(rows).items():
        first, control = next(iter(found.values())), found.get(CONTROL)
        lines = []
        for name in sorted(found, key=_order):
            row, key = found[name], (data, dim, name)
            own, theirs = _pair(row, dense.get(key))
            other = f"{conv[key].mean:.1f}" if key in conv else ""
            gains = [_gain(row, control, values) for values in ("values", "elbos")]
            lines.append([name, own, *gains, _epochs(row), theirs, other])
        heads = ["row", "IWAE-100", "over VAE+", "ELBO over VAE+", "best epoch", "paper (difference)"]
        heads.append("paper, convolutional")
        about = f"Splits: {first['splits']}. {first['device']}. `{first['command']}`"
        text.append(f"\n#### {TITLES[data]}, dim {dim}\n\n{about}\n\n{table(heads, lines, numbers=6)}")
    return "".join(text)


def repeated(first: Sequence[Line], again: Sequence[Line]) -> str:
    """The means of rows over the splits that were trained twice, and the largest difference of a split.

    Args:
        first: the published rows.
        again: rows of the same columns, trained again from nothing.
    """
    known = {(row["dataset"], row["dim"], row["row"]): row for row in first}
    lines = []
    for row in again:
        published = known[row["dataset"], row["dim"], row["row"]]
        cells = [row["row"]]
        for values in ("values", "elbos"):
            before = dict(zip(published["split numbers"], published[values], strict=True))
            old, new = [before[s] for s in row["split numbers"]], row[values]
            largest = max(abs(a - b) for a, b in zip(old, new, strict=True))
            cells += [f"{statistics.fmean(old):.2f}", f"{statistics.fmean(new):.2f}", f"{largest:.3f}"]
        lines.append(cells)
    heads = ["row", "IWAE-100", "again", "largest difference", "ELBO", "again", "largest difference"]
    return table(heads, lines, numbers=6)


AT_THAT_RATE = ("ME(2)", "ME(5)", "RME(2)", "RME(5)", "RESIDUAL", "RME RESIDUAL(4)")


def same_rate(rows: Sequence[Line]) -> str:
    """The gains of the rows with the rate 1e-4 over VAE+ at the same rate."""
    control = "VAE+ at rate 1e-4"
    by_column = {key: found for key, found in _by_column(rows).items() if control in found}
    if not by_column:
        return "Not run yet.\n"
    lines = [
        [
            f"{_title(data)}, dim {dim}: {bound}",
            *(
                _gain(found[name], found[control], values) if name in found else NONE
                for name in AT_THAT_RATE
            ),
        ]
        for (data, dim), found in by_column.items()
        for bound, values in (("IWAE-100", "values"), ("ELBO", "elbos"))
    ]
    heads = ["gain over VAE+ at rate 1e-4", *AT_THAT_RATE]
    return table(heads, lines, numbers=len(heads) - 1)


def _milliseconds(row: Line) -> str:
    """The time of a posterior; in brackets if other programs used the GPU."""
    if row["milliseconds"] is None:
        return NONE
    return f"{row['milliseconds']:.2f}" if row["alone"] else f"({row['milliseconds']:.2f})"


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
    places = decimals(row["mean"])
    text = f"{statistics.fmean(differences):+.{places}f}"
    if len(shared) > 1:
        text += f" ± {statistics.stdev(differences) / len(shared) ** 0.5:.{places}f}"
    if len(shared) >= FEWEST_PAIRS:
        text += f" (p = {compare(one, two).p:.2g})"
    return text


def rates() -> str:
    """For each row of the second stage: the rates in use, and what the pilot found for others."""
    files = ("pilot_mnist20.json", "pilot_rates.json")
    tried = [row for file in files for row in json.loads((RESULTS / file).read_text())["rows"]]
    vae = next(row["best_val_iwae"] for row in tried if not row["options"])
    lines = []
    used_options = rows_with_rates()
    for name in (row for row in ROWS if row not in FIXED):
        options = used_options[name]
        found = {
            _words(row["options"]): _above_start(row, vae)
            for row in tried
            if row["options"] not in ({}, START) and alike(row["options"], options)
        }
        used = _words(options)
        cells = [
            f"**{words}: {gain}**" if words == used else f"{words}: {gain}"
            for words, gain in found.items()
        ]
        lines.append([name, used, "; ".join(cells) or "not tried"])
    return table(["row", "in use", "tried: gain over the start"], lines)


def larger_rates(content: Line) -> str:
    """What rates above those of the pilot gain, from the file that docs/larger_rates.py writes."""
    lines = []
    for name in dict.fromkeys(row["row"] for row in content["rows"]):
        here = [row for row in content["rows"] if row["row"] == name]
        for row in here:
            best = max(row["curve"])
            lines.append(
                [
                    name,
                    _words(row["rates"]),
                    f"{best - content['start']:+.2f}",
                    f"{best - max(here[0]['curve']):+.2f}",
                    f"{1 + row['curve'].index(best)} of {len(row['curve'])}",
                ]
            )
    heads = ["row", "rate", "gain over the start", "over the rate in use", "best epoch"]
    return table(heads, lines, numbers=3)


def _above_start(row: Line, vae: float) -> str:
    """The gain of a trial over its start; the bound itself if the start was not recorded."""
    start = row.get("start", vae)
    best: float = row["best_val_iwae"]
    return f"{best:.2f}" if start is None else f"{best - start:+.2f}"


def _words(options: Line) -> str:
    """The rates of some options in words."""
    rate = f"{options['learning_rate']:.0e}".replace("e-0", "e-")
    fresh = options.get("fresh_rate")
    only = ", encoder only" if options.get("train") == "encoder" else ""
    return rate + (f" x{fresh:g}" if fresh else "") + only


def recursion_column() -> str:
    """The recursion and its controls with 20 dimensions: gains over VAE+, and the mean weights."""
    names = ["WIDE", "ME(2)", "ME(5)", "RME(2)", "RME(5)", "RESIDUAL", "RME RESIDUAL(4)"]
    lines = [
        [
            f"{_title(data)}, dim {dim}",
            name,
            *(_gain(row, found[CONTROL], values) for values in ("values", "elbos")),
            " ".join(f"{weight:.3f}" for weight in row["weights"]),
        ]
        for (data, dim), found in _by_column(main_columns()).items()
        for name in names
        if (row := found.get(name))
    ]
    return table(["data", "row", "IWAE-100", "ELBO", "mean weights of split 0"], lines)


TABLES: dict[str, Callable[[], str]] = {
    "readme": readme_column,
    "rates": rates,
    "larger-rates": lambda: larger_rates(read_json(RESULTS / "larger_rates.json")),
    "recursion-column": recursion_column,
    "paper-cells": lambda: comparison(columns()),
    "columns": lambda: column_table(main_columns()),
    "columns-other": lambda: column_table(other_columns()),
    "column-gains": lambda: column_gains(main_columns()),
    "column-gains-other": lambda: column_gains(other_columns()),
    "same-rate": lambda: same_rate(main_columns()),
    "same-rate-other": lambda: same_rate(other_columns()),
    "decoders": lambda: decoders(columns("decoders.json")),
    "repeated": lambda: repeated(columns("decoders.json"), columns("decoders_repeated.json")),
    "not-run": lambda: not_run(columns()),
}
"""Functions that make each table, by its name in the pages."""
