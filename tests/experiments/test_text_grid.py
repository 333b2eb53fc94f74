"""A grid on texts: warm-up of the KL in the first stage, refined scores, and the report."""

import tomllib

import pytest
from cases.commands import call
from cases.grids import run_jobs

from recmix.errors import ConfigError
from recmix.experiments.grid import expand
from recmix.runs.folder import Run

TOML = """
title = "Texts"
protocol = { splits = 1, restarts = 1, samples = [3] }
[budget]
first = { epochs = 1, batch_size = 16, kl_warmup = 1, free_bits = 0.1 }
second = { epochs = 1, batch_size = 16 }
[[methods]]
name = "vae"
[[methods]]
name = "rme"
order = 2
refined = [1]
[[columns]]
data = "texts.txt"
latent = 2
units = 8
heads = 2
blocks = 1
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = [f"the {animal} {verb} {when}" for animal in "abcde" for verb in "fgh" for when in "ijk"]
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    return tmp_path


def test_two_methods_from_training_to_the_report(place):
    jobs = expand(tomllib.loads(TOML), "texts").jobs
    assert [job.row for job in jobs].count("RME(2)") == 1
    store = run_jobs(place / "store", jobs)
    specs = {job.label: Run(store.folder(job.digest)).spec() for job in jobs}
    assert specs["VAE"].training.kl_warmup == 1
    assert specs["VAE"].model.likelihood == "autoregressive"
    assert specs["RME"].training.kl_warmup == 0
    assert call("report", "store", "--out", "report.html") == 0


def test_warmup_of_a_method_that_has_no_single_loss_is_refused_early():
    text = TOML.replace("second = { epochs = 1,", "second = { epochs = 1, kl_warmup = 1,")
    with pytest.raises(ConfigError, match="rme does not: use kl_warmup for the first stage"):
        expand(tomllib.loads(text), "texts")
