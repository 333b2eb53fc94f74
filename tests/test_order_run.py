"""`order = "auto"` as a user runs it: the folder it leaves, interruptions, options."""

import json
import os
import signal

import numpy as np
import pytest
import torch
from torch import nn

import recmix
from recmix.cli import main
from recmix.commands.comparison import parse_entry
from recmix.data import ImageData
from recmix.errors import ConfigError, Interrupted, NonFiniteError, RunError
from recmix.experiments.grid import check, expand
from recmix.methods.recursive import RecursiveMixture
from recmix.runs.folder import Run
from recmix.training.job import Job
from recmix.training.order import judge

SMALL = {"latent": 2, "epochs": 1, "batch_size": 40, "device": "cpu", "progress": False}


@pytest.fixture(scope="module")
def data():
    x = np.random.default_rng(0).random((120, 1, 8, 8), np.float32)
    return recmix.data.from_arrays(x[:80], x_val=x[80:110], x_test=x[110:])


@pytest.fixture(scope="module")
def vae(data):
    return recmix.fit("vae", data, network="dense", **SMALL)


def auto(data, vae, **more):
    given = SMALL | {"order": "auto", "max_order": 3, "epochs": 2, "learning_rate": 1e-4}
    return recmix.fit("rme", data, init=vae, **given | more)


@pytest.fixture
def keep(monkeypatch):
    """Decide that so many components are kept, whatever they gain."""

    def decide(most):
        def judged(order, *rest):
            return judge(order, *rest)._replace(kept=order <= most)

        monkeypatch.setattr("recmix.training.order.judge", judged)

    return decide


@pytest.mark.parametrize(("most", "folders"), [(1, ["order_1", "order_2"]), (2, None), (3, None)])
def test_the_folder_tells_what_was_decided(data, vae, tmp_path, keep, most, folders):
    keep(most)
    found = auto(data, vae, out=tmp_path / "run")
    run = Run(tmp_path / "run")
    there = sorted(p.name for p in run.folder.glob("order_*"))
    assert there == (folders or ["order_1", "order_2", "order_2+", "order_3"])
    assert not list(run.folder.rglob("checkpoint.safetensors"))
    spec, told = run.spec(), json.loads((run.folder / "order.json").read_text())
    assert spec == found.spec
    assert spec.options["order"] == told["order"] == found.method.order == most
    assert spec.auto["order"] == "auto"
    assert [row["kept"] for row in told["steps"]] == [row["order"] <= most for row in told["steps"]]
    assert {"order", "gain", "error", "own", "own_error", "p", "kept"} == set(told["steps"][0])
    assert told["images"] == 15
    assert spec.auto["why"].endswith("the most allowed" if most == 3 else f"not kept: order {most}")
    assert run.status()["reason"] == spec.auto["why"]
    epochs = 2 if most == 1 else 4
    assert [row["epoch"] for row in found.history] == list(range(1, epochs + 1))
    assert [row["order"] for row in found.history][-2:] == [most, most]
    assert run.history() == found.history
    again = recmix.load(run.folder, device="cpu")
    x = data.x_test[:]
    assert torch.equal(again.elbo(x), found.elbo(x))
    last = {1: "order_1", 2: "order_2+", 3: "order_3"}[most]
    assert torch.equal(recmix.load(run.folder / last, device="cpu").elbo(x), found.elbo(x))
    assert found.posterior(x).weights.shape == (10, most)


def test_without_a_folder_it_is_the_same_model(data, vae, tmp_path, keep):
    keep(2)
    kept, lost = auto(data, vae, out=tmp_path / "run"), auto(data, vae)
    assert lost.history == kept.history
    assert lost.spec.auto == kept.spec.auto
    for name, value in kept.method.state_dict().items():
        assert torch.equal(value, lost.method.state_dict()[name])


def test_noise_gains_nothing_and_the_user_is_told(data, vae, capsys):
    found = auto(data, vae, progress=True)
    assert found.spec.options["order"] == 1
    assert "not kept" in capsys.readouterr().err


