"""Each benchmark runs in small sizes and gives a complete result."""

import dataclasses
import importlib
import json
import math
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import limits, peak
from benchmarks.blocks import curvature_kind, training_block
from benchmarks.limits import Cost, cost_of_call
from benchmarks.measures import jacobian_limit, paper_times, scale
from benchmarks.measures.replicas import measure_throughput
from benchmarks.measures.scale import Point, make_work, measure
from benchmarks.measures.training import compare_with_literal
from benchmarks.record import cores
from benchmarks.registry import all_benchmarks
from recmix.accelerate import newton
from recmix.errors import ConfigError
from recmix.inference.inference import REFINEMENT
from recmix.methods.method import infer
from recmix.runs.files import read_json

MEMORY = ("iwae5000_peak_memory", "laplace_peak_memory")
SCALE = "refinement_scale"
ON_CPU = [
    name
    for name, one in all_benchmarks().items()
    if one.device != "cuda" and not one.pythae and name not in (*MEMORY, SCALE)
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
        "train_step_profile",
        "jacobian_limit",
        "posterior_rme5_over_vae",
        "posterior_rme5_over_sa1",
        "posterior_laplace2_over_sa2",
        "posterior_learned4_over_sa4_dim20",
        "posterior_learned6_over_sa4_dim50",
        "posterior_variational4_over_sa4",
        "posterior_conjugate4_over_sa4",
        "refinement_scale",
        "train_pythae_over_recmix_gpu",
        "train_pythae_over_recmix_cpu",
        "iwae_pythae_over_recmix_cpu",
        "growth_in_order",
        "replicas_throughput",
        "replicas_stacked_over_branches",
        "iwae5000_peak_memory",
        "laplace_peak_memory",
        "paper_inference_times",
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
    assert read_json(path) == {name: entry}


def test_gpu_measurements_also_run_with_eager_engine(context):
    assert compare_with_literal(context, "eager", replicas=2).value > 0
    throughput = measure_throughput(context, "eager")
    assert throughput.value > 0
    assert throughput.detail["rme2"].keys() == {"1", "2"}


def test_gradients_by_jacobian_and_by_autograd_are_compared(context, monkeypatch):
    chosen = []

    def note(method, x, inference):
        chosen.append(newton.JACOBIAN_UP_TO)
        return ""

    monkeypatch.setattr(jacobian_limit, "capture_failure", note)
    found = all_benchmarks()["jacobian_limit"].measure(context)
    assert chosen == [10**6, 0, 10**6, 0]
    assert found.detail["limit"] == newton.JACOBIAN_UP_TO
    assert found.detail["autograd_over_jacobian"].keys() == {"2", "3"}
    assert found.value in (0, 2, 3)


def test_profile_has_time_of_all_kernels(context):
    found = all_benchmarks()["train_step_profile"].measure(context)
    alone = found.detail["alone"]
    assert sum(alone["kinds"].values()) == pytest.approx(alone["kernels"])
    assert alone["kinds"]["convolutions"] > 0
    assert found.detail["gflop"] > 0


def test_inference_times_are_measured_for_each_cell_of_the_paper(context, monkeypatch):
    timed = []

    def fake_passes(method, batches, **more):
        timed.append((method.name, method.options, method.model.latent, batches[0].shape))
        return [2.0, 4.0]

    monkeypatch.setattr(paper_times, "pass_milliseconds", fake_passes)
    found = all_benchmarks()["paper_inference_times"].measure(context)
    cells = found.detail["cells"]
    assert len(cells) == 2 * 13 + 48  # of 113: those with images of one channel
    assert ("sa", {"steps": 8}, 50, (4, 1, 8, 8)) in timed
    assert ("vlae", {"steps": 2}, 10, (4, 1, 8, 8)) in timed
    assert {cell["network"] for cell in cells if cell["row"].startswith("VLAE")} == {"dense"}
    vae = next(cell for cell in cells if cell["row"] == "VAE" and cell["data"] == "mnist")
    assert (vae["ms"], vae["paper"]) == (3.0, 3.6)
    assert vae["posterior alone"] > 0
    assert found.value == pytest.approx(np.median([cell["paper"] / 3 for cell in cells]))


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


def test_refinement_is_compared_with_and_without_checks(run_small, tmp_path):
    name = "posterior_learned4_over_sa4_dim20"
    entry = run_small([name], tmp_path)[name]
    assert entry["reach"] == "<= 1.5"
    assert entry["detail"]["ms"].keys() == {"learned4", "learned4, no checks", "sa4"}
    assert entry["detail"]["without_checks"]["value"] > 0


def test_curvature_network_is_made_for_learned_refinement_only():
    assert [curvature_kind(how, 20) for how in REFINEMENT] == ["none", "full", "none", "none"]
    assert curvature_kind("learned", 100) == "low-rank"


def fake_cost(monkeypatch, refuse=lambda point: ""):
    """Make up the cost of each call from its sizes."""
    calls = []

    def cost(device, make, point, *, seconds, memory):
        calls.append(point)
        seconds = 1e-3 * (point["examples"] or point["batch"])
        return refuse(point) or Cost(seconds, 2**20 * point["latent"])

    monkeypatch.setattr(limits, "cost_of_call", cost)
    return calls


def test_refinement_is_measured_at_every_size(run_small, tmp_path, monkeypatch):
    def call_once(context, blocks, *, repeats, seconds):
        for block in blocks.values():
            block.work(1)
        return {n: [float(n**2)] for n in blocks}

    fake_cost(monkeypatch)
    monkeypatch.setattr(scale, "interleave", call_once)
    entry = run_small([SCALE], tmp_path)[SCALE]
    check(entry)
    detail = entry["detail"]
    sizes = {"latents": ["2", "4"], "sides": ["8"], "batches": ["2"], "examples": ["4", "8", "16"]}
    for axis, values in sizes.items():
        assert detail[axis].keys() == REFINEMENT.keys()
        for found in detail[axis].values():
            assert list(found) == values
            assert all(one["ms"] > 0 and one["mib"] > 0 for one in found.values())
    assert detail["exponents"].keys() == REFINEMENT.keys()
    assert entry["value"] == detail["exponents"]["learned"] == pytest.approx(2)
    assert detail["latents"]["learned"]["4"]["ms"] == 8  # 16 ms for 2 examples
    assert detail["latents"]["learned"]["4"]["mib"] == 4
    assert set(detail["streaming_memory"].values()) == {1.0}
    assert detail["examples"]["learned"]["16"]["ms"] == 1.0  # 16 ms for 16 examples


@pytest.mark.parametrize("how", REFINEMENT)
@pytest.mark.parametrize("examples", [0, 5])
def test_work_refines_all_examples_in_batches(how, examples, monkeypatch):
    seen = []

    def count(method, x, inference):
        assert inference.how == how
        seen.append(len(x))
        return infer(method, x, inference)

    monkeypatch.setattr(scale, "infer", count)
    point = Point(how, 3, (1, 8, 8), 2, examples)
    make_work(torch.device("cpu"), **point._asdict())()
    assert seen == ([1, 2, 2, 1] if examples else [1, 2])  # the first call warms up


def test_sizes_after_one_over_a_limit_are_skipped_with_the_reason(context, monkeypatch):
    why = "skipped: over 2 s"
    calls = fake_cost(monkeypatch, lambda point: why * (point["latent"] >= 4))
    points = {n: Point("learned", n, (1, 8, 8), 2) for n in (2, 4, 8)}
    found, times = measure(context, points, {})
    assert found[2]["mib"] == 2
    assert (found[4], found[8]) == (why, why)
    assert list(times) == [2]
    assert [point["latent"] for point in calls] == [2, 4]


def test_long_pass_is_skipped_before_it_runs(context, monkeypatch):
    sizes = dataclasses.replace(context.sizes.scale, pass_limit=0.009)
    context.sizes = dataclasses.replace(context.sizes, scale=sizes)
    calls = fake_cost(monkeypatch)
    points = {n: Point("learned", 3, (1, 8, 8), 2, n) for n in sizes.examples}
    found, times = measure(context, points, {})
    assert found[16] == "skipped: over 0.009 s"
    assert [p["examples"] for p in calls] == list(times) == [4, 8]


def make_sleep(device, seconds):
    return lambda: time.sleep(seconds)


def make_memory(device, bytes):
    return lambda: torch.ones(bytes, dtype=torch.uint8, device=device)


def make_failure(device):
    raise RuntimeError("no such decoder\nsecond line")


def make_refused(device):
    raise ConfigError("at most 512")


def test_call_over_a_limit_is_ended_and_others_have_a_cost():
    cpu = torch.device("cpu")
    usual = {"seconds": 5.0, "memory": 2**28}
    done = cost_of_call(cpu, make_memory, {"bytes": 2**26}, **usual)
    assert isinstance(done, Cost)
    assert 2**26 <= done.bytes < 2**27
    assert 0 < done.seconds < 5
    assert cost_of_call(cpu, make_memory, {"bytes": 2**29}, **usual) == "skipped: over 0.25 GiB"
    assert cost_of_call(cpu, make_failure, {}, **usual) == "skipped: RuntimeError: no such decoder"
    assert cost_of_call(cpu, make_refused, {}, **usual) == "skipped: ConfigError: at most 512"
    start = time.monotonic()
    slow = cost_of_call(cpu, make_sleep, {"seconds": 60}, seconds=0.1, memory=2**28)
    assert slow == "skipped: over 0.1 s"
    assert time.monotonic() - start < 30


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cost_of_call_on_gpu():
    gpu = torch.device("cuda")
    usual = {"seconds": 5.0, "memory": 2**28}
    assert cost_of_call(gpu, make_memory, {"bytes": 2**26}, **usual).bytes == 2**26
    assert cost_of_call(gpu, make_memory, {"bytes": 2**29}, **usual) == "skipped: over 0.25 GiB"
    assert "than the GPU has" in cost_of_call(gpu, make_memory, {"bytes": 2**42}, **usual)
    assert cost_of_call(gpu, make_failure, {}, **usual) == "skipped: RuntimeError: no such decoder"


def test_refinement_without_learned_sizes_is_an_error(context, monkeypatch):
    fake_cost(monkeypatch, lambda point: "skipped: over 2 s")
    with pytest.raises(RuntimeError, match="the kind learned was not measured"):
        all_benchmarks()[SCALE].measure(context)


def test_page_shows_costs_and_why_sizes_were_skipped(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "docs")
    tables = importlib.import_module("scale_tables")
    assert "has not been measured yet" in tables.growth("latents", tmp_path)
    assert "has not been measured yet" in tables.exponents(tmp_path)
    costs = {"learned": {"10": {"ms": 0.125, "mib": 12.3}, "1000": "skipped: over 2 s"}}
    fixed = {"latent": 20, "shape": [1, 28, 28], "batch": 16}
    detail = {"latents": costs, "exponents": {"learned": 0.25}, "exponents_from_100": {}, **fixed}
    for file, device in (("nvidia-h200", "NVIDIA H200"), ("cpu-2-cores", "A CPU")):
        content = {SCALE: {"device": device, "threads": 2, "detail": detail}}
        (tmp_path / f"{file}.json").write_text(json.dumps(content))
    text = tables.growth("latents", tmp_path)
    assert text.index("**A CPU**, threads: 2; 28 x 28 pixels, 16 images in a call:") < text.index("H200")
    assert "| 10 | 0.12 ms, 12 MiB |" in text
    assert "| 1,000 | over 2 s |" in text
    assert "| A CPU | all | 0.25 |" in tables.exponents(tmp_path)
