"""What the command line says to a newcomer: hints in errors, the next commands, and tables."""

import textwrap
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cases.commands import call
from cases.training import images
from rich.console import Console

import recmix
from recmix.commands import compare, gap, terminal
from recmix.runs.folder import Run
from recmix.training.resume import how_to_resume

NETWORKS = """
    import torch
    from torch import nn

    import recmix


    def networks():
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
        return encoder, nn.Sequential(nn.Linear(2, 64), nn.Unflatten(1, (8, 8)))


    def pictures():
        encoder, decoder = networks()
        return encoder, nn.Sequential(decoder, nn.Unflatten(1, (1, 8)))


    def swapped():
        return networks()[::-1]


    def model():
        return recmix.wrap(*networks(), likelihood="bernoulli", example=torch.zeros(1, 8, 8))
"""
MINE = ("--networks", "hinted:networks")


@pytest.fixture
def wrapped(tmp_path, monkeypatch):
    """The folder of a wrapped model of pictures (8, 8), next to the module of its networks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "hinted.py").write_text(textwrap.dedent(NETWORKS))
    np.save("x.npy", images(40))
    torch.manual_seed(0)
    import hinted

    hinted.model().save("wrapped")
    return tmp_path / "wrapped"


def said(capsys):
    printed = capsys.readouterr()
    return " ".join(f"{printed.out} {printed.err}".split())


def test_grey_pictures_are_drawn_and_no_folder_is_made_in_vain(wrapped, capsys):
    words = ("generate", "wrapped", *MINE, "--count", 2, "--device", "cpu", "--out")
    assert call(*words, "no/such/s.doc") == 2
    assert not (wrapped.parent / "no").exists()
    assert call(*words, "no/such/s.png") == 0
    assert (wrapped.parent / "no/such/s.png").read_bytes().startswith(b"\x89PNG")


TRAIN = ("train", "--data", "x.npy", "--method", "rme", "--order", 2, "--out", "run")
COMPARE = ("compare", "--data", "x.npy", "--out", "all")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((*TRAIN, "--init", "wrapped"), "--networks module:function"),
        ((*COMPARE, "--init", "wrapped"), "--networks module:function"),
        ((*TRAIN, "--init", "wrapped", *MINE, "--latent", 3), "init was trained with latent 2"),
        ((*TRAIN, "--latent", 2, "--networks", "hinted:swapped"), "are they swapped?"),
        ((*TRAIN, "--init", "hinted:model"), "only the commands evaluate, tune and explore take one"),
        (("generate", "hinted:model"), "only the commands evaluate, tune and explore take one"),
        (("evaluate", "wrapped", "--networks", "hinted.py:networks"), "leave .py out, hinted:"),
        ((*COMPARE, "wrapped"), "recmix summary ."),
        (("methods", "rmi"), "did you mean 'rme'"),
    ],
)
def test_errors_say_what_to_do(wrapped, capsys, words, expected):
    assert call(*words) == 2
    assert expected in said(capsys)


def test_a_method_and_a_file_are_shown(wrapped, capsys):
    assert call("methods", "rme") == 0
    assert "--eps-min" in (shown := said(capsys))
    assert "iaf" not in shown.partition("option")[0]
    assert call("data", "x.npy") == 0
    assert "x.npy: examples of shape 1x8x8" in said(capsys)


def test_compare_and_the_next_commands_name_the_networks(wrapped, capsys):
    short = ("--epochs", 1, "--device", "cpu")
    assert call(*COMPARE, "--init", "wrapped", *MINE, *short, "--samples", 2, "rme:order=2") == 0
    assert "RME(2)" in (shown := said(capsys))
    assert "try the option learning_rate = 0.0001" in shown
    assert "+0.00 ± 0.00" in shown
    assert call(*TRAIN, "--init", "wrapped", *MINE, *short) == 0
    shown = said(capsys)
    assert "Next: recmix evaluate run --networks hinted:networks" in shown
    assert "--epochs 2 --networks hinted:networks" in shown
    assert how_to_resume(Run("run")).endswith("--out run --networks module:function")


def test_the_default_learning_rate_after_init_is_printed(wrapped, capsys):
    short = ("--init", "wrapped", *MINE, "--epochs", 1, "--device", "cpu", "--overwrite")
    assert call(*TRAIN, *short) == 0
    shown = said(capsys)
    assert "learning rate 1e-06: the default of a training that starts from a trained model" in shown
    assert "With 32 examples little changes: try the option learning_rate = 0.0001" in shown
    assert call(*TRAIN, *short, "--learning-rate", 1e-4) == 0
    assert "little changes" not in said(capsys)


def test_an_early_stop_is_explained(wrapped, capsys):
    words = ("train", "--data", "x.npy", "--method", "vae", "--latent", 2, "--device", "cpu")
    quick = ("--epochs", 90, "--patience", 1, "--learning-rate", 0.01, "--out", "run")
    assert call(*words, *quick) == 0
    assert "(stopped: no better validation bound for 1 epochs, see --patience)" in said(capsys)


def test_the_gain_over_the_control_has_the_standard_error_of_the_differences():
    control = torch.tensor([1.0, 3.0, 5.0], dtype=torch.float64)
    found = compare._gain(control + torch.tensor([1.0, 2.0, 3.0]), control)
    assert found == {"gain": 2.0, "gain_se": pytest.approx(3**-0.5)}
    assert compare._gain(None, control) == {"gain": None, "gain_se": None}


def test_compare_trains_a_vae_with_own_networks(wrapped, capsys):
    short = ("--latent", 2, "--vae-epochs", 1, "--epochs", 1, "--device", "cpu", "--samples", 2)
    assert call(*COMPARE, "--networks", "hinted:pictures", *short, "rme:order=2") == 0
    assert "RME(2)" in said(capsys)
    assert {Run(f"all/{name}").spec().model.network for name in ("vae", "vae+", "rme-2")} == {"own"}


def test_a_run_from_a_model_that_was_not_saved_is_continued_in_python(wrapped, capsys):
    recmix.fit("vae", "x.npy", init=recmix.fit("vae", "x.npy", epochs=1, latent=2), epochs=1, out="run")
    assert call("train", "--resume", "--out", "run") == 2
    assert "recmix.fit(..., init=model, out='run', resume=True)" in said(capsys)


def test_the_table_of_scores_fits_80_columns(monkeypatch, capsys):
    found = {"elbo": -1234.56, "elbo_se": 1.23, "iwae": -1234.56, "iwae_se": 1.23}
    found |= {"samples": 100, "batch": 128, "milliseconds": 1234.56, "weights": [0.2] * 5}
    monkeypatch.setattr(terminal, "out", Console(width=80, soft_wrap=True))
    terminal.print_scores([("RME (gauss-newton, 2 steps)", found)], title="test")
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert "9.64" in shown  # milliseconds per example
    assert "0.200 0.200 0.200 0.200 0.200" in shown


def test_warnings_are_printed_as_notes(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with terminal.warnings_as_notes():
            warnings.warn("few examples", stacklevel=1)
        assert said(capsys).strip() == "note: few examples"
        with pytest.warns(DeprecationWarning, match="old"), terminal.warnings_as_notes():
            warnings.warn("old", DeprecationWarning, stacklevel=1)
    assert said(capsys).strip() == ""


def test_one_example_has_no_standard_error(capsys):
    part = {key: {"mean": 1.0, "se": float("nan")} for key in gap.QUANTITIES}
    found = SimpleNamespace(summary=lambda: {"test": part}, name="test", train=None)
    Console(width=80).print(gap.table_of(found, title=""))
    shown = capsys.readouterr().out
    assert "1.00" in shown
    assert "nan" not in shown
