"""`recmix evaluate --report`: what is printed, stored and refused."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from cases.commands import call

import recmix
from recmix.commands import extra_reports
from recmix.commands.extra_reports import ExtraReport
from recmix.errors import ConfigError, RunError
from recmix.runs.folder import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run on a small table."""
    folder = tmp_path_factory.mktemp("runs")
    np.save(folder / "x.npy", np.random.default_rng(0).random((90, 1, 8, 8)).astype(np.float32))
    options = {"latent": 2, "epochs": 1, "progress": False, "device": "cpu", "out": folder / "vae"}
    recmix.fit("vae", recmix.data.load(folder / "x.npy"), **options)
    return folder / "vae"


def test_report_is_printed_and_stored_with_the_score(run, capsys):
    assert call("evaluate", run, "--samples", 5, "--report", "latent", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    found = printed["reports"]["latent"]
    assert found["examples"] == printed["images"]
    assert found["nll"] == pytest.approx(-printed["iwae"], abs=1)
    assert found["perplexity"] is None
    assert Run(run).reports() == {"test/5": {"latent": found}}
    assert "reports" not in Run(run).scores()["test/5"]
    assert call("evaluate", run, "--samples", 5, "--refine", 1, "--report", "latent") == 0
    text = capsys.readouterr().out
    assert "active units" in text
    assert "of 2" in text
    assert len(Run(run).reports()) == 2
    assert call("evaluate", run, "--samples", 5, "--json") == 0  # a score without a report keeps it
    assert "reports" not in json.loads(capsys.readouterr().out)
    assert "test/5" in Run(run).reports()


def test_errors_come_before_the_work(run, capsys, monkeypatch):
    assert call("evaluate", run, "--report", "latin") == 2
    assert "unknown report 'latin': did you mean 'latent'" in capsys.readouterr().err
    assert call("evaluate", run, "--report", "latent", "--gap") == 2
    assert "either --gap or --report" in capsys.readouterr().err

    def refuse(model):
        raise ConfigError(f"no such report for {model.spec.method}")

    report = ExtraReport("nothing", lambda on: None, refuse)
    monkeypatch.setitem(extra_reports.REPORTS, "mine", report)
    assert call("evaluate", run, "--report", "mine") == 2
    assert "no such report for vae" in capsys.readouterr().err


def test_new_report_needs_only_its_registration(run, capsys, monkeypatch):
    result = SimpleNamespace(to_json=lambda: {"count": 5}, rows=lambda: [("examples counted", "5")])
    report = ExtraReport("the number of examples", lambda on: result)
    monkeypatch.setitem(extra_reports.REPORTS, "mine", report)
    assert call("evaluate", run, "--samples", 3, "--report", "latent", "--report", "mine") == 0
    text = capsys.readouterr().out
    assert "examples counted" in text
    assert "report latent" in text
    assert Run(run).reports()["test/3"].keys() == {"latent", "mine"}


def test_damaged_file_is_named(run, tmp_path):
    (tmp_path / "reports.json").write_text("[]")
    with pytest.raises(RunError, match=r"reports.json is damaged"):
        Run(tmp_path).reports()
