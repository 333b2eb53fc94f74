"""Fixtures for tests of grids."""

import pytest
from cases.grids import grid, run_jobs


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A store with all runs of the small grid. Do not change it."""
    return run_jobs(tmp_path_factory.mktemp("store"), grid().jobs)
