"""Selection does not use test scores; p-values are exact."""

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from cases.reports import add_run, fill
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from recmix.reports.paired import FEWEST_PAIRS, MOST_TIED, compare, holm, signed_rank_p
from recmix.reports.read_store import read_store
from recmix.reports.records import CONTROL, Record, Row, TableColumn
from recmix.reports.statistics import select, summarise

MNIST = TableColumn(data="mnist", latent=20)
finite = st.floats(-1e3, 1e3).map(lambda x: round(x, 3))


def record(row="RME", split=0, restart=0, validation=0.0, test=0.0, status="done", **more):
    scores = {} if test is None else {"test/100": {"iwae": test, "milliseconds": 1.0, "batch": 128}}
    return Record(
        folder=f"{row}-{split}-{restart}",
        row=Row(row),
        column=MNIST,
        split=split,
        restart=restart,
        status=status,
        validation=validation,
        scores=more.pop("scores", scores),
        **more,
    )


def column(**rows):
    """Records from the scores of each row, by split."""
    named = {name.replace("_", "+"): values for name, values in rows.items()}
    return [
        record(name, split, test=value, validation=value)
        for name, values in named.items()
        for split, value in enumerate(values)
    ]


# --- selection -------------------------------------------------------------------------------------


def test_restart_with_best_validation_bound_is_selected():
    runs = [
        record(restart=0, validation=5.0, test=100.0),
        record(restart=1, validation=7.0, test=1.0),
        record(restart=2, validation=9.0, test=50.0, status="failed"),
        record(restart=3, validation=None, test=500.0),
    ]
    assert select(runs)[0].restart == 1
    assert summarise(runs).cells[Row("RME"), MNIST].mean == 1.0


@given(
    runs=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), finite), min_size=1, max_size=20),
    tests=st.lists(st.one_of(st.none(), st.floats()), min_size=20, max_size=20),
)
@settings(deadline=None)
def test_selection_does_not_depend_on_test_scores(runs, tests):
    first = [record(split=s, restart=r, validation=v, test=0.0) for s, r, v in runs]
    second = [
        replace(run, scores={} if test is None else {"test/100": {"iwae": test}})
        for run, test in zip(first, tests, strict=False)
    ]
    chosen = [(split, run.restart, run.validation) for split, run in select(first).items()]
    assert [(split, run.restart, run.validation) for split, run in select(second).items()] == chosen
    again = summarise(second).cells[Row("RME"), MNIST].chosen
    assert [(split, run.restart, run.validation) for split, run in again.items()] == chosen


def test_selection_from_files_does_not_depend_on_test_scores(tmp_path):
    rng = random.Random(1)
    fill(tmp_path, sets=("mnist",), dims=(20,), splits=3, restarts=3, rows={("RME", 5), ("VAE", None)})
    before = summarise(read_store(tmp_path).records)
    for path in tmp_path.glob("*/scores.json"):
        text = path.read_text()
        start = text.index('"iwae": ') + 8
        path.write_text(text[:start] + str(rng.uniform(-1e4, 1e4)) + text[text.index(",", start) :])
    after = summarise(read_store(tmp_path).records)
    for place, cell in before.cells.items():
        names = {split: run.folder for split, run in cell.chosen.items()}
        assert {split: run.folder for split, run in after.cells[place].chosen.items()} == names
        assert after.cells[place].mean != cell.mean


def test_selection_does_not_depend_on_the_order_of_folders():
    runs = [record(restart=r, validation=v) for r, v in enumerate([3.0, 5.0, 5.0, 1.0])]
    for order in itertools.permutations(runs):
        assert select(order)[0].restart == 1


def test_split_is_left_out_if_its_selected_run_has_no_score():
    runs = column(RME=[1.0, 2.0, 3.0])
    runs[2] = replace(runs[2], scores={})
    cell = summarise(runs).cells[Row("RME"), MNIST]
    assert (len(cell.chosen), sorted(cell.values)) == (3, [0, 1])
    assert cell.mean == 1.5
    assert cell.std == pytest.approx(math.sqrt(0.5))


def test_other_networks_and_likelihoods_get_other_columns(tmp_path):
    add_run(tmp_path, name="a")
    add_run(tmp_path, name="b", decoder_network="dense")
    add_run(tmp_path, name="c", likelihood="bernoulli")
    assert len(summarise(read_store(tmp_path).records).columns) == 3


