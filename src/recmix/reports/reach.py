"""Tables from a summary: how far ours reach beside the paper's, and every row that was measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from recmix.reports.published import Published, best_printed, likelihood_of
from recmix.reports.records import Column, Row
from recmix.reports.statistics import TIMED_BATCH
from recmix.reports.summary import elsewhere
from recmix.reports.tables import EMPTY, fixed, signed

__all__ = ["REACH", "frontier_table", "gains", "reach_table"]

REACH = (
    *(("mnist", 10), ("mnist", 20), ("mnist", 50)),
    ("binary-mnist", 50),
    *(("omniglot", 20), ("omniglot", 50)),
)
"""The data sets and dimensions of the table."""
STEPS = (2, 4)
"""Numbers of refinement steps with a column of their own."""
VAES = ("VAE", "VAE+")
"""Rows that have columns of their own, or are behind them."""
Line = dict[str, Any]


def reach_table(rows: Iterable[Line]) -> str:
    """The paper's VAE and its best, then ours: VAE+, feed-forward and refined, as Markdown.

    Of all rows but the VAE's that take no steps for an image, the one with the best validation bound
    stands as feed-forward: that of the K of the test bound on the splits that all these rows have it of.
    Refined stands one model: of those that were scored after the most Gauss-Newton steps that which
    validation images, refined as much, prefer.
    Calibrated rows come before others of the same model: they differ by a number that was fitted to
    validation images. Every cell names its row. What was not measured is a dash.

    Args:
        rows: of `recmix.reports.summary.summary`.
    """
    found = list(rows)
    heads = ["data, dimension", "paper: VAE", "paper: best", "VAE+", "VAE+ calibrated"]
    heads += ["feed-forward"]
    heads += [f"refined, {steps} steps" for steps in STEPS]
    lines = [_row(heads), _row(["---", *["---:"] * (len(heads) - 1)])]
    for data, latent in REACH:
        likelihood = "bernoulli" if data == "binary-mnist" else "gaussian"
        column = Column(data=data, latent=latent, likelihood=likelihood)
        here = [row for row in found if row["column"] == str(column)]
        controls = [_named(here, name) for name in ("VAE+", "VAE+ calibrated")]
        ahead = _feed_forward(here)
        best = best_printed(column)
        cells = [
            str(column),
            _printed(likelihood_of(Row("VAE"), column)),
            EMPTY if best is None else f"{best.row}: {_printed(best)}",
            *map(_ours, controls),
            EMPTY if ahead is None else f"{ahead['row']}: {_ours(ahead)}",
            *_refined(here),
        ]
        lines.append(_row(cells))
    return "\n".join(lines) + "\n"


def frontier_table(rows: Iterable[Line]) -> str:
    """Every row of a summary, as Markdown.

    Args:
        rows: of `recmix.reports.summary.summary`.
    """
    heads, lines = gains(rows)
    aligned = ["---"] * 3 + ["---:"] * (len(heads) - 3)
    return "\n".join(map(_row, [heads, aligned, *lines])) + "\n"


def gains(rows: Iterable[Line]) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of a table of every row: what it gains over VAE+, and what it costs.

    Args:
        rows: of `recmix.reports.summary.summary`.
    """
    found = list(rows)
    samples = found[0]["samples"] if found else 100
    heads = ["data, dimension", "model", "inference", f"IWAE-{samples}", "over VAE+", "exact p"]
    heads += ["splits", f"ms per batch of {TIMED_BATCH}", "total gap"]
    lines = []
    for row in found:
        gap, places = row["gap"], _digits(row["mean"])
        over = EMPTY if row["difference"] is None else signed(row["difference"], places)
        p = EMPTY if row["p_vae_plus"] is None else f"{row['p_vae_plus']:.2g}"
        cells = [
            row["column"],
            row["row"],
            row["inference"] + _steps(row),
            _ours(row),
            "control" if row["row"] == "VAE+" else over,
            p if row["significant"] is not None or p == EMPTY else f"{p} (few)",
            str(row["splits"]),
            _time(row) + (f" on {' and '.join(row['devices'])}" if elsewhere(row, found) else ""),
            EMPTY if gap is None else f"{gap['total']:.1f} ± {gap['se']:.1f}",
        ]
        lines.append(cells)
    return heads, lines


