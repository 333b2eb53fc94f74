"""On a GPU: deterministic training, and too little memory. Skipped without a CUDA device."""

import gc
import signal
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from cases.runs import same_run
from cases.training import images
from torch import nn

import recmix
from recmix.accelerate.graph_engines import GraphEngine
from recmix.data import from_texts
from recmix.errors import ConfigError, Interrupted, OutOfMemory
from recmix.methods.registry import METHODS
from recmix.runs.folder import Run
from recmix.training import job as jobs
from recmix.training.engines import Eager

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
GPU = {"device": "cuda", "progress": False}
SMALL = {"latent": 3, "epochs": 2, "batch_size": 32, "deterministic": True, **GPU}
TEXTS = [f"{a} {b} {c}" for a in "abcdefgh" for b in "ijklm" for c in ("here", "there", "away", "far")]
KINDS = {
    **{name: {"method": name} for name in sorted(METHODS)},
    "eager": {"method": "vae", "engine": "eager"},
    "resnet": {"method": "vae", "network": "resnet"},
    "mlp": {"method": "vae", "network": "mlp"},
    "muon": {"method": "vae", "optimizer": "muon", "weight_average": 0.9},
    "iwae": {"method": "vae", "objective": "iwae", "max_gradient_norm": 10.0},
    "distilled": {"method": "rme", "order": 2, "train": "encoder", "distil": 0.5},
    "augmented": {"method": "vae", "train": "encoder", "augment": 0.3, "decoder_samples": 0.3},
    "refined": {"method": "vae", "refine": 1},
    "texts": {"method": "vae", "data": "texts", "units": 16, "blocks": 1},
    "gru": {"method": "vae", "data": "texts", "units": 16, "blocks": 1, "causal": "gru"},
}


def train(kind, folder, **more):
    given = {"data": None} | KINDS[kind] | SMALL | more
    if METHODS[given["method"]].starts_from:
        given["vae_epochs"] = 1
    elif given.get("train") == "encoder":
        given["init"] = recmix.fit(
            "vae", recmix.data.from_arrays(images(300, size=12)), **SMALL | {"epochs": 1}
        )
    data = from_texts(TEXTS) if given.pop("data") else recmix.data.from_arrays(images(300, size=12))
    return recmix.fit(given.pop("method"), data, out=folder, **given)


@pytest.mark.parametrize("kind", KINDS)
def test_deterministic_training_and_resume_give_the_same_bits(kind, tmp_path, monkeypatch):
    train(kind, tmp_path / "one")
    train(kind, tmp_path / "two")
    same_run(tmp_path / "one", tmp_path / "two")
    sent = []
    plain = {engine: engine.step for engine in (Eager, GraphEngine)}

    def step(self):
        state = self.jobs[0].state
        if (state.epoch, state.step) == (1, 2) and not sent:
            sent.append(True)
            signal.raise_signal(signal.SIGTERM)
        plain[type(self)](self)

    for engine in plain:
        monkeypatch.setattr(engine, "step", step)
    with pytest.raises(Interrupted, match="epoch 2, batch 3; saved"):
        train(kind, tmp_path / "stopped")
    train(kind, tmp_path / "stopped", resume=True)
    same_run(tmp_path / "stopped", tmp_path / "one")


def test_deterministic_models_that_are_trained_together_repeat(tmp_path):
    data = recmix.data.from_arrays(images(300, size=12))

    def both(folder):
        recmix.fit_many(
            [
                {"method": "vae", "data": data, "seed": seed, "out": tmp_path / folder / str(seed)}
                | {k: v for k, v in SMALL.items() if k != "progress"}
                for seed in (0, 1)
            ],
            progress=False,
        )

    both("one")
    both("two")
    for seed in ("0", "1"):
        same_run(tmp_path / "one" / seed, tmp_path / "two" / seed)


def test_operation_that_is_not_deterministic_is_named():
    encoder = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(36, 2 * SMALL["latent"])
    )
    with pytest.raises(ConfigError, match="the operation adaptive_avg_pool2d_backward_cuda of torch is"):
        recmix.fit("vae", images(300, size=12), encoder=encoder, **SMALL)
    assert not torch.are_deterministic_algorithms_enabled()
    with pytest.raises(ConfigError, match="global random generator"):
        recmix.fit("vae", images(300, size=12), network="mlp", dropout=0.5, **SMALL)


@contextmanager
def little_memory(more):
    """Let this process use only `more` bytes of the GPU in addition to what it uses now."""
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + more) / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        gc.collect()
        torch.cuda.empty_cache()


def test_training_without_memory_can_be_resumed(tmp_path):
    x = np.random.default_rng(0).random((2048, 1, 64, 64), np.float32)
    given = {"latent": 4, "batch_size": 1024, "deterministic": True, **GPU}
    recmix.fit("vae", x, out=tmp_path / "whole", epochs=2, **given)
    recmix.fit("vae", x, out=tmp_path / "run", epochs=1, **given)
    with little_memory(100 << 20):
        with pytest.raises(OutOfMemory) as stop:
            recmix.fit("vae", x, out=tmp_path / "run", epochs=2, resume=True, **given)
        message = str(stop.value)
        del stop
    assert "lower batch_size (now 1024), or use engine = eager." in message
    assert "continues from its last checkpoint" in message
    assert Run(tmp_path / "run").status()["status"] == "failed"
    recmix.fit("vae", x, out=tmp_path / "run", epochs=2, resume=True, **given)
    same_run(tmp_path / "run", tmp_path / "whole")
    assert [row["epoch"] for row in Run(tmp_path / "run").history()] == [1, 2]


def test_graph_without_memory_gives_the_eager_engine(tmp_path, monkeypatch):
    """The capture fails once for lack of memory; the training goes on without a graph."""
    plain = jobs.Job.step
    failed = []

    def step(self):
        if not failed:
            failed.append(True)
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        plain(self)

    monkeypatch.setattr(jobs.Job, "step", step)
    with pytest.warns(UserWarning, match="graph engine failed: .*out of memory"):
        model = recmix.fit(
            "vae", images(300, size=12), latent=3, epochs=1, engine="graph", out=tmp_path, **GPU
        )
    assert model.history[0]["val_iwae"] == model.history[0]["val_iwae"]
    assert "eager engine: graph engine failed" in (tmp_path / "log.jsonl").read_text()


def test_refinement_and_evaluation_without_memory_name_what_to_lower():
    x = np.random.default_rng(0).random((4096, 1, 64, 64), np.float32)
    model = recmix.fit("vae", x[:500], latent=4, epochs=1, **GPU)
    with little_memory(100 << 20):
        with pytest.raises(OutOfMemory, match="give fewer examples at a time, or lower restarts"):
            model.refined(2).using(restarts=4).posterior(x)
        gc.collect()
        torch.cuda.empty_cache()
        with pytest.raises(OutOfMemory, match="lower memory .--memory"):
            model.log_likelihood(x, 1000, memory=1 << 40)
    assert model.refined(2).log_likelihood(x[:100], 10).isfinite().all()
