"""The moving average of the weights: what is kept, while training itself does not notice."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from test_fit import SMALL, images
from test_run import same_run
from torch import nn

import recmix
from recmix.errors import ConfigError, RunError
from recmix.runs.folder import Run
from recmix.runs.options import Training
from recmix.training.average import Average
from recmix.training.engines import _restore, _snapshot
from recmix.training.job import Job

DECAY = 0.75  # six updates: four as a plain average, then two that forget
STEPS = 2
"""Updates in an epoch."""
LONG = SMALL | {"epochs": 3, "learning_rate": 1e-2, "patience": 0, "dtype": "float64", "average": DECAY}


def state(method):
    return {k: v.detach().numpy().copy() for k, v in method.state_dict().items()}


@pytest.fixture
def recorded(monkeypatch):
    """The weights after every update, in turn."""
    found = []
    plain = Job.step

    def step(self):
        plain(self)
        found.append(state(self.method))

    monkeypatch.setattr(Job, "step", step)
    return found


def by_hand(weights, decay=DECAY):
    """The average after each update, in NumPy."""
    average, found = np.zeros_like(weights[0]), []
    for t, now in enumerate(weights):
        share = max(1 - decay, 1 / (t + 1))
        average = (1 - share) * average + share * now
        found.append(average)
    return found


class Normalised(nn.Module):
    """An encoder with a buffer that moves."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))

    def forward(self, x):
        return self.layers(x)


@pytest.mark.parametrize("name", ["vae", "rme", "me", "normalised"])
def test_what_is_kept_is_the_average_of_the_weights(name, recorded, tmp_path):
    options = {"order": 2, "fresh_rate": 1.0} if name in ("rme", "me") else {}
    network = {"encoder": Normalised()} if name == "normalised" else {}
    method = "vae" if name == "normalised" else name
    start = recmix.fit("vae", images(), **network, **(LONG | {"average": 0.0, "epochs": 1}))
    recorded.clear()
    made = recmix.fit(method, images(), init=start, out=tmp_path / "run", keep="last", **options, **LONG)
    assert len(recorded) == 3 * STEPS
    kept, saved = state(made.method), load_file(tmp_path / "run" / "weights.safetensors")
    moving = {key for key, _ in made.method.named_parameters()}
    for key, value in kept.items():
        np.testing.assert_array_equal(value, saved[key].numpy(), err_msg=key)
        history = [weights[key] for weights in recorded]
        if key in moving:
            np.testing.assert_allclose(value, by_hand(history)[-1], rtol=1e-9, atol=1e-12, err_msg=key)
        else:  # what no optimiser moves is as it was last
            np.testing.assert_array_equal(value, history[-1], err_msg=key)
    assert any(not np.allclose(kept[key], recorded[-1][key], atol=1e-6) for key in moving)
    last = load_file(tmp_path / "run" / "checkpoint.safetensors")
    for key in moving:  # training would go on with the weights themselves
        np.testing.assert_array_equal(last[f"method.{key}"].numpy(), recorded[-1][key])
        np.testing.assert_array_equal(last[f"average.weights.{key}"].numpy(), kept[key])


def test_the_best_epoch_is_that_of_the_averages(recorded, tmp_path):
    made = recmix.fit("vae", images(), out=tmp_path / "run", **LONG)
    scores = [row["val_iwae"] for row in made.history]
    best = Run(tmp_path / "run").status()["best_epoch"]
    assert best == int(np.argmax(scores)) + 1
    for key, _ in made.method.named_parameters():
        wanted = by_hand([weights[key] for weights in recorded])[STEPS * best - 1]
        np.testing.assert_allclose(state(made.method)[key], wanted, rtol=1e-9, atol=1e-12)


def test_training_itself_does_not_notice(recorded):
    start = recmix.fit("vae", images(), **(LONG | {"average": 0.0, "epochs": 1}))
    runs = []
    for average in (0.0, DECAY):
        recorded.clear()
        made = recmix.fit("rme", images(), order=2, init=start, **(LONG | {"average": average}))
        runs.append((made.history, list(recorded)))
    for one, two in zip(runs[0][1], runs[1][1], strict=True):
        for key, value in one.items():
            np.testing.assert_array_equal(value, two[key], err_msg=key)
    for one, two in zip(runs[0][0], runs[1][0], strict=True):
        assert one["loss"] == two["loss"]
        assert one["val_iwae"] != two["val_iwae"]


