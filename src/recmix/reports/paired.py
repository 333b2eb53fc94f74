"""Compare two methods by their scores on the same splits of the data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["FEWEST_PAIRS", "Comparison", "compare", "holm", "signed_rank_p"]

FEWEST_PAIRS = 6
"""With fewer pairs no p-value is shown: the smallest possible one for five pairs is 1/32."""
MOST_TIED = 16
"""Largest number of pairs, if some are ties or zeros, for which all signs are enumerated."""
SAME = 9
"""Differences that agree to this many decimals (of a nat) are ties, or zero."""

Array = NDArray[np.float64]


def _signed_ranks(differences: Array) -> Array:
    """Return the rank of each absolute difference, with the sign of the difference (0 for a zero)."""
    from scipy.stats import rankdata

    ranks: Array = rankdata(np.abs(differences)) * np.sign(differences)
    return ranks


def signed_rank_p(differences: Sequence[float] | Array) -> float:
    """Test whether differences are above zero: one-sided p-value of Wilcoxon's signed-rank test.

    W₊ is the sum of the ranks of the positive differences, ranked by absolute value. The p-value is the
    probability of at least the observed W₊ if each sign is positive with probability 1/2. Ties share
    their mean rank. Zeros are ranked, but are neither positive nor negative (Pratt 1959). The p-value is
    exact, except for more than `MOST_TIED` differences with ties or zeros: then it is a normal
    approximation.

    >>> signed_rank_p([1, 2, 3, 4, 5, 6]) == 1 / 64
    True
    """
    from scipy.stats import permutation_test, wilcoxon

    rounded = np.round(np.asarray(differences, dtype=float), SAME)
    if not rounded.any():
        return 1.0
    found: Any
    tied = len({0.0, *np.abs(rounded)}) <= len(rounded)
    if tied and len(rounded) <= MOST_TIED:
        found = permutation_test(
            (_signed_ranks(rounded),),
            np.sum,
            permutation_type="samples",
            n_resamples=2**MOST_TIED,  # at least 2^n, so every combination of signs
            vectorized=True,
            alternative="greater",
        )
    else:
        method: Literal["auto", "exact"] = "auto" if tied else "exact"
        found = wilcoxon(rounded, zero_method="pratt", alternative="greater", method=method)
    return float(found.pvalue)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The comparison of the test scores of two methods on the same splits of the data."""

    pairs: int  # number of splits on which both methods have a score
    # p-value of the one-sided test that the first method has the higher scores, see `signed_rank_p`;
    # None if there are too few pairs
    p: float | None = None
    reason: str = ""  # why `p` is None; else empty
    # mean over the splits of first minus second score, in nats; None without pairs
    difference: float | None = None
    # 95 % t interval of this mean; None with fewer than two pairs
    interval: tuple[float, float] | None = None
    # effect size from -1 to 1, the matched-pairs rank-biserial correlation (W₊ - W₋) / (W₊ + W₋). W₊
    # and W₋ are the sums of the ranks of the positive and the negative differences.
    effect: float | None = None


def compare(first: Mapping[int, float], second: Mapping[int, float]) -> Comparison:
    """Compare the scores of two methods on the data splits on which both have a score.

    Each of `first` and `second` has the scores of one method, {number of the split: score in nats}.

    >>> found = compare({s: 2.0 + s / 9 for s in range(8)}, {s: 1.0 for s in range(8)})
    >>> found.p == 1 / 256, found.effect
    (True, 1.0)
    """
    from scipy.special import stdtrit

    shared = sorted(first.keys() & second.keys())
    pairs = len(shared)
    if not pairs:
        return Comparison(pairs=0, reason="no split in common")
    differences = np.array([first[split] - second[split] for split in shared])
    mean = float(differences.mean())
    interval = None
    if pairs > 1:
        half = float(stdtrit(pairs - 1, 0.975)) * float(differences.std(ddof=1)) / math.sqrt(pairs)
        interval = (mean - half, mean + half)
    rounded = np.round(differences, SAME)
    ranks = _signed_ranks(rounded)
    few = pairs < FEWEST_PAIRS
    return Comparison(
        pairs=pairs,
        p=None if few else signed_rank_p(rounded),
        reason=f"{pairs} paired splits, fewer than {FEWEST_PAIRS}" if few else "",
        difference=mean,
        interval=interval,
        effect=float(ranks.sum() / np.abs(ranks).sum()) if ranks.any() else 0.0,
    )


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Correct p-values for the number of tests by Holm's step-down method (Holm 1979).

    None stands for a test that was not done. It stays None and does not count as a test.

    >>> holm([0.01, None, 0.04, 0.03])
    [0.03, None, 0.06, 0.06]
    """
    known = sorted((value, i) for i, value in enumerate(values) if value is not None)
    adjusted: list[float | None] = [None] * len(values)
    highest = 0.0
    for done, (value, i) in enumerate(known):
        highest = max(highest, min(1.0, value * (len(known) - done)))
        adjusted[i] = highest
    return adjusted
