"""Different trainings and inferences get different rows: no run replaces another one silently."""

from dataclasses import replace

import pytest
from cases.reports import add_run, add_scores
from hypothesis import given
from hypothesis import strategies as st

from recmix.inference import Inference
from recmix.reports.read_store import read_store
from recmix.reports.records import CONTROL, Row, inference_words
from recmix.reports.runs import read_runs, write_runs
from recmix.reports.statistics import summarise
from recmix.reports.summary import summary
from recmix.reports.tables import all_tables, gain_table

SPLITS = range(6)


def results(store):
    return summarise(read_store(store).records)


def names(store):
    """The rows of the tables as text, without VAE+ if it has no runs."""
    found = results(store)
    return [str(row) for row in found.rows if any(place[0] == row for place in found.cells)]


def notes(store):
    return " ".join(note for table in all_tables(results(store)) for note in table.notes)


def add_plain(store, label, test, **more):
    """Runs that no grid wrote: without job.json."""
    for split in SPLITS:
        add_run(store, label, None, split=split, test=test + split, job=False, **more)


# --- trainings ---------------------------------------------------------------------------------------


def test_residual_run_and_vae_plus_keep_their_rows_in_a_folder_of_plain_runs(tmp_path):
    add_plain(tmp_path, "VAE", 930.0)
    add_plain(tmp_path, "VAE+", 940.0)
    add_plain(tmp_path, "RESIDUAL", 1000.0, options={"corrections": 3})
    found = results(tmp_path)
    (column,) = found.columns
    assert [str(row) for row in found.rows] == ["VAE", "VAE+", "RESIDUAL"]
    assert found.cells[CONTROL, column].mean == pytest.approx(942.5)
    assert found.cells[Row("RESIDUAL"), column].versus_control.difference == pytest.approx(60.0)
    assert not found.control_problem(column)


def test_runs_of_one_name_with_other_options_get_rows_with_these_options(tmp_path):
    for value in (0.1, 0.5):
        for split in (0, 1):
            add_run(tmp_path, "RME", 5, split=split, test=900.0 + value, options={"eps_max": value})
    add_run(tmp_path, "RME", 5, split=2, test=905.0, options={"eps_max": 0.5})  # no other run of it
    add_run(tmp_path, "RME", 2, split=0)
    assert names(tmp_path) == ["RME(2)", "RME(5) [eps_max=0.1]", "RME(5) [eps_max=0.5]"]
    found = results(tmp_path)
    counts = {row.options: len(cell.values) for (row, _), cell in found.cells.items()}
    assert counts == {"": 1, "eps_max=0.1": 2, "eps_max=0.5": 3}


def test_every_option_that_differs_is_shown(tmp_path):
    add_run(tmp_path, "X", None, options={"width": 2.0}, training={"learning_rate": None})
    add_run(tmp_path, "X", None, options={"width": 4.0}, training={"learning_rate": 1e-3})
    assert names(tmp_path) == [
        "X [learning_rate=0.001, width=4.0]",
        "X [learning_rate=default, width=2.0]",
    ]


def test_runs_of_one_name_that_start_from_different_runs_get_different_rows(tmp_path):
    add_run(tmp_path, "RME", 5, init="one")
    add_run(tmp_path, "RME", 5, init="two")
    assert names(tmp_path) == ["RME(5) [init=one/294a413b]", "RME(5) [init=two/294a413b]"]


def test_restarts_and_splits_share_a_row(tmp_path):
    for split in (0, 1):
        for restart in (0, 1):
            init = f"vae-{split}-{restart}"
            add_run(tmp_path, "RME", 5, split=split, restart=restart, init=init)
            add_run(tmp_path, "VAE+", None, split=split, restart=restart, init=init)
    assert names(tmp_path) == ["VAE+", "RME(5)"]
    assert "repeat" not in notes(tmp_path)


def test_repeated_run_shares_a_row_and_a_note_says_so(tmp_path):
    for i, device in enumerate(("cpu", "cuda")):
        add_run(tmp_path, "RME", 5, name=f"r{i}", test=900.0 + i, training={"device": device})
    assert names(tmp_path) == ["RME(5)"]
    assert "repeat another run" in notes(tmp_path)
    assert "RME(5) on MNIST, dim 20 (1)" in notes(tmp_path)


def test_run_that_is_not_done_does_not_change_the_rows_of_others(tmp_path):
    add_run(tmp_path, "VAE+", None)
    add_run(tmp_path, "VAE+", None, training={"learning_rate": 0.1}, status="running")
    (tmp_path / "waiting").mkdir()
    job = '{"label": "VAE+", "data": "mnist", "latent": 20, "split": 1, "restart": 0}'
    (tmp_path / "waiting" / "job.json").write_text(job)
    assert names(tmp_path) == ["VAE+"]


