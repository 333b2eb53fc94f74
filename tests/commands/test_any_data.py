"""The command line with tables: counts, real numbers, classes; from training to report and export."""

import json

import numpy as np
import pytest
from cases.commands import call

import recmix
from recmix.runs.folder import Run

pytestmark = pytest.mark.filterwarnings("ignore:.*held-out examples are few")

SHORT = ["--epochs", "1", "--latent", "2", "--device", "cpu"]


@pytest.fixture
def table(tmp_path, monkeypatch):
    """A current directory with tables of counts, of real numbers and of classes."""
    random = np.random.default_rng(0)
    monkeypatch.chdir(tmp_path)
    counts = random.poisson(2.0, (60, 4))
    lines = ["a,b,c,d", *(",".join(map(str, row)) for row in counts)]
    (tmp_path / "counts.csv").write_text("\n".join(lines) + "\n")
    np.savetxt("real.csv", random.normal(size=(60, 4)), delimiter=",")
    np.save("classes.npy", random.integers(0, 3, (60, 5)))
    return tmp_path


def train(*words, out="runs/vae", data="counts.csv", method="vae"):
    return call("train", "--data", data, "--method", method, *SHORT, *words, "--out", out)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_counts_from_training_to_the_report(table, capsys):
    assert train("--likelihood", "poisson", "--widths", "8,4") == 0
    spec = Run("runs/vae").spec()
    assert (spec.model.likelihood, spec.model.network, spec.model.widths) == ("poisson", "mlp", (8, 4))
    assert spec.shape == (4,)
    assert train("--init", "runs/vae", out="runs/plus") == 0
    assert train("--init", "runs/vae", "--order", "2", out="runs/rme", method="rme") == 0
    assert call("train", "--resume", "--out", "runs/rme", "--epochs", "2") == 0
    assert len(Run("runs/rme").history()) == 2
    for run in ("vae", "plus", "rme"):
        assert call("evaluate", f"runs/{run}", "--samples", "3") == 0
    assert call("evaluate", "runs/rme", "--samples", "3", "--refine", "1", "--calibrate") == 0
    assert call("evaluate", "runs/rme", "--gap", "--examples", "3", "--samples", "5") == 0
    assert call("export", "runs/rme", "--format", "torchscript") == 0
    assert call("report", "runs", "--samples", "3", "--format", "markdown", "--out", "report.md") == 0
    report = (table / "report.md").read_text()
    assert "### counts, mlp networks, poisson, widths=8,4" in report
    for row in ("VAE+", "RME(2)", "RME(2) +1 step, calibrated"):
        assert f"| {row} |" in report
    assert "nats per example" in report
    assert call("summary", "runs", "--samples", "3", "--out", "results") == 0
    rows = json.loads((table / "results" / "summary.json").read_text())["rows"]
    assert {row["more"] for row in rows} == {"widths=8,4"}


def test_every_option_of_the_model_is_a_flag_and_is_resumed(table):
    words = "--likelihood gaussian-features --standardise features --prior mixture --prior-components 3"
    words += " --network mlp --widths 8 --activation tanh --normalisation layer --dropout 0.1"
    assert train(*words.split(), data="real.csv") == 0
    model = Run("runs/vae").spec().model
    assert model.changed() == {
        "latent": 2,
        "likelihood": "gaussian-features",
        "standardise": "features",
        "prior": "mixture",
        "prior_components": 3,
        "network": "mlp",
        "decoder_network": "mlp",
        "widths": (8,),
        "activation": "tanh",
        "normalisation": "layer",
        "dropout": 0.1,
    }
    assert call("train", "--resume", "--out", "runs/vae", "--epochs", "2") == 0
    assert len(Run("runs/vae").history()) == 2
    assert Run("runs/vae").spec().model == model
    entries = ["--epochs", "1", "--samples", "3", "--device", "cpu", "--out", "runs/all", "rme:order=2"]
    assert call("compare", "--data", "real.csv", "--init", "runs/vae", *entries) == 0
    rows = json.loads((table / "runs" / "all" / "compare.json").read_text())["rows"]
    assert [row["model"] for row in rows] == ["VAE", "VAE+", "RME(2)"]
    assert Run("runs/all/rme-2").spec().model == model


