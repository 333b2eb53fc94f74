"""Columns: runs share one only if data and all options of the model are the same."""

import json
from dataclasses import fields

import pytest
from cases.reports import add_run

from recmix.model.options import ModelOptions
from recmix.reports.published import best_printed, likelihood_of, time_of
from recmix.reports.read_store import read_store
from recmix.reports.records import NOT_IN_COLUMN, Row, TableColumn
from recmix.reports.runs import read_runs, write_runs
from recmix.reports.statistics import summarise

OTHER = {
    "latent": 21,
    "likelihood": "bernoulli",
    "variance": 0.5,
    "classes": 3,
    "node_classes": 3,
    "edge_classes": 3,
    "end_token": True,
    "causal": "gru",
    "standardise": "features",
    "prior": "mixture",
    "prior_components": 9,
    "network": "mlp",
    "decoder_network": "dense",
    "widths": (64, 32),
    "blocks": 3,
    "units": 64,
    "heads": 2,
    "activation": "tanh",
    "normalisation": "layer",
    "dropout": 0.1,
    "token_dropout": 0.1,
}
"""Another value of each option of a model."""


def columns(store):
    return [str(column) for column in summarise(read_store(store).records).columns]


def test_another_value_of_each_option_is_tried_here():
    assert set(OTHER) == {field.name for field in fields(ModelOptions)} - set(NOT_IN_COLUMN)


def test_a_curvature_network_does_not_change_the_column(tmp_path):
    add_run(tmp_path, "VAE", None, test=1.0)
    add_run(tmp_path, "VAE with curvature", None, test=2.0, job=False, model={"curvature": "full"})
    assert len(columns(tmp_path)) == 1


@pytest.mark.parametrize("name", OTHER)
def test_runs_that_differ_in_an_option_of_the_model_do_not_share_a_column(name, tmp_path):
    add_run(tmp_path, "VAE", None, test=1.0)
    own = {"latent": 20, "likelihood": "gaussian", "decoder_network": "conv"} | {name: OTHER[name]}
    direct = {key: own.pop(key) for key in ("latent", "likelihood", "decoder_network")}
    add_run(tmp_path, "VAE", None, test=2.0, job=False, model=own, **direct)
    assert len(columns(tmp_path)) == 2
    assert "MNIST, dim 20" in columns(tmp_path)
    found = summarise(read_store(tmp_path).records)
    assert sorted(cell.mean for cell in found.cells.values()) == [1.0, 2.0]
    write_runs(read_store(tmp_path).records, tmp_path / "runs.json")
    again = summarise(read_runs(tmp_path / "runs.json"))
    assert again.columns == found.columns


def test_title_names_the_options():
    column = TableColumn(data="table", latent=3, likelihood="poisson", more="widths=64,32, prior=vamp")
    assert str(column) == "table, poisson, widths=64,32, prior=vamp, dim 3"


def test_image_files_of_another_size_get_another_column(tmp_path):
    for size in (None, 32, 64):
        folder = add_run(tmp_path, "VAE", None, data="celeba", job=False, name=f"vae-{size}")
        spec = json.loads((folder / "spec.json").read_text())
        spec["data"]["options"] = {"size": size, "crop": None}
        (folder / "spec.json").write_text(json.dumps(spec))
    found = ["CelebA, dim 20", "CelebA, size=32, dim 20", "CelebA, size=64, dim 20"]
    assert columns(tmp_path) == found


def test_the_vocabulary_of_a_split_does_not_change_the_column(tmp_path):
    for split, classes in ((0, 61), (1, 62)):
        model = {"classes": classes, "end_token": True, "network": "transformer"}
        folder = add_run(tmp_path, "VAE", None, data="zinc250k", job=False, split=split, model=model)
        spec = json.loads((folder / "spec.json").read_text())
        spec["data"]["options"] = {"length": 60}
        spec["data"]["vocabulary"] = {"kind": "smiles", "sha256": "0"}
        (folder / "spec.json").write_text(json.dumps(spec))
    (column,) = columns(tmp_path)
    assert "length=60" in column
    assert "classes" not in column


def test_the_paper_has_no_numbers_for_other_options():
    usual = TableColumn(data="mnist", latent=50)
    other = TableColumn(data="mnist", latent=50, more="prior=vamp")
    for find, row in ((likelihood_of, Row("RME", 4)), (time_of, Row("VAE"))):
        assert find(row, usual) is not None
        assert find(row, other) is None
    assert best_printed(other) is None


def test_the_networks_are_those_that_were_trained(tmp_path):
    """A grid leaves the networks open; the data choose them."""
    folder = add_run(
        tmp_path, "VAE", None, data="table", model={"network": "mlp"}, decoder_network="mlp"
    )
    job = json.loads((folder / "job.json").read_text()) | {"network": "auto", "decoder_network": "auto"}
    job["variance"] = None
    (folder / "job.json").write_text(json.dumps(job))
    assert columns(tmp_path) == ["table, mlp networks, dim 20"]
    waiting = tmp_path / "waiting"
    waiting.mkdir()
    (waiting / "job.json").write_text(json.dumps(job | {"digest": "waiting", "split": 1}))
    assert columns(tmp_path) == ["table, mlp networks, dim 20"]
    (waiting / "job.json").write_text(
        json.dumps(job | {"digest": "waiting", "prior": "vamp", "widths": [64], "network": "mlp"})
    )
    assert columns(tmp_path)[0] == "table, mlp encoder, auto decoder, prior=vamp, widths=64, dim 20"
    (waiting / "job.json").write_text(json.dumps(job | {"digest": "waiting", "blocks": 0}))
    (message,) = read_store(tmp_path).problems
    assert "blocks must be at least 1" in message
