"""Without `recmix.accelerate` everything works and gives the same numbers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from recmix.model.replaceable import replaceable

SCRIPT = """
import json, sys
if sys.argv[1] == "without":
    sys.modules["recmix.accelerate"] = None  # importing it is now an error
sys.path.insert(0, sys.argv[3])
import torch
import recmix
from cases.training import images
torch.set_num_threads(1)
torch.backends.cudnn.allow_tf32 = False
data = recmix.data.from_arrays(images(), x_test=images(12, seed=1))
small = {"latent": 2, "epochs": 2, "batch_size": 20, "learning_rate": 1e-3, "progress": False}
small |= {"device": sys.argv[2], "dtype": sys.argv[4]}
vae = recmix.fit("vae", data, **small)
rme = recmix.fit("rme", data, order=3, init=vae, **small)
found, x = {}, data.x_test[:]
for name, model in (("vae", vae), ("rme", rme)):
    found[f"{name} history"] = [list(row.values()) for row in model.history]
    kinds = {"": model, " refined": model.refined(2), " restarted": model.refined(1, restarts=3)}
    for kind, used in kinds.items():
        elbo, iwae = used.bounds(x, 20)
        q = used.posterior(x)
        found |= {f"{name}{kind} elbo": elbo.tolist(), f"{name}{kind} iwae": iwae.tolist()}
        found |= {f"{name}{kind} mean": q.mean.tolist(), f"{name}{kind} weights": q.weights.tolist()}
    found[f"{name} images"] = model.reconstruct(x).tolist()
loaded = sorted(name for name in sys.modules if name.startswith("recmix.accelerate."))
print(json.dumps({"found": found, "loaded": loaded}))
"""


def numbers(how, device, dtype):
    """What the script prints, in a process of its own."""
    command = [sys.executable, "-c", SCRIPT, how, device, str(Path(__file__).parents[1]), dtype]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def compare(device, dtype, tolerance, names):
    plain, fast = (numbers(how, device, dtype) for how in ("without", "with"))
    assert plain["loaded"] == []
    assert "recmix.accelerate.stacked" in fast["loaded"]
    assert plain["found"].keys() == fast["found"].keys()
    for name, expected in fast["found"].items():
        if name.split()[-1] in names:
            np.testing.assert_allclose(plain["found"][name], expected, err_msg=name, **tolerance)


def test_same_numbers_without_accelerate():
    """In float32 the last bit can decide which Gauss-Newton step is the best."""
    every = {"history", "elbo", "iwae", "mean", "weights", "images"}
    compare("cpu", "float64", {"rtol": 1e-9, "atol": 1e-9}, every)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_same_bounds_without_accelerate_on_a_gpu():
    """Kernels round differently, and the last bit can decide which Gauss-Newton step is the best."""
    compare("cuda", "float32", {"rtol": 2e-2, "atol": 0.5}, {"history", "elbo", "iwae"})


def test_error_inside_accelerate_is_not_hidden():
    """Only a missing folder is ignored, not a missing package that it needs."""
    code = (
        "import sys; sys.modules['recmix.accelerate.stacked'] = None\n"
        "from recmix.model.replaceable import load_accelerated\n"
        "load_accelerated()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "recmix.accelerate.stacked" in done.stderr


def test_engines_and_optimizers_of_accelerate_are_named_as_missing():
    code = """
import sys
sys.modules["recmix.accelerate"] = None
import numpy as np
import recmix
x = np.random.default_rng(0).random((20, 1, 8, 8), np.float32)
model = recmix.fit("vae", x, engine="graph", device="cpu", epochs=1, latent=2)  # eager is used instead
try:
    recmix.fit("vae", x, optimizer="muon", device="cpu", epochs=1, latent=2)
except recmix.RecmixError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "unknown optimizer 'muon'" in done.stdout


@pytest.mark.parametrize("gpu", [True, False])
def test_alternatives_for_a_gpu_are_asked_only_where_there_is_one(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)

    @replaceable
    def double(x):
        return x + x

    @double.register_for_gpu
    def on_gpu(x):
        return -1

    assert double.alternatives == ([on_gpu] if gpu else [])
    assert double(2) == (-1 if gpu else 4)
