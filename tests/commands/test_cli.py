"""The command line: what it prints, and its errors."""

import json
import subprocess
import sys

import numpy as np
import pytest
from cases.commands import call
from cases.training import images

from recmix.runs.folder import Run

SHORT = ["--epochs", "1", "--latent", "2", "--device", "cpu"]


@pytest.fixture
def run(tmp_path):
    assert call("train", "--data", "digits", "--method", "vae", *SHORT, "--out", tmp_path / "vae") == 0
    return tmp_path / "vae"


def test_train_evaluate_and_continue(run, tmp_path, capsys):
    capsys.readouterr()
    assert call("evaluate", run, "--samples", "7", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["images"] == 297
    assert found["samples"] == 7
    assert found["iwae"] >= found["elbo"]
    assert found["iwae_se"] > 0
    stored = Run(run).scores()["test/7"]
    assert stored["iwae"] == found["iwae"]
    assert call("evaluate", run, "--split", "val", "--samples", "3") == 0
    assert "IWAE-3" in capsys.readouterr().out
    words = ("train", "--data", "digits", "--method", "rme", "--order", "2", "--init", run)
    assert call(*words, "--epochs", "1", "--out", tmp_path / "rme") == 0
    assert Run(tmp_path / "rme").spec().options["order"] == 2
    assert call("train", "--resume", "--out", tmp_path / "rme", "--epochs", "2") == 0
    assert len(Run(tmp_path / "rme").history()) == 2


@pytest.mark.usefixtures("few_digits")
def test_train_says_which_likelihood_it_chose_and_that_longer_training_may_help(tmp_path, capsys):
    words = ("train", "--data", "digits", "--method", "vae", *SHORT)
    assert call(*words, "--out", tmp_path / "a") == 0
    shown = capsys.readouterr()
    assert "likelihood: gaussian, because the values lie between 0 and 1" in shown.err
    longer = f"recmix train --resume --out {tmp_path / 'a'} --epochs 2"
    assert longer in shown.out
    assert call(*words, "--likelihood", "bernoulli", "--out", tmp_path / "b") == 0
    assert "likelihood" not in capsys.readouterr().err  # it was given
    assert call(*longer.split()[1:]) == 0
    assert len(Run(tmp_path / "a").history()) == 2


@pytest.mark.usefixtures("few_digits")
def test_an_existing_run_is_refused_before_the_data_are_read(run, capsys):
    assert call("train", "--data", "no-such-data", "--method", "vae", *SHORT, "--out", run) == 2
    assert "already holds a run" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["latent", "likelihood", "network", "decoder-network", "prior"])
def test_options_are_checked_before_the_data_are_read(tmp_path, capsys, name):
    words = ("train", "--data", "no-such-data", "--method", "vae", f"--{name}", "0")
    assert call(*words, "--out", tmp_path / "run") == 2
    assert {"network": "encoder", "decoder-network": "decoder"}.get(
        name, name
    ) in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("few_digits")
def test_evaluate_says_which_inference_it_used_and_what_it_gains(run, capsys):
    capsys.readouterr()
    assert call("evaluate", run, "--samples", "3") == 0
    plain = capsys.readouterr().out
    assert "mixing weights" not in plain  # the model has one component
    assert "gain over" not in plain
    assert call("evaluate", run, "--samples", "3", "--refine", "1") == 0
    shown = capsys.readouterr().out
    assert "VAE (gauss-newton, 1 step)" in shown
    scores = Run(run).scores()
    refined = scores["test/3/gauss-newton,refine=1,reuse=2,restarts=1,checks=1"]
    for name in ("elbo", "iwae"):
        gain = refined[name] - scores["test/3"][name]
        assert refined[f"{name}_gain"] == pytest.approx(gain, abs=1e-4)
        assert f"{gain:+.2f} ± {refined[f'{name}_gain_se']:.2f}" in shown


@pytest.mark.usefixtures("few_digits")
def test_refinement_can_restart(run, capsys):
    capsys.readouterr()
    for words, restarts in (((), 1), (("--restarts", "3"), 3)):
        assert call("evaluate", run, "--samples", "3", "--refine", "1", *words, "--json") == 0
        assert json.loads(capsys.readouterr().out)["inference"]["restarts"] == restarts
    for words in ((), ("--refine", "0")):
        assert call("evaluate", run, "--restarts", "3", *words) == 2
        assert "give --refine too" in " ".join(capsys.readouterr().err.split())
    assert call("evaluate", run, "--reuse", "3") == 2
    assert "give --refine too" in " ".join(capsys.readouterr().err.split())


@pytest.mark.usefixtures("few_digits")
def test_different_inferences_have_different_score_names(run):
    for words in (
        (),
        ("--refine", "1"),
        ("--refine", "1", "--restarts", "2"),
        ("--refine", "1", "--reuse", "0"),
    ):
        assert call("evaluate", run, "--samples", "3", *words) == 0
    assert call("evaluate", run, "--samples", "3", "--calibrate") == 0
    scores = Run(run).scores()
    assert len(scores) == 5
    assert scores["test/3/gauss-newton,refine=1,reuse=0,restarts=1,checks=1"]["inference"]["reuse"] == 0
    assert scores["test/3/calibrated"]["kind"] == "encoder"
    assert scores["test/3/gauss-newton,refine=1,reuse=2,restarts=2,checks=1"]["steps"] == 1