def _steps(row: Line) -> str:
    """How many steps are taken for an image, and from how many starts if from several."""
    steps = f", {row['steps']} steps" if row["steps"] else ""
    if row["starts"] is None:  # not the same in all splits
        return f"{steps} from several starts"
    return steps + (f" from {row['starts']} starts" if row["starts"] > 1 else "")


def _time(row: Line) -> str:
    """Milliseconds, in brackets if other runs had a part of the machine."""
    if row["milliseconds"] is None:
        return EMPTY
    text = f"{row['milliseconds']:.2f}"
    return text if row["timed_alone"] else f"({text})"


def _feed_forward(rows: Sequence[Line]) -> Line | None:
    """The row without steps that validation images prefer; test images have no say."""
    found = [row for row in rows if row["inference"] != "refined" and row["label"] not in VAES]
    liked = _liked(found)
    best = max(range(len(found)), key=lambda i: (liked[i], found[i]["calibrated"]), default=None)
    return None if best is None else found[best]


def _liked(rows: Sequence[Line]) -> list[float]:
    """How much validation images like each row: the mean bound over the splits that all rows have.

    By the K of the test bound where the rows share a split with it, else by the smallest K that they do.
    A row without any such bound is not liked at all, and takes nothing from the others.
    """
    bounds = [row["validations"] for row in rows]
    known = [bound for bound in bounds if bound]
    reported = rows[0]["samples"] if rows else 0
    for k in sorted({k for bound in known for k in bound}, key=lambda k: (int(k) != reported, int(k))):
        if shared := set.intersection(*(set(bound.get(k, ())) for bound in known)):
            return [
                statistics.fmean(bound[k][s] for s in shared) if bound else -math.inf for bound in bounds
            ]
    return [-math.inf] * len(rows)


def _named(rows: Sequence[Line], name: str) -> Line | None:
    return next((row for row in rows if row["row"] == name), None)


def _refined(rows: Sequence[Line]) -> list[str]:
    """The figures of the model that is shown refined, by the number of Gauss-Newton steps."""
    scored: dict[tuple[Any, ...], dict[int, Line]] = {}
    for row in sorted(rows, key=lambda row: bool(row["calibrated"])):  # it stays where both are there
        if row["inference"] == "refined" and row["method"] != "sa" and row["steps"] in STEPS:
            scored.setdefault((row["label"], row["setting"]), {})[row["steps"]] = row

    most = max((max(found) for found in scored.values()), default=0)
    able = [found for found in scored.values() if most in found]
    liked = _liked([found[most] for found in able])
    best = max(range(len(able)), key=lambda i: (liked[i], len(able[i])), default=None)
    shown = {} if best is None else able[best]
    return [f"{shown[n]['row']}: {_ours(shown[n])}" if n in shown else EMPTY for n in STEPS]


def _printed(figure: Published | None) -> str:
    if figure is None:
        return EMPTY
    places = _digits(figure.mean)
    spread = "" if figure.std is None else f" ± {fixed(figure.std, places)}"
    return fixed(figure.mean, places) + spread


def _ours(row: Line | None) -> str:
    if row is None:
        return EMPTY
    places = _digits(row["mean"])
    spread = "" if row["std"] is None else f" ± {fixed(row['std'], places)}"
    return fixed(row["mean"], places) + spread


def _digits(value: float) -> int:
    """One decimal as in the paper; two where the scores are small, as on binary images."""
    return 2 if abs(value) < 200 else 1


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
