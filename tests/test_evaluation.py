"""Scores: their errors, their memory."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from test_fit import SMALL, images

import recmix
from recmix.evaluation import posterior_milliseconds
from recmix.evaluation.bounds import decode_bytes
from recmix.evaluation.score import score
from recmix.evaluation.timing import PASSES, WARMUP, pass_milliseconds


@pytest.fixture(scope="module")
def model():
    return recmix.fit("vae", images(), **SMALL)


def test_score_is_the_mean_over_images_with_its_standard_error(model):
    data = recmix.data.from_arrays(images(), x_test=images(37, seed=2))
    found = score(model.method, data.x_test, samples=50, seed=4)
    elbo, iwae = model.bounds(data.x_test, 50, seed=4)
    assert found["iwae"] == pytest.approx(iwae.double().mean().item())
    assert found["iwae_se"] == pytest.approx(iwae.double().std().item() / np.sqrt(37))
    assert found["elbo"] == pytest.approx(elbo.double().mean().item())
    assert found["weights"] == [1.0]
    assert found["batch"] == 37
    assert found["milliseconds"] > 0


def test_decode_bytes_counts_the_decoders_activations(model):
    layers = [m for m in model.model.decoder.modules() if not list(m.children())]
    sizes = []
    hooks = [m.register_forward_hook(lambda *a: sizes.append(a[-1].numel())) for m in layers]
    model.decode(torch.zeros(1, 2))
    for hook in hooks:
        hook.remove()
    assert decode_bytes(model.model) >= 4 * sum(sizes)


def test_timing_counts_only_what_it_repeats(model):
    calls = []
    x = torch.zeros(3, 1, 8, 8)
    plain = model.method.posterior
    model.method.posterior = lambda x: (calls.append(1), plain(x))[1]
    try:
        posterior_milliseconds(model.method, x, repeats=5)
        assert len(calls) == WARMUP + 5
        calls.clear()
        assert len(pass_milliseconds(model.method, [x, x])) == PASSES
    finally:
        del model.method.posterior
    assert len(calls) == WARMUP + 2 * PASSES


PEAK = """
import resource, torch, numpy as np
torch.set_num_threads(1)
import recmix
from recmix.model.networks import make_decoder
x = np.random.default_rng(0).random((60, 1, 28, 28), np.float32)
model = recmix.fit("vae", x, latent=20, epochs=1, progress=False)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
few, many = x[:8], np.concatenate([x] * 20)
model.log_likelihood(few, samples=5000)
model.log_likelihood(many, samples=20)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(before // 1024, after // 1024)
"""


def test_memory_does_not_grow_with_the_number_of_samples_or_images():
    """IWAE-5000 in the largest chunks allowed: what a whole test set takes, only shorter."""
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert after < 2048
    assert after - before < 700


def test_a_score_forms_every_posterior_once_in_parts_that_fit(monkeypatch):
    from recmix.evaluation import score as module

    method = recmix.fit("vae", images(), **SMALL).refined(1, starts=3).method
    seen = []
    infer = type(method).infer
    monkeypatch.setattr(type(method), "infer", lambda self, x: (seen.append(len(x)), infer(self, x))[1])
    monkeypatch.setattr(module, "posterior_milliseconds", lambda *_: 1.0)
    memory = 12 * decode_bytes(method.model)
    module.score(method, images(30), samples=2, memory=memory)
    assert seen == [4] * 7 + [2]  # 12 vectors at a time, three for each image


def test_a_posterior_of_seconds_is_timed_once(monkeypatch):
    from recmix.evaluation import timing

    method = recmix.fit("vae", images(), **SMALL).method
    taken = []
    for seconds, passes in ((2.0, 2), (0.01, timing.WARMUP + 20)):
        taken.clear()
        monkeypatch.setattr(timing, "_once", lambda *_: (taken.append(1), seconds)[1])  # noqa: B023
        assert timing.posterior_milliseconds(method, torch.zeros(1)) == pytest.approx(1e3 * seconds)
        assert len(taken) == passes
