"""A small grid that takes seconds, and comparisons of stores."""

import json
import tomllib

import numpy as np

from recmix.experiments.grid import expand
from recmix.experiments.store import Store
from recmix.experiments.worker import work
from recmix.runs.folder import Run

TOML = """
title = "Small"
protocol = {{ splits = 1, restarts = 1, samples = [3] }}
[budget]
first = {{ epochs = {epochs}, batch_size = 64 }}
second = {{ epochs = {second}, batch_size = 64, learning_rate = 1e-4 }}
[[columns]]
data = "{data}"
latent = 2
[[methods]]
{method}
"""
RME = 'name = "rme"\norder = 2'


def content(**changes):
    """The content of the small grid, on digits."""
    return tomllib.loads(TOML.format(data="digits", method=RME, epochs=1, second=1)) | changes


def grid(**changes):
    return expand(content(**changes), "small")


def write_grid(folder, *, data=None, method=RME, epochs=1, second=1):
    """The file of the small grid; by default for an array of images, which loads faster than digits."""
    if data is None:
        data = folder / "mine.npy"
        noise = np.random.default_rng(0).random((300, 1, 4, 4)).repeat(2, 2).repeat(2, 3)
        np.save(data, (255 * noise).astype(np.uint8))
    path = folder / "small.toml"
    path.write_text(TOML.format(data=data, method=method, epochs=epochs, second=second))
    return path


def run_jobs(folder, jobs):
    """Do all jobs in this process, one after another: the reference for other ways to do them."""
    store = Store(folder)
    for job in jobs:
        store.prepare(job, threads=1)
        assert work(store, job.digest, device="cpu") == "done", store.failure(job.digest)
    return store


def results(store, digest):
    """Everything of a run that must be reproducible: all but times."""
    run = Run(store.folder(digest))
    scores = {
        key: {k: v for k, v in score.items() if k != "milliseconds"}
        for key, score in run.scores().items()
    }
    return run.history(), run.weights.read_bytes(), scores, run.status()


def assert_same_results(one, two, jobs):
    for job in jobs:
        assert one.state(job).kind == two.state(job).kind == "done", job.title
        assert results(one, job.digest) == results(two, job.digest), job.title


def training_starts(store, digest):
    """How often training was started or resumed."""
    lines = (store.folder(digest) / "log.jsonl").read_text().splitlines()
    return sum(json.loads(line)["event"] == "start" for line in lines)
