"""Running benchmarks: what is skipped, what fails, what the results file keeps, the command line."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks.record import cores, reached
from benchmarks.registry import BENCHMARKS, Measurement, all_benchmarks
from recmix.errors import ConfigError, RunError
from recmix.runs.files import read_json

ROOT = Path(__file__).parents[2]


def replace_measure(monkeypatch, name, measure):
    monkeypatch.setitem(BENCHMARKS, name, dataclasses.replace(all_benchmarks()[name], measure=measure))


def test_gpu_benchmarks_are_skipped_on_cpu(run_small, tmp_path, capsys):
    assert run_small(["train_literal_over_graph", "replicas_throughput"], tmp_path) == {}
    assert capsys.readouterr().out.count("skipped: needs a GPU") == 2
    assert not list(tmp_path.glob("*.json"))


def test_unknown_benchmark_is_an_error(run_small, tmp_path):
    with pytest.raises(ConfigError, match="unknown benchmark 'growth': did you mean 'growth_in_order'"):
        run_small(["growth"], tmp_path)


def test_other_results_stay_in_the_file(run_small, tmp_path, monkeypatch):
    path = tmp_path / f"cpu-{cores()}-cores.json"
    name = "posterior_rme5_over_vae"
    old = {"value": 1.0, "unit": "x", "spread": 0.0, "quick": True}
    path.write_text(json.dumps({"train_literal_over_eager": old, name: old}))
    replace_measure(monkeypatch, name, lambda _: Measurement(1.23456789, 0.1))
    run_small([name], tmp_path)
    written = json.loads(path.read_text())
    assert written["train_literal_over_eager"] == old
    assert written[name]["value"] == 1.23457


def test_quick_result_does_not_replace_a_full_one(run_small, tmp_path, monkeypatch):
    name = "posterior_rme5_over_vae"
    replace_measure(monkeypatch, name, lambda _: Measurement(1.0, 0.1))
    run_small([name], tmp_path)
    (path,) = tmp_path.glob("*.json")
    written = path.read_text()
    replace_measure(monkeypatch, name, lambda _: Measurement(7.0, 0.1))
    assert run_small([name], tmp_path, quick=True)[name]["quick"]
    assert path.read_text() == written


def test_damaged_results_file_is_an_error(run_small, tmp_path):
    (tmp_path / f"cpu-{cores()}-cores.json").write_text("{")
    with pytest.raises(RunError, match="not readable JSON"):
        run_small(["posterior_rme5_over_vae"], tmp_path)


def test_other_benchmarks_run_after_a_failure(run_small, tmp_path, monkeypatch, capsys):
    def fail(_context):
        raise RuntimeError("out of memory")

    replace_measure(monkeypatch, "posterior_rme5_over_vae", fail)
    replace_measure(monkeypatch, "posterior_rme5_over_sa1", lambda _: Measurement(0.1, 0.0))
    with pytest.raises(RunError, match="1 of 2 benchmarks failed: posterior_rme5_over_vae"):
        run_small(["posterior_rme5_over_vae", "posterior_rme5_over_sa1"], tmp_path)
    assert "out of memory" in capsys.readouterr().out
    (path,) = tmp_path.glob("*.json")
    assert list(read_json(path)) == ["posterior_rme5_over_sa1"]


@pytest.mark.parametrize(
    ("value", "target", "expected"),
    [(12.0, ">= 12", True), (11.9, ">= 12", False), (1.5, "<= 1.5", True), (1.6, "<= 1.5", False)],
)
def test_target_is_reached(value, target, expected):
    assert reached(value, target) is expected


def test_target_depends_on_the_device():
    some = all_benchmarks()
    targets = [some["posterior_rme5_over_vae"].target_on(device) for device in ("cuda", "cpu")]
    assert targets == ["<= 1.3", "<= 3.5"]
    assert some["posterior_rme5_over_sa1"].target_on("cpu") is None
    assert some["growth_in_order"].target_on("cpu") == "<= 1.1"


def test_command_passes_its_arguments_to_run(monkeypatch):
    calls = []
    monkeypatch.setattr("benchmarks.run.run", lambda *args, **more: calls.append((args, more)))
    words = ["serve", "--only", "growth_in_order", "--quick", "--out", "here", "--device", "cpu"]
    with pytest.raises(SystemExit) as end:
        command.main([*words, "--peer", "there"])
    assert not end.value.code
    given = {"quick": True, "out": Path("here"), "peer": Path("there"), "device": "cpu"}
    assert calls == [((["serve", "growth_in_order"],), given)]


def test_command_ends_with_status_2_and_a_message(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        command.main(["growth", "--device", "cpu", "--out", str(tmp_path)])
    assert end.value.code == 2
    assert "error: unknown benchmark 'growth'" in capsys.readouterr().err


def test_command_shows_help_without_torch():
    code = (
        "import sys, benchmarks.__main__, benchmarks.plots, benchmarks.record;"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