def test_test_images_play_no_part(data, vae):
    blind = ImageData(data.name, data.x_train, data.x_val, None)
    one, two = auto(data, vae), auto(blind, vae)
    assert one.spec.auto == two.spec.auto
    assert one.history == two.history


def test_a_signal_loses_nothing(data, vae, tmp_path, keep, monkeypatch):
    keep(2)
    whole = auto(data, vae, out=tmp_path / "whole")
    step, calls = RecursiveMixture.step, []

    def interrupted(self, *args, **kwargs):
        calls.append(self.order)
        if len(calls) in (3, 6, 11):
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, *args, **kwargs)

    monkeypatch.setattr(RecursiveMixture, "step", interrupted)
    for _ in range(3):
        with pytest.raises(Interrupted, match="--resume --out [^ ]*/parts$"):
            auto(data, vae, out=tmp_path / "parts", resume=True)
        assert Run(tmp_path / "parts").status()["status"] == "interrupted"
    parts = auto(data, vae, out=tmp_path / "parts", resume=True)
    assert len(calls) == 2 * 2 * 2 * 2  # steps x runs x epochs x batches: none is done twice
    assert parts.history == whole.history
    assert parts.spec.auto == whole.spec.auto
    for name, value in whole.method.state_dict().items():
        assert torch.equal(value, parts.method.state_dict()[name])
    assert auto(data, vae, out=tmp_path / "parts", resume=True).history == whole.history
    assert len(calls) == 16


def test_a_crash_costs_the_work_in_flight(data, vae, tmp_path, keep, monkeypatch):
    keep(3)
    finish = Job.finish

    def broken(self):
        if self.title == "rme(3)":
            raise RuntimeError("power cut")
        finish(self)

    with monkeypatch.context() as patch:
        patch.setattr(Job, "finish", broken)
        with pytest.raises(RuntimeError, match="power cut"):
            auto(data, vae, out=tmp_path / "run")
    with pytest.raises(RunError, match="no weights yet"):
        recmix.load(tmp_path / "run")
    begun = []
    monkeypatch.setattr(Job, "finish", lambda self: (begun.append(self.title), finish(self))[1])
    assert auto(data, vae, out=tmp_path / "run", resume=True).spec.options["order"] == 3
    assert begun == ["rme(3)"]


def test_overwrite_leaves_nothing_of_an_earlier_choice(data, vae, tmp_path, keep):
    keep(3)
    auto(data, vae, out=tmp_path)
    keep(1)
    with pytest.raises(RunError, match="already holds a run"):
        auto(data, vae, out=tmp_path)
    auto(data, vae, out=tmp_path, overwrite=True)
    assert not Run(tmp_path / "order_3").exists
    assert recmix.load(tmp_path).method.order == 1


def test_a_run_is_resumed_as_it_was_asked(data, vae, tmp_path, keep):
    keep(2)
    auto(data, vae, out=tmp_path)
    for other, message in (
        ({"max_order": 4}, "max_order = 3, not 4"),
        ({"significance": 0.01}, "significance = 0.05, not 0.01"),
        ({"epochs": 3}, "chose its order with 2 epochs at a time, not 3"),
    ):
        with pytest.raises(RunError, match=message):
            auto(data, vae, out=tmp_path, resume=True, **other)
    fixed = SMALL | {"epochs": 2, "learning_rate": 1e-4, "order": 2}
    with pytest.raises(RunError, match="order = 'auto', not 2"):
        recmix.fit("rme", data, init=vae, out=tmp_path, resume=True, **fixed)
    with pytest.raises(RunError, match="step of = 'order', not None"):
        recmix.fit("rme", data, init=vae, out=tmp_path / "order_2", resume=True, **fixed)


def test_a_failure_is_recorded(data, vae, tmp_path):
    with pytest.raises(NonFiniteError):
        auto(data, vae, out=tmp_path, learning_rate=1e6)
    assert Run(tmp_path).status()["status"] == "failed"


