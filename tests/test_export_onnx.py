"""ONNX files give in onnxruntime what the Python interface gives."""

import json
import re
from pathlib import Path

import onnx
import pytest
from test_export import METHODS, check, model

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("method", "network"),
    [("vae", "dense"), ("me", "dense"), ("full", "conv"), ("hf", "dense")],
)
def test_onnx(method, network, tmp_path):
    fitted = model(method, network=network, **METHODS[method])
    folder = fitted.export(tmp_path / "x")
    check(fitted, folder, 1e-4)
    about = json.loads((folder / "export.json").read_text())
    graph = onnx.load(folder / "posterior.onnx").graph
    axes = {
        v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in graph.input
    }
    assert axes == about["posterior"]["inputs"]
    assert [v.name for v in graph.output] == list(about["posterior"]["outputs"])


def test_a_refined_posterior(tmp_path):
    """Factors and solves, in operators that ONNX has."""
    fitted = model("vlae", steps=1, network="dense")
    check(fitted, fitted.export(tmp_path / "vlae"), 1e-4)


def test_the_example_of_the_documentation(tmp_path, monkeypatch, capsys):
    fitted = model("rme", order=3)
    fitted.save(tmp_path / "runs" / "rme")
    monkeypatch.chdir(tmp_path)
    from recmix import export

    check(fitted, export("runs/rme"), 1e-4)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "export.md").read_text(), re.S)
    exec(compile(code, "docs/export.md", "exec"), {})
    assert "(100, 16, 2) (1600, 1, 8, 8)" in capsys.readouterr().out
