"""Exports of models of texts: embeddings in the posterior, one token after the other in the decoder."""

import numpy as np
import pytest
import torch
from cases.exports import run
from cases.molecules import SMALL_MOLECULES

import recmix
from recmix.errors import ConfigError
from recmix.exports.graphs import frozen, posterior_graph
from recmix.exports.serialise import _program

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
TEXTS = ["a cat sat", "a dog ran", "the cow", "a dog sat", "the cat ran", "the dog", "a cow sat"] * 6


@pytest.fixture(scope="module")
def model():
    data = recmix.data.from_texts(TEXTS[:21], val=TEXTS[21:])
    tiny = {"latent": 2, "units": 8, "heads": 2, "blocks": 1, "epochs": 1, "progress": False}
    return recmix.fit("rme", data, order=2, vae_epochs=1, learning_rate=0.03, device="cpu", **tiny)


def test_torchscript_gives_the_results_of_the_model(model, tmp_path):
    folder = model.export(tmp_path / "x", format="torchscript")
    for batch in (1, 5):
        x = model.encode_texts(TEXTS[:batch])
        q = model.posterior(x)
        log_weights, means, log_variances = run(folder, "posterior", x)
        torch.testing.assert_close(log_weights.exp(), q.weights, rtol=1e-4, atol=1e-5)
        for m, part in enumerate(q.components):
            torch.testing.assert_close(means[:, m], part.mean, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(log_variances[:, m], part.log_variance, rtol=1e-4, atol=1e-5)
        found = run(folder, "decoder", q.mean)
        found = found[0] if isinstance(found, list | tuple) else found
        np.testing.assert_allclose(found, model.decode(q.mean))


def test_program_of_a_mixture_takes_any_batch(model):
    """Embeddings that are evaluated as one network would fix the batch size."""
    method = frozen(model.method, fuse=True)
    program = _program(posterior_graph(method, model.inference)).module()
    for batch in (1, 6):
        x = model.encode_texts(TEXTS[:batch])
        _, means, _ = program(x)
        expected = torch.stack([part.mean for part in model.posterior(x).components], 1)
        torch.testing.assert_close(means, expected, rtol=1e-4, atol=1e-5)


def test_torchscript_of_graphs_gives_the_results_of_the_model(tmp_path):
    pytest.importorskip("rdkit")
    data = recmix.data.from_texts(SMALL_MOLECULES * 2, SMALL_MOLECULES, kind="molecule-graphs", length=8)
    tiny = {"latent": 2, "units": 8, "heads": 2, "blocks": 1, "epochs": 1, "progress": False}
    model = recmix.fit("vae", data, device="cpu", **tiny)
    folder = model.export(tmp_path / "x", format="torchscript")
    for batch in (1, 5):
        x = model.encode_texts(SMALL_MOLECULES[:batch])
        q = model.posterior(x)
        _, means, log_variances = run(folder, "posterior", x)
        torch.testing.assert_close(means[:, 0], q.mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(log_variances[:, 0], q.log_variance, rtol=1e-4, atol=1e-5)
        (found,) = run(folder, "decoder", q.mean)
        torch.testing.assert_close(found, model.decode(q.mean), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("format", ["pt2", "torchscript", "onnx"])
def test_the_curvature_of_an_autoregressive_likelihood_cannot_be_exported(model, tmp_path, format):
    if format == "onnx":
        pytest.importorskip("onnxscript")
    with pytest.raises(ConfigError, match="curvature of the autoregressive likelihood.*without refin"):
        model.refined(1).export(tmp_path / "x", format=format)
    assert not (tmp_path / "x").exists()