def test_classes(table):
    assert train("--likelihood", "categorical", data="classes.npy") == 0
    assert Run("runs/vae").spec().model.classes == 3
    assert call("evaluate", "runs/vae", "--samples", "3", "--calibrate-noise") == 0
    assert "test/3/calibrated+noise" in Run("runs/vae").scores()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--likelihood", "poison"], "did you mean 'poisson'"),
        (["--prior", "vampire"], "did you mean 'vamp'"),
        (["--network", "mpl"], "did you mean 'mlp'"),
        (["--network", "conv"], "network='mlp' takes examples of any shape"),
        (["--widths", "a,b"], "widths must be whole numbers such as 512,512, got 'a,b'"),
        (["--widths", "8", "--network", "dense"], "widths=(8,) is an option of network mlp"),
        (["--standardise", "featurs"], "did you mean 'features'"),
        (["--variance", "-1"], "variance must be above 0"),
        (
            ["--variance", "1", "--likelihood", "poisson"],
            "variance is an option of gaussian likelihoods",
        ),
        (["--likelihood", "bernoulli"], "needs values in [0, 1], but x_train has the value"),
        (["--noise", "2"], "the poisson likelihood has no noise that can be calibrated"),
        (["--dropout", "2"], "dropout must be at least 0 and below 1"),
    ],
)
def test_errors_are_one_message(words, message, table, capsys):
    assert train(*words) == 2
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith("error: ")
    assert message in last
    assert not (table / "runs").exists()


def test_help_lists_the_formats_of_data(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert call("train", "--help-all") == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for word in (
        ".npy",
        ".npz",
        ".csv",
        ".parquet",
        "folder or zip of images",
        "--likelihood",
        "--widths",
    ):
        assert word in shown


def test_other_data_must_fit_the_likelihood(table, capsys):
    assert train("--likelihood", "poisson") == 0
    assert call("evaluate", "runs/vae", "--data", "real.csv") == 2
    assert "real.csv: the poisson likelihood needs counts" in capsys.readouterr().err
    assert call("evaluate", "runs/vae", "--data", "classes.npy") == 2
    assert "trained on examples of shape (4,), those of classes.npy have shape (5,)" in " ".join(
        capsys.readouterr().err.split()
    )


def test_commands_refuse_runs_with_parts_of_the_user(table, capsys):
    from torch import nn

    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    networks = {"encoder": nn.Linear(4, 4), "decoder": nn.Linear(2, 4)}
    how = {"latent": 2, "epochs": 1, "device": "cpu", "progress": False}
    recmix.fit("vae", x, out="runs/own", **networks, **how)
    for words in (
        ("export", "runs/own"),
        ("evaluate", "runs/own"),
        ("explore", "runs/own"),
        ("train", "--resume", "--out", "runs/own"),
    ):
        assert call(*words) == 2
        message = " ".join(capsys.readouterr().err.split())
        assert "runs/own has its user's own networks, which are code and not stored" in message
        assert "--networks module:function" in message


def test_explore_serves_the_model_of_a_python_function(table, monkeypatch):
    from recmix.commands.explore import load_models
    from recmix.explore.catalogue import Catalogue

    (table / "my_vae_of_images.py").write_text(
        "import recmix, torch\n"
        "from torch import nn\n"
        "def vae():\n"
        "    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))\n"
        "    decoder = nn.Sequential(nn.Linear(2, 64), nn.Unflatten(1, (1, 8, 8)))\n"
        "    example = torch.zeros(1, 1, 8, 8)\n"
        "    return recmix.wrap(encoder, decoder, likelihood='bernoulli', example=example)\n"
    )
    monkeypatch.syspath_prepend(str(table))
    models = load_models(["my_vae_of_images:vae", "my_vae_of_images:vae"])
    assert list(models) == ["vae", "vae-2"]
    served = Catalogue(models).runs["vae"]
    assert not served.not_shown
    assert served.describe()["likelihood"] == "bernoulli"
    assert load_models(["my_vae_of_images:vae"], device="meta")["vae"].device.type == "meta"
    assert train(out="my_vae_of_images:vae") == 0
    assert list(load_models(["my_vae_of_images:vae"])) == ["my_vae_of_images:vae"]  # the folder