def test_only_times_of_batches_of_128_are_used(tmp_path):
    add_run(tmp_path, name="a", split=0, milliseconds=2.0)
    add_run(tmp_path, name="b", split=1, milliseconds=4.0)
    add_run(tmp_path, name="c", split=2, milliseconds=90.0, batch=64)
    cell = summarise(read_store(tmp_path).records).cells[Row("RME", 5), MNIST]
    assert (cell.milliseconds, cell.batches) == (3.0, [64])


# --- the signed-rank test --------------------------------------------------------------------------


def by_enumeration(differences):
    """P(W₊ ≥ w₊) over all signs, with mean ranks and zeros ranked but dropped."""
    ranks = stats.rankdata(np.abs(differences))
    kept = [(rank, value > 0) for rank, value in zip(ranks, differences, strict=True) if value != 0]
    observed = sum(rank for rank, positive in kept if positive)
    signs = list(itertools.product([0, 1], repeat=len(kept)))
    sums = [sum(s * rank for s, (rank, _) in zip(sign, kept, strict=True)) for sign in signs]
    return sum(total >= observed - 1e-9 for total in sums) / len(signs)


# Counted by hand. W₋ is the sum of the ranks of the negative differences; the p-value is the number of
# sets of distinct ranks from 1..n whose sum is at most W₋, over 2^n. The sets with sum 0, 1, … 5:
# {} | {1} | {2} | {3}, {1,2} | {4}, {1,3} | {5}, {1,4}, {2,3}.
CUMULATIVE = {0: 1, 1: 2, 2: 3, 3: 5, 4: 7, 5: 10}


@pytest.mark.parametrize("n", range(6, 11))
@pytest.mark.parametrize("negative", [(), (1,), (2,), (3,), (1, 2), (4,), (1, 3), (5,), (1, 4), (2, 3)])
def test_exact_p_equals_hand_computed(n, negative):
    differences = [-float(rank) if rank in negative else float(rank) for rank in range(1, n + 1)]
    assert signed_rank_p(differences) == CUMULATIVE[sum(negative)] / 2**n


@pytest.mark.parametrize("n", range(6, 16))
def test_p_without_ties_equals_scipys_exact_test(n):
    rng = np.random.default_rng(n)
    for shift in (0.0, 0.5, -0.5):
        differences = rng.normal(shift, 1, n)
        expected = stats.wilcoxon(differences, alternative="greater", method="exact").pvalue
        assert signed_rank_p(differences) == pytest.approx(expected, rel=1e-12)


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=10))
@settings(deadline=None)
def test_p_with_ties_and_zeros_is_exact(differences):
    assert signed_rank_p(differences) == pytest.approx(by_enumeration(np.array(differences, float)))


def test_p_with_ties_beyond_the_limit_is_the_normal_approximation():
    differences = [1.0, 1.0, -1.0, 0.0, *range(2, MOST_TIED)]
    assert len(differences) > MOST_TIED
    options = {"zero_method": "pratt", "alternative": "greater", "method": "asymptotic"}
    expected = stats.wilcoxon(differences, **options).pvalue
    assert signed_rank_p(differences) == pytest.approx(expected, rel=1e-12)
    assert signed_rank_p(differences[1:-1]) == pytest.approx(by_enumeration(differences[1:-1]))


@given(st.lists(finite, min_size=1, max_size=12))
@settings(deadline=None)
def test_p_is_a_probability_and_both_sides_sum_to_at_least_one(differences):
    up, down = signed_rank_p(differences), signed_rank_p([-d for d in differences])
    assert 0 < up <= 1
    assert up + down >= 1 - 1e-12


@given(st.lists(finite, min_size=1, max_size=12), st.permutations(range(12)), st.floats(0.5, 2))
@settings(deadline=None)
def test_p_does_not_depend_on_order_or_unit(differences, order, unit):
    mixed = [differences[i] for i in order if i < len(differences)]
    assert signed_rank_p(mixed) == signed_rank_p(differences)
    whole = [round(d) for d in differences]
    assert signed_rank_p([4 * d for d in whole]) == signed_rank_p(whole)


def test_identical_rows_have_p_one():
    found = compare(dict.fromkeys(range(8), 1.0), dict.fromkeys(range(8), 1.0))
    assert (found.p, found.effect, found.difference) == (1.0, 0.0, 0.0)


def test_rounding_errors_count_as_zero():
    first = {s: 945.1 + 0.1 + s for s in range(8)}
    second = {s: 945.2 + s for s in range(8)}
    assert compare(first, second).p == 1.0