@pytest.mark.usefixtures("few_digits")
def test_residual_corrections_can_restart_without_refinement(tmp_path, capsys):
    words = ("train", "--data", "digits", "--method", "residual", *SHORT, "--vae-epochs", "1")
    assert call(*words, "--corrections", "1", "--out", tmp_path / "run") == 0
    capsys.readouterr()
    for words, restarts in (((), 1), (("--restarts", "3"), 3)):
        assert call("evaluate", tmp_path / "run", "--samples", "3", *words, "--json") == 0
        found = json.loads(capsys.readouterr().out)
        assert found["inference"]["restarts"] == restarts
        assert found["kind"] == "feed-forward"


@pytest.mark.usefixtures("few_digits")
def test_flags_override_the_file(tmp_path):
    config = tmp_path / "run.toml"
    config.write_text(
        'data = "digits"\nlatent = 2\n[method]\nname = "rme"\norder = 3\neps_max = 0.2\n'
        '[training]\nepochs = 7\nbatch_size = 50\nschedule = "cosine"\n'
    )
    words = (
        "train",
        "--config",
        config,
        "--epochs",
        "1",
        "--vae-epochs",
        "1",
        "--out",
        tmp_path / "run",
    )
    assert call(*words) == 0
    spec = Run(tmp_path / "run").spec()
    assert spec.training.epochs == 1
    assert spec.training.batch_size == 50
    assert spec.training.schedule == "cosine"
    assert spec.options["order"] == 3
    assert spec.options["eps_max"] == 0.2


def test_your_own_file(tmp_path, capsys):
    np.save(tmp_path / "mine.npy", images(50))
    words = ("train", "--data", tmp_path / "mine.npy", "--method", "vae", *SHORT)
    assert call(*words, "--out", tmp_path / "run") == 0
    assert call("evaluate", tmp_path / "run", "--samples", "2") == 0


def test_lists(capsys):
    assert call("methods", "--json") == 0
    found = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert found["rme"]["setting"] == "order"
    assert found["rme"]["options"]["bound"]["default"] == 500.0
    assert all(o["help"] for row in found.values() for o in row["options"].values())
    assert call("methods") == 0
    assert "Kim & Pavlovic" in capsys.readouterr().out
    assert call("data", "--json") == 0
    assert "digits" in [row["name"] for row in json.loads(capsys.readouterr().out)]
    assert call("data") == 0
    assert "looked in" in capsys.readouterr().out
    assert call("--version") == 0


@pytest.mark.parametrize(
    "command",
    [
        "data",
        "methods",
        "train",
        "evaluate",
        "demo",
        "compare",
        "report",
        "grid",
        "figure1",
        "export",
        "explore",
        "presets",
        "summary",
    ],
)
def test_help_shows_examples(command, capsys):
    assert call(command, "--help") == 0
    assert f"recmix {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--data", "mnits", "--method", "vae"], "did you mean 'mnist'"),
        (["train", "--data", "digits", "--method", "vea"], "did you mean 'vae'"),
        (["train", "--data", "digits"], "--method is missing"),
        (["train", "--method", "vae"], "--data is missing"),
        (
            ["train", "--data", "digits", "--method", "vae", "--order", "3"],
            "unknown option for vae 'order'",
        ),
        (["train", "--data", "digits", "--method", "rme", "--order", "0"], "1 to 16"),
        (["train", "--data", "digits", "--method", "vae", "--latent", "-1"], "at least 1"),
        (["train", "--data", "nowhere/x.npy", "--method", "vae"], "nowhere"),
        (["train", "--data", "digits", "--method", "vae", "--init", "nowhere"], "does not hold a run"),
        (["train", "--config", "nowhere.toml"], "cannot read"),
    ],
)
def test_bad_input_ends_with_two_and_one_message(words, message, tmp_path, capsys):
    assert call(*words, "--out", tmp_path / "run") == 2
    shown = capsys.readouterr().err
    assert message in " ".join(shown.split())
    assert "Traceback" not in shown
    assert not (tmp_path / "run" / "spec.json").exists()


@pytest.mark.usefixtures("few_digits")
def test_other_bad_input(run, tmp_path, capsys):
    assert call("train", "--data", "digits", "--method", "vae") == 2
    assert "--out" in capsys.readouterr().err
    assert call("train", "--data", "digits", "--method", "vae", "--out", run) == 2
    assert "already holds a run" in capsys.readouterr().err
    assert call("train", "--nosuch", "1") == 2
    assert call("train", "--epochs", "x") == 2
    assert call("evaluate", tmp_path) == 2
    assert call("evaluate", run, "--samples", "0") == 2
    assert call("evaluate", run, "--split", "tset") == 2
    assert "did you mean 'test'" in capsys.readouterr().err
    (tmp_path / "bad.toml").write_text("= 3")
    assert call("train", "--config", tmp_path / "bad.toml", "--out", tmp_path / "x") == 2
    (tmp_path / "bad.toml").write_text("[metod]\nname = 'vae'")
    assert call("train", "--config", tmp_path / "bad.toml", "--out", tmp_path / "x") == 2
    assert "did you mean 'method'" in capsys.readouterr().err
    assert call("nosuch") == 2


