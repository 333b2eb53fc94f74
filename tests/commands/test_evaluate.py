"""`recmix evaluate`: calibrated noise, and models that a Python function returns."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from cases.commands import call

import recmix
from recmix.data import load
from recmix.runs.folder import Run

pytestmark = pytest.mark.filterwarnings("ignore:.*held-out examples are few")
FEATURES = 6
MODULE = """
import numpy as np
import torch
from torch import nn

import recmix
from recmix.model.likelihoods import Gaussian

number = 3


def networks():
    torch.manual_seed(0)
    encoder = nn.Linear(6, 4)
    with torch.no_grad():
        encoder.bias[2:] -= 6  # much too sure
    return encoder, nn.Linear(2, 6)


def vae():
    x = torch.zeros(1, 6)
    return recmix.wrap(*networks(), likelihood=Gaussian(0.1), example=x, label="MINE")


def counts():
    encoder, decoder = networks()
    return recmix.wrap(encoder, decoder, likelihood="poisson", example=torch.zeros(1, 6))


def stored():
    encoder, decoder = networks()
    return recmix.load("saved", encoder=encoder, decoder=decoder)


def fitted():
    return recmix.load("fitted")


def nothing():
    return 3


def needs(path, size=3):
    return vae()


def fails():
    raise RuntimeError("no weights\\nin two lines")


def refuses():
    return recmix.wrap(*networks(), likelihood="gausian", example=torch.zeros(1, 6))


