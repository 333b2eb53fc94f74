"""SIGTERM before a command can save anything."""

import signal
import subprocess
import sys

import pytest

from recmix.commands.terminal import sigterm_ends

EARLY = """
import os, signal
import recmix.cli, recmix.commands.program as program
program.add_train = lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGTERM)  # it imports torch
recmix.cli.main(["train"])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM for other processes")
def test_early_sigterm_ends_with_a_message():
    command = [sys.executable, "-c", EARLY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 143
    assert done.stderr == "stopped by SIGTERM; what was saved before is kept\n"


def test_handler_is_removed_afterwards():
    before = signal.getsignal(signal.SIGTERM)
    with sigterm_ends():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