@pytest.mark.parametrize("at", [4, 5])  # in the second epoch, and at the first batch of the third
def test_killed_and_resumed_is_bit_identical(at, tmp_path, monkeypatch):
    options = LONG | {"dtype": "float32", "moves": "encoder", "augment": 0.3}
    start = recmix.fit("vae", images(), **SMALL)
    recmix.fit("rme", images(), order=2, init=start, out=tmp_path / "whole", **options)
    plain, steps = Job.step, 0

    def step(self):
        nonlocal steps
        steps += 1
        if steps == at:
            raise SystemError("killed")  # nothing is saved: the last checkpoint is all there is
        plain(self)

    with monkeypatch.context() as patched, pytest.raises(SystemError):
        patched.setattr(Job, "step", step)
        recmix.fit("rme", images(), order=2, init=start, out=tmp_path / "run", **options)
    recmix.fit("rme", images(), order=2, init=start, out=tmp_path / "run", resume=True, **options)
    same_run(tmp_path / "run", tmp_path / "whole")


def test_stopped_in_the_middle_and_resumed_is_bit_identical(tmp_path, monkeypatch):
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


def test_a_resume_with_another_decay_is_refused(tmp_path):
    recmix.fit("vae", images(), out=tmp_path / "run", **LONG)
    with pytest.raises(RunError, match=r"average = 0.75, not 0.0"):
        recmix.fit("vae", images(), out=tmp_path / "run", resume=True, **(LONG | {"average": 0.0}))
    checkpoint = load_file(tmp_path / "run" / "checkpoint.safetensors")
    assert int(checkpoint["average.updates"]) == 3 * STEPS


def test_warming_up_is_taken_back():
    data = recmix.data.from_arrays(images())
    made = recmix.fit("vae", data, **SMALL).method.train()
    job = Job(made, data, Training(epochs=2, batch_size=20, learning_rate=1e-2, average=DECAY))
    job.begin_epoch()
    job.step()
    before, kept = {k: v.clone() for k, v in job.averages.items()}, _snapshot(job)
    job.step()
    assert not torch.equal(job.averages["updates"], before["updates"])
    ids = [id(v) for v in job.averages.values()]
    _restore(job, kept)
    for key, value in job.averages.items():
        assert torch.equal(value, before[key]), key
    assert ids == [id(v) for v in job.averages.values()]  # the tensors that a graph knows


def test_parameters_hold_their_averages_for_a_while_only():
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    average = Average(layer, 0.9)
    for _ in range(4):
        layer.weight.data.add_(torch.randn(2, 3))
        average.update()
    before, version = layer.weight.detach().clone(), layer.weight._version
    with pytest.raises(RuntimeError, match="in the middle"), average.in_place():
        assert torch.equal(layer.weight, average.tensors()["weights.weight"])
        assert layer.weight._version > version  # what was made from other weights is known to be old
        assert not torch.equal(layer.weight, before)
        raise RuntimeError("in the middle")
    assert torch.equal(layer.weight, before)
    assert layer.weight.requires_grad


def test_an_update_never_waits_for_the_device():
    layer = nn.Linear(3, 2).to("meta")  # there are no values: whoever looks at one fails
    average = Average(layer, 0.9)
    average.update()
    with average.in_place():
        pass


def test_a_decoder_that_stands_still_stays_as_it_is():
    start = recmix.fit("vae", images(), **SMALL)
    made = recmix.fit(
        "vae", images(), init=start, moves="encoder", average=0.9, **(SMALL | {"epochs": 9})
    )
    for key, value in start.model.state_dict().items():
        assert torch.equal(value, made.model.state_dict()[key]), key


def test_without_it_there_is_nothing_of_it(tmp_path):
    recmix.fit("vae", images(), out=tmp_path / "run", **SMALL)
    checkpoint = load_file(tmp_path / "run" / "checkpoint.safetensors")
    assert not [key for key in checkpoint if key.startswith("average")]


@pytest.mark.parametrize("decay", [-0.1, 1.0, 1.5, float("nan")])
def test_a_decay_that_is_none_is_refused(decay):
    with pytest.raises(ConfigError, match=r"average is the decay .* such as 0.999; got"):
        recmix.fit("vae", images(20), average=decay)
