"""A model evaluates in evaluation mode, also if a loop of the user's own trains the networks."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import recmix
from recmix.model.likelihoods import Gaussian

FEATURES, LATENT = 12, 3


class VAE(nn.Module):
    """Every result depends on the mode, and batch normalisation changes in training mode."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Sequential(
            nn.Linear(FEATURES, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 2 * LATENT)
        )
        self.second = nn.Sequential(nn.Linear(LATENT, 16), nn.Dropout(0.5), nn.Linear(16, FEATURES))

    def encode(self, x):
        return self.first(x).chunk(2, 1)

    def decode(self, z):
        return self.second(z)


@pytest.fixture
def x():
    return torch.randn(30, FEATURES, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def vae():
    return VAE().eval()


@pytest.fixture
def model(vae, x):
    return recmix.wrap(vae, likelihood=Gaussian(0.5, learned=False), example=x)


CALLS = {
    "posterior": lambda model, x: model.posterior(x).mean,
    "log_joint": lambda model, x: model.log_joint(x, torch.ones(2, len(x), LATENT)),
    "log_likelihood": lambda model, x: model.log_likelihood(x, 5),
    "elbo": lambda model, x: model.elbo(x, 5),
    "bounds": lambda model, x: model.bounds(x, 5)[1],
    "gap": lambda model, x: model.gap(x[:3], samples=10, check=1).log_evidence,
    "latent_report": lambda model, x: torch.tensor(model.latent_report(x, 5).nll),
    "reconstruct": lambda model, x: model.reconstruct(x),
    "sample": lambda model, x: model.sample(3, seed=0),
    "decode": lambda model, x: model.decode(torch.ones(2, LATENT)),
    "refined": lambda model, x: model.refined(1, how="variational").elbo(x, 5),
    "calibrated": lambda model, x: torch.tensor(model.calibrated(x, 5).inference.scale),
    "frontier": lambda model, x: torch.tensor(model.frontier(x, budget=1, samples=2).encoder.bound),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_loop_that_trains_the_networks_changes_no_result(name, model, vae, x):
    expected = CALLS[name](model, x)
    vae.train()
    modes = [part.training for part in vae.modules()]
    before = {key: value.clone() for key, value in vae.state_dict().items()}
    assert torch.equal(CALLS[name](model, x), expected)
    assert [part.training for part in vae.modules()] == modes
    assert all(torch.equal(value, before[key]) for key, value in vae.state_dict().items())


def test_the_modes_are_restored_after_an_error(model, vae, x):
    vae.train()
    with pytest.raises(recmix.RecmixError):
        model.elbo(x[:, :2])
    assert all(part.training for part in vae.modules())
    assert model.elbo(x[:1], 5).isfinite().all()  # one example, with batch normalisation


def test_training_mode_of_the_model_itself_is_kept(model, vae, x):
    expected = model.elbo(x, 5)
    model.train()
    assert model.refined(0).training
    assert not torch.equal(model.elbo(x, 5), expected)
    assert vae.first.training


def test_a_refined_copy_evaluates_although_the_networks_train(x):
    method = recmix.fit("vae", x, epochs=1, latent=2, network="mlp", dropout=0.5, progress=False).method
    model = recmix.wrap(method)
    expected = model.refined(1).elbo(x, 5)
    method.train()
    counted = method.trainings
    assert torch.equal(model.refined(1).elbo(x, 5), expected)
    assert method.training
    assert method.trainings == counted  # captured graphs stay valid


@pytest.mark.parametrize("form", ["whole", "methods", "networks"])
def test_wrap_sets_everything_that_it_gets_to_evaluation_mode(form, x):
    vae = VAE()
    vae.first[1].eval()  # batch normalisation in training mode is refused
    given = {
        "whole": (vae,),
        "methods": (vae.encode, vae.decode),
        "networks": (vae.first, vae.second),
    }[form]
    recmix.wrap(*given, likelihood=Gaussian(0.5), example=x)
    assert not vae.first.training
    assert not vae.second.training
    assert vae.training == (form == "networks")  # then this module was not given


def test_warnings_name_the_users_line(model, x):
    calibrated = model.using(scale=2.0)
    calls = [
        lambda: model.elbo(1000 * x, 2),
        lambda: calibrated.refined(1),
        lambda: model.calibrated(x[:5], 2),
        lambda: model.tuned(x, milliseconds=1e-9, samples=2),
    ]
    for call in calls:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            call()
        assert [warning.filename for warning in found] == [__file__]


def test_threads_share_the_evaluation_mode():
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4))
    decoder = nn.Linear(2, 6)
    x = torch.randn(20, 6)
    model = recmix.wrap(
        encoder.eval(), decoder.eval(), likelihood=recmix.likelihoods.Gaussian(0.5), example=x
    )
    expected, mean = model.posterior(x).mean, encoder[1].running_mean.clone()
    encoder.train()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: model.posterior(x).mean, range(200)))
    assert all(torch.equal(one, expected) for one in found)
    assert torch.equal(encoder[1].running_mean, mean)
    assert all(part.training for part in encoder.modules())
