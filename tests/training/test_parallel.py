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
from recmix.posteriors import posterior
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
folder = Path(sys.argv[2])
left = folder / "left"
atexit.register(lambda: left.write_text(str(torch.distributed.is_initialized())))  # runs last
data = recmix.data.from_arrays(images(60))
for request in json.loads(sys.argv[3]):
    if request.pop("late", False) and os.environ["RANK"] == "1":  # it reads the folder after the other
        module = importlib.import_module("recmix.training.plan")
        plain = module.is_complete
        module.is_complete = lambda *a, **k: (time.sleep(2), plain(*a, **k))[1]
    recmix.fit(request.pop("method"), data, progress=False, **request)
"""
COMMON = {"latent": 2, "epochs": 1, "batch_size": 10, "device": "cpu"}
EXACT = {**COMMON, "dtype": "float64", "learning_rate": 1e-3}
CASES = {
    "vae": {"method": "vae", **EXACT},
    "average": {"method": "vae", "weight_average": 0.5, **EXACT},
    "rme": {"method": "rme", "order": 2, "vae_epochs": 1, **EXACT},
    "resumed": {"method": "vae", **COMMON},
}


def torchrun(processes, folder, *requests):
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}"]
    command += ["--master-port=0", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    script = folder / "script.py"
    script.write_text(SCRIPT)
    command += [str(script), str(Path(__file__).parents[1]), str(folder), json.dumps(requests)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        # Torch's own threads rarely abort a process after its last Python code, when all runs are done.
        assert "terminate called without an active exception" in done.stderr, done.stderr
        assert all(Run(one["out"]).status()["status"] == "done" for one in requests), done.stderr
    # Threads of a process group that is still open could abort Python at its end.
    assert (folder / "left").read_text() == "False"


@pytest.fixture(scope="module")
def by_two(tmp_path_factory):
    """A folder with one run for each case, trained by two processes; they are started once."""
    folder = tmp_path_factory.mktemp("two")
    torchrun(2, folder, *({"out": str(folder / name), **case} for name, case in CASES.items()))
    return folder


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


@pytest.mark.parametrize("name", ["vae", "average", "rme"])
def test_two_processes_equal_one_process(name, by_two, tmp_path, monkeypatch):
    noise = Joined(seed=0, epoch=0)
    training = False
    plain = posterior.randn
    monkeypatch.setattr(posterior, "randn", lambda *a: noise(*a) if training else plain(*a))
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
    recmix.fit(data=data, out=tmp_path, progress=False, **CASES[name])
    folders = tmp_path, by_two / name
    one, two = (load_file(folder / "weights.safetensors") for folder in folders)
    for key, value in one.items():
        np.testing.assert_allclose(value.numpy(), two[key].numpy(), atol=1e-6, err_msg=key)
    first, second = (Run(folder).history()[0] for folder in folders)
    assert first["loss"] == pytest.approx(second["loss"], abs=1e-6)


def test_run_of_two_processes_is_resumed_by_one(by_two):
    again = {**CASES["resumed"], "out": str(by_two / "resumed"), "resume": True}
    data = recmix.data.from_arrays(images(60))
    more = recmix.fit(data=data, progress=False, **again | {"epochs": 2})
    assert len(more.history) == 2
    torchrun(2, by_two, again | {"epochs": 3, "late": True})
    assert len(Run(by_two / "resumed").history()) == 3


def test_batch_must_be_divisible_by_the_number_of_processes():
    with pytest.raises(ConfigError, match="multiple of 3"):
        World(0, 3).share(torch.zeros(2, 10))
    assert World(1, 2).share(torch.arange(8).view(2, 4)).tolist() == [[2, 3], [6, 7]]
