"""The programs in `examples` run and print what they promise."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def run(name, *arguments):
    """What an example prints."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(text):
    """The numbers of each row of a printed table, by the row's name."""
    found = {}
    for line in text.splitlines():
        if line.startswith("│"):
            name, *cells = (cell.strip() for cell in line.strip("│").split("│"))
            found[name] = [float(cell) for cell in cells if cell]
    return found


def test_bring_your_own_vae():
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


def test_counts():
    found = rows(run("counts.py"))
    elbo, iwae, _ = found["encoder"]  # perplexities: lower is better
    assert 1 < iwae < elbo < 200  # 200 words
    assert found["encoder, calibrated"][1] < iwae
    for steps in ("1 step", "2 steps", "4 steps"):
        assert found[f"refined, {steps}"][0] < elbo
        assert found[f"refined, {steps}"][1] < iwae


@pytest.mark.skipif(importlib.util.find_spec("pythae") is None, reason="pythae is not installed")
def test_pythae_model():
    found = rows(run("pythae_model.py", "--quick"))
    (theirs,) = found["pythae, get_nll"]
    elbo, iwae = found["recmix, encoder"]
    assert iwae == pytest.approx(theirs, abs=1.5)  # from different samples
    refined = found["recmix, refined, 2 steps"]
    assert refined[0] > elbo
    assert refined[1] > iwae


@pytest.mark.skipif(importlib.util.find_spec("pythae") is not None, reason="pythae is installed")
def test_without_pythae_the_example_says_how_to_install_it():
    done = subprocess.run(
        [sys.executable, EXAMPLES / "pythae_model.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "pip install pythae" in done.stderr
