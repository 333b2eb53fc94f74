"""The method name curvature: a network for any trained model, stored and loaded with it."""

import numpy as np
import pytest
import torch
from cases.oracle import LinearDecoder, LinearEncoder
from cases.training import images
from torch import nn

import recmix
from recmix.errors import ConfigError
from recmix.inference.gauss_newton import normal_equations
from recmix.inference.learned import gaussian_at
from recmix.model.likelihoods import Gaussian

FAST = {"progress": False, "device": "cpu", "batch_size": 20}


@pytest.fixture(scope="module")
def data():
    return recmix.data.from_arrays(images(120, size=8), seed=0, hold_out_test=False)


@pytest.fixture(scope="module")
def vae(data):
    return recmix.fit("vae", data, latent=3, epochs=3, **FAST)


@torch.no_grad()
def kl_to_exact(model, x):
    """The mean KL of the predicted from the exact Gaussian, at the means of the posterior."""
    latent = model.latent_model
    z = model.posterior(x).mean
    exact = normal_equations(latent, torch.as_tensor(x), z).precision.detach()
    q = gaussian_at(latent, z)
    trace = (exact @ q.covariance_matrix).diagonal(dim1=-2, dim2=-1).sum(-1)
    found = 0.5 * (trace - z.shape[-1] - torch.logdet(exact)) - q.entropy()
    return float((found + 0.5 * z.shape[-1] * (1 + np.log(2 * np.pi))).mean())


def test_training_brings_the_network_close_to_the_exact_curvature():
    """A model whose curvature changes much with z: constants alone are far from it."""
    torch.manual_seed(0)
    encoder, decoder = nn.Linear(12, 4), nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 12))
    with torch.no_grad():
        encoder.weight[2:], encoder.bias[2:] = 0.0, -2.0
        encoder.weight[:2] *= 3
        decoder[0].weight *= 2
    x = torch.randn(240, 12, generator=torch.Generator().manual_seed(1)).numpy()
    model = recmix.wrap(encoder, decoder, likelihood=Gaussian(0.05), example=torch.zeros(2, 12))

    def trained(epochs, **options):
        options = {"keep_weights": "last", **FAST, **options}
        return recmix.fit("curvature", x, init=model, epochs=epochs, **options)

    constant = kl_to_exact(trained(1, learning_rate=1e-9), x[:50])
    found = kl_to_exact(trained(40), x[:50])
    assert found < 0.4 * constant, (found, constant)


def test_it_is_exact_for_a_linear_model_before_training(data):
    x = np.random.default_rng(0).normal(size=(80, 1, 2, 3)).astype(np.float32)
    own = {"encoder": LinearEncoder(2), "decoder": LinearDecoder(2), "likelihood": "gaussian"}
    model = recmix.fit("vae", x, latent=2, epochs=2, dtype="float64", **own, **FAST)
    found = recmix.fit("curvature", x, init=model, epochs=1, learning_rate=1e-9, dtype="float64", **FAST)
    one, two = (m.posterior(x[:5]) for m in (found.refined(4, how="learned"), found.refined(1)))
    torch.testing.assert_close(one.mean, two.mean, atol=1e-4, rtol=0)
    torch.testing.assert_close(one.variance, two.variance, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("method", ["vae", "rme", "residual", "iaf"])
def test_any_method_gets_a_network_and_keeps_its_posterior(method, data, vae, tmp_path):
    start = recmix.fit(method, data, init=vae, epochs=1, **FAST)
    model = recmix.fit("curvature", data, init=start, epochs=1, out=tmp_path / "run", **FAST)
    assert model.spec.method == start.spec.method
    assert model.spec.options == start.spec.options
    assert model.spec.label == f"{start.spec.label} with curvature"
    x = data.x_val[:10]
    torch.testing.assert_close(model.elbo(x, 5), start.elbo(x, 5))
    again = recmix.load(tmp_path / "run", device="cpu")
    one, two = (m.refined(3, how="learned", checks=8).elbo(x, 500) for m in (model, again))
    torch.testing.assert_close(one, two)
    assert one.mean() > start.elbo(x, 500).mean() - 0.02


def test_the_run_is_resumed_and_stays_a_curvature_training(data, vae, tmp_path):
    folder, start = tmp_path / "run", vae.save(tmp_path / "vae")
    options = {"init": start, "out": folder, **FAST}
    recmix.fit("curvature", data, epochs=1, **options)
    model = recmix.fit("curvature", data, epochs=2, resume=True, **options)
    assert len(model.history) == 2
    assert model.spec.training.train == "curvature"
    for name, value in vae.method.state_dict().items():
        torch.testing.assert_close(model.method.state_dict()[name], value)


def test_a_later_training_keeps_the_network_only_while_it_fits(data, vae):
    model = recmix.fit("curvature", data, init=vae, epochs=1, **FAST)
    frozen = recmix.fit("residual", data, init=model, epochs=1, train="encoder", **FAST)
    before = model.method.model.curvature.state_dict()
    for name, value in frozen.method.model.curvature.state_dict().items():
        assert torch.equal(value, before[name])
    moved = recmix.fit("vae", data, init=model, epochs=1, **FAST)
    assert moved.method.model.curvature is None
    against = recmix.fit("vae", data, init=model, epochs=1, refine=1, how="learned", **FAST)
    changed = against.method.model.curvature.state_dict()
    assert any(not torch.equal(changed[name], before[name]) for name in before)


def test_corrections_can_see_the_whitened_gradient(data, vae, tmp_path):
    model = recmix.fit("curvature", data, init=vae, epochs=1, **FAST)
    options = {"corrections": 2, "whitened": True, "train": "encoder", "epochs": 2, **FAST}
    options |= {"keep_weights": "last"}
    chain = recmix.fit("residual", data, init=model, out=tmp_path / "run", **options)
    assert chain.method.steps_per_example == 2
    again = recmix.load(tmp_path / "run", device="cpu")
    x = data.x_val[:6]
    torch.testing.assert_close(again.elbo(x, 5), chain.elbo(x, 5))
    corrector = chain.method.components[0].corrector(0)
    trained = corrector.joint.weight[:, -3:].clone()
    with torch.no_grad():
        corrector.joint.weight[:, -3:] = 0
    assert not torch.equal(again.posterior(x).mean, chain.posterior(x).mean)  # it is used
    assert trained.isfinite().all()
    with pytest.raises(ConfigError, match="curvature network"):
        recmix.fit("residual", data, init=vae, **options)


def test_many_dimensions_get_a_low_rank_network():
    x = np.random.default_rng(0).random((60, 1, 8, 8)).astype(np.float32)
    vae = recmix.fit("vae", x, latent=70, epochs=1, **FAST)
    model = recmix.fit("curvature", x, init=vae, epochs=2, **FAST)
    assert model.spec.model.curvature == "low-rank"
    assert model.latent_model.curvature.rank == 32
    better = model.refined(3, how="learned")
    assert better.elbo(x[:5], 20).mean() > model.elbo(x[:5], 20).mean()
    assert better.calibrated(x[5:35], 5).log_likelihood(x[:5], 10).isfinite().all()


def test_mistakes_are_said_plainly(data, vae):
    with pytest.raises(ConfigError, match="give it as init"):
        recmix.fit("curvature", data, epochs=1, **FAST)
    with pytest.raises(ConfigError, match="trains nothing else"):
        recmix.fit("curvature", data, init=vae, train="all", **FAST)
    with pytest.raises(ConfigError, match="has none"):
        recmix.fit("vae", data, init=vae, train="curvature", epochs=1, **FAST)
