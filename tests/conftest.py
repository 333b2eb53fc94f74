"""Fixtures shared by all tests."""

import dataclasses
import importlib.util
import os
import shutil
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # several tests run at the same time


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the examples in docstrings that need RDKit where it is not installed."""
    if importlib.util.find_spec("rdkit") is None:
        for item in items:
            if item.path.name == "graph_vocabulary.py":
                item.add_marker(pytest.mark.skip(reason="RDKit is not installed"))


@pytest.fixture
def real_data() -> Path:
    """The folder with the published data sets; tests that need it are skipped if it is missing."""
    root = os.environ.get("RECMIX_DATA")
    if not root or not Path(root).is_dir():
        pytest.skip("RECMIX_DATA names no folder with the published data sets")
    return Path(root)


@pytest.fixture
def few_digits(monkeypatch):
    """The data set digits with 300 training images and 24 test images: commands take less time."""
    from recmix.data import SETS

    digits = SETS["digits"]

    def read(found):
        train, _, test = digits.read(found)
        return train.subset(range(300)), None, test.subset(range(24))

    few = dataclasses.replace(digits, read=read, published_counts=(300, None, 24))
    monkeypatch.setitem(SETS, "digits", few)


@pytest.fixture
def registries():
    """Methods and components that a test registers are removed after it."""
    from recmix.methods.registry import COMPONENTS, METHODS

    before = [(registry, dict(registry)) for registry in (METHODS, COMPONENTS)]
    yield
    for registry, known in before:
        registry.clear()
        registry.update(known)


@pytest.fixture(scope="module")
def browser():
    """Debian's Chromium, without requests of its own to the network."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("chromium is not installed")
    quiet = ["quic", "gpu", "background-networking", "component-update", "sync"]
    arguments = ["--no-sandbox", "--no-first-run", *(f"--disable-{part}" for part in quiet)]
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield started
        started.close()
