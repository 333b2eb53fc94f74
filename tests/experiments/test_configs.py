"""The files in configs/: the protocols of the paper's tables and of our own."""

from collections import Counter
from pathlib import Path

import pytest

from recmix.experiments.grid import check, read_grid

CONFIGS = Path(__file__).parents[2] / "configs"
FOUR = 4  # settings of every method except the VAE
PROTOCOL = 10 * 3  # splits times restarts
CONTROLS = 2  # VAE and VAE+
# name: (columns, rows, splits times restarts)
EXPECTED = {
    "table1": (4 * 2, CONTROLS + 5 * FOUR, PROTOCOL),
    "supplement": (5 * 4, CONTROLS + 7 * FOUR, PROTOCOL),
    "bvi": (4 * 2, CONTROLS + 2 * FOUR, PROTOCOL),
    "binary_mnist": (2, CONTROLS + 6 * FOUR, PROTOCOL),
    "fully_connected": (2 * 2 * 2, CONTROLS + 3 * FOUR, PROTOCOL),
    "smoke": (1, CONTROLS + 4, 3 * 2),
    "gpu_mnist20": (1, CONTROLS + 7, 6),
    "frontier": (1, CONTROLS + 2, 5),
    "frontier_mnist10": (1, CONTROLS + 3, 5),
    "frontier_mnist50": (1, CONTROLS + 3, 5),
    "frontier_omniglot20": (1, CONTROLS + 4, 5),
    "frontier_omniglot50": (1, CONTROLS + 4, 5),
    "frontier_binary_adam": (1, CONTROLS, 5),
    "frontier_binary_resnet": (1, CONTROLS + 1, 5),
    "frontier_binary": (1, CONTROLS + 2, 5),
    "frontier_digits": (1, CONTROLS + 6, 6),
    "ablation_digits": (1, CONTROLS + 9, 6),
}
SETTINGS = {
    "SA": {1, 2, 4, 8},
    "IAF": {1, 2, 4, 8},
    "HF": {1, 2, 4, 8},
    "VLAE": {1, 2, 4, 8},
    "ME": {2, 3, 4, 5},
    "RME": {2, 3, 4, 5},
    "BVI-ER1": {2, 3, 4, 5},
    "BVI-ER2": {2, 3, 4, 5},
}


def columns(grid):
    return {tuple(job.column.items()) for job in grid.jobs}


def test_every_file_is_expected():
    assert {path.stem for path in CONFIGS.glob("*.toml")} == {*EXPECTED, "inference_time"}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_number_of_runs_of_each_file(name):
    grid = read_grid(CONFIGS / f"{name}.toml")
    count, rows, repeats = EXPECTED[name]
    assert len(columns(grid)) == count
    assert len(grid.jobs) == count * rows * repeats
    assert not grid.notes  # the file has the controls and no run twice
    each = Counter((job.row, tuple(job.column.items())) for job in grid.jobs)
    assert set(each.values()) == {repeats}
    if repeats == PROTOCOL:
        for job in grid.jobs:
            assert job.label in ("VAE", "VAE+") or job.setting in SETTINGS[job.label]
            assert "test/100" in job.evaluate
            assert "val/100" in job.evaluate
    check(job for job in grid.jobs if (job.split, job.restart) == (0, 0))


def test_rows_and_columns_of_inference_time():
    grid = read_grid(CONFIGS / "inference_time.toml")
    rows = Counter((job.label, job.column["decoder_network"]) for job in grid.jobs)
    assert rows["SA", "conv"] == rows["IAF", "conv"] == 5 * FOUR
    assert rows["RME", "conv"] == (5 + 2) * FOUR  # dimension 10 is only in the second table
    assert rows["RME", "dense"] == rows["VLAE", "dense"] == rows["VLAE", "conv"] == 4 * FOUR
    assert rows["HF", "conv"] == 0
    check(grid.jobs)


def test_tables_share_runs():
    """One store serves all tables: the runs of the main tables are in the supplement."""
    large = {job.digest for job in read_grid(CONFIGS / "supplement.toml").jobs}
    for name in ("table1", "bvi"):
        assert {job.digest for job in read_grid(CONFIGS / f"{name}.toml").jobs} < large
