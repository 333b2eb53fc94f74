"""The moving average of the weights: it is validated and kept, and does not change training."""

import numpy as np
import pytest
import torch
from cases.runs import same_run
from cases.training import SMALL, images
from safetensors.torch import load_file
from torch import nn

import recmix
from recmix.accelerate.graph_engines import _restore, _snapshot
from recmix.errors import ConfigError, RunError
from recmix.runs.folder import Run
from recmix.runs.training_options import Training
from recmix.training.average import Average
from recmix.training.job import Job

DECAY = 0.75  # of six updates, the first four form a plain average
STEPS = 2
"""Updates in an epoch."""
LONG = SMALL | {"epochs": 3, "learning_rate": 1e-2, "patience": 0, "dtype": "float64"}
LONG |= {"weight_average": DECAY}


def state(method):
    return {k: v.detach().numpy().copy() for k, v in method.state_dict().items()}


@pytest.fixture
def recorded(monkeypatch):
    """The weights after each update."""
    found = []
    plain = Job.step

    def step(self):
        plain(self)
        found.append(state(self.method))

    monkeypatch.setattr(Job, "step", step)
    return found


def by_hand(weights, decay=DECAY):
    """The average after each update, computed with NumPy."""
    average, found = np.zeros_like(weights[0]), []
    for t, now in enumerate(weights):
        share = max(1 - decay, 1 / (t + 1))
        average = (1 - share) * average + share * now
        found.append(average)
    return found