def test_values_of_the_wrong_type_in_a_file(tmp_path, capsys):
    for line, message in (
        ('latent = "three"', "latent must be a whole number"),
        ("latent = 3.5", "latent must be a whole number"),
        ("init = 3", "init must be"),
        ('resume = "yes"', "resume must be true or false"),
        ("epcohs = 3", "bad.toml: unknown option 'epcohs': did you mean 'epochs'"),
    ):
        (tmp_path / "bad.toml").write_text(f'data = "digits"\nmethod = "vae"\n{line}\n')
        assert call("train", "--config", tmp_path / "bad.toml", "--out", tmp_path / "x") == 2
        assert message in capsys.readouterr().err


@pytest.mark.usefixtures("few_digits")
def test_other_images_and_moved_runs(run, tmp_path, capsys, monkeypatch):
    np.save(tmp_path / "other.npy", images(20, size=10))
    assert call("evaluate", run, "--data", tmp_path / "other.npy", "--samples", "2") == 2
    assert "trained on examples of shape (1, 8, 8)" in " ".join(capsys.readouterr().err.split())
    monkeypatch.chdir(tmp_path)
    words = ("train", "--data", "digits", "--method", "rme", "--order", "2", "--init", "vae")
    assert call(*words, "--epochs", "1", "--out", "rme") == 0
    monkeypatch.chdir("/")
    assert call("train", "--resume", "--out", tmp_path / "rme", "--epochs", "2") == 0
    run.rename(tmp_path / "moved")
    assert call("train", "--resume", "--out", tmp_path / "rme", "--epochs", "3") == 2
    assert "give its folder with --init" in " ".join(capsys.readouterr().err.split())
    words = ("train", "--resume", "--out", tmp_path / "rme", "--init", tmp_path / "moved")
    assert call(*words, "--epochs", "3") == 0
    assert call("train", "--resume", "--out", tmp_path / "none") == 2
    assert "no run in" in capsys.readouterr().err
    assert call("compare", "--init", tmp_path / "rme", "--out", tmp_path / "c") == 2
    assert "init must be a VAE" in " ".join(capsys.readouterr().err.split())


def test_debug_shows_the_traceback(tmp_path):
    command = [sys.executable, "-m", "recmix.cli", "evaluate", str(tmp_path), "--debug"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "Traceback" in done.stderr


@pytest.mark.usefixtures("few_digits")
def test_the_demonstration_in_short(tmp_path, capsys):
    assert call("demo", "--quick", "--out", tmp_path / "demo") == 0
    shown = capsys.readouterr().out
    for word in ("VAE+", "RME(3)", "IWAE-100", "±"):
        assert word in shown
    for name in ("learning_curves.png", "reconstructions.png", "samples.png"):
        assert (tmp_path / "demo" / name).stat().st_size > 5000
    assert call("demo", "--quick", "--out", tmp_path / "demo") == 2
    assert "not empty" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert call("demo", "--quick", "--out", tmp_path / "file") == 2
    assert "could not make the folder" in capsys.readouterr().err


@pytest.mark.usefixtures("few_digits")
def test_compare_trains_every_method_from_one_vae(tmp_path, capsys):
    words = ("compare", "--data", "digits", "--latent", "3", "--vae-epochs", "2", "--epochs", "1")
    assert call(*words, "--samples", "3", "--out", tmp_path / "all") == 0
    shown = capsys.readouterr().out
    from recmix.methods.registry import METHODS

    for name in METHODS:
        assert name.upper()[:8] in shown  # the terminal may wrap a long name
    table = (tmp_path / "all" / "compare.md").read_text()
    assert table.count("\n") == len(METHODS) + 3
    rows = json.loads((tmp_path / "all" / "compare.json").read_text())["rows"]
    assert next(r for r in rows if r["model"] == "VAE+")["gain"] == 0
    assert all("best_validation" in r for r in rows)
    assert call(*words, "--samples", "3", "--out", tmp_path / "all", "rme:order=2", "rme:order=x") == 2
    assert "order must be a whole number" in capsys.readouterr().err


def test_real_mnist_for_a_moment(real_data, tmp_path):
    """The published files, read, trained on and scored."""
    import recmix

    data = recmix.data.load("mnist", root=real_data)
    assert data.x_train.shape == (54_000, 1, 28, 28)
    small = recmix.data.from_arrays(data.x_train[:256], x_test=data.x_test[:64])
    model = recmix.fit("vae", small, latent=20, epochs=2, batch_size=64, progress=False)
    rme = recmix.fit("rme", small, order=2, init=model, epochs=1, progress=False)
    assert np.isfinite(rme.log_likelihood(data.x_test[:20]).numpy(force=True)).all()
