"""The figure of a two-dimensional latent space, and the quadrature under it."""

import numpy as np
import pytest
import torch
from cases.training import images
from scipy import sparse

import recmix
from recmix.commands.figure_one import _learn, figure_one, true_posterior
from recmix.errors import ConfigError, RunError


@pytest.fixture(scope="module")
def vae():
    return recmix.fit("vae", images(100), latent=2, epochs=3, batch_size=20, progress=False)


def test_the_true_posterior_by_quadrature(vae):
    """Its integral over a wide grid is the evidence that importance sampling finds."""
    x = torch.from_numpy(images(1, seed=5)).to(vae.device)
    wide = np.full(2, 6.0)
    (first, second), density = true_posterior(vae, x, -wide, wide, grid=241)
    cell = (first[1] - first[0]) * (second[1] - second[0])
    assert density.sum() * cell == pytest.approx(1)
    grid = torch.from_numpy(np.stack(np.meshgrid(first, second), -1).reshape(-1, 2)).float()
    log_joint = vae.log_joint(x, grid[:, None]).double().cpu()
    evidence = (log_joint.logsumexp(0) + np.log(cell)).item()
    assert vae.log_likelihood(x, samples=20_000).item() == pytest.approx(evidence, abs=0.1)


def test_the_figure_is_drawn_in_three_forms(vae, tmp_path):
    data = recmix.data.from_arrays(images(100), x_test=images(30, seed=1))
    made = figure_one(data, tmp_path, init=vae, epochs=1, progress=False)
    assert [path.suffix for path in made] == [".png", ".svg", ".gif"]
    assert all(path.stat().st_size > 10_000 for path in made)


def test_sparse_examples_have_a_figure(tmp_path):
    x = sparse.csr_array((images(60).reshape(60, 64) > 0.8).astype(np.float32))
    vae = recmix.fit("vae", x, latent=2, epochs=1, progress=False)
    data = recmix.data.from_arrays(x, x_test=x[:5])
    assert len(figure_one(data, tmp_path, init=vae, epochs=1, progress=False)) == 3


def test_the_options_of_the_recursion_reach_it(vae, tmp_path, monkeypatch):
    seen = {}

    def record(vae, data, x, kind, options, *rest):
        seen[kind.name] = options
        return _learn(vae, data, x, kind, options, *rest)

    monkeypatch.setattr("recmix.commands.figure_one._learn", record)
    data = recmix.data.from_arrays(images(100), x_test=images(30, seed=1))
    options = {"bound": 1.0, "eps_max": 0.99, "component": "residual"}
    figure_one(data, tmp_path, init=vae, epochs=1, progress=False, **options)
    assert seen == {"rme": options, "me": {}}


def test_a_file_in_place_of_the_folder_is_found_before_the_training(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr("recmix.commands.figure_one.fit", None)  # must not be called
    data = recmix.data.from_arrays(images(30), x_test=images(5))
    with pytest.raises(RunError, match="could not make the folder .*file"):
        figure_one(data, tmp_path / "file")


def test_it_needs_two_dimensions_and_test_images(vae, tmp_path):
    with pytest.raises(ConfigError, match="no test images"):
        figure_one(recmix.data.from_arrays(images(30), hold_out_test=False), None, init=vae)
    other = recmix.fit("vae", images(30), latent=3, epochs=1, progress=False)
    with pytest.raises(ConfigError, match="two latent dimensions"):
        figure_one(recmix.data.from_arrays(images(30), x_test=images(5)), tmp_path, init=other)