def test_the_users_own_decoder_is_changed_in_place(data):
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    decoder = nn.Sequential(nn.Linear(2, 64), nn.Unflatten(1, (1, 8, 8)))
    given = SMALL | {"encoder": encoder, "decoder": decoder, "vae_epochs": 1}
    found = recmix.fit("rme", data, order="auto", max_order=2, **given)
    assert torch.equal(decoder[0].weight, found.model.decoder[0].weight)


def test_among_other_trainings(data, vae, keep):
    keep(2)
    asked = {"method": "rme", "data": data, "init": vae, "learning_rate": 1e-4} | SMALL
    asked.pop("progress")
    orders = ("auto", 2, "auto")
    found = recmix.fit_many([asked | {"order": order} for order in orders], progress=False)
    assert [model.method.order for model in found] == [2, 2, 2]
    assert [model.spec.auto is None for model in found] == [False, True, False]
    assert found[0].history == found[2].history


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("rme", {"order": "many"}, "order must be a whole number or 'auto', got 'many'"),
        ("rme", {"order": 2, "max_order": 3}, "max_order is for order = 'auto', got order = 2"),
        ("rme", {"order": "auto", "max_order": 1}, "max_order must be 2 to 16, got 1"),
        ("rme", {"order": "auto", "max_order": 17}, "max_order must be 2 to 16, got 17"),
        ("rme", {"order": "auto", "significance": 5}, "between 0 and 0.5; got 5"),
        ("me", {"order": "auto"}, "which me does not: use rme, or give a number"),
        ("vae", {"significance": 0.05}, "unknown option for vae 'significance'"),
    ],
)
def test_bad_options_say_what_is_wrong(data, method, options, message):
    with pytest.raises(ConfigError, match=message):
        recmix.fit(method, data, **SMALL, **options)


def test_boosted_mixtures_grow_too(data, vae):
    found = recmix.fit("bvi-er2", data, init=vae, order="auto", max_order=2, **SMALL)
    assert found.spec.auto["why"]


def test_a_grid_and_a_comparison_take_it():
    content = {
        "columns": [{"data": "digits", "latent": 2}],
        "methods": [{"name": "rme", "order": [2, "auto"]}],
        "protocol": {"splits": 1, "restarts": 1},
    }
    jobs = expand(content, "small").jobs
    check(jobs)
    assert [job.row for job in jobs] == ["VAE", "VAE+", "RME(2)", "RME(auto)"]
    assert "max_order" not in jobs[2].definition["options"]
    assert jobs[3].definition["options"]["max_order"] == 8
    assert parse_entry("rme:order=auto,max_order=3") == ("rme", {"order": "auto", "max_order": 3})


def test_from_a_shell(tmp_path, capsys):
    def call(*words):
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        return end.value.code

    folder, config = tmp_path / "run", tmp_path / "run.toml"
    config.write_text("""
        data = "digits"
        latent = 2
        vae_epochs = 1
        [method]
        name = "rme"
        order = "auto"
        max_order = 2
        [training]
        epochs = 1
    """)
    assert not call("train", "--config", config, "--network", "dense", "--out", folder)
    said = capsys.readouterr()
    assert "order 2: " in said.out
    assert "by itself (p = " in said.out
    spec = Run(folder).spec()
    assert (spec.auto["max_order"], spec.options["order"] in (1, 2)) == (2, True)
    assert not call("train", "--resume", "--out", folder)
    assert not call("evaluate", folder, "--samples", "2")
    assert call("train", "--resume", "--out", folder / "order_2") == 2
    assert "is a step in the choice of an order: resume the whole" in capsys.readouterr().err
    words = ("train", "--data", "digits", "--method", "rme", "--order", "x", "--out", tmp_path / "x")
    assert call(*words) == 2
    assert "whole number or 'auto', got 'x'" in capsys.readouterr().err
