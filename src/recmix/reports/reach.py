"""Make Markdown tables from a summary: our best results with the paper's, and all our results.

A summary is a list of rows from `recmix.reports.summary.summary`. Each row has the results of one
method with one kind of inference on one data set with one latent dimension.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from recmix.reports.forms import markdown_table
from recmix.reports.published import Published, best_printed, likelihood_of
from recmix.reports.records import CONTROL, Row, TableColumn
from recmix.reports.statistics import TIMED_BATCH
from recmix.reports.summary import other_device
from recmix.reports.tables import EMPTY, decimals, signed, with_spread

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
    """Return a Markdown table of the paper's VAE, the paper's best method, and our best results.

    The columns of our results are:

    - VAE+, the plain VAE that was trained further, and VAE+ calibrated;
    - "feed-forward": the best method whose inference has no optimisation steps, except VAE and VAE+;
    - "refined": the best method whose inference has optimisation steps, after 2 and after 4 steps.
      This is the best method after 4 steps, or after 2 if no method was scored after 4.

    The best method has the highest validation bound, averaged over the splits that all compared methods
    have. If a model has calibrated results, these are used. Results with a calibrated noise of the
    likelihood are left out, because they belong to another p(x). A cell with a best method names it. It
    also has the number of splits, if VAE+ has more. A dash means that nothing was measured.

    Args:
        rows: the rows of a summary, from `recmix.reports.summary.summary`.
    """
    found = list(rows)
    heads = ["data, dimension", "paper: VAE", "paper: best", "VAE+", "VAE+ calibrated", "feed-forward"]
    heads += [f"refined, {steps} steps" for steps in STEPS]
    lines = []
    for data, latent in REACH:
        likelihood = "bernoulli" if data == "binary-mnist" else "gaussian"
        column = TableColumn(data=data, latent=latent, likelihood=likelihood)
        here = [row for row in found if row["column"] == str(column) and "noise" not in row]
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
        lines.append(cells)
    return markdown_table(heads, lines)


def frontier_table(rows: Iterable[Line]) -> str:
    """Return a Markdown table of all our results, with one line for each row of a summary.

    The columns include the IWAE bound, its gain over VAE+ with the p-value, and the inference time.
    VAE+ is the plain VAE that was trained further.

    Args:
        rows: the rows of a summary, from `recmix.reports.summary.summary`.
    """
    return markdown_table(*gains(rows), left=3)


def gains(rows: Iterable[Line]) -> tuple[list[str], list[list[str]]]:
    """Return the column heads and the cells of a table of all our results, as texts.

    The columns include the IWAE bound, its gain over VAE+ with the p-value, the inference time, and
    the gap between log p(x) and the ELBO. VAE+ is the plain VAE that was trained further.

    Args:
        rows: the rows of a summary, from `recmix.reports.summary.summary`.

    Returns:
        The list of column heads, and for each row the list of its cells.
    """
    found = list(rows)
    samples = found[0]["samples"] if found else 100
    heads = ["data, dimension", "model", "inference", f"IWAE-{samples}", "over VAE+", "exact p"]
    heads += ["splits", f"ms per batch of {TIMED_BATCH}", "total gap"]
    lines = []
    for row in found:
        gap, difference = row["gap"], row["difference"]
        over = EMPTY if difference is None else signed(difference, decimals(row["mean"]))
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
    """Describe the inference of a summary row: its kind, optimisation steps and restarts."""
    steps, restarts = row["steps"], row["inference"]["restarts"]
    words = [str(row["kind"])]
    if steps:
        words.append(f"{steps} step{'s' * (steps != 1)}")
    if restarts > 1:
        words.append(f"{restarts} restarts")
    return ", ".join(words)


def _time(row: Line) -> str:
    """Return the time of a row in milliseconds, in brackets if other runs shared the machine."""
    if row["milliseconds"] is None:
        return EMPTY
    text = f"{row['milliseconds']:.2f}"
    return text if row["timed_alone"] else f"({text})"


def _feed_forward(rows: Sequence[Line]) -> Line | None:
    """Return the row with the best validation bound among those without optimisation steps.

    VAE and VAE+ are not considered. Test scores are not used.
    """
    left_out = (BASE.label, CONTROL.label)
    found = [row for row in rows if row["kind"] != "refined" and row["label"] not in left_out]
    bounds = _validation_bounds(found)
    best = max(range(len(found)), key=lambda i: (bounds[i], found[i]["calibrated"]), default=None)
    return None if best is None else found[best]


def _refined(rows: Sequence[Line]) -> dict[int, Line]:
    """Return the rows of the best model with optimisation steps, by the number of steps.

    The best model has the highest validation bound after the largest number of steps.
    """
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
    """Return the mean validation bound (IWAE-K) of each row, over the splits that all rows have.

    A row without a validation bound gets -inf and does not count for the common splits. K is that
    of the test bound, if all other rows have a common split with this K. Otherwise it is the
    smallest K for which they have one. If they have none for any K, rows without a common split
    with the rows of more splits get -inf too.
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
    """Return the splits that all sets contain.

    If not `strict`, the sets are intersected from the largest to the smallest, and a set that would
    make the intersection empty is skipped.
    """
    if strict:
        return set.intersection(*splits)
    found: set[str] = set()
    for some in sorted(splits, key=len, reverse=True):
        found = (found & some) or found or some
    return found


def _printed(figure: Published | None) -> str:
    return EMPTY if figure is None else with_spread(figure.mean, figure.std)


def _ours(row: Line | None) -> str:
    return EMPTY if row is None else with_spread(row["mean"], row["std"])


def _named(row: Line | None, most: int) -> str:
    """Return the result of a summary row as text, with the name of the row.

    The number of splits is added if it is below `most`.
    """
    if row is None:
        return EMPTY
    return f"{row['row']}: {_ours(row)}" + (f" ({row['splits']} splits)" if row["splits"] < most else "")
