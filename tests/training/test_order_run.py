"""`order = "auto"` as a user runs it: its folder, interruptions and options."""

import json
import os
import signal

import numpy as np
import pytest
import torch
from torch import nn

import recmix
from recmix.cli import main
from recmix.commands.compare import parse_entry
from recmix.data import Data
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
    """Keep `most` components, whatever they gain."""

    def decide(most):
        def judged(order, *rest):
            return judge(order, *rest)._replace(kept=order <= most)

        monkeypatch.setattr("recmix.training.order.judge", judged)

    return decide


@pytest.mark.parametrize(("most", "folders"), [(1, ["order_1", "order_2"]), (2, None), (3, None)])
def test_folder_records_the_decision(data, vae, tmp_path, keep, most, folders):
    keep(most)
    found = auto(data, vae, out=tmp_path / "run")
    run = Run(tmp_path / "run")
    there = sorted(p.name for p in run.folder.glob("order_*"))
    assert there == (folders or ["order_1", "order_2", "order_2+", "order_3"])
    assert not list(run.folder.rglob("checkpoint.safetensors"))
    spec, record = run.spec(), json.loads((run.folder / "order.json").read_text())
    assert spec == found.spec
    assert spec.options["order"] == record["order"] == found.method.order == most
    assert spec.auto["order"] == "auto"
    assert [row["kept"] for row in record["steps"]] == [row["order"] <= most for row in record["steps"]]
    assert {"order", "gain", "error", "own", "own_error", "p", "kept"} == set(record["steps"][0])
    assert record["images"] == 15
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


def test_result_does_not_depend_on_a_folder(data, vae, tmp_path, keep):
    keep(2)
    kept, lost = auto(data, vae, out=tmp_path / "run"), auto(data, vae)
    assert lost.history == kept.history
    assert lost.spec.auto == kept.spec.auto
    for name, value in kept.method.state_dict().items():
        assert torch.equal(value, lost.method.state_dict()[name])


def test_no_component_is_kept_for_noise(data, vae, capsys):
    found = auto(data, vae, progress=True)
    assert found.spec.options["order"] == 1
    assert "not kept" in capsys.readouterr().err


def test_test_images_are_not_used(data, vae):
    blind = Data(data.name, data.x_train, data.x_val, None)
    one, two = auto(data, vae), auto(blind, vae)
    assert one.spec.auto == two.spec.auto
    assert one.history == two.history


def test_resume_after_signals_repeats_no_step(data, vae, tmp_path, keep, monkeypatch):
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
        with pytest.raises(Interrupted, match="--resume --out [^ ]*/parts --data FILE$"):
            auto(data, vae, out=tmp_path / "parts", resume=True)
        assert Run(tmp_path / "parts").status()["status"] == "interrupted"
    parts = auto(data, vae, out=tmp_path / "parts", resume=True)
    assert len(calls) == 2 * 2 * 2 * 2  # steps x runs x epochs x batches: none is repeated
    assert parts.history == whole.history
    assert parts.spec.auto == whole.spec.auto
    for name, value in whole.method.state_dict().items():
        assert torch.equal(value, parts.method.state_dict()[name])
    assert auto(data, vae, out=tmp_path / "parts", resume=True).history == whole.history
    assert len(calls) == 16


def test_resume_after_crash_repeats_only_the_last_run(data, vae, tmp_path, keep, monkeypatch):
    keep(3)
    finish = Job.finish

    def broken(self):
        if self.title == "rme+(3)":
            raise RuntimeError("power cut")
        finish(self)

    with monkeypatch.context() as patch:
        patch.setattr(Job, "finish", broken)
        with pytest.raises(RuntimeError, match="power cut"):
            auto(data, vae, out=tmp_path / "run")
    with pytest.raises(RunError, match="no weights yet"):
        recmix.load(tmp_path / "run")
    finished = []
    monkeypatch.setattr(Job, "finish", lambda self: (finished.append(self.title), finish(self))[1])
    assert auto(data, vae, out=tmp_path / "run", resume=True).spec.options["order"] == 3
    assert finished == ["rme+(3)"]


def test_overwrite_removes_an_earlier_choice(data, vae, tmp_path, keep):
    keep(3)
    auto(data, vae, out=tmp_path)
    keep(1)
    with pytest.raises(RunError, match="already holds a run"):
        auto(data, vae, out=tmp_path)
    auto(data, vae, out=tmp_path, overwrite=True)
    assert not Run(tmp_path / "order_3").exists
    assert recmix.load(tmp_path).method.order == 1


