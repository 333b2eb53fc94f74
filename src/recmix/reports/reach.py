"""Markdown tables from a summary: the best results with the paper's, and every row."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from recmix.reports.published import Published, best_printed, likelihood_of
from recmix.reports.records import CONTROL, Row, TableColumn
from recmix.reports.statistics import TIMED_BATCH
from recmix.reports.summary import other_device
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
BASE = Row("VAE")
"""The method that the control continues."""
Line = dict[str, Any]


def reach_table(rows: Iterable[Line]) -> str:
    """The paper's VAE and its best, then our results: VAE+, feed-forward and refined, as Markdown.

    Feed-forward shows the row without steps that has the best validation bound, VAE and VAE+ left out.
    Refined shows one model: among those scored after the most steps, the one with the best validation
    bound after as many steps. Bounds are compared for the K of the test bound, on splits that all rows
    have. A calibrated row replaces the uncalibrated row of the same model. Every cell names its row, and
    its number of splits if VAE+ has more. A dash means that nothing was measured.

    Args:
        rows: of `recmix.reports.summary.summary`.
    """
    found = list(rows)
    heads = ["data, dimension", "paper: VAE", "paper: best", "VAE+", "VAE+ calibrated", "feed-forward"]
    heads += [f"refined, {steps} steps" for steps in STEPS]
    lines = [_row(heads), _row(["---", *["---:"] * (len(heads) - 1)])]
    for data, latent in REACH:
        likelihood = "bernoulli" if data == "binary-mnist" else "gaussian"
        column = TableColumn(data=data, latent=latent, likelihood=likelihood)
        here = [row for row in found if row["column"] == str(column)]
        by_name = {row["row"]: row for row in here}
        most = by_name[str(CONTROL)]["splits"] if str(CONTROL) in by_name else 0
        best, forward, refined = best_printed(column), _feed_forward(here), _refined(here)
        cells = [
            str(column),
            _printed(likelihood_of(BASE, column)),
            EMPTY if best is None else f"{best.row}: {_printed(best)}",
            *(_ours(by_name.get(name)) for name in ("VAE+", "VAE+ calibrated")),
            *(_named(row, most) for row in [forward, *(refined.get(steps) for steps in STEPS)]),
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
    """Heads and cells of a table of every row: its gain over VAE+ and its time.

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
        lines.append(
            [
                row["column"],
                row["row"],
                _kind(row),
                _ours(row),
                "control" if row["row"] == str(CONTROL) else over,
                p if row["significant"] is not None or p == EMPTY else f"{p} (few)",
                str(row["splits"]),
                _time(row) + (f" on {' and '.join(row['devices'])}" if other_device(row, found) else ""),
                EMPTY if gap is None else f"{gap['total']:.1f} ± {gap['se']:.1f}",
            ]
        )
    return heads, lines


def _kind(row: Line) -> str:
    """The kind of inference, with its steps and restarts."""
    steps, restarts = row["steps"], row["inference"]["restarts"]
    words = [str(row["kind"])]
    words += [f"{steps} step{'s' * (steps != 1)}"] if steps else []
    return ", ".join(words + ([f"{restarts} restarts"] if restarts > 1 else []))


def _time(row: Line) -> str:
    """Milliseconds, in brackets if other runs used the machine at the same time."""
    if row["milliseconds"] is None:
        return EMPTY
    text = f"{row['milliseconds']:.2f}"
    return text if row["timed_alone"] else f"({text})"


def _feed_forward(rows: Sequence[Line]) -> Line | None:
    """The row without steps that has the best validation bound. Test scores are not used."""
    left_out = (BASE.label, CONTROL.label)
    found = [row for row in rows if row["kind"] != "refined" and row["label"] not in left_out]
    bounds = _validation_bounds(found)
    best = max(range(len(found)), key=lambda i: (bounds[i], found[i]["calibrated"]), default=None)
    return None if best is None else found[best]


def _refined(rows: Sequence[Line]) -> dict[int, Line]:
    """The rows of the model that is shown refined, by the number of steps."""
    models: dict[tuple[Any, ...], dict[int, Line]] = {}
    for row in sorted(rows, key=lambda row: bool(row["calibrated"])):  # calibrated rows replace others
        if row["kind"] == "refined" and row["steps"] in STEPS:
            used = [row["inference"][name] for name in ("how", "reuse", "restarts")]
            model = (row["label"], row["setting"], row["options"], *used)
            models.setdefault(model, {})[row["steps"]] = row
    most = max((max(found) for found in models.values()), default=0)
    able = [found for found in models.values() if most in found]
    bounds = _validation_bounds([found[most] for found in able])
    best = max(range(len(able)), key=lambda i: (bounds[i], len(able[i])), default=None)
    return {} if best is None else able[best]


def _validation_bounds(rows: Sequence[Line]) -> list[float]:
    """Mean validation bound of each row over the splits that all rows have; -inf without one.

    The K is that of the test bound if the rows share a split with it, otherwise the smallest K with
    which they do. If they share no split for any K, rows that share none with the rows of more splits
    get -inf.
    """
    bounds = [row["validations"] for row in rows]
    known = [bound for bound in bounds if bound]
    reported = rows[0]["samples"] if rows else 0
    counts = sorted({k for bound in known for k in bound}, key=lambda k: (int(k) != reported, int(k)))
    for strict in (True, False):
        for k in counts:
            shared = _shared([set(bound.get(k, ())) for bound in known], strict=strict)
            if shared:
                return [
                    statistics.fmean(bound[k][split] for split in shared)
                    if shared <= set(bound.get(k, ()))
                    else -math.inf
                    for bound in bounds
                ]
    return [-math.inf] * len(rows)


def _shared(splits: Sequence[set[str]], *, strict: bool) -> set[str]:
    """The splits that all sets contain.

    If not `strict`, sets are intersected from the largest to the smallest, and a set that would make the
    intersection empty is skipped.
    """
    if strict:
        return set.intersection(*splits)
    found: set[str] = set()
    for some in sorted(splits, key=len, reverse=True):
        found = (found & some) or found or some
    return found


def _printed(figure: Published | None) -> str:
    return EMPTY if figure is None else _spread(figure.mean, figure.std)


def _ours(row: Line | None) -> str:
    return EMPTY if row is None else _spread(row["mean"], row["std"])


def _named(row: Line | None, most: int) -> str:
    """A result with the name of its row, and the number of its splits if that is below `most`."""
    if row is None:
        return EMPTY
    return f"{row['row']}: {_ours(row)}" + (f" ({row['splits']} splits)" if row["splits"] < most else "")


def _spread(mean: float, std: float | None) -> str:
    places = _digits(mean)
    return fixed(mean, places) + ("" if std is None else f" ± {fixed(std, places)}")


def _digits(value: float) -> int:
    """One decimal as in the paper; two for small scores, as on binary images."""
    return 2 if abs(value) < 200 else 1


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
