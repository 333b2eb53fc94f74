"""ONNX files give the same results in onnxruntime as the Python interface."""

import json
import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from cases.exports import METHODS, check, model, run
from torch import nn

import recmix
from recmix.exports.operators import onnx_operators
from recmix.exports.serialise import export

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("method", "network"),
    [("vae", "dense"), ("me", "dense"), ("full", "conv"), ("hf", "dense")],
)
def test_onnx_agrees_with_python(method, network, tmp_path):
    made = model(method, network=network, **METHODS[method])
    folder = made.export(tmp_path / "x", format="onnx")
    check(made, folder, 1e-4)
    about = json.loads((folder / "export.json").read_text())
    graph = onnx.load(folder / "posterior.onnx").graph
    axes = {
        v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in graph.input
    }
    assert axes == about["posterior"]["inputs"]
    assert [v.name for v in graph.output] == list(about["posterior"]["outputs"])


class LinearAlgebra(torch.nn.Module):
    def forward(self, matrix, right):
        factor, info = torch.linalg.cholesky_ex(matrix)
        lower = torch.linalg.solve_triangular(factor, right, upper=False)
        return factor, info, lower, torch.linalg.solve_triangular(factor.mT, right, upper=True)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # raised inside torch.onnx
def test_cholesky_factors_and_triangular_systems_in_onnx():
    root = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrix = root @ root.mT + torch.eye(4)
    right = root[..., :2]
    program = torch.export.export(LinearAlgebra(), (matrix, right))
    table = onnx_operators(18)
    made = torch.onnx.export(
        program, dynamo=True, verbose=False, opset_version=18, custom_translation_table=table
    )
    session = onnxruntime.InferenceSession(made.model_proto.SerializeToString())
    names = [value.name for value in session.get_inputs()]

    def outputs(matrix):
        return session.run(None, dict(zip(names, (matrix.numpy(), right.numpy()), strict=True)))

    for found, expected in zip(outputs(matrix), LinearAlgebra()(matrix, right), strict=True):
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-9, atol=1e-9)
    matrix[1] *= -1
    assert outputs(matrix)[1].tolist() == [0, 1, 0]
    with pytest.raises(NotImplementedError, match="unit diagonal"):
        table[torch.ops.aten.linalg_solve_triangular.default](None, None, True, True, True)


def test_onnx_of_a_refined_posterior(tmp_path):
    """Cholesky factors and triangular solves, in operators that ONNX has."""
    made = model("vlae", steps=1, network="dense")
    check(made, made.export(tmp_path / "vlae", format="onnx"), 1e-4)


def test_onnx_of_a_posterior_that_is_refined_through_smooth_activations(tmp_path):
    layers = (nn.Linear(2, 6), nn.SiLU(), nn.Linear(6, 64), nn.GELU(), nn.Unflatten(1, (1, 8, 8)))
    made = model("vae", network="dense", decoder=nn.Sequential(*layers)).refined(1)
    check(made, made.export(tmp_path / "x", format="onnx"), 1e-3)


def test_example_of_the_documentation(tmp_path, monkeypatch, capsys):
    made = model("rme", order=3)
    made.save(tmp_path / "runs" / "rme")
    monkeypatch.chdir(tmp_path)
    check(made, export("runs/rme", "onnx", format="onnx"), 1e-4)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "export.md").read_text(), re.S)
    exec(compile(code, "docs/export.md", "exec"), {})
    assert "(100, 16, 2) (1600, 1, 8, 8)" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_onnx_of_a_table(tmp_path):
    x = np.random.default_rng(0).poisson(3, (60, 5)).astype(np.float32)
    how = {"latent": 2, "widths": (8,), "epochs": 1, "device": "cpu", "progress": False}
    model = recmix.fit("vae", x, likelihood="poisson", **how)
    folder = model.export(tmp_path / "x", format="onnx")
    given = torch.from_numpy(x[:6])
    log_weights, means, _ = run(folder, "posterior", given)
    assert log_weights.shape == (6, 1)
    torch.testing.assert_close(means[:, 0], model.posterior(given).mean)
    (decoded,) = run(folder, "decoder", torch.randn(4, 2))
    assert decoded.shape == (4, 5)
    assert (decoded > 0).all()
