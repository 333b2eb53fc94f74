"""Runs of arrays in memory and of a user's own networks, from the command line."""

import json
import textwrap
from pathlib import Path

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


    class VAE(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = networks()

        def encode(self, x):
            return self.a(x).chunk(2, -1)

        def decode(self, z):
            return self.b(z)


    def nothing():
        return 3


    def wrong():
        return {"encoders": None}
"""


FLAT_IMAGES = """
    import recmix
    import torch
    from torch import nn


    def networks():
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
        decoder = nn.Sequential(nn.Linear(2, 64), nn.Unflatten(1, (8, 8)))
        return {"encoder": encoder, "decoder": decoder, "likelihood": recmix.likelihoods.Gaussian(0.1)}


    def model():
        return recmix.wrap(**networks(), example=torch.zeros(2, 8, 8))
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


def test_the_gap_of_one_example_is_json(x, capsys):
    np.savez("one.npz", x_train=x[2:], x_val=x[:1], x_test=x[1:2])
    recmix.fit("vae", recmix.data.load("one.npz"), out="run", **SHORT)
    assert call("evaluate", "run", "--gap", "--samples", 3, "--json") == 0
    shown = capsys.readouterr().out
    assert json.loads(shown)["summary"]["test"]["elbo"]["se"] is None
    assert "NaN" not in shown


def test_the_validation_part_has_one_name(x, capsys):
    recmix.fit("vae", x, out="run", **SHORT)
    options = ("--samples", 3, "--data", "x.npy")
    assert call("evaluate", "run", "--split", "validation", *options) == 2
    assert "unknown split 'validation': did you mean 'val'?" in said(capsys)
    assert Run("run").scores() == {}


def test_training_examples_in_another_split_are_counted(x, capsys):
    recmix.fit("vae", x, out="run", **SHORT)
    np.savez("parts.npz", x_train=x[:10], x_val=x[10:20], x_test=x[20:])
    assert call("evaluate", "run", "--samples", 3, "--data", "parts.npz") == 0
    trained = {row.tobytes() for row in recmix.data.from_arrays(x).x_train[:]}
    count = sum(row.tobytes() in trained for row in x[20:])
    assert f"warning: {count} of the 20 scored examples of parts.npz are training" in said(capsys)
    assert Run("run").scores() == {}
    np.savez("parts.npz", x_train=x[:10], x_val=x[10:20], x_test=np.repeat(x[20:], 2, axis=0))
    assert call("evaluate", "run", "--samples", 3, "--data", "parts.npz") == 0
    shown = said(capsys)
    assert f"warning: {2 * count} of the 40 scored examples of parts.npz are equal to training" in shown
    assert "because 40 scored examples are equal to another scored one" in shown
    Run("run").folder.joinpath("training_examples.json").unlink()  # an earlier version had none
    assert call("evaluate", "run", "--samples", 3, "--data", "parts.npz") == 0
    assert "is not known" in said(capsys)


def test_training_examples_are_no_test_examples_of_a_run_without_a_test_part(x, capsys):
    recmix.fit("vae", recmix.data.from_arrays(x, hold_out_test=False), out="run", **SHORT)
    assert call("evaluate", "run", "--data", "x.npy", "--calibrate") == 2
    assert "--split val, without --calibrate" in said(capsys)
    assert call("evaluate", "run", "--data", "x.npy", "--calibrate", "--split", "val") == 2
    assert "give a file with x_train and x_test with --data" in said(capsys)
    np.savez("both.npz", x_train=x, x_test=1 - x[:5])
    assert call("evaluate", "run", "--samples", 3, "--data", "both.npz") == 0
    assert list(Run("run").scores()) == ["test/3"]
    np.savez("both.npz", x_train=x, x_test=x)
    assert call("evaluate", "run", "--samples", 4, "--data", "both.npz") == 0
    assert "36 of the 40 scored examples" in said(capsys)
    assert list(Run("run").scores()) == ["test/3"]


def test_data_take_the_shape_of_a_wrapped_model(x, tmp_path, capsys):
    (tmp_path / "own_networks_3.py").write_text(textwrap.dedent(FLAT_IMAGES))
    np.save("flat.npy", x[:, 0])
    for name in ("flat.npy", "x.npy"):
        assert call("evaluate", "own_networks_3:model", "--samples", 3, "--data", name) == 0
    from own_networks_3 import model

    trained = recmix.fit("residual", x[:, 0], init=model(), epochs=1, progress=False, out="run")
    assert trained.spec.shape == (8, 8)
    mine = ("--networks", "own_networks_3:networks")
    assert call("evaluate", "run", *mine, "--samples", 3, "--data", "flat.npy") == 0
    assert list(Run("run").scores()) == ["test/3"]
    words = ("train", "--method", "residual", "--init", "run", "--epochs", 1, *mine)
    assert call(*words, "--data", "flat.npy", "--out", "again") == 0


def test_the_explorer_shows_examples_of_a_file(x):
    recmix.fit("vae", x, out="run", **SHORT)
    models = load_models(["run"])
    np.savez("both.npz", x_train=x, x_test=x[:7])
    shown = examples_for(models, "both.npz")["run"]
    np.testing.assert_array_equal(shown[:], x[:7])


def test_model_explore_serves_given_examples(x, monkeypatch):
    served = {}
    monkeypatch.setattr("recmix.api.model.serve", lambda models, **how: served.update(how))
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


def edit(path, change):
    """Change a JSON file of a run by a function, and remove its digest, as an attacker could."""
    content = json.loads(path.read_text())
    content.pop("content_sha256")
    change(content)
    path.write_text(json.dumps(content))


def test_a_run_folder_cannot_name_a_function_to_call(x, tmp_path, capsys):
    (tmp_path / "own_networks_4.py").write_text("open('called', 'w').close()")
    train = ("train", "--data", "x.npy", "--latent", 2, "--epochs", 1, "--vae-epochs", 1)
    assert call(*train, "--method", "vae", "--out", "run") == 0
    edit(Path("run/spec.json"), lambda spec: spec["options"].update(networks="own_networks_4:go"))
    assert call("train", "--resume", "--out", "run", "--epochs", 2) == 2
    assert "'networks' is no option of the method vae" in said(capsys)
    assert call(*train, "--preset", "paper", "--out", "stages") == 0
    edit(Path("stages/preset.json"), lambda preset: preset["first"].update(networks="own_networks_4:go"))
    assert call("train", "--resume", "--out", "stages", "--epochs", 2) == 2
    assert "'networks' is no option of the first stage" in said(capsys)
    assert not Path("called").exists()


def test_own_networks_may_be_one_module(x, tmp_path, capsys):
    (tmp_path / "own_networks_of_one.py").write_text(textwrap.dedent(NETWORKS))
    mine = ("--networks", "own_networks_of_one:VAE")
    train = ("train", "--data", "x.npy", "--method", "vae", "--latent", 2, "--epochs", 1)
    assert call(*train, *mine, "--out", "run") == 0
    assert call("evaluate", "run", *mine, "--samples", 3) == 0
    assert "IWAE-3" in said(capsys)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("nothing", "returned a int; expected a module with encode and decode, a pair"),
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


def test_a_run_without_a_test_part_is_continued_with_its_array(x):
    recmix.fit("vae", recmix.data.from_arrays(x, hold_out_test=False), out="run", **SHORT)
    again = recmix.fit("vae", x, out="run", resume=True, **SHORT | {"epochs": 2})
    assert len(again.history) == 2
    assert again.spec.data["counts"]["test"] is None


@pytest.fixture
def wrapped(x, tmp_path):
    """Words of `recmix evaluate` for a saved model that was trained elsewhere, without --data."""
    (tmp_path / "own_networks_4.py").write_text(textwrap.dedent(FLAT_IMAGES))
    from own_networks_4 import model

    model().save("runs/wrapped")
    return ("evaluate", "runs/wrapped", "--networks", "own_networks_4:networks", "--samples", 3)


def test_results_of_a_wrapped_model_are_not_replaced_by_those_of_other_data(wrapped, x, capsys):
    np.savez("noise.npz", x_train=1 - x, x_test=1 - x[:5])
    gap = ("--gap", "--examples", 2)
    for words in (wrapped, (*wrapped, *gap)):
        assert call(*words, "--data", "x.npy") == 0
    stored = {name: Run("runs/wrapped").folder.joinpath(name) for name in ("scores.json", "gap.json")}
    before = {name: path.read_text() for name, path in stored.items()}
    said(capsys)
    for words in (wrapped, (*wrapped, "--refine", 1), (*wrapped, *gap)):
        assert call(*words, "--data", "noise.npz") == 0
        shown = said(capsys)
        assert "the results in runs/wrapped are on x, and noise.npz has other examples" in shown
        assert "this result is not stored" in shown
        assert {name: path.read_text() for name, path in stored.items()} == before
    assert call(*wrapped, "--data", "x.npy", "--split", "val") == 0
    assert list(Run("runs/wrapped").scores()) == ["test/3", "val/3"]


def test_the_gap_of_a_wrapped_model_does_not_advise_to_leave_its_data_out(wrapped):
    from own_networks_4 import networks

    from recmix.commands.gap import _how_to_measure_training

    model = recmix.load("runs/wrapped", **networks())
    assert _how_to_measure_training(model) == "in Python: model.gap(x, train=...)"


def test_a_wrapped_model_needs_the_name_of_its_data(wrapped, capsys):
    assert call(*wrapped) == 2
    assert "trained elsewhere, so that its data are not known: name the data with --data" in said(capsys)


def test_a_wrapped_model_is_a_row_of_reports(wrapped, capsys):
    from recmix.reports.read_store import read_store

    assert read_store("runs").records[0].column.data == "own data"
    assert call(*wrapped, "--data", "x.npy") == 0
    capsys.readouterr()
    for words in (("report", "runs", "--format", "terminal"), ("summary", "runs", "--out", "small")):
        assert call(*words, "--samples", 3) == 0
        shown = said(capsys)
        assert "note:" not in shown.replace("note: frontier.png is not written", "")
        assert "VAE" in shown
    assert read_store("runs").records[0].column.data == "x"


def test_a_random_test_part_of_a_file_is_noted(wrapped, x, capsys):
    assert call(*wrapped, "--data", "x.npy") == 0
    shown = said(capsys)
    assert "x.npy has no test part: a random tenth, 4 of 40 examples, is scored" in shown
    assert "The model may have been trained on some of these examples" in shown
    np.savez("parts.npz", x_train=x, x_test=x[:5])
    assert call(*wrapped, "--data", "parts.npz") == 0
    assert "random tenth" not in said(capsys)


def test_several_arrays_without_networks_say_what_to_do(x, capsys):
    np.savez("two.npz", images=x, ages=np.arange(40))
    for command in (("train", "--method", "vae"), ("compare", "rme")):
        assert call(*command, "--data", "two.npz", "--out", "run") == 2
        assert "numpy.savez(path, x_train=images)" in said(capsys)
    np.savez("two.npz", images=x, labels=np.arange(40))
    words = ("train", "--method", "vae", "--latent", 2, "--epochs", 1, "--device", "cpu")
    assert call(*words, "--data", "two.npz", "--out", "run") == 0
    assert "the examples are the array images; not used: labels" in said(capsys)