def test_file_of_runs_gives_the_same_rows(tmp_path):
    store = tmp_path / "store"
    for rate in (1e-4, 1e-5):
        add_run(store, "VAE+", None, training={"learning_rate": rate})
    add_run(store, "RME", 5, init="one")
    add_run(store, "RME", 5, init="two")
    add_run(store, "REFINED", None, inference={"refine": 2, "scale": 1.5})
    first = read_store(store).records
    write_runs(first, tmp_path / "runs.json")
    again = read_runs(tmp_path / "runs.json")
    assert sorted(str(r.row) for r in again) == sorted(str(r.row) for r in first)
    assert {r.folder: r.inference for r in again} == {r.folder: r.inference for r in first}
    assert {r.folder: r.scores for r in again} == {r.folder: r.scores for r in first}


# --- the control -------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", [0, 5])
def test_no_gains_with_several_different_vae_plus(tmp_path, split):
    add_plain(tmp_path, "VAE+", 940.0)
    add_plain(tmp_path, "RESIDUAL", 1000.0)
    add_run(tmp_path, "VAE+", None, split=split + 1, test=960.0, training={"learning_rate": 1e-4})
    expected = ["VAE+ [learning_rate=0.0001]", "VAE+ [learning_rate=1e-05]", "RESIDUAL"]
    assert names(tmp_path) == expected
    found = results(tmp_path)
    assert all(cell.versus_control is None for cell in found.cells.values())
    texts = [line.entries[0].text for line in gain_table(found).lines]
    assert texts == ["–"] * 4  # with the empty row of the control
    assert "several different VAE+ trainings" in notes(tmp_path)
    assert "VAE+ has no score" not in notes(tmp_path)
    for row in summary(read_store(tmp_path).records):
        assert (row["difference"], row["p_vae_plus"]) == (None, None)
        assert row["reason"] == "several different VAE+ trainings"


def test_several_vae_plus_in_one_column_leave_the_gains_of_others(tmp_path):
    for latent in (20, 50):
        add_plain(tmp_path, "VAE+", 940.0, latent=latent)
        add_plain(tmp_path, "RESIDUAL", 1000.0, latent=latent)
    add_run(tmp_path, "VAE+", None, latent=50, training={"objective": "iwae"})
    found = results(tmp_path)
    gains = [found.cells[Row("RESIDUAL"), column].versus_control for column in found.columns]
    assert gains[0].difference == pytest.approx(60.0)
    assert gains[1] is None


def test_vae_plus_with_default_refinement_is_not_the_control(tmp_path):
    add_plain(tmp_path, "VAE+", 1040.0, inference={"refine": 2})
    add_plain(tmp_path, "RESIDUAL", 1000.0)
    assert names(tmp_path) == ["VAE+ +2 steps", "RESIDUAL"]
    assert "VAE+ has no score" in notes(tmp_path)
    assert all(cell.versus_control is None for cell in results(tmp_path).cells.values())


# --- inferences --------------------------------------------------------------------------------------


def test_scores_of_different_inferences_get_different_rows(tmp_path):
    folder = add_run(tmp_path, "RESIDUAL", None, test=1000.0)
    used = [{"refine": 2}, {"refine": 2, "reuse": 0}, {"refine": 2, "restarts": 3}, {"refine": 10}]
    for i, inference in enumerate([*used, {"restarts": 4}]):
        add_scores(folder, inference=inference, iwae=1001.0 + i)
    add_scores(folder, inference={"refine": 2, "scale": 1.5}, calibrated=True, iwae=1010.0)
    add_scores(folder, inference={"scale": 1.5}, iwae=1011.0)
    found = results(tmp_path)
    assert {str(row): cell.mean for (row, _), cell in found.cells.items()} == {
        "RESIDUAL": 1000.0,
        "RESIDUAL 4 restarts": 1005.0,
        "RESIDUAL scale 1.5, slope 0.0, reference 0.0": 1011.0,
        "RESIDUAL +2 steps": 1001.0,
        "RESIDUAL +2 steps, calibrated": 1010.0,
        "RESIDUAL +2 steps, 3 restarts": 1003.0,
        "RESIDUAL +2 steps, reuse 0": 1002.0,
        "RESIDUAL +10 steps": 1004.0,
    }
    rows = [str(row) for row in found.rows]
    assert rows.index("RESIDUAL +2 steps, calibrated") == rows.index("RESIDUAL +2 steps") + 1
    assert rows.index("RESIDUAL +10 steps") > rows.index("RESIDUAL +2 steps, reuse 0")


TUNED = {"refine": 4, "how": "variational"}


def means(folder):
    return {str(row): cell.mean for (row, _), cell in results(folder).cells.items()}


