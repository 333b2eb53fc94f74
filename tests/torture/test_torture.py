"""A short slice of ``python -m tests.torture``, which disturbs trainings, grids and exports."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("scenes", [["vae", "rme"], ["grid", "export"]])
def test_disturbed_work_ends_like_undisturbed_work(tmp_path, scenes):
    command = [sys.executable, "-m", "tests.torture", "--minutes", "0.12", "--seed", "1"]
    done = subprocess.run(
        [*command, "--scenes", *scenes],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""},  # no CUDA in a fork
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 differences" in done.stdout
