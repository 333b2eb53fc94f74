"""Tables of the study of the recursion, made from the JSON files of docs/recursion_study.py."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from code_tables import table

from recmix.reports.paired import FEWEST_PAIRS, signed_rank_p

__all__ = ["TABLES"]

RESULTS = Path(__file__).resolve().parent / "results"
SETS = {"digits": "digits", "folds": "folds", "mnist": "MNIST", "mnist20": "MNIST, dim 20"}
CONTROL, BLIND = "VAE+", "ME(4)"
BATCH, INSTANCE = "RME(4), C per batch", "RME(4), C per example"
KINDS = {
    "modes": ("modes", {"1": "1", "2": "2", "3 or more": "3 or more"}),
    "approximation": (
        "gap of the best Gaussian",
        {"low": "lowest third", "middle": "middle third", "high": "highest third"},
    ),
    "amortisation": (
        "what the first encoder loses",
        {"low": "lowest third", "middle": "middle third", "high": "highest third"},
    ),
}
"""Divisions of the test examples, with the words of tables."""
NONE = "–"
Line = dict[str, Any]


@cache
def study(name: str) -> Line:
    """The results of one data set."""
    found: Line = json.loads((RESULTS / f"recursion_{name}.json").read_text())
    return found


def present() -> list[str]:
    """The data sets that have results."""
    return [name for name in SETS if (RESULTS / f"recursion_{name}.json").exists()]


def rows_of(name: str) -> dict[str, Line]:
    """The rows of one data set, by name, also those that were trained longer."""
    return {row["row"]: row for row in study(name)["rows"]}


def own_rows(name: str) -> dict[str, Line]:
    """The rows of one data set that have the usual number of updates."""
    more = study(name)["longer"].values()
    return {label: row for label, row in rows_of(name).items() if label not in more}


def main_table(name: str) -> str:
    """Bounds, gap, parts and modes of all rows of one data set."""
    found, rows = study(name), own_rows(name)
    control = rows[CONTROL]
    lines = []
    for label, row in rows.items():
        gains = minus(row["elbo"], control["elbo"])
        many = minus(row["curve"]["100"], control["curve"]["100"])
        gap = minus(found["log_evidence"], row["elbo"])
        best = found["full" if "full" in label else "diagonal"]
        lost = minus(best, row["elbo"])
        own, several = label == CONTROL, len(row["elbo"])
        lines.append(
            [
                label if several == found["splits"] else f"{label} ({several} splits)",
                f"{row['parameters']:,}" if "parameters" in row else "",
                NONE if own else error(gains, sign=True),
                NONE if own else p_value(gains),
                NONE if own else error(many, sign=True),
                error(gap),
                error(lost),
                *([share(row)] if "modes" in found else []),
            ]
        )
    heads = ["row", "parameters", "ELBO over VAE+", "p", "IWAE-100 over VAE+", "gap"]
    heads += ["of it amortisation", *(["modes found"] if "modes" in found else [])]
    truth = (
        f"Test examples in each of {found['splits']} splits: {found['examples']}. "
        f"log p(x): {statistics.fmean(found['log_evidence']):.2f}. "
        f"VAE+: ELBO {statistics.fmean(control['elbo']):.2f}, "
        f"IWAE-100 {statistics.fmean(control['curve']['100']):.2f}. "
        f"The best diagonal Gaussian of each example: {statistics.fmean(found['diagonal']):.2f}, "
        f"the best full one: {statistics.fmean(found['full']):.2f}. "
    )
    if "modes" in found:
        most = found["quadrature"]["largest difference"]
        truth += f"Without every second point of the grid log p(x) differs by at most {most:.1g}"
        mean = found["quadrature"].get("mean difference")
        truth += "." if mean is None else f", by {mean:.1g} on average."
    return table(heads, lines, numbers=len(heads) - 1) + "\n" + truth.strip() + "\n"


def by_group(kind: str) -> str:
    """The gain of ELBO in groups of test examples, for all data sets, and for rows trained longer.

    Args:
        kind: a key of `KINDS`.
    """
    title, words = KINDS[kind]
    lines = []
    for name in present():
        found, rows = study(name), rows_of(name)
        if kind not in found["groups"]:
            continue
        own = {row: row for row in (CONTROL, BLIND, BATCH, INSTANCE)}
        for used, times in ((own, ""), (found["longer"], f", {found['setting']['times']} times")):
            for group, label in words.items() if used else ():
                truth = found["groups"][kind][group]
                parts = {row: rows[used[row]]["groups"][kind][group] for row in own}
                splits = len(parts[CONTROL])
                images = sum(one["images"] for one in truth[:splits])
                if not images:
                    continue
                elbo = {row: [one["elbo"] for one in part] for row, part in parts.items()}
                best, exact = ([one[key] for one in truth] for key in ("diagonal", "log_evidence"))
                pairs = [
                    (elbo[BLIND], elbo[CONTROL]),
                    (elbo[BATCH], elbo[CONTROL]),
                    (elbo[INSTANCE], elbo[CONTROL]),
                    (elbo[BATCH], elbo[BLIND]),
                ]
                gaps = [
                    error(minus(exact[:splits], elbo[CONTROL])),
                    error(minus(exact[:splits], best[:splits])),
                ]
                cells = [*gaps, *(error(minus(*pair), sign=True) for pair in pairs)]
                lines.append([SETS[name] + times, label, str(images), *cells])
    heads = ["data", title, "examples", "gap of VAE+", "of the best Gaussian", "ME(4) over VAE+"]
    heads += ["RME(4), per batch, over VAE+", "RME(4), per example, over VAE+", "per batch over ME(4)"]
    return table(heads, lines, numbers=7)


def components() -> str:
    """How the components of the mixtures share the test examples."""
    lines = []
    for name in present():
        for label, row in own_rows(name).items():
            if len(row["weights"]) == 1:
                continue
            best = minus(row["best"], row["elbo"])
            shares = (" ".join(f"{100 * v:.0f}" for v in row[key]) for key in ("weights", "wins"))
            lines.append([SETS[name], label, *shares, error(best), error(row["entropy"])])
    heads = ["data", "row", "mean weights, %", "wins, %", "E[max ELBO_m] - ELBO", "entropy of weights"]
    return table(heads, lines, numbers=2)


def curve() -> str:
    """log p(x) minus the IWAE-K bound, by K."""
    lines = []
    for name in present():
        exact = study(name)["log_evidence"]
        for label, row in own_rows(name).items():
            cells = [error(minus(exact, values)) for values in row["curve"].values()]
            lines.append([SETS[name], label, *cells])
    some = study(present()[0])["rows"][0]["curve"]
    return table(["data", "row", *(f"K = {k}" for k in some)], lines, numbers=len(some))


def choices() -> str:
    """The validation ELBO of split 0 for each C; the chosen ones are bold."""
    lines = []
    for name in present():
        trials = [t for t in study(name)["chosen"]["trials"] if t["row"] in (BATCH, INSTANCE)]
        chosen = [study(name)["chosen"][key] for key in ("batch", "instance")]
        for row in (BATCH, INSTANCE):
            cells = [
                f"**{t['elbo']:.2f}**" if t["options"] in chosen else f"{t['elbo']:.2f}"
                for t in trials
                if t["row"] == row
            ]
            lines.append([SETS[name], row, *cells])
    bounds = dict.fromkeys(t["options"]["bound"] for t in trials)
    return table(["data", "row", *(f"C = {c:g}" for c in bounds)], lines, numbers=len(bounds))


def converged() -> str:
    """What the last fifth of the epochs adds to the validation ELBO."""
    lines = []
    for name in present():
        for label, row in rows_of(name).items():
            if "last fifth" in row:
                fifth = f"{statistics.fmean(row['last fifth']):.3f}"
                lines.append([SETS[name], label, fifth, " ".join(str(e) for e in row["best epoch"])])
    return table(["data", "row", "last fifth", "best epoch of each split"], lines)


def longer() -> str:
    """Rows that are trained longer: gains of ELBO on test examples, gap, and modes found."""
    lines = []
    for name in present():
        found, rows = study(name), rows_of(name)
        names = found["longer"]
        for label, more in names.items():
            row, control = rows[more], rows[names[CONTROL]]
            over = minus(row["elbo"], control["elbo"])
            own = [error(over, sign=True), p_value(over)] if label != CONTROL else [NONE, NONE]
            gain = error(minus(row["elbo"], rows[label]["elbo"]), sign=True)
            gap = error(minus(found["log_evidence"], row["elbo"]))
            modes = share(row)
            weights = " ".join(f"{100 * w:.0f}" for w in row["weights"])
            times, splits = f"{found['setting']['times']} times", str(len(row["elbo"]))
            lines.append([SETS[name], times, splits, label, gain, *own, gap, modes, weights])
    heads = ["data", "updates", "splits", "row", "ELBO over the same row", "over VAE+, as long", "p"]
    return table([*heads, "gap", "modes found", "mean weights, %"], lines)


SHORT = {
    "WIDE": "one encoder of the same size",
    "VAE+ calibrated width": "calibrated width",
    BLIND: "blind mixture of four Gaussians",
    "IAF(2)": "two autoregressive flows",
    "RME(4), paper": "recursion of four Gaussians, the paper's settings",
    BATCH: "free gates, C per batch",
    INSTANCE: "free gates, C per example",
    "RME(8)": "the better of them with eight components",
    "RME(4), residual": "with residual components",
    "RESIDUAL": "three residual corrections, no mixture",
    "VAE+ refined, 4 steps": "four Gauss-Newton steps",
}
"""Rows that the write-up shows."""
SHORT_SETS = {"digits": True, "folds": True, "mnist": False}
"""Data sets that the write-up shows, and whether it shows the modes that were found."""


def short() -> str:
    """The main rows: gain of ELBO over VAE+ and modes found, with two latent dimensions."""
    shown = [name for name in present() if name in SHORT_SETS]
    lines = []
    for label, words in SHORT.items():
        cells = []
        for name in shown:
            row, control = (rows_of(name).get(one) for one in (label, CONTROL))
            gain = error(minus(row["elbo"], control["elbo"]), sign=True) if row and control else NONE
            cells += [gain, *([share(row) if row else NONE] if SHORT_SETS[name] else [])]
        lines.append([words, *cells])
    heads = [
        head
        for name in shown
        for head in (f"{SETS[name]}: ELBO", *(["modes found"] if SHORT_SETS[name] else []))
    ]
    return table(["over VAE+", *heads], lines, numbers=len(heads))


PILOT = {
    "RESIDUAL": "three residual corrections, no mixture",
    "ME(4)": "blind mixture of four Gaussians",
    "WIDE": "one encoder of the same size",
    "RME gaussian, paper": "recursion of Gaussians, the paper's settings",
    "RME gaussian": "recursion of Gaussians, free gates, C = 1",
    "RME full": "recursion of full Gaussians, free gates, C = 1",
    "RME residual, paper": "residual components, the paper's settings",
    "RME residual bound=500.0": "residual components, free gates, C = 500",
    "RME residual eps_max=0.1": "residual components, gates up to 0.1, C = 1",
    "RME residual": "residual components, free gates, C = 1",
    "RME residual bound=5.0": "residual components, free gates, C = 5",
}
"""Rows of the pilot with 20 dimensions."""


def pilot() -> str:
    """Validation bounds of the recursion's settings with 20 dimensions, above VAE+, one split."""
    rows = json.loads((RESULTS / "recursion_pilot.json").read_text())["rows"]
    found = {row["row"]: row["val_iwae"] for row in rows}
    lines = [[words, f"{found[name] - found[CONTROL]:+.1f}"] for name, words in PILOT.items()]
    return table(["over VAE+", "20 dimensions, one split, validation images"], lines, numbers=1)


