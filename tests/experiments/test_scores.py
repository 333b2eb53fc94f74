"""Scores of finished runs: which data they use, which inference, and what a new score costs."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from cases.grids import grid, run_jobs, training_starts
from cases.training import images

from recmix.data import load
from recmix.evaluation.calibrate import calibrate
from recmix.evaluation.score import score
from recmix.experiments.store import Store
from recmix.experiments.worker import work
from recmix.inference import Inference
from recmix.reports.read_store import read_store
from recmix.reports.statistics import summarise
from recmix.runs.scores import ScoreKey
from recmix.training.build import load_trained


@pytest.fixture
def small(tmp_path):
    """Arguments of `grid` for a few small images."""
    np.save(tmp_path / "few.npy", images(60))
    return {"columns": [{"data": str(tmp_path / "few.npy"), "latent": 2}]}


@pytest.fixture(scope="module")
def disagreeing(tmp_path_factory):
    """The data, a store with VAE and VAE+ in three restarts, and its jobs by row and restart.

    The test images are inverted, so the better a restart is on validation, the worse it is on test.
    """
    folder = tmp_path_factory.mktemp("disagreeing")
    parts = {"x_train": images(200), "x_val": images(60, seed=1), "x_test": 1 - images(60, seed=2)}
    np.savez(folder / "parts.npz", **parts)
    jobs = grid(
        protocol={"splits": 1, "restarts": 3, "samples": [3]},
        columns=[{"data": str(folder / "parts.npz"), "latent": 2}],
        budget={
            "first": {"epochs": 8, "batch_size": 20, "learning_rate": 5e-3},
            "second": {"epochs": 1, "batch_size": 20, "learning_rate": 1e-4},
        },
        methods=[{"name": "vae", "continued": True, "calibrated": True, "refined": [1]}],
    ).jobs
    store = run_jobs(folder / "store", jobs)
    return load(folder / "parts.npz"), store, {(job.row, job.restart): job for job in jobs}


def scores(store, job):
    return store.run(job.digest).scores()


def test_calibration_uses_validation_data(disagreeing):
    data, store, jobs = disagreeing
    plus = jobs["VAE+", 0]
    method = load_trained(store.folder(plus.digest), device="cpu").method
    x_val, x_test = (torch.from_numpy(part[:]) for part in (data.x_val, data.x_test))
    for key in filter(lambda key: key.calibrated, map(ScoreKey.parse, plus.evaluate)):
        found = scores(store, plus)[str(key)]
        used = calibrate(method, x_val, key.inference, samples=3).inference
        assert found["inference"] == used.to_json()
        assert found["iwae"] == score(method, data.x_test, used, samples=3)["iwae"]
    assert used.refine == 1
    found = Inference(**scores(store, plus)["test/3/calibrated"]["inference"])
    assert found != calibrate(method, x_test, samples=3).inference


def test_calibrated_noise_has_its_own_scores_and_rows(tmp_path):
    """Vectors with a Gaussian likelihood, from the file to the rows of the report."""
    x = np.random.default_rng(0).normal(size=(90, 6)).astype(np.float32)
    np.save(tmp_path / "table.npy", x)
    jobs = grid(
        columns=[{"data": str(tmp_path / "table.npy"), "latent": 2, "variance": 0.01}],
        methods=[{"name": "vae", "continued": True, "calibrated": "noise"}],
    ).jobs
    store = run_jobs(tmp_path / "store", jobs)
    found = scores(store, jobs[1])
    assert set(found) == {"test/3", "test/3/calibrated", "test/3/calibrated+noise", "val/3"}
    assert found["test/3/calibrated"]["inference"]["noise"] == 1
    noisy = found["test/3/calibrated+noise"]
    data = load(tmp_path / "table.npy")
    method = load_trained(store.folder(jobs[1].digest), device="cpu").method
    held_out = torch.from_numpy(data.x_val[:])
    used = calibrate(method, held_out, samples=3, noise=True).inference
    assert used.noise > 2  # the variance is much too small for these data
    assert noisy["inference"] == used.to_json()
    assert noisy["iwae"] > found["test/3/calibrated"]["iwae"] + 10
    results = summarise(read_store(store.root).records, samples=3)
    assert {str(row) for row, _ in results.cells} == {
        "VAE",
        "VAE+",
        "VAE+ calibrated",
        "VAE+ calibrated with noise",
    }
    (column,) = results.columns
    assert column.title.endswith("table.npy, mlp networks, variance=0.01")


def test_calibration_uses_the_first_validation_examples(disagreeing, monkeypatch, tmp_path):
    data, store, jobs = disagreeing
    vae, name = jobs["VAE", 0], "test/3/calibrated"
    method = load_trained(store.folder(vae.digest), device="cpu").method
    copy = Store(tmp_path)
    copy.unpack(vae.digest, store.pack(vae.digest))
    few = torch.from_numpy(data.x_val[:4])
    expected = calibrate(method, few, samples=3).inference
    assert expected != calibrate(method, torch.from_numpy(data.x_val[:]), samples=3).inference
    monkeypatch.setattr("recmix.evaluation.calibrate.EXAMPLES", 4)
    copy.prepare(replace(vae, evaluate=(name,)), threads=1)
    assert work(copy, vae.digest, device="cpu") == "done"
    assert Inference(**scores(copy, vae)[name]["inference"]) == expected


def test_restarts_are_selected_on_validation_data(disagreeing):
    data, store, jobs = disagreeing
    bounds = {
        part: [scores(store, jobs["VAE", restart])[f"{part}/3"]["iwae"] for restart in range(3)]
        for part in ("val", "test")
    }
    best = int(np.argmax(bounds["val"]))
    assert best == int(np.argmin(bounds["test"]))  # the test data would select another restart
    method = load_trained(store.folder(jobs["VAE", best].digest), device="cpu").method
    assert score(method, data.x_val, samples=3)["iwae"] == pytest.approx(bounds["val"][best])
    results = summarise(read_store(store.root).records, samples=3)
    chosen = {str(row): cell.chosen[0].restart for (row, _), cell in results.cells.items()}
    assert chosen["VAE"] == best
    assert set(chosen) == {
        "VAE",
        "VAE+",
        "VAE+ calibrated",
        "VAE+ +1 step",
        "VAE+ +1 step, calibrated",
    }


def test_another_inference_is_scored_without_training(tmp_path, small):
    """One run, whose corrections are scored with 1 and then with 3 restarts: both scores are kept."""

    def asked(**options):
        return grid(**small, methods=[{"name": "residual", "calibrated": True, **options}]).jobs

    jobs, more = asked(), asked(restarts=3, refined=[1])[-1]
    one = jobs[-1]
    assert one.digest == more.digest
    store = run_jobs(tmp_path / "store", jobs)
    before = scores(store, one)
    assert store.state(one).kind == "done"
    assert store.state(more).reason == "not scored: " + ", ".join(more.evaluate)
    store.prepare(more, threads=1)
    assert work(store, more.digest, device="cpu") == "done"
    now = scores(store, one)
    assert {key: now[key] for key in before} == before
    assert now["test/3/restarts=3"]["iwae"] != now["test/3"]["iwae"]
    assert store.state(more).kind == store.state(one).kind == "done"
    assert training_starts(store, one.digest) == 1
    for key, found in now.items():
        restarts = 1 if key in before else 3
        assert found["inference"]["restarts"] == restarts
        assert (found["kind"], found["steps"]) == (
            ("refined", 1) if "refine=1" in key else ("feed-forward", 0)
        )


def test_rows_that_start_from_other_rows_are_trained_and_refined(tmp_path, small):
    methods = [
        {"name": "vae", "label": "DECODER", "after": "VAE", "refine": 1},
        {"name": "vae", "label": "ENCODER", "after": "DECODER", "train": "encoder", "refined": [2]},
    ]
    jobs = grid(**small, methods=methods).jobs
    store = run_jobs(tmp_path / "store", jobs)
    found = {job.row: scores(store, job) for job in jobs}
    decoder = "test/3/gauss-newton,refine=1,reuse=2,restarts=1,checks=1"
    assert found["DECODER"].keys() == {decoder, decoder.replace("test", "val")}
    assert found["DECODER"][decoder]["inference"] == Inference(refine=1).to_json()
    refined = "test/3/gauss-newton,refine=2,reuse=2,restarts=1,checks=1"
    assert found["ENCODER"][refined]["elbo"] > found["ENCODER"]["test/3"]["elbo"]


def test_labels_and_default_inferences_of_specs_match_the_grid(tmp_path, small):
    methods = [
        {"name": "rme", "order": 2},
        {"name": "vae", "continued": True, "refine": 1},
        {"name": "residual", "restarts": 2, "epochs": 2},
    ]
    jobs = grid(**small, methods=methods).jobs
    store = run_jobs(tmp_path / "store", jobs)
    for job in jobs:
        spec = store.run(job.digest).spec()
        assert spec.label == job.label
        assert f"test/3/{spec.inference.key}".rstrip("/") == job.evaluate[0]
    results = summarise(read_store(store.root).records, samples=3)
    names = {str(row) for row, _ in results.cells}
    assert {"VAE", "VAE+", "RME(2)", "RESIDUAL(3) 2 restarts"} < names
