"""Runs of arrays in memory and of a user's own networks, from the command line."""

import json
import textwrap

import numpy as np
import pytest
from cases.commands import call
from cases.training import images

import recmix
from recmix.commands.explore import examples_for, load_models
from recmix.errors import Interrupted
from recmix.runs.folder import Run

SHORT = {"latent": 2, "epochs": 1, "device": "cpu", "progress": False}
NETWORKS = """
    from torch import nn


    def networks():
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
        return encoder, nn.Sequential(nn.Linear(2, 64), nn.Unflatten(1, (1, 8, 8)))


    def nothing():
        return 3


    def wrong():
        return {"encoders": None}
"""


@pytest.fixture
def x(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    x = images(40)
    np.save("x.npy", x)
    return x


def said(capsys):
    printed = capsys.readouterr()
    return " ".join(f"{printed.out} {printed.err}".split())


def test_a_run_of_arrays_is_scored_and_continued_with_a_file(x, capsys):
    recmix.fit("vae", x, out="run", **SHORT)
    assert call("evaluate", "run", "--split", "val") == 2
    assert "save them in a file and name it with --data" in said(capsys)
    assert call("evaluate", "run", "--split", "val", "--samples", 3, "--data", "x.npy") == 0
    assert "val/3" in Run("run").scores()
    assert "not stored" not in said(capsys)
    assert call("train", "--resume", "--out", "run", "--epochs", 2, "--data", "x.npy") == 0
    assert len(Run("run").history()) == 2
    assert call("evaluate", "run", "--split", "val", "--samples", 4) == 0  # now without --data
    assert call("train", "--resume", "--out", "run", "--epochs", 3) == 0


def test_scores_of_other_examples_are_not_stored(x, capsys):
    recmix.fit("vae", x, out="run", **SHORT)
    np.save("other.npy", 1 - x)
    assert call("evaluate", "run", "--samples", 3, "--data", "other.npy", "--json") == 0
    assert "has other examples" in capsys.readouterr().err
    assert Run("run").scores() == {}


def test_the_explorer_shows_examples_of_a_file(x):
    recmix.fit("vae", x, out="run", **SHORT)
    models = load_models(["run"])
    np.savez("both.npz", x_train=x, x_test=x[:7])
    shown = examples_for(models, "both.npz")["run"]
    np.testing.assert_array_equal(shown[:], x[:7])


def test_model_explore_serves_given_examples(x, monkeypatch):
    served = {}
    monkeypatch.setattr("recmix.api.model_explore.serve", lambda models, **how: served.update(how))
    model = recmix.fit("vae", x, **SHORT)
    model.explore(x[:3], browser=False)
    assert served["browser"] is False
    np.testing.assert_allclose(served["examples"]["VAE"][:], x[:3])
    model.explore()
    assert served["examples"] is None
    assert served["browser"] is True
    model.explore(recmix.data.from_arrays(x, x_test=x[:5]))
    assert len(served["examples"]["VAE"]) == 5


@pytest.mark.parametrize(
    ("source", "expected"),
    [("arrays", "the same call in Python"), ("x.npy", "recmix train --resume --out run")],
)
def test_an_interrupted_run_says_how_to_continue(x, source, expected):
    def stop(epoch, metrics):
        import os
        import signal

        os.kill(os.getpid(), signal.SIGINT)

    data = x if source == "arrays" else source
    with pytest.raises(Interrupted, match="saved. Continue with: " + expected) as stopped:
        recmix.fit("vae", data, out="run", callbacks=[stop], **SHORT | {"epochs": 3})
    assert ("--data FILE" in str(stopped.value)) == (source == "arrays")


def test_the_status_names_the_epoch_while_it_runs(x):
    seen = []
    recmix.fit(
        "vae",
        x,
        out="run",
        callbacks=[lambda epoch, metrics: seen.append(Run("run").status())],
        **SHORT | {"epochs": 3},
    )
    assert [status["epoch"] for status in seen] == [0, 1, 2]  # the last epoch that is saved


def test_own_networks_are_named_by_a_function(x, tmp_path, capsys):
    (tmp_path / "own_networks_1.py").write_text(textwrap.dedent(NETWORKS))
    mine = ("--networks", "own_networks_1:networks")
    train = ("train", "--data", "x.npy", "--method", "vae", "--latent", 2, "--epochs", 1)
    assert call(*train, *mine, "--out", "run") == 0
    capsys.readouterr()
    assert call("evaluate", "run") == 2
    assert "--networks module:function" in said(capsys)
    assert call("evaluate", "run", *mine, "--samples", 3, "--json") == 0
    assert json.loads(capsys.readouterr().out)["iwae"] == Run("run").scores()["test/3"]["iwae"]
    assert call("train", "--resume", "--out", "run", "--epochs", 2, *mine) == 0
    assert list(load_models(["run"], networks=mine[1])) == ["run"]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("nothing", "returned a int; expected a pair (encoder, decoder)"),
        ("wrong", "unknown part 'encoders': did you mean 'encoder'"),
        ("missing", "unknown function of own_networks_2 'missing'"),
    ],
)
def test_wrong_functions_are_refused(x, tmp_path, capsys, function, expected):
    (tmp_path / "own_networks_2.py").write_text(textwrap.dedent(NETWORKS))
    words = ("train", "--data", "x.npy", "--method", "vae", "--latent", 2, "--out", "run")
    assert call(*words, "--networks", f"own_networks_2:{function}") == 2
    assert expected in said(capsys)


def test_a_preset_can_start_from_a_trained_vae(x, capsys):
    recmix.fit("vae", "x.npy", out="vae", **SHORT)
    words = ("train", "--data", "x.npy", "--preset", "paper", "--epochs", 1, "--order", 2)
    assert call(*words, "--init", "vae", "--out", "run") == 0
    assert Run("run").spec().init["run"] == str(Run("vae").folder.resolve())
    assert not (Run("run").folder / "vae").exists()
    assert call("train", "--resume", "--out", "run", "--epochs", 2) == 0
    capsys.readouterr()
    assert call(*words, "--init", "run", "--out", "other") == 2
    assert "trains the method vae, but init is a run of rme" in said(capsys)
    assert call(*words, "--init", "vae", "--latent", 3, "--out", "other") == 2
    assert "leave latent out" in said(capsys)