class Normalised(nn.Module):
    """An encoder with a buffer that changes in training."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))

    def forward(self, x):
        return self.layers(x)


@pytest.mark.parametrize("name", ["vae", "rme", "me", "normalised"])
def test_kept_weights_are_the_average(name, recorded, tmp_path):
    options = {"order": 2, "fresh_rate": 1.0} if name in ("rme", "me") else {}
    network = {"encoder": Normalised()} if name == "normalised" else {}
    method = "vae" if name == "normalised" else name
    start = recmix.fit("vae", images(), **network, **(LONG | {"weight_average": 0.0, "epochs": 1}))
    recorded.clear()
    made = recmix.fit(
        method, images(), init=start, out=tmp_path / "run", keep_weights="last", **options, **LONG
    )
    assert len(recorded) == 3 * STEPS
    kept, saved = state(made.method), load_file(tmp_path / "run" / "weights.safetensors")
    trained = {key for key, _ in made.method.named_parameters()}
    for key, value in kept.items():
        np.testing.assert_array_equal(value, saved[key].numpy(), err_msg=key)
        history = [weights[key] for weights in recorded]
        if key in trained:
            np.testing.assert_allclose(value, by_hand(history)[-1], rtol=1e-9, atol=1e-12, err_msg=key)
        else:  # a buffer has its last value
            np.testing.assert_array_equal(value, history[-1], err_msg=key)
    assert any(not np.allclose(kept[key], recorded[-1][key], atol=1e-6) for key in trained)
    last = load_file(tmp_path / "run" / "checkpoint.safetensors")
    for key in trained:  # a resumed training continues with the weights, not with their average
        np.testing.assert_array_equal(last[f"method.{key}"].numpy(), recorded[-1][key])
        np.testing.assert_array_equal(last[f"average.weights.{key}"].numpy(), kept[key])


def test_best_epoch_is_that_of_the_average(recorded, tmp_path):
    made = recmix.fit("vae", images(), out=tmp_path / "run", **LONG)
    scores = [row["val_iwae"] for row in made.history]
    best = Run(tmp_path / "run").status()["best_epoch"]
    assert best == int(np.argmax(scores)) + 1
    for key, _ in made.method.named_parameters():
        wanted = by_hand([weights[key] for weights in recorded])[STEPS * best - 1]
        np.testing.assert_allclose(state(made.method)[key], wanted, rtol=1e-9, atol=1e-12)


def test_training_does_not_depend_on_the_average(recorded):
    start = recmix.fit("vae", images(), **(LONG | {"weight_average": 0.0, "epochs": 1}))
    runs = []
    for decay in (0.0, DECAY):
        recorded.clear()
        made = recmix.fit("rme", images(), order=2, init=start, **(LONG | {"weight_average": decay}))
        runs.append((made.history, list(recorded)))
    for one, two in zip(runs[0][1], runs[1][1], strict=True):
        for key, value in one.items():
            np.testing.assert_array_equal(value, two[key], err_msg=key)
    for one, two in zip(runs[0][0], runs[1][0], strict=True):
        assert one["loss"] == two["loss"]
        assert one["val_iwae"] != two["val_iwae"]


@pytest.mark.parametrize("at", [4, 5])  # in the second epoch, and in the first batch of the third
def test_resume_after_kill_gives_same_bits(at, tmp_path, monkeypatch):
    options = LONG | {"dtype": "float32", "train": "encoder", "augment": 0.3}
    start = recmix.fit("vae", images(), **SMALL)
    recmix.fit("rme", images(), order=2, init=start, out=tmp_path / "whole", **options)
    plain, steps = Job.step, 0

    def step(self):
        nonlocal steps
        steps += 1
        if steps == at:
            raise SystemError("killed")  # nothing is saved after the last checkpoint
        plain(self)

    with monkeypatch.context() as patched, pytest.raises(SystemError):
        patched.setattr(Job, "step", step)
        recmix.fit("rme", images(), order=2, init=start, out=tmp_path / "run", **options)
    recmix.fit("rme", images(), order=2, init=start, out=tmp_path / "run", resume=True, **options)
    same_run(tmp_path / "run", tmp_path / "whole")


def test_resume_after_signal_gives_same_bits(tmp_path, monkeypatch):
    options = LONG | {"dtype": "float32"}
    whole = recmix.fit("vae", images(), out=tmp_path / "whole", **options)
    with monkeypatch.context() as patched:
        plain, calls = recmix.training.loop._epoch, []

        def epoch(running, stop, report):
            calls.append(None)
            if len(calls) == 2:
                stop.append("SIGTERM")  # stops after the first batch
            return plain(running, stop, report)

        patched.setattr(recmix.training.loop, "_epoch", epoch)
        with pytest.raises(recmix.errors.Interrupted, match="epoch 2, batch 1"):
            recmix.fit("vae", images(), out=tmp_path / "run", **options)
    resumed = recmix.fit("vae", images(), out=tmp_path / "run", resume=True, **options)
    assert resumed.history == whole.history
    same_run(tmp_path / "run", tmp_path / "whole")


def test_resume_with_other_decay_is_refused(tmp_path):
    recmix.fit("vae", images(), out=tmp_path / "run", **LONG)
    with pytest.raises(RunError, match=r"weight_average = 0.75, not 0.0"):
        recmix.fit(
            "vae", images(), out=tmp_path / "run", resume=True, **(LONG | {"weight_average": 0.0})
        )
    checkpoint = load_file(tmp_path / "run" / "checkpoint.safetensors")
    assert int(checkpoint["average.updates"]) == 3 * STEPS


def test_warmup_of_a_graph_is_undone():
    data = recmix.data.from_arrays(images())
    made = recmix.fit("vae", data, **SMALL).method.train()
    job = Job(made, data, Training(epochs=2, batch_size=20, learning_rate=1e-2, weight_average=DECAY))
    job.begin_epoch()
    job.step()
    before, kept = {k: v.clone() for k, v in job.averages.items()}, _snapshot(job)
    job.step()
    assert not torch.equal(job.averages["updates"], before["updates"])
    ids = [id(v) for v in job.averages.values()]
    _restore(job, kept)
    for key, value in job.averages.items():
        assert torch.equal(value, before[key]), key
    assert ids == [id(v) for v in job.averages.values()]  # a graph reads these very tensors


def test_in_place_averages_are_temporary():
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    average = Average(layer, 0.9)
    for _ in range(4):
        layer.weight.data.add_(torch.randn(2, 3))
        average.update()
    before, version = layer.weight.detach().clone(), layer.weight._version
    with pytest.raises(RuntimeError, match="in the middle"), average.in_place():
        assert torch.equal(layer.weight, average.tensors()["weights.weight"])
        assert layer.weight._version > version  # caches of other weights become invalid
        assert not torch.equal(layer.weight, before)
        raise RuntimeError("in the middle")
    assert torch.equal(layer.weight, before)
    assert layer.weight.requires_grad


def test_update_does_not_wait_for_the_device():
    layer = nn.Linear(3, 2).to("meta")  # it has no values, so reading one fails
    average = Average(layer, 0.9)
    average.update()
    with average.in_place():
        pass


def test_fixed_decoder_keeps_its_weights():
    start = recmix.fit("vae", images(), **SMALL)
    made = recmix.fit(
        "vae", images(), init=start, train="encoder", weight_average=0.9, **(SMALL | {"epochs": 9})
    )
    for key, value in start.latent_model.state_dict().items():
        assert torch.equal(value, made.latent_model.state_dict()[key]), key


def test_checkpoint_without_average_holds_none(tmp_path):
    recmix.fit("vae", images(), out=tmp_path / "run", **SMALL)
    checkpoint = load_file(tmp_path / "run" / "checkpoint.safetensors")
    assert not [key for key in checkpoint if key.startswith("average")]


@pytest.mark.parametrize("decay", [-0.1, 1.0, 1.5, float("nan")])
def test_invalid_decay_is_refused(decay):
    with pytest.raises(ConfigError, match=r"weight_average must be at least 0 and below 1, got"):
        recmix.fit("vae", images(20), weight_average=decay)
