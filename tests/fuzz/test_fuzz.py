"""A short slice of ``python -m tests.fuzz``, and files for which a reader once failed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="limits the memory of processes with fork")
def test_readers_return_a_result_or_a_clear_error(tmp_path):
    command = [sys.executable, "-W", "ignore", "-m", "tests.fuzz", "--minutes", "0.15"]
    done = subprocess.run(
        [*command, "--found", str(tmp_path / "found")],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""},  # no CUDA in a fork
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 problems, peak" in done.stdout
