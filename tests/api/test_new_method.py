"""A new method is one file: everything else finds it through the registry and what it says of itself."""

import importlib
import json
import sys
from pathlib import Path

import pytest
from cases.commands import call
from cases.contract import check_method

import recmix
import recmix.methods
from recmix.methods.registry import COMPONENTS, METHODS
from recmix.runs.folder import Run

SOURCE = '''"""A Gaussian with a low-rank covariance, in one pass."""

import torch
from torch import nn

from recmix.methods.component import Component
from recmix.methods.method import Method
from recmix.methods.registry import register, register_component
from recmix.model.networks import encode_with_features, feature_size
from recmix.posteriors import FullGaussian, Gaussian


@register_component
class LowRankComponent(Component):
    """q(z | x) = N(μ, diag σ² + W Wᵀ) with W (D, rank), small before training."""

    kind = "lowrank"
    setting = "rank"
    closed_form_entropy = True

    def __init__(self, encoder, model, *, rank: int = 2):
        super().__init__(encoder, model)
        self.latent, self.rank = model.latent, rank
        self.factor = nn.Linear(feature_size(encoder, model.latent), model.latent * rank)
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.normal_(self.factor.weight, std=1e-3)
        nn.init.normal_(self.factor.bias, std=1e-3)

    def forward(self, x, model):
        features, output = encode_with_features(self.encoder, model.observed(x))
        diagonal = Gaussian.from_parameters(output)
        w = self.factor(features).unflatten(-1, (self.latent, self.rank))
        covariance = torch.diag_embed(diagonal.variance) + w @ w.mT
        return FullGaussian(diagonal.mean, torch.linalg.cholesky_ex(covariance).L)


@register
class LowRankGaussian(Method):
    """One Gaussian with a low-rank covariance.

    Args:
        model: p(x, z).
        encoder: gives μ, log σ² and the features.
        rank: of the covariance beyond its diagonal.

    Reference: none.
    """

    name = "lowrank"
    title = "low-rank Gaussian"
    reference = "a test"
    setting = "rank"

    def __init__(self, model, encoder, *, rank: int = 2):
        super().__init__(model, [LowRankComponent(encoder, model, rank=rank)])
'''


@pytest.fixture
def new_method(tmp_path, monkeypatch):
    """The file, dropped into a folder on the path of `recmix.methods`."""
    folder = tmp_path / "methods"
    folder.mkdir()
    (folder / "lowrank.py").write_text(SOURCE)
    monkeypatch.setattr(recmix.methods, "__path__", [*recmix.methods.__path__, str(folder)])
    module = importlib.import_module("recmix.methods.lowrank")
    yield METHODS["lowrank"]
    del METHODS["lowrank"], COMPONENTS["lowrank"], sys.modules["recmix.methods.lowrank"], module


@pytest.mark.usefixtures("few_digits")
def test_every_tool_works_with_a_method_from_a_new_file(new_method, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    train = ["--data", "digits", "--epochs", "1", "--device", "cpu"]
    assert call("train", "--method", "vae", "--latent", "3", "--out", "vae", *train) == 0
    assert (
        call("train", "--method", "lowrank", "--rank", "1", "--init", "vae", "--out", "low", *train) == 0
    )
    spec = json.loads((tmp_path / "low" / "spec.json").read_text())
    assert (spec["method"], spec["label"], spec["options"]) == ("lowrank", "LOWRANK", {"rank": 1})

    evaluate = ["evaluate", "low", "--samples", "5", "--device", "cpu"]
    assert call(*evaluate) == 0
    assert call(*evaluate, "--refine", "1") == 0
    assert call(*evaluate, "--calibrate") == 0
    assert call(*evaluate[:-4], "--gap", "--examples", "4", "--samples", "20") == 0
    scores = Run(tmp_path / "low").scores()
    refined = "test/5/gauss-newton,refine=1,reuse=2,restarts=1,checks=1"
    assert {"test/5", refined, "test/5/calibrated"} == set(scores)
    assert scores["test/5"]["kind"] == "encoder"
    assert (tmp_path / "low" / "gap.json").exists()

    second = ["--data", "digits", "--init", "vae", "--epochs", "1", "--samples", "5", "--device", "cpu"]
    assert call("compare", "lowrank:rank=1", "--out", "all", *second) == 0
    rows = json.loads((tmp_path / "all" / "compare.json").read_text())["rows"]
    assert [row["model"] for row in rows] == ["VAE", "VAE+", "LOWRANK(1)"]

    assert call("export", "low", "--format", "pt2") == 0
    assert (tmp_path / "low" / "pt2" / "posterior.pt2").exists()
    assert call("report", ".", "--format", "terminal", "--samples", "5") == 0
    shown = capsys.readouterr().out
    assert "LOWRANK(1)" in shown
    assert call("methods", "--json") == 0
    assert "low-rank Gaussian" in capsys.readouterr().out


def test_the_contract_holds_for_a_method_from_a_new_file(new_method):
    check_method(new_method)


def test_mixtures_take_components_from_a_new_file(new_method):
    import numpy as np

    x = np.random.default_rng(0).random((30, 1, 8, 8), np.float32)
    model = recmix.fit("rme", x, latent=2, order=2, component="lowrank", vae_epochs=1, epochs=1)
    assert model.posterior(x[:3]).weights.shape == (3, 2)


def test_the_documentation_lists_a_method_from_a_new_file(new_method):
    sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
    try:
        build = importlib.import_module("build")
        table = build.TABLES["methods"]()
    finally:
        sys.path.pop(0)
        sys.modules.pop("build", None)
    assert "| `lowrank` | low-rank Gaussian |" in table
