"""Two processes under torchrun give the same result as one process with the whole batch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from cases.training import images
from safetensors.torch import load_file

import recmix
from recmix.errors import ConfigError
from recmix.posteriors import gaussian
from recmix.runs.folder import Run
from recmix.training.batches import mix
from recmix.training.job import Job
from recmix.training.world import World

SCRIPT = """
import atexit, importlib, json, os, sys, time
import torch, recmix
from pathlib import Path
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
from cases.training import images
request = json.loads(sys.argv[2])
left = Path(request["out"]).parent / "left"
atexit.register(lambda: left.write_text(str(torch.distributed.is_initialized())))  # runs last
data = recmix.data.from_arrays(images(60))
if request.pop("late", False) and os.environ["RANK"] == "1":  # it reads the folder after the other
    module = importlib.import_module("recmix.training.plan")
    plain = module.is_complete
    module.is_complete = lambda *a, **k: (time.sleep(2), plain(*a, **k))[1]
recmix.fit(request.pop("method"), data, progress=False, **request)
"""


def torchrun(processes, request):
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}"]
    command += ["--master-port=0", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    script = Path(request["out"]).parent / "script.py"
    script.write_text(SCRIPT)
    command += [str(script), str(Path(__file__).parents[1]), json.dumps(request)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    # Threads of a process group that is still open could abort Python at its end.
    assert (script.parent / "left").read_text() == "False"


class Joined:
    """The noise of two processes, joined along the batch."""

    def __init__(self, seed, epoch):
        self.parts = [torch.Generator().manual_seed(mix(seed, epoch, 0, rank)) for rank in range(2)]

    def __call__(self, shape, like, generator):
        samples, batch, *rest = shape
        halves = [
            torch.randn(samples, batch // 2, *rest, generator=g, dtype=like.dtype) for g in self.parts
        ]
        return torch.cat(halves, 1)


@pytest.mark.parametrize(
    ("method", "options"),
    [("vae", {}), ("vae", {"weight_average": 0.5}), ("rme", {"order": 2, "vae_epochs": 1})],
)
def test_two_processes_equal_one_process(method, options, tmp_path, monkeypatch):
    common = {"latent": 2, "epochs": 1, "batch_size": 10, "dtype": "float64", "device": "cpu"}
    common |= {"learning_rate": 1e-3, **options}
    torchrun(2, {"method": method, "out": str(tmp_path / "two"), **common})

    noise = Joined(seed=0, epoch=0)
    training = False
    plain = gaussian.randn
    monkeypatch.setattr(gaussian, "randn", lambda *a: noise(*a) if training else plain(*a))
    begin, validation = Job.begin_epoch, Job.validation

    def begin_epoch(self):
        nonlocal training, noise
        noise, training = Joined(seed=0, epoch=self.state.epoch), True
        begin(self)

    def validate(self):
        nonlocal training
        training = False
        return validation(self)

    monkeypatch.setattr(Job, "begin_epoch", begin_epoch)
    monkeypatch.setattr(Job, "validation", validate)
    data = recmix.data.from_arrays(images(60))
    recmix.fit(method, data, out=tmp_path / "one", progress=False, **common)
    one, two = (load_file(tmp_path / name / "weights.safetensors") for name in ("one", "two"))
    for key, value in one.items():
        np.testing.assert_allclose(value.numpy(), two[key].numpy(), atol=1e-6, err_msg=key)
    first, second = (Run(tmp_path / name).history()[0] for name in ("one", "two"))
    assert first["loss"] == pytest.approx(second["loss"], abs=1e-6)


def test_run_of_two_processes_is_resumed_by_one(tmp_path):
    common = {"latent": 2, "batch_size": 10, "device": "cpu", "out": str(tmp_path / "run")}
    torchrun(2, {"method": "vae", "epochs": 1, **common})
    more = recmix.fit(
        "vae", recmix.data.from_arrays(images(60)), epochs=2, resume=True, progress=False, **common
    )
    assert len(more.history) == 2
    torchrun(2, {"method": "vae", "epochs": 3, "resume": True, "late": True, **common})
    assert len(Run(tmp_path / "run").history()) == 3


def test_batch_must_be_divisible_by_the_number_of_processes():
    with pytest.raises(ConfigError, match="multiple of 3"):
        World(0, 3).share(torch.zeros(2, 10))
    assert World(1, 2).share(torch.arange(8).view(2, 4)).tolist() == [[2, 3], [6, 7]]
