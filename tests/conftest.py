"""Fixtures shared by all tests."""

import os
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # tests run side by side


@pytest.fixture
def real_data() -> Path:
    """The folder with the published data sets; tests that want it skip where it is missing."""
    root = os.environ.get("RECMIX_DATA")
    if not root or not Path(root).is_dir():
        pytest.skip("RECMIX_DATA names no folder with the published data sets")
    return Path(root)