def minus(first: Sequence[float | None], second: Sequence[float | None]) -> list[float]:
    """The differences of the splits that have both values; a row may lack the last splits."""
    return [a - b for a, b in zip(first, second, strict=False) if a is not None and b is not None]


def share(row: Line) -> str:
    """How many of the modes a row finds, in per cent."""
    return f"{100 * statistics.fmean(row['found']):.0f} %" if row["found"] else NONE


def error(values: Sequence[float], *, sign: bool = False) -> str:
    """The mean over splits with its standard error."""
    mean = f"{statistics.fmean(values):{'+' * sign}.2f}"
    if len(values) < 2:
        return mean
    return f"{mean} ± {statistics.stdev(values) / len(values) ** 0.5:.2f}"


def p_value(gains: Sequence[float]) -> str:
    """The two-sided exact p-value of Wilcoxon's signed-rank test."""
    if len(gains) < FEWEST_PAIRS:
        return NONE
    p = min(1.0, 2 * min(signed_rank_p(gains), signed_rank_p([-gain for gain in gains])))
    return f"{p:.2g}"


TABLES: dict[str, Callable[[], str]] = {
    **{f"recursion-{name}": partial(main_table, name) for name in SETS},
    **{f"recursion-{kind}": partial(by_group, kind) for kind in KINDS},
    "recursion-components": components,
    "recursion-curve": curve,
    "recursion-choices": choices,
    "recursion-converged": converged,
    "recursion-longer": longer,
    "recursion-short": short,
    "recursion-pilot": pilot,
}
"""Functions that make each table, by its name in the pages."""
