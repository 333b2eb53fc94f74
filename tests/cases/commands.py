"""Shared by tests: see the names."""

import pytest

from recmix.cli import main


def call(*words):
    """Exit status of a command."""
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    return stop.value.code or 0
