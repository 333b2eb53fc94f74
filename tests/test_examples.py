"""The programs in `examples` run and print what they promise."""

import importlib.util
import re
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


@pytest.fixture
def run(monkeypatch, capsys):
    """Run an example in this process, and return what it prints."""

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def rows(text):
    """The numbers of each row of a printed table, by the row's name."""
    found = {}
    for line in text.splitlines():
        if line.startswith("│"):
            name, *cells = (cell.strip() for cell in line.strip("│").split("│"))
            found[name] = [float(cell) for cell in cells if cell]
    return found


def test_bring_your_own_vae(run):
    text = run("bring_your_own_vae.py", "--quick")
    found = rows(text)
    elbo, iwae, _ = found["encoder"]
    assert elbo < iwae
    assert found["encoder, calibrated"][1] > iwae
    assert found["refined, 2 steps"][0] > elbo
    assert found["refined, 2 steps"][1] > iwae + 0.5
    assert found["refined, 2 steps, noise calibrated"][1] > found["refined, 2 steps"][1] + 1
    assert "amortisation gap" in text
    gain = float(re.search(r"recover (\S+) nats", text)[1])
    assert gain == pytest.approx(found["refined, 2 steps"][1] - iwae, abs=0.02)


def test_counts(run):
    found = rows(run("counts.py"))
    elbo, iwae, _ = found["encoder"]  # perplexities: lower is better
    assert 1 < iwae < elbo < 200  # 200 words
    assert found["encoder, calibrated"][1] < iwae
    for steps in ("1 step", "2 steps", "4 steps"):
        assert found[f"refined, {steps}"][0] < elbo
        assert found[f"refined, {steps}"][1] < iwae


def test_text(run):
    text = run("text.py")
    found = rows(text)  # NLL, perplexity, ELBO, KL, mutual information, active units, time
    assert found["vae, no option against collapse"][3] < 0.1
    assert found["vae, no option against collapse"][5] == 0
    assert found["vae"][3] > 2
    assert found["vae"][4] > 1
    assert found["vae"][5] == 8
    for name in ("vae", "rme"):
        assert found[f"{name}, refined"][2] > found[name][2] + 0.1  # a higher ELBO
        assert found[f"{name}, refined"][0] < found[name][0]
    assert len(re.findall(r"  ->  the \w+ \w+ the \w+", text)) == 4
    assert "samples:" in text


@pytest.mark.skipif(importlib.util.find_spec("pythae") is None, reason="pythae is not installed")
def test_pythae_model(run):
    found = rows(run("pythae_model.py", "--quick"))
    (theirs,) = found["pythae, get_nll"]
    elbo, iwae = found["recmix, encoder"]
    assert iwae == pytest.approx(theirs, abs=1.5)  # from different samples
    refined = found["recmix, refined, 2 steps"]
    assert refined[0] > elbo
    assert refined[1] > iwae


@pytest.mark.skipif(importlib.util.find_spec("pythae") is not None, reason="pythae is installed")
def test_without_pythae_the_example_says_how_to_install_it(run):
    with pytest.raises(SystemExit, match="pip install pythae"):
        run("pythae_model.py")


@pytest.mark.skipif(importlib.util.find_spec("rdkit") is None, reason="RDKit is not installed")
def test_molecules(run):
    text = run("molecules.py", "--epochs", "8")
    found = rows(text)
    assert set(found) == {
        "graphs, VAE",
        "graphs, RME(2)",
        "graphs, VAE, refined",
        "strings, VAE",
        "strings, VAE, refined",
    }
    for kind in ("graphs", "strings"):
        assert found[f"{kind}, VAE, refined"][0] > found[f"{kind}, VAE"][0]
        assert all(0 <= share <= 100 for share in found[f"{kind}, VAE"][2:4])
    assert "MoleculeGraphs(6 atom types, up to 10 atoms)" in text


def test_video(run):
    found = rows(run("video.py"))
    elbo, iwae, _ = found["encoder"]
    assert elbo < iwae
    for steps in ("1 step", "2 steps", "4 steps"):
        assert found[f"refined, {steps}"][0] > elbo
        assert found[f"refined, {steps}"][1] > iwae - 0.5
