"""docs/difference.py prints paired differences of two rows of committed results."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*words):
    return subprocess.run(
        [sys.executable, "docs/difference.py", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "words",
    [
        ("columns.json", "RME(5)", "VAE+", "--dataset", "cifar10", "--dim", "20"),
        ("recursion_mnist20.json", "RME(4), residual", "RESIDUAL"),
    ],
)
def test_differences_of_rows(words):
    done = run(*words)
    assert not done.returncode, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["ELBO", "IWAE-100"]


def test_the_gain_is_that_of_the_table():
    done = run("columns.json", "RME(5)", "VAE+", "--dataset", "cifar10", "--dim", "20")
    mean, _, error = done.stdout.splitlines()[1].split()[1:]
    table = (ROOT / "docs/results.md").read_text()
    line = next(line for line in table.splitlines() if line.startswith("| RME(5) |"))
    assert f"{float(mean):+.1f} ± {float(error):.1f}" == line.split("|")[5].strip()


def test_an_unknown_row_is_named():
    assert "no such row: ME(9)" in run("recursion_mnist20.json", "ME(9)", "VAE+").stderr
