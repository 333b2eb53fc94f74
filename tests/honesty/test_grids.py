"""Grids calibrate and choose restarts on validation data, and read test examples last."""

import json

import numpy as np
import pytest
import torch
from cases.grids import grid, run_jobs
from cases.honesty import data_of, seal_until_scored
from cases.reports import add_run, write
from cases.training import images

from recmix.evaluation.bounds import bounds
from recmix.evaluation.calibrate import calibrate
from recmix.inference import Inference
from recmix.reports.read_store import read_store
from recmix.reports.statistics import select, summarise
from recmix.runs.scores import ScoreKey
from recmix.training.build import load_trained

RESTARTS = 3


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Data with sealed and inverted test images, a store with all runs of a grid, and its jobs.

    Training images are darker than validation images.
    """
    folder = tmp_path_factory.mktemp("sealed")
    parts = 0.3 * images(100), images(60, seed=1), 1 - images(60, seed=2)
    names = ("x_train", "x_val", "x_test")
    np.savez(folder / "parts.npz", **dict(zip(names, parts, strict=True)))
    data = data_of(*parts, sealed=True)
    stage = {"epochs": 3, "batch_size": 20, "learning_rate": 5e-3}
    jobs = grid(
        protocol={"splits": 1, "restarts": RESTARTS, "samples": [3]},
        columns=[{"data": str(folder / "parts.npz"), "latent": 2, "network": "dense"}],
        budget={"first": stage, "second": stage | {"epochs": 1}},
        methods=[{"name": "vae", "continued": True, "calibrated": "noise"}],
    ).jobs
    with pytest.MonkeyPatch.context() as patch:
        asked = seal_until_scored(patch)
        patch.setattr("recmix.data.load", lambda *place, **how: data)
        store = run_jobs(folder / "store", jobs)
    data.x_test.is_open = True
    return data, store, jobs, asked


def test_grids_read_test_examples_for_test_scores_alone(done):
    _, store, jobs, asked = done
    names = [name for job in jobs for name in store.run(job.digest).scores()]
    assert len(asked) == sum(name.startswith("test/") for name in names)
    assert any(name.startswith("val/") for name in names)


@pytest.mark.parametrize("noise", [False, True], ids=["scale", "noise"])
def test_grids_calibrate_on_validation_data(done, noise):
    data, store, jobs, _ = done
    job = jobs[-1]
    method = load_trained(store.folder(job.digest), device="cpu").method
    key = str(ScoreKey("test", 3, Inference(), calibrated=True, noise=noise))
    used = store.run(job.digest).scores()[key]["inference"]
    found = {}
    for part in ("x_val", "x_train", "x_test"):
        x = torch.from_numpy(getattr(data, part)[:])
        found[part] = calibrate(method, x, samples=3, noise=noise).inference.to_json()
    assert used == found["x_val"]
    assert used not in (found["x_train"], found["x_test"])


def test_the_bound_that_chooses_a_restart_is_that_of_validation_data(done):
    data, store, *_ = done
    records = [record for record in read_store(store.root).records if record.row.label == "VAE"]
    assert len(records) == RESTARTS
    for record in records:
        trained = load_trained(store.root / record.folder, device="cpu")
        samples = trained.spec.training.validation_samples
        found = {}
        for part in ("x_val", "x_train", "x_test"):
            x = torch.from_numpy(getattr(data, part)[:])
            noise = torch.Generator().manual_seed(0)
            found[part] = float(bounds(trained.method, x, samples=samples, generator=noise).iwae.mean())
        nearest = min(found, key=lambda part: abs(found[part] - record.validation))
        assert nearest == "x_val"
        assert record.validation == pytest.approx(found["x_val"], abs=5)


def test_reports_choose_the_restart_with_the_best_validation_bound(tmp_path):
    """Restart 0 is best on test data, restart 1 on validation data, restart 2 on training data."""
    for restart, (validation, test) in enumerate([(10.0, 90.0), (30.0, 20.0), (20.0, 50.0)]):
        run = add_run(tmp_path, "VAE+", None, restart=restart, validation=validation, test=test)
        if restart == 2:
            history = json.loads((run / "history.json").read_text())
            write(run / "history.json", [row | {"elbo": row["elbo"] + 1000} for row in history])
    records = read_store(tmp_path).records
    assert select(records)[0].restart == 1
    (cell,) = summarise(records).cells.values()
    assert cell.mean == 20.0
