"""The page of results."""

import json

import pytest

from benchmarks import plots
from benchmarks.plots import plot_frontier, write_page
from recmix.errors import RunError
from recmix.runs.files import write_json


def entry(value, **more):
    result = {"value": value, "spread": 0.1, "unit": "x", "reach": ">= 2", "reached": value >= 2}
    machine = {"device": "Some GPU", "torch": "2.13", "python": "3.11", "date": "2026-01-02T03:04:05"}
    return {**result, "about": "a benchmark", "detail": {}, "quick": False, **machine, **more}


def test_page_shows_all_results(tmp_path):
    results, docs = tmp_path / "results", tmp_path / "docs"
    results.mkdir()
    times = {str(n): float(n) for n in range(1, 9)}
    orders = {"engine": "graph", "orders": times, "literal_orders": times}
    rates = {"vae": {"1": 10.0, "2": 19.0}, "rme5": {"1": 4.0, "2": 8.0}, "batch": 128}
    gpu = {
        "train_literal_over_graph": entry(17.25, detail={"ms": {"literal": 50.0, "graph": 3.0}}),
        "posterior_rme5_over_vae": entry(1.5, detail={"eager": {"value": 1.25, "spread": 0.0}}),
        "growth_in_order": entry(1.0, detail=orders),
        "replicas_throughput": entry(2e6, detail=rates, reach=None, reached=None),
    }
    (results / "some-gpu.json").write_text(json.dumps(gpu))
    cpu = {"growth_in_order": entry(1.1, device="A CPU", quick=True, detail=orders)}
    (results / "cpu-2-cores.json").write_text(json.dumps(cpu))
    page, *plots = write_page(results, docs)
    text = page.read_text()
    assert page == docs / "performance.md"
    assert "| **17.2** x | ± 0.1 | >= 2 | yes | literal 50 ms, graph 3 ms |" in text
    assert "| **no** | eager: 1.25 |" in text
    assert "2,000,000" in text
    assert text.index("Some GPU") < text.index("A CPU")
    assert "Measured with `--quick`, so less precise: `growth_in_order`" in text
    assert "{{" not in text
    assert [p.name for p in plots] == ["time-against-order.png", "throughput-against-replicas.png"]
    for plot in plots:
        assert plot.read_bytes().startswith(b"\x89PNG")
        assert f"(images/{plot.name})" in text


def test_page_names_benchmarks_without_results(tmp_path):
    write_json(tmp_path / "cpu-2-cores.json", {"train_literal_over_eager": entry(3.0)})
    (page,) = write_page(tmp_path, tmp_path / "docs")
    assert "`growth_in_order` has not been measured yet" in page.read_text()
    assert "`replicas_throughput` has not been measured yet" in page.read_text()


def test_page_without_results_is_an_error(tmp_path):
    with pytest.raises(RunError, match="run `python -m benchmarks` first"):
        write_page(tmp_path, tmp_path)
    (tmp_path / "cpu.json").write_text("{")
    with pytest.raises(RunError, match="not readable JSON"):
        write_page(tmp_path, tmp_path)


def test_frontier_has_gains_over_the_control_and_times_taken_alone(tmp_path, monkeypatch):
    def row(name, values, splits=(0, 1), alone=True):
        about = {"dataset": "mnist", "dim": 20, "device": "a GPU", "method": name, "milliseconds": 0.5}
        return {"row": name, "values": values, "split numbers": list(splits), "alone": alone, **about}

    drawn = {}
    monkeypatch.setattr(plots, "frontiers", lambda panels, path: drawn.update(panels) or path)
    assert plot_frontier(tmp_path / "columns.json", tmp_path / "figure.png") is None
    rows = [row("VAE+", [1.0, 3.0]), row("SA(4)", [9.0], splits=[1]), row("ME(2)", [2, 2], alone=False)]
    write_json(tmp_path / "columns.json", {"rows": rows})
    assert plot_frontier(tmp_path / "columns.json", tmp_path / "figure.png") == tmp_path / "figure.png"
    ((title, points),) = drawn.items()
    assert title == "MNIST, dim 20, a GPU"
    assert [(point.name, point.nats, point.std) for point in points] == [
        ("VAE+", 0, 0),
        ("SA(4)", 6, None),
    ]
