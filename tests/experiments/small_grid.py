"""A grid that is done in seconds, and how stores are compared."""

import json

import numpy as np

from recmix.experiments.grid import expand
from recmix.experiments.store import Store
from recmix.experiments.worker import work
from recmix.runs.folder import Run

TOML = """
title = "Small"
[protocol]
splits = 1
restarts = 1
samples = [3]
[budget]
first = {{ epochs = {epochs}, batch_size = 64 }}
second = {{ epochs = {second}, batch_size = 64, learning_rate = 1e-4 }}
[[columns]]
data = "{data}"
latent = 2
[[methods]]
{method}
"""


def content(**changes):
    """The small grid as TOML would give it."""
    return {
        "title": "Small",
        "protocol": {"splits": 1, "restarts": 1, "samples": [3]},
        "budget": {
            "first": {"epochs": 1, "batch_size": 64},
            "second": {"epochs": 1, "batch_size": 64, "learning_rate": 1e-4},
        },
        "columns": [{"data": "digits", "latent": 2}],
        "methods": [{"name": "rme", "order": 2}],
        **changes,
    }


def grid(**changes):
    return expand(content(**changes), "small")


def write_grid(folder, *, data=None, method='name = "rme"\norder = 2', epochs=1, second=1):
    """The grid's file; by default of images in a file of their own, read faster than the digits."""
    if data is None:
        data = folder / "mine.npy"
        noise = np.random.default_rng(0).random((300, 1, 4, 4)).repeat(2, 2).repeat(2, 3)
        np.save(data, (255 * noise).astype(np.uint8))
    path = folder / "small.toml"
    path.write_text(TOML.format(data=data, method=method, epochs=epochs, second=second))
    return path


def do_here(folder, jobs):
    """All runs of a grid, one after another in this process: what a store should hold."""
    store = Store(folder)
    for job in jobs:
        store.prepare(job, threads=1)
        assert work(store, job.digest, device="cpu") == "done", store.failure(job.digest)
    return store


def results(store, digest):
    """All of a run that must be the same whenever it is done again: everything but times."""
    run = Run(store.folder(digest))
    scores = {
        key: {k: v for k, v in score.items() if k != "milliseconds"}
        for key, score in run.scores().items()
    }
    return run.history(), run.weights.read_bytes(), scores, run.status()


def same_stores(one, two, jobs):
    for job in jobs:
        assert one.state(job).kind == two.state(job).kind == "done", job.title
        assert results(one, job.digest) == results(two, job.digest), job.title


def starts(store, digest):
    """How often training was begun or taken up again."""
    lines = (store.folder(digest) / "log.jsonl").read_text().splitlines()
    return sum(json.loads(line)["event"] == "start" for line in lines)
