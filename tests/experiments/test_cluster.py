"""Ray: the same runs, done elsewhere."""

import importlib.util
import subprocess
import sys

import pytest
from small_grid import do_here, same_stores, write_grid

from recmix.errors import ConfigError
from recmix.experiments.cluster import Mailbox
from recmix.experiments.driver import run_grid
from recmix.experiments.grid import read_grid
from recmix.experiments.store import Store

RAY = """
import sys
from pathlib import Path
from recmix.experiments.driver import run_grid
sys.exit(run_grid(Path(sys.argv[1]), Path(sys.argv[2]), device="cpu", workers=2, ray="local"))
"""


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_a_grid_on_ray_gives_what_local_workers_give(tmp_path):
    """In a process of its own, for Ray changes signal handlers and leaves threads behind."""
    file = write_grid(tmp_path, method='name = "hf"\nlearning_rate = [1e-4, 1e30]')
    jobs = read_grid(file).jobs
    good = [job for job in jobs if "1e+30" not in job.label]
    whole = do_here(tmp_path / "whole", good)
    command = [sys.executable, "-c", RAY, str(file), str(tmp_path / "ray")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1, done.stderr
    store = Store(tmp_path / "ray")
    same_stores(whole, store, good)
    assert "4 runs: 3 done, 1 failed" in done.stdout
    (bad,) = [job for job in jobs if job not in good]
    assert "not a finite number" in store.state(bad).reason
    assert "NonFiniteError" in store.log(bad.digest).read_text()
    for job in jobs:
        assert not store.holder(job.digest)
    for job in good:
        assert "epoch 1/1" in store.log(job.digest).read_text()
        assert not store.run(job.digest).checkpoint.exists()


def test_without_ray(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"ray is not installed: pip install 'recmix\[cluster\]'"):
        run_grid(write_grid(tmp_path), tmp_path / "store", device="cpu", ray="local")


def test_the_mailbox_keeps_the_latest_and_passes_on_the_wish_to_stop():
    box = Mailbox()
    assert box.post("a", {"history.json": b"1", "log.txt": b"x"}) is False
    box.post("a", {"history.json": b"2"})
    box.post("b", {})
    assert box.collect() == {"a": {"history.json": b"2", "log.txt": b"x"}, "b": {}}
    assert box.collect() == {}
    box.stop()
    assert box.post("a", {}) is True
