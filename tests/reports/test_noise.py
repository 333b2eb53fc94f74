"""Rows whose likelihood has other noise: another model of the data, with a control of its own."""

import json

import pytest
from cases.reports import add_run, add_scores

from recmix.reports.page import _index
from recmix.reports.read_store import read_store
from recmix.reports.records import Row
from recmix.reports.runs import read_runs, write_runs
from recmix.reports.statistics import control_of, summarise
from recmix.reports.summary import gains, panels, summary
from recmix.reports.tables import all_tables, gain_table, likelihood_table

NOISE = {"scale": 1.5, "noise": 1.25}
PLUS = Row("VAE+", calibrated=True, noise=True)


def add(store, label, split, test, *, noise, calibrated=5.0):
    """A run with a plain score, a calibrated one, and one that is calibrated with noise."""
    folder = add_run(store, label, None, split=split, test=test, samples=100)
    add_scores(folder, part="val", samples=100, iwae=test - 1)
    add_scores(folder, calibrated=True, inference={"scale": 1.5}, iwae=test + calibrated)
    add_scores(folder, calibrated=True, noise=True, inference=NOISE, iwae=test + noise)
    return folder


@pytest.fixture
def store(tmp_path):
    for split in range(6):
        add(tmp_path, "VAE+", split, 940.0 + split, noise=100.0)
        add(tmp_path, "RESIDUAL", split, 1000.0 + split, noise=70.0)
    return tmp_path


def means(store):
    found = summarise(read_store(store).records)
    return {str(row): cell.mean for (row, _), cell in found.cells.items()}


def test_noise_has_a_row_of_its_own(store):
    assert means(store) == {
        "VAE+": 942.5,
        "VAE+ calibrated": 947.5,
        "VAE+ calibrated with noise": 1042.5,
        "RESIDUAL": 1002.5,
        "RESIDUAL calibrated": 1007.5,
        "RESIDUAL calibrated with noise": 1072.5,
    }
    rows = [str(row) for row in summarise(read_store(store).records).rows]
    assert rows[2] == "VAE+ calibrated with noise"
    assert rows[-1] == "RESIDUAL calibrated with noise"


def test_control_has_the_same_noise(store):
    assert control_of(Row("RESIDUAL", calibrated=True, noise=True)) == PLUS
    assert control_of(Row("RESIDUAL", inference="noise 1.3", noise=True)) == PLUS
    assert control_of(PLUS) == Row("VAE+")
    found = summarise(read_store(store).records)
    cell = found.cells[Row("RESIDUAL", calibrated=True, noise=True), found.columns[0]]
    assert cell.versus_control.difference == pytest.approx(30.0)
    line = next(row for row in summary(read_store(store).records) if row["row"].endswith("with noise"))
    assert line["difference"] == pytest.approx(100.0)  # VAE+ with noise, over VAE+


def test_other_noise_is_never_the_best_and_is_not_compared_with_it(store):
    found = summarise(read_store(store).records)
    best = found.best(found.columns[0])
    assert str(best.row) == "RESIDUAL calibrated"
    assert best.versus_best is None
    entries = {str(line.row): line.entries[0] for line in likelihood_table(found).lines}
    assert entries["RESIDUAL calibrated with noise"].text == "1072.5"
    assert entries["RESIDUAL calibrated with noise"].level is None
    assert entries["RESIDUAL calibrated with noise"].p == ""
    assert entries["RESIDUAL"].p != ""
    index = _index(read_store(store).records, found)
    drawn = {index["rows"][cell[0]] for cell in index["cells"]}
    assert drawn == {"VAE+", "VAE+ calibrated", "RESIDUAL", "RESIDUAL calibrated"}


def test_a_note_says_that_it_is_another_model(store, tmp_path_factory):
    found = summarise(read_store(store).records)
    for table in (likelihood_table(found), gain_table(found)):
        assert any("another model of the data" in note for note in table.notes)
    plain = tmp_path_factory.mktemp("plain")
    add_run(plain, "VAE+", None)
    tables = all_tables(summarise(read_store(plain).records))
    assert not any("another model" in note for table in tables for note in table.notes)


def test_smallest_p_counts_the_rows_that_are_compared_with_the_best(store):
    """Holm's correction is for the three rows that are tested, not for those with other noise."""
    found = summarise(read_store(store).records, correct=True)
    note = next(note for note in likelihood_table(found).notes if "smallest possible p" in note)
    assert f"{3 / 64:.2g}" in note


def test_only_rows_with_other_noise_give_no_best(tmp_path):
    folder = add_run(tmp_path, "VAE+", None, test=1.0, inference={"noise": 1.25})
    assert means(tmp_path) == {"VAE+ calibrated with noise": 1.0}
    found = summarise(read_store(tmp_path).records)
    assert found.best(found.columns[0]) is None
    add_scores(folder, inference={}, iwae=3.0)
    add_scores(folder, inference={"noise": 1.5}, iwae=4.0)
    assert means(tmp_path) == {"VAE+": 3.0, "VAE+ calibrated with noise": 1.0, "VAE+ noise 1.5": 4.0}
    found = summarise(read_store(tmp_path).records)
    assert found.best(found.columns[0]).row == Row("VAE+")


def test_run_with_noise_by_default_and_one_without_get_different_rows(tmp_path):
    add_run(tmp_path, "X", None, test=1.0, validation=1.0)
    add_run(tmp_path, "X", None, test=2.0, validation=2.0, inference={"noise": 1.25})
    assert set(means(tmp_path)) == {"X [noise=1.0]", "X [noise=1.25] calibrated with noise"}


def test_summary_has_the_factor_only_where_the_noise_differs(store, tmp_path):
    rows = {row["row"]: row for row in summary(read_store(store).records)}
    assert rows["RESIDUAL calibrated with noise"]["noise"] == 1.25
    assert rows["RESIDUAL calibrated with noise"]["scale"] == 1.5
    assert "noise" not in rows["RESIDUAL calibrated"]
    write_runs(read_store(store).records, tmp_path / "runs.json")
    assert summary(read_runs(tmp_path / "runs.json")) == list(rows.values())
    assert "more" not in json.loads((tmp_path / "runs.json").read_text())["runs"][0]


def test_figures_leave_out_other_noise(store):
    rows = summary(read_store(store).records)
    assert "RESIDUAL calibrated with noise" in [line[1] for line in gains(rows)[1]]
    names = [point.name for points in panels(rows).values() for point in points]
    assert names == ["VAE+", "RESIDUAL"]
