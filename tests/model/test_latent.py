"""`LatentModel`: its joint density, centring, samples and parameter groups."""

import re

import pytest
import torch
from cases.oracle import LinearGaussian
from torch import nn
from torch.distributions import Independent, Normal

from recmix.errors import ConfigError, DataError
from recmix.methods.optimizers import model_groups
from recmix.methods.vae import VAE
from recmix.model.latent import LatentModel, standard_normal
from recmix.model.likelihoods import Bernoulli, Gaussian

SHAPE = (1, 3, 4)


def make(likelihood, centre=None):
    torch.manual_seed(0)
    decoder = nn.Sequential(nn.Linear(2, 12), nn.Unflatten(1, SHAPE))
    return LatentModel(decoder, likelihood, latent=2, shape=SHAPE, centre=centre).double()


def test_joint_is_evidence_times_posterior():
    world = LinearGaussian()
    x = world.images()
    z = torch.randn(6, len(x), world.latent, dtype=torch.float64)
    expected = world.log_evidence(x) + world.posterior(x).log_prob(z)
    torch.testing.assert_close(world.model.log_joint(x, z), expected, rtol=1e-10, atol=1e-10)


def test_standard_normal_is_the_prior():
    z = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    prior = Independent(Normal(torch.zeros(4, dtype=torch.float64), 1.0), 1)
    torch.testing.assert_close(standard_normal(z), prior.log_prob(z))


@pytest.mark.parametrize("likelihood", [Gaussian(0.3), Bernoulli()], ids=["gaussian", "bernoulli"])
def test_joint_is_prior_times_likelihood(likelihood):
    centre = torch.rand(SHAPE, generator=torch.Generator().manual_seed(1))
    model = make(likelihood, centre)
    generator = torch.Generator().manual_seed(2)
    x = torch.rand(5, *SHAPE, generator=generator, dtype=torch.float64)
    z = torch.randn(7, 5, 2, generator=generator, dtype=torch.float64)
    observed = x - centre if model.likelihood.centred else x
    decoded = torch.stack([model.decoder(one) for one in z])
    expected = model.likelihood.log_prob(observed, decoded)
    torch.testing.assert_close(model.log_conditional(x, z), expected)
    torch.testing.assert_close(model.log_joint(x, z), expected + standard_normal(z))
    assert model.decoder_output(z).shape == (7, 5, *SHAPE)


def test_centred_likelihood_adds_the_training_mean():
    centre = torch.rand(SHAPE, generator=torch.Generator().manual_seed(1))
    model = make(Gaussian(), centre)
    z = torch.randn(5, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    torch.testing.assert_close(model.decode(z), model.decoder(z) + centre.double())
    assert torch.equal(model.shift, model.centre)
    x = torch.rand(5, *SHAPE, dtype=torch.float64)
    torch.testing.assert_close(model.observed(x), x - centre.double())


def test_uncentred_likelihood_ignores_the_training_mean():
    model = make(Bernoulli(), torch.ones(SHAPE))
    assert model.centre.abs().sum() == 0
    assert model.shift is None
    x = torch.rand(5, *SHAPE, dtype=torch.float64)
    assert model.observed(x) is x
    z = torch.randn(4, 5, 2, dtype=torch.float64)
    torch.testing.assert_close(model.decode(z), model.decoder_output(z).sigmoid())


def test_samples_are_decoded_prior_samples():
    model = make(Gaussian(), torch.rand(SHAPE))
    one, same, other = (model.sample(3, generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    z = torch.randn(3, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(one, model.decode(z))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert one.shape == (3, *SHAPE)


def test_variance_has_its_own_learning_rate():
    networks, variance = model_groups(make(Gaussian()), 0.1, 20.0)
    assert (networks["lr"], variance["lr"]) == (0.1, 2.0)
    assert len(networks["params"]) == 2
    assert len(variance["params"]) == 1
    assert len(model_groups(make(Bernoulli()), 0.1, 20.0)) == 1


def test_centre_is_saved_with_the_weights():
    centre = torch.rand(SHAPE)
    model, other = make(Gaussian(), centre), make(Gaussian())
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other.centre, centre.double())
    centre.zero_()
    assert model.centre.abs().sum() > 0  # a copy


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([torch.zeros(3, 1, 4, 4), torch.zeros(3)], r"got a list of 2 tensors: if a DataLoader gives"),
        (torch.zeros(3, 1, 4, 4).numpy(), r"use torch.as_tensor\(x\)"),
        (torch.zeros(3, 16), r"got a tensor of shape \(3, 16\): the model was made for examples of"),
        (torch.zeros(1, 4, 4), r"got a tensor of shape \(1, 4, 4\): use x\[None\]"),
    ],
)
def test_a_step_on_what_is_no_batch_says_what_is_expected(batch, message):
    decoder = nn.Sequential(nn.Linear(2, 16), nn.Unflatten(1, (1, 4, 4)))
    model = LatentModel(decoder, Gaussian(0.5), latent=2, shape=(1, 4, 4))
    method = VAE(model, nn.Sequential(nn.Flatten(), nn.Linear(16, 4)))
    with pytest.raises(
        DataError, match=r"expected a batch of examples, a tensor \(B, 1, 4, 4\), "
    ) as found:
        method.step(batch, method.optimizers(1e-3))
    assert re.search(message, str(found.value))


def test_a_likelihood_is_an_object():
    with pytest.raises(ConfigError, match=r"such as recmix.likelihoods.Bernoulli\(\), got 'bernoulli'"):
        LatentModel(nn.Linear(2, 4), "bernoulli", latent=2, shape=(4,))