def test_resume_with_other_options_is_refused(data, vae, tmp_path, keep):
    keep(2)
    auto(data, vae, out=tmp_path)
    for other, message in (
        ({"max_order": 4}, "max_order = 3, not 4"),
        ({"significance": 0.01}, "significance = 0.05, not 0.01"),
        ({"epochs": 3}, "chose its order with 2 epochs per step, not 3"),
        ({"epochs": 1}, "chose its order with 2 epochs per step, not 1"),
    ):
        with pytest.raises(RunError, match=message):
            auto(data, vae, out=tmp_path, resume=True, **other)
    fixed = SMALL | {"epochs": 2, "learning_rate": 1e-4, "order": 2}
    with pytest.raises(RunError, match="order = 'auto', not 2"):
        recmix.fit("rme", data, init=vae, out=tmp_path, resume=True, **fixed)
    with pytest.raises(RunError, match="step of = 'order', not None"):
        recmix.fit("rme", data, init=vae, out=tmp_path / "order_2", resume=True, **fixed)


def test_failure_is_recorded(data, vae, tmp_path):
    with pytest.raises(NonFiniteError):
        auto(data, vae, out=tmp_path, learning_rate=1e6)
    assert Run(tmp_path).status()["status"] == "failed"


def test_user_decoder_is_changed_in_place(data):
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    decoder = nn.Sequential(nn.Linear(2, 64), nn.Unflatten(1, (1, 8, 8)))
    given = SMALL | {"encoder": encoder, "decoder": decoder, "vae_epochs": 1}
    found = recmix.fit("rme", data, order="auto", max_order=2, **given)
    assert torch.equal(decoder[0].weight, found.latent_model.decoder[0].weight)


def test_auto_order_among_other_trainings(data, vae, keep):
    keep(2)
    request = {"method": "rme", "data": data, "init": vae, "learning_rate": 1e-4} | SMALL
    request.pop("progress")
    orders = ("auto", 2, "auto")
    found = recmix.fit_many([request | {"order": order} for order in orders], progress=False)
    assert [model.method.order for model in found] == [2, 2, 2]
    assert [model.spec.auto is None for model in found] == [False, True, False]
    assert found[0].history == found[2].history


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("rme", {"order": "many"}, "order must be a whole number or 'auto', got 'many'"),
        ("rme", {"order": 2, "max_order": 3}, "max_order is for order = 'auto', got order = 2"),
        ("rme", {"order": "auto", "max_order": 1}, "max_order must be at least 2 and at most 16, got 1"),
        (
            "rme",
            {"order": "auto", "max_order": 17},
            "max_order must be at least 2 and at most 16, got 17",
        ),
        (
            "rme",
            {"order": "auto", "significance": 5},
            "significance must be above 0 and below 0.5, got 5",
        ),
        ("me", {"order": "auto"}, "which me cannot do: use rme, or give a number"),
        ("vae", {"significance": 0.05}, "unknown option for vae 'significance'"),
    ],
)
def test_invalid_options_are_refused(data, method, options, message):
    with pytest.raises(ConfigError, match=message):
        recmix.fit(method, data, **SMALL, **options)


def test_boosted_mixtures_can_grow(data, vae):
    found = recmix.fit("bvi-er2", data, init=vae, order="auto", max_order=2, **SMALL)
    assert found.spec.auto["why"]


def test_grid_and_comparison_take_auto_order():
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


def test_auto_order_on_the_command_line(tmp_path, capsys):
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
    printed = capsys.readouterr()
    assert "order 2: " in printed.out
    assert "by itself (p = " in printed.out
    spec = Run(folder).spec()
    assert (spec.auto["max_order"], spec.options["order"] in (1, 2)) == (2, True)
    assert not call("train", "--resume", "--out", folder)
    assert not call("evaluate", folder, "--samples", "2")
    assert call("train", "--resume", "--out", folder / "order_2") == 2
    assert "is one step of choosing an order: resume" in capsys.readouterr().err
    words = ("train", "--data", "digits", "--method", "rme", "--order", "x", "--out", tmp_path / "x")
    assert call(*words) == 2
    assert "whole number or 'auto', got 'x'" in capsys.readouterr().err
