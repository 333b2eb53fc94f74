"""Each benchmark runs in small sizes and gives a complete result."""

import json
import math

import pytest
import torch

from benchmarks import peak
from benchmarks.blocks import training_block
from benchmarks.measures.replicas import measure_throughput
from benchmarks.measures.training import compare_with_literal
from benchmarks.record import cores
from benchmarks.registry import all_benchmarks

MEMORY = ("iwae5000_peak_memory", "laplace_peak_memory")
ON_CPU = [
    name
    for name, one in all_benchmarks().items()
    if one.device != "cuda" and not one.pythae and name not in MEMORY
]
FIELDS = {"reach", "reached", "detail", "device", "torch", "python", "date", "about", "unit"}


def test_all_benchmarks_are_registered():
    assert all_benchmarks().keys() == {
        "serve",
        "train_literal_over_graph",
        "train_literal_over_replica",
        "train_literal_over_eager",
        "train_literal_over_compile",
        "train_literal_over_compile_replica",
        "posterior_rme5_over_vae",
        "posterior_rme5_over_sa1",
        "posterior_laplace2_over_sa2",
        "train_pythae_over_recmix_gpu",
        "train_pythae_over_recmix_cpu",
        "iwae_pythae_over_recmix_cpu",
        "growth_in_order",
        "replicas_throughput",
        "replicas_stacked_over_branches",
        "iwae5000_peak_memory",
        "laplace_peak_memory",
    }


def check(entry):
    assert math.isfinite(entry["value"])
    assert math.isfinite(entry["spread"])
    assert entry["spread"] >= 0
    assert entry["unit"]
    assert entry.keys() >= FIELDS
    assert all(ms > 0 for ms in entry["detail"].get("ms", {}).values())


@pytest.mark.parametrize("name", ON_CPU)
def test_benchmark_is_measured_and_written(name, run_small, tmp_path):
    entry = run_small([name], tmp_path)[name]
    check(entry)
    if name != "growth_in_order":  # the exponent of such short times may have any sign
        assert entry["value"] > 0
    (path,) = tmp_path.glob("*.json")
    assert path.name == f"cpu-{cores()}-cores.json"
    assert json.loads(path.read_text()) == {name: entry}


def test_gpu_measurements_also_run_with_eager_engine(context):
    assert compare_with_literal(context, "eager", replicas=2).value > 0
    throughput = measure_throughput(context, "eager")
    assert throughput.value > 0
    assert throughput.detail["rme2"].keys() == {"1", "2"}


def test_peak_memory_excludes_the_calling_process():
    here = torch.ones(2**26)  # 256 MiB in this process
    found = peak.peak_bytes(torch.device("cpu"), "laplace", steps=1, latent=2, shape=(1, 8, 8), batch=2)
    assert 0 <= found < 128 * 2**20
    assert len(here)


def test_peak_memory_is_written(run_small, tmp_path, monkeypatch):
    calls = []

    def fake_peak(device, task, **given):
        peak.TASKS[task](device, **given)()
        calls.append((task, given))
        return 3 * 2**20

    monkeypatch.setattr(peak, "peak_bytes", fake_peak)
    results = run_small(MEMORY, tmp_path)
    for name in MEMORY:
        check(results[name])
        assert results[name]["value"] == 3.0
        assert results[name]["reached"]
    assert results["iwae5000_peak_memory"]["detail"]["samples"] == {"2": 3.0, "20": 3.0}
    assert [given["memory"] // 2**20 for task, given in calls if task == "iwae"] == [256, 256, 64]


def test_another_engine_than_the_requested_one_is_an_error(context):
    with pytest.raises(RuntimeError, match="expected to measure the graph engine, got the"):
        training_block(context, "vae", "graph")