def test_rows_of_a_tuned_run_name_their_refinement(tmp_path):
    folder = add_run(tmp_path, "VAE", None, test=1050.0, inference=TUNED)
    add_scores(folder, inference={**TUNED, "refine": 2}, iwae=1040.0)
    add_scores(folder, inference={"refine": 2}, iwae=1030.0)
    add_scores(folder, inference={}, iwae=900.0)
    assert means(tmp_path) == {
        "VAE": 900.0,
        "VAE +2 steps": 1030.0,
        "VAE +2 steps, variational": 1040.0,
        "VAE +4 steps, variational": 1050.0,
    }
    assert "Steps without a kind are Gauss-Newton steps" in notes(tmp_path)


def test_reuse_is_relative_to_the_default_of_the_run(tmp_path):
    folder = add_run(tmp_path, "X", None, test=1050.0, inference={"refine": 4, "reuse": 0})
    add_scores(folder, inference={"refine": 2}, iwae=1040.0)
    assert means(tmp_path) == {"X +4 steps": 1050.0, "X +2 steps, reuse 2": 1040.0}


def test_runs_with_different_default_inferences_get_different_rows(tmp_path):
    add_run(tmp_path, "X", None, split=0, test=1.0)
    add_run(tmp_path, "X", None, split=1, test=2.0, inference={"refine": 2})
    add_run(tmp_path, "X", None, split=2, test=3.0, inference={"reuse": 5})  # without effect
    assert means(tmp_path) == {"X": 2.0, "X +2 steps": 2.0}
    add_run(tmp_path, "X", None, split=3, test=5.0, inference={"refine": 2, "reuse": 0})
    assert names(tmp_path) == ["X", "X [reuse=0] +2 steps", "X [reuse=2] +2 steps"]


def test_a_run_and_its_tuned_copy_never_share_a_row(tmp_path):
    add_run(tmp_path, "VAE+", None, test=1.0)
    tuned = add_run(tmp_path, "VAE+", None, test=2.0, inference=TUNED)
    assert means(tmp_path) == {"VAE+": 1.0, "VAE+ +4 steps, variational": 2.0}
    add_scores(tuned, inference={}, iwae=0.5)
    assert means(tmp_path) == {
        "VAE+": 1.0,
        "VAE+ [default=+4 steps, variational]": 0.5,
        "VAE+ [default=+4 steps, variational] +4 steps, variational": 2.0,
    }
    assert results(tmp_path).control_problem(next(iter(results(tmp_path).columns))) == ""


def test_trainings_are_compared_whatever_the_default_inference_is(tmp_path):
    add_run(tmp_path, "RME", 5)
    add_run(tmp_path, "RME", 5, training={"learning_rate": 0.1}, inference=TUNED)
    assert all("[learning_rate=" in name for name in names(tmp_path))


def test_calibrated_and_uncalibrated_run_of_one_seed_get_different_rows(tmp_path):
    add_run(tmp_path, "X", None, test=1.0, validation=1.0)
    add_run(tmp_path, "X", None, test=2.0, validation=2.0, inference={"slope": 0.5})
    assert names(tmp_path) == ["X [slope=0.0]", "X [slope=0.5] calibrated"]


def test_run_that_is_calibrated_by_default_is_in_the_calibrated_row(tmp_path):
    add_scores(add_run(tmp_path, "VAE+", None, split=0, test=1.0), calibrated=True, iwae=2.0)
    folder = add_run(tmp_path, "VAE+", None, split=1, test=4.0, inference={"scale": 1.5})
    means = {str(row): cell.mean for (row, _), cell in results(tmp_path).cells.items()}
    assert means == {"VAE+": 1.0, "VAE+ calibrated": 3.0}
    add_scores(folder, inference={}, iwae=3.0)
    means = {str(row): cell.mean for (row, _), cell in results(tmp_path).cells.items()}
    assert means == {"VAE+": 2.0, "VAE+ calibrated": 3.0}


inferences = st.builds(
    Inference, refine=st.integers(0, 3), reuse=st.integers(0, 2), restarts=st.integers(1, 3)
)


@given(one=inferences, other=inferences, default=inferences)
def test_inferences_have_the_same_words_only_if_they_do_the_same(one, other, default):
    same = inference_words(one, default) == inference_words(other, default)
    assert same == (one.key == other.key)
    assert (inference_words(default, default) == "") == (default.key == "")
    scaled = replace(one, scale=1.25)
    assert inference_words(scaled, default) != inference_words(one, default)
    assert inference_words(scaled, replace(default, scale=1.25)) == inference_words(one, default)
    noisy = replace(one, noise=1.25)
    assert inference_words(noisy, default) != inference_words(one, default)
    assert inference_words(noisy, replace(default, noise=1.25)) == inference_words(one, default)
    assert inference_words(replace(scaled, noise=1.25), default) not in (
        inference_words(scaled, default),
        inference_words(noisy, default),
    )