model = vae()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A current directory with a module and data; it is not on the path of imports."""
    x = np.random.default_rng(0).normal(size=(80, FEATURES)).astype(np.float32)
    np.save(tmp_path / "table.npy", x)
    np.save(tmp_path / "wide.npy", np.zeros((30, FEATURES + 1), np.float32))
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("import no_such_package")
    (tmp_path / "wrong.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("mine", "broken", "wrong"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield tmp_path
    sys.modules.pop("mine", None)


def printed(capsys, *words):
    """The JSON that a command prints."""
    capsys.readouterr()
    assert call(*words, "--json") == 0
    return json.loads(capsys.readouterr().out)


def said(capsys, *words):
    """The message of a command that is refused."""
    capsys.readouterr()
    assert call(*words) == 2
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    assert shown.count("\n") == 1
    return shown


DATA = ("--data", "table.npy", "--samples", "5", "--device", "cpu")


def test_a_model_that_a_function_returns_is_scored(folder, capsys):
    import importlib

    found = printed(capsys, "evaluate", "mine:vae", *DATA)
    data = load("table.npy")
    assert (found["run"], found["images"], found["samples"]) == ("mine:vae", len(data.x_test), 5)
    model = importlib.import_module("mine").vae()
    generator = torch.Generator().manual_seed(0)
    from recmix.evaluation.bounds import bounds

    elbo, iwae = bounds(model.method, torch.from_numpy(data.x_test[:]), samples=5, generator=generator)
    assert found["iwae"] == pytest.approx(float(iwae.mean()), rel=1e-6)
    assert found["elbo"] == pytest.approx(float(elbo.mean()), rel=1e-6)
    assert {path.name for path in folder.iterdir()} - {"__pycache__"} == {
        *("mine.py", "broken.py", "wrong.py", "table.npy", "wide.npy")
    }
    assert call("evaluate", "mine:vae", *DATA) == 0
    assert "MINE" in capsys.readouterr().out


def test_the_other_flags_work_too(folder, capsys):
    plain = printed(capsys, "evaluate", "mine:vae", *DATA)
    refined = printed(capsys, "evaluate", "mine:vae", *DATA, "--refine", "2")
    assert refined["steps"] == 2
    assert refined["iwae"] > plain["iwae"]
    calibrated = printed(capsys, "evaluate", "mine:vae", *DATA, "--calibrate")
    assert calibrated["inference"]["scale"] > 1
    assert calibrated["inference"]["noise"] == 1
    noisy = printed(capsys, "evaluate", "mine:vae", *DATA, "--calibrate-noise", "--refine", "1")
    assert noisy["inference"]["noise"] > 1
    assert noisy["iwae"] > refined["iwae"]
    assert printed(capsys, "evaluate", "mine:vae", *DATA, "--split", "val")["images"] == 8
    gap = printed(capsys, "evaluate", "mine:vae", *DATA, "--gap", "--examples", "4")
    assert set(gap["summary"]) == {"test"}  # it was not trained on the training part


def test_scores_are_stored_if_the_model_has_a_folder(folder, capsys):
    sys.path.insert(0, str(folder))
    import mine

    mine.vae().save("saved")
    found = printed(capsys, "evaluate", "mine:stored", *DATA)
    assert Run("saved").scores()["test/5"]["iwae"] == found["iwae"]
    assert call("evaluate", "mine:stored", *DATA, "--calibrate-noise") == 0
    assert "test/5/calibrated+noise" in Run("saved").scores()
    assert call("evaluate", "mine:stored", *DATA, "--gap", "--examples", "4") == 0
    assert (folder / "saved" / "gap.json").exists()
    message = said(capsys, "evaluate", "saved")
    assert "own networks, which are code and not stored: name a function that makes them" in message


def test_scores_on_other_data_are_not_stored(folder, capsys):
    recmix.fit("vae", load("table.npy"), latent=2, epochs=1, out="fitted", progress=False, device="cpu")
    np.save("other.npy", np.zeros((40, FEATURES), np.float32))
    for name, stored in (("other.npy", False), ("table.npy", True)):
        assert call("evaluate", "mine:fitted", "--data", name, "--samples", "5") == 0
        assert ("test/5" in Run("fitted").scores()) == stored


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mine:vae"], "--data is missing: name the data to score mine:vae on"),
        (["nowhere:vae", *DATA], "there is no module 'nowhere' in "),
        (["mine.inner:vae", *DATA], "there is no module 'mine.inner' in "),
        (["broken:vae", *DATA], "importing broken failed: No module named 'no_such_package'"),
        (["wrong:vae", *DATA], "importing wrong failed: ZeroDivisionError: division by zero"),
        (["mine:vea", *DATA], "unknown function of mine 'vea': did you mean 'vae'"),
        (["mine:number", *DATA], "mine:number is a int; expected a function without arguments"),
        (["mine:model", *DATA], "mine:model is a Model; expected a function without arguments"),
        (["mine:nothing", *DATA], "mine:nothing returned a int; expected a recmix.Model"),
        (["mine:needs", *DATA], "mine:needs needs the arguments path, but is called without any"),
        (["mine:fails", *DATA], "mine:fails failed: RuntimeError: no weights"),
        (["mine:refuses", *DATA], "did you mean 'gaussian'"),
        (
            ["mine:vae", "--data", "wide.npy"],
            "examples of shape (6,), those of wide.npy have shape (7,)",
        ),
        (["mine:counts", *DATA], "table.npy: the poisson likelihood needs counts"),
        (["mine:vae", *DATA, "--device", "gpu"], "device 'gpu' does not exist"),
        (["mine:vae", *DATA, "--gap", "--calibrate-noise"], "give only one"),
        (["mine:vae", *DATA, "--split", "val", "--calibrate-noise"], "cannot score them"),
        (["mine:vae", "--data", "nowhere.npy"], "nowhere.npy does not exist"),
    ],
)
def test_errors_are_one_message(words, message, folder, capsys):
    assert message in said(capsys, "evaluate", *words)


def test_the_current_directory_is_importable(folder):
    script = "import sys; sys.path.remove(''); from recmix.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", script, "evaluate", "mine:vae", *DATA]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "MINE" in done.stdout


def test_calibrated_noise_of_a_run(tmp_path, capsys):
    words = ("train", "--data", "digits", "--method", "vae", "--variance", "0.01")
    run = tmp_path / "vae"
    assert call(*words, "--epochs", "1", "--latent", "2", "--device", "cpu", "--out", run) == 0
    for flags in (["--calibrate"], ["--calibrate-noise"], ["--calibrate", "--calibrate-noise"]):
        assert call("evaluate", run, "--samples", "3", *flags) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("calibrated on validation data: scale") == 3
    assert shown.count("the likelihood's noise times") == 2
    scores = Run(run).scores()
    assert set(scores) == {"test/3/calibrated", "test/3/calibrated+noise"}
    assert scores["test/3/calibrated"]["inference"]["noise"] == 1
    assert scores["test/3/calibrated+noise"]["inference"]["noise"] > 2
    assert scores["test/3/calibrated+noise"]["iwae"] > scores["test/3/calibrated"]["iwae"]


def test_a_likelihood_without_noise_is_refused(tmp_path, capsys):
    np.save(tmp_path / "counts.npy", np.random.default_rng(0).poisson(3, (60, 4)))
    words = ("train", "--data", tmp_path / "counts.npy", "--method", "vae", "--latent", "2")
    assert call(*words, "--epochs", "1", "--device", "cpu", "--out", tmp_path / "run") == 0
    assert Run(tmp_path / "run").spec().model.likelihood == "poisson"
    message = said(capsys, "evaluate", tmp_path / "run", "--calibrate-noise")
    assert "the poisson likelihood has no noise that can be calibrated: use --calibrate" in message


@pytest.mark.parametrize("status", ["running", "interrupted", "failed", "done"])
def test_scores_of_an_unfinished_run_are_noted(folder, capsys, status):
    recmix.fit("vae", "table.npy", epochs=3, latent=2, device="cpu", out="run", progress=False)
    Run("run").set_status(status, epoch=1, reason="a test")
    capsys.readouterr()
    assert call("evaluate", "run", "--samples", 2, "--json") == 0
    note = (
        f"note: run is not finished ({status}): epoch 1 of 3. To continue it: recmix train --resume "
        "--out run\n"
    )
    assert capsys.readouterr().err == note * (status != "done")
