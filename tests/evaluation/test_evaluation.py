"""Scores: their standard errors, the memory they need, and the time of a posterior."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from cases.contract import make
from cases.training import SMALL, images

import recmix
from recmix.evaluation import posterior_milliseconds, timing
from recmix.evaluation import score as score_module
from recmix.evaluation.bounds import bounds
from recmix.evaluation.score import kind_of_inference, score
from recmix.evaluation.timing import PASSES, WARMUP, pass_milliseconds
from recmix.inference import Inference
from recmix.methods.method import infer
from recmix.model.latent import LatentModel, decode_bytes
from recmix.model.likelihoods import Gaussian


@pytest.fixture(scope="module")
def model():
    return recmix.fit("vae", images(), **SMALL)


def test_score_is_the_mean_with_its_standard_error(model):
    data = recmix.data.from_arrays(images(), x_test=images(37, seed=2))
    found = score(model.method, data.x_test, samples=50, seed=4)
    elbo, iwae = model.bounds(data.x_test, 50, seed=4)
    assert found["iwae"] == pytest.approx(iwae.double().mean().item())
    assert found["iwae_se"] == pytest.approx(iwae.double().std().item() / np.sqrt(37))
    assert found["elbo"] == pytest.approx(elbo.double().mean().item())
    assert found["elbo_se"] == pytest.approx(elbo.double().std().item() / np.sqrt(37))
    assert found["weights"] == [1.0]
    assert found["batch"] == found["images"] == 37
    assert found["milliseconds"] > 0
    assert (found["samples"], found["seed"], found["device"]) == (50, 4, "cpu")
    assert found["inference"] == Inference().to_json()


def test_score_uses_the_inference(model):
    data = recmix.data.from_arrays(images(), x_test=images(20, seed=2))
    used = Inference(refine=2, scale=0.9)
    found = score(model.method, data.x_test, used, samples=10, seed=4)
    elbo, _ = model.using(refine=2, scale=0.9).bounds(data.x_test, 10, seed=4)
    assert found["elbo"] == pytest.approx(elbo.double().mean().item())
    assert found["inference"] == used.to_json()
    assert (found["kind"], found["steps"]) == ("refined", 2)


@pytest.mark.parametrize(
    ("name", "options", "inference", "kind", "steps"),
    [
        ("vae", {}, Inference(), "encoder", 0),
        ("vae", {}, Inference(scale=2.0), "encoder", 0),
        ("vae", {}, Inference(refine=3), "refined", 3),
        ("rme", {"order": 2}, Inference(), "encoder", 0),
        ("rme", {"order": 3, "component": "residual"}, Inference(), "feed-forward", 0),
        ("residual", {}, Inference(restarts=3), "feed-forward", 0),
        ("residual", {}, Inference(refine=2), "refined", 2),
        ("sa", {"steps": 4}, Inference(), "refined", 4),
        ("vlae", {"steps": 2}, Inference(refine=1), "refined", 3),
    ],
)
def test_kind_of_inference(name, options, inference, kind, steps):
    assert kind_of_inference(make(name, **options), inference) == {"kind": kind, "steps": steps}


def test_decode_bytes_counts_the_activations_of_the_decoder(model):
    layers = [m for m in model.latent_model.decoder.modules() if not list(m.children())]
    sizes = []
    hooks = [m.register_forward_hook(lambda *a: sizes.append(a[-1].numel())) for m in layers]
    model.decode(torch.zeros(1, 2))
    for hook in hooks:
        hook.remove()
    assert decode_bytes(model.latent_model) >= 4 * sum(sizes)


def test_memory_measurement_keeps_the_mode_of_each_layer():
    frozen = torch.nn.BatchNorm1d(5)
    decoder = torch.nn.Sequential(torch.nn.Linear(2, 5), frozen)
    model = LatentModel(decoder, Gaussian(), latent=2, shape=(5,)).train()
    frozen.eval()
    decode_bytes(model)
    assert model.training
    assert decoder.training
    assert not frozen.training


def test_timing_counts_only_what_it_repeats(model, monkeypatch):
    calls = []
    x = torch.zeros(3, 1, 8, 8)
    monkeypatch.setattr(timing, "infer_no_grad", lambda *given: (calls.append(1), infer(*given))[1])
    posterior_milliseconds(model.method, x, repeats=5)
    assert len(calls) == WARMUP + 5
    calls.clear()
    assert len(pass_milliseconds(model.method, [x, x])) == PASSES
    assert len(calls) == WARMUP + 2 * PASSES


PEAK = """
import resource, torch, numpy as np
torch.set_num_threads(1)
import recmix
x = np.random.default_rng(0).random((60, 1, 28, 28), np.float32)
model = recmix.fit("vae", x, latent=20, epochs=1, progress=False, device="cpu")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
few, many = x[:8], np.concatenate([x] * 10)
model.log_likelihood(few, samples=2500)
model.log_likelihood(many, samples=20)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(before // 1024, after // 1024)
"""


def test_memory_does_not_grow_with_the_number_of_samples_or_examples():
    """20,000 samples of few examples, then 12,000 of many, which together would not fit."""
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert after - before < 700


def test_score_forms_every_posterior_once_in_chunks_that_fit(monkeypatch, model):
    used = Inference(refine=1, restarts=3)
    sizes = []

    def counted(method, x, inference):
        sizes.append(len(x))
        return infer(method, x, inference)

    monkeypatch.setattr(score_module, "infer", counted)
    monkeypatch.setattr(score_module, "posterior_milliseconds", lambda *_: 1.0)
    data = recmix.data.from_arrays(images(), x_test=images(30, seed=2))
    score(model.method, data.x_test, used, samples=2, memory=12 * decode_bytes(model.latent_model))
    assert sizes == [4] * 7 + [2]  # 12 latent vectors at a time, three for each example


def test_bounds_of_restarts_fit_in_memory(monkeypatch, model):
    sizes = []

    def counted(method, x, inference):
        sizes.append(len(x))
        return infer(method, x, inference)

    monkeypatch.setattr(sys.modules["recmix.evaluation.bounds"], "infer", counted)
    memory = 12 * decode_bytes(model.latent_model)
    x = torch.from_numpy(images(30))
    found = bounds(model.method, x, Inference(refine=1, restarts=3), samples=2, memory=memory)
    assert sizes == [4] * 7 + [2]
    assert found.elbo.shape == found.iwae.shape == (30,)


def test_slow_posterior_is_timed_once(monkeypatch, model):
    taken = []
    for seconds, passes in ((1.5, 2), (0.9, timing.WARMUP + 20)):
        taken.clear()
        monkeypatch.setattr(timing, "_once", lambda *_: (taken.append(1), seconds)[1])  # noqa: B023
        found = timing.posterior_milliseconds(model.method, torch.zeros(1))
        assert found == pytest.approx(1e3 * seconds)
        assert len(taken) == passes