@given(st.integers(1, FEWEST_PAIRS - 1))
@settings(deadline=None)
def test_few_pairs_give_no_p(n):
    found = compare({s: 10.0 + s for s in range(n)}, dict.fromkeys(range(n), 0.0))
    assert found.p is None
    assert f"{n} paired splits" in found.reason
    assert found.effect == 1.0
    assert found.difference == pytest.approx(10 + (n - 1) / 2)


def test_only_shared_splits_are_paired():
    found = compare({s: 2.0 + s for s in range(9)}, dict.fromkeys(range(3, 12), 1.0))
    assert found.pairs == 6
    assert compare({0: 1.0}, {1: 1.0}).reason == "no split in common"


@given(st.lists(finite, min_size=2, max_size=15))
@settings(deadline=None)
def test_interval_equals_students(differences):
    found = compare(dict(enumerate(differences)), dict.fromkeys(range(len(differences)), 0.0))
    low, high = found.interval
    assert low <= found.difference <= high
    assert -1 <= found.effect <= 1
    if np.std(differences) > 1e-6:
        expected = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
        assert (low, high) == pytest.approx((expected.low, expected.high), rel=1e-6, abs=1e-6)


def test_effect_is_rank_biserial_correlation():
    found = compare(dict(enumerate([1.0, -2.0, 3.0, 4.0, 5.0, 6.0])), dict.fromkeys(range(6), 0.0))
    assert found.effect == pytest.approx((19 - 2) / 21)


# --- Holm ------------------------------------------------------------------------------------------


def test_holm_equals_hand_computed():
    # sorted 0.005, 0.01, 0.03, 0.04: times 4, 3, 2, 1 is 0.02, 0.03, 0.06, 0.04 -> 0.06
    assert holm([0.04, 0.01, None, 0.03, 0.005]) == pytest.approx([0.06, 0.03, None, 0.06, 0.02])


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=12))
def test_holm_raises_p_and_keeps_order(values):
    adjusted = holm(values)
    pairs = [(p, q) for p, q in zip(values, adjusted, strict=True) if p is not None]
    assert [q is None for q in adjusted] == [p is None for p in values]
    assert all(p <= q <= 1 for p, q in pairs)
    assert all(q1 <= q2 for (p1, q1) in pairs for (p2, q2) in pairs if p1 < p2)
    assert all(q <= min(1.0, p * len(pairs)) + 1e-12 for p, q in pairs)


def test_holm_is_applied_within_a_column():
    noise = [0.0, 0.3, -0.2, 0.1, 0.2, -0.1, 0.25, -0.15]
    runs = column(
        RME=[10 + n for n in noise], VAE_=[9 + 2 * n for n in noise], VAE=[1 + 3 * n for n in noise]
    )
    plain, corrected = summarise(runs), summarise(runs, correct=True)
    for row in (Row("VAE"), CONTROL):
        p = plain.cells[row, MNIST].versus_best.p
        assert corrected.cells[row, MNIST].versus_best.p == pytest.approx(2 * p)


# --- columns ---------------------------------------------------------------------------------------


def test_best_row_and_control_are_compared():
    results = summarise(column(VAE=[1.0] * 8, VAE_=[2.0 + s / 9 for s in range(8)], RME=[5.0] * 8))
    best = results.best(MNIST)
    assert best.row == Row("RME")
    assert best.versus_best is None
    assert best.versus_control.p == 1 / 256
    assert results.cells[Row("VAE"), MNIST].versus_best.p == 1 / 256
    assert results.cells[Row("VAE"), MNIST].versus_control.p == 1.0
    assert results.cells[CONTROL, MNIST].versus_control is None


def test_row_with_fewer_splits_is_never_the_best():
    results = summarise([*column(VAE_=[1.0] * 8), record("RME", split=0, test=99.0)])
    assert results.best(MNIST).row == CONTROL
    assert results.cells[Row("RME"), MNIST].versus_best.p is None


def test_rows_are_in_the_papers_order_and_include_vae_plus():
    rows = [("RME", 5), ("RME", 2), ("ZZ", None), ("SA", 8), ("SA", 1), ("VAE", None), ("AA", "x")]
    runs = [replace(record("x", split=i), row=Row(*row)) for i, row in enumerate(rows)]
    found = [str(row) for row in summarise(runs).rows]
    assert found == ["VAE", "VAE+", "SA(1)", "SA(8)", "RME(2)", "RME(5)", "AA(x)", "ZZ"]


def test_no_records_give_no_cells():
    results = summarise([])
    assert (list(results.columns), dict(results.cells)) == ([], {})
