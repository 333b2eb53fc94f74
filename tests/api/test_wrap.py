"""`recmix.wrap`: a VAE that was trained elsewhere does all that a fitted model does."""

import math
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal, Normal

import recmix
from recmix.data import DataWarning
from recmix.errors import ConfigError
from recmix.methods.registry import find_method
from recmix.model.assembly import Own
from recmix.model.curvature_network import CurvatureNetwork
from recmix.model.fields import Fields
from recmix.model.likelihoods import Gaussian, Likelihood, sum_event
from recmix.training.one_module import as_networks, keep_used_parts

FEATURES, LATENT = 12, 3


class OwnEncoder(nn.Module):
    """Returns a tuple, as many tutorials do."""

    def __init__(self, form="tuple"):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, 16), nn.BatchNorm1d(16), nn.Tanh())
        self.mean, self.second = nn.Linear(16, LATENT), nn.Linear(16, LATENT)
        self.form = form

    def forward(self, x):
        hidden = self.body(x)
        mean, log_variance = self.mean(hidden), self.second(hidden)
        if self.form == "full":
            low = torch.tril(0.3 * torch.ones(LATENT, LATENT), -1)
            return MultivariateNormal(
                mean, scale_tril=low + torch.diag_embed((0.5 * log_variance).exp())
            )
        if self.form == "normal":
            return Normal(mean, (0.5 * log_variance).exp())
        return mean, log_variance


def networks(form="tuple"):
    torch.manual_seed(0)
    decoder = nn.Sequential(nn.Linear(LATENT, 16), nn.Tanh(), nn.Linear(16, FEATURES))
    with torch.no_grad():
        decoder[2].weight.mul_(4)
    return OwnEncoder(form).eval(), decoder.eval()


@pytest.fixture
def x():
    return torch.randn(40, FEATURES, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("form", ["tuple", "normal", "full"])
def test_the_bound_is_that_of_a_loop_by_hand(form, x):
    encoder, decoder = networks(form)
    model = recmix.wrap(encoder, decoder, likelihood=Gaussian(0.5), example=x)
    found = model.elbo(x, 4000).mean()
    with torch.no_grad():
        out = encoder(x)
        q = Normal(out[0], (0.5 * out[1]).exp()) if form == "tuple" else out
        z = q.sample((4000,))
        log_q = q.log_prob(z) if form == "full" else q.log_prob(z).sum(-1)
        by_hand = (
            Normal(decoder(z), math.sqrt(0.5)).log_prob(x).sum(-1)
            + Normal(0.0, 1.0).log_prob(z).sum(-1)
            - log_q
        )
    assert float(found) == pytest.approx(float(by_hand.mean()), abs=0.2)


def test_all_that_a_fitted_model_does(x, tmp_path):
    encoder, decoder = networks()
    before = {k: v.clone() for k, v in encoder.state_dict().items()}
    model = recmix.wrap(encoder, decoder, likelihood=Gaussian(0.5, learned=False), example=x[:2])
    assert model.refined(3).log_likelihood(x, 50).mean() > model.log_likelihood(x, 50).mean() + 0.3
    assert model.calibrated(x, 20).log_likelihood(x, 50).mean() >= model.log_likelihood(x, 50).mean()
    assert model.calibrated(x, 20, noise=True).inference.noise != 1
    gap = model.gap(x[:5], samples=50, check=1)
    assert float((gap.log_evidence - gap.elbo).mean()) > 0
    assert model.reconstruct(x).shape == x.shape
    assert model.sample(5).shape == (5, FEATURES)
    for name, value in encoder.state_dict().items():
        assert torch.equal(value, before[name])
    folder = model.save(tmp_path / "run")
    again = recmix.load(folder, encoder=networks()[0], decoder=networks()[1], device="cpu")
    torch.testing.assert_close(again.log_likelihood(x, 10), model.log_likelihood(x, 10))


@pytest.mark.parametrize("method", ["vae", "rme", "residual", "sa", "full", "iaf"])
def test_it_can_be_trained_on_with_every_kind_of_method(method, x):
    encoder, decoder = networks()
    model = recmix.wrap(encoder, decoder, likelihood=Gaussian(0.5, learned=False), example=x[:2])
    better = recmix.fit(method, x.numpy(), init=model, epochs=1, progress=False)
    assert better.log_likelihood(x, 10).isfinite().all()
    assert better.latent_model.likelihood.variance.item() == pytest.approx(0.5)  # fixed stays fixed


def own_loop(name, x, *, curvature=None, spread=None, **options):
    """A method that a loop of the user's own trained, and the networks that a new one starts with."""
    torch.manual_seed(0)
    decoder = nn.Sequential(nn.Linear(LATENT, 16), nn.Tanh(), nn.Linear(16, FEATURES))
    likelihood = Gaussian(0.5, learned=False)
    model = recmix.LatentModel(
        decoder,
        likelihood,
        latent=LATENT,
        shape=(FEATURES,),
        centre=x.mean(0),
        spread=spread,
        curvature=curvature,
    )
    method = find_method(name)(model, nn.Linear(FEATURES, 2 * LATENT), **options)
    optimizers = method.optimizers(1e-2)
    for _ in range(3):
        method.step(x, optimizers)
    return method


def fresh():
    return {
        "encoder": nn.Linear(FEATURES, 2 * LATENT),
        "decoder": nn.Sequential(nn.Linear(LATENT, 16), nn.Tanh(), nn.Linear(16, FEATURES)),
    }


@pytest.mark.parametrize(("name", "options"), [("vae", {}), ("rme", {"order": 3}), ("sa", {})])
def test_a_method_of_ones_own_loop_becomes_a_model(name, options, x, tmp_path):
    method = own_loop(name, x, **options)
    model = recmix.wrap(method, label="MINE")
    assert model.method is method
    assert not method.training
    with torch.no_grad():
        expected = method.posterior(x).mean
    torch.testing.assert_close(model.posterior(x).mean, expected)
    assert model.refined(2).elbo(x, 50).mean() > model.elbo(x, 50).mean()
    again = recmix.load(model.save(tmp_path / "run"), device="cpu", **fresh())
    torch.testing.assert_close(again.log_likelihood(x, 10), model.log_likelihood(x, 10))
    assert again.spec.label == "MINE"
    assert again.latent_model.likelihood.variance.item() == pytest.approx(0.5)
    better = recmix.fit("rme", x.numpy(), init=model, order=3, epochs=1, progress=False)
    assert better.log_likelihood(x, 10).isfinite().all()


@pytest.mark.parametrize("rank", [0, 2])
def test_a_method_with_a_curvature_network_keeps_it(rank, x, tmp_path):
    network = CurvatureNetwork(LATENT, rank)
    nn.init.normal_(network.head.weight, std=0.1)
    model = recmix.wrap(own_loop("vae", x, curvature=network))
    again = recmix.load(model.save(tmp_path / "run"), device="cpu", **fresh())
    learned = [one.refined(1, how="learned").posterior(x).mean for one in (model, again)]
    torch.testing.assert_close(*learned)


def test_a_method_that_standardises_is_loaded_with_its_numbers(x, tmp_path):
    method = own_loop("vae", 5 * x, spread=(5 * x).std(0))
    model = recmix.wrap(method)
    again = recmix.load(model.save(tmp_path / "run"), device="cpu", **fresh())
    assert torch.equal(again.latent_model.spread, method.model.spread)
    torch.testing.assert_close(again.posterior(x).mean, model.posterior(x).mean)


class Flat(nn.Linear):
    """Takes the fields of an example as one vector."""

    def forward(self, given):
        x = torch.cat([given["a"], given["b"]], 1) if isinstance(given, dict) else given
        return super().forward(x)


def test_a_method_for_examples_with_fields_is_loaded(x, tmp_path):
    fields = Fields({"a": (4,), "b": (8,)})
    model = recmix.LatentModel(
        nn.Linear(LATENT, FEATURES), Gaussian(0.5), latent=LATENT, shape=(FEATURES,), fields=fields
    )
    wrapped = recmix.wrap(find_method("vae")(model, Flat(FEATURES, 2 * LATENT)))
    parts = {"encoder": Flat(FEATURES, 2 * LATENT), "decoder": nn.Linear(LATENT, FEATURES)}
    again = recmix.load(wrapped.save(tmp_path / "run"), device="cpu", **parts)
    torch.testing.assert_close(again.posterior(x).mean, wrapped.posterior(x).mean)


def test_a_method_contains_its_networks_and_likelihood(x):
    with pytest.raises(ConfigError, match="a vae method needs no decoder, likelihood, example: write"):
        recmix.wrap(own_loop("vae", x), nn.Linear(3, 4), likelihood="bernoulli", example=x)
    with pytest.raises(ConfigError, match="this is a recmix.Model already"):
        recmix.wrap(recmix.wrap(own_loop("vae", x)))


def test_a_class_that_cannot_be_stored_is_refused(x):
    class Same(find_method("vae")):
        """Has the name of its base class."""

    class Positional(find_method("vae")):
        """Has an option that is not keyword-only."""

        name = "positional"

        def __init__(self, model, encoder, k=3):
            super().__init__(model, encoder)

    model = own_loop("vae", x).model
    for cls, message in (
        (Same, "the class Same has the name 'vae' of the class VAE, which would be loaded instead"),
        (Positional, "the option k of the class Positional must be keyword-only"),
    ):
        with pytest.raises(ConfigError, match=message):
            recmix.wrap(cls(model, nn.Linear(FEATURES, 2 * LATENT)))
    with pytest.raises(ConfigError, match="wrap needs likelihood=, how the decoder's output gives"):
        recmix.wrap(*networks(), example=x)


def test_export(x, tmp_path):
    encoder, decoder = networks()
    model = recmix.wrap(encoder, decoder, likelihood=Gaussian(0.5), example=x[:2])
    assert (model.export(tmp_path / "out", format="pt2") / "posterior.pt2").is_file()


class Laplace(Likelihood):
    """A likelihood of a user."""

    def log_prob(self, x, decoded):
        return sum_event(torch.distributions.Laplace(decoded, 0.5).log_prob(x), x)

    def sample(self, decoded, generator=None):
        return torch.distributions.Laplace(decoded, 0.5).sample()


def test_a_likelihood_and_a_prior_of_ones_own(x):
    encoder, decoder = networks()
    prior = MultivariateNormal(torch.zeros(LATENT), 4 * torch.eye(LATENT))
    model = recmix.wrap(encoder, decoder, likelihood=Laplace(), prior=prior, example=x[:2])
    z = model.posterior(x).mean
    expected = Laplace().log_prob(x, decoder(z)) + prior.log_prob(z)
    torch.testing.assert_close(model.log_joint(x, z[None])[0], expected.detach())
    assert (
        model.refined(2).log_joint(x, model.refined(2).posterior(x).mean[None]).mean() > expected.mean()
    )


def test_a_prior_object_of_any_size_is_kept(x, tmp_path):
    """Its name alone would not say how many Gaussians it has."""
    encoder, decoder = networks()
    prior = recmix.priors.GaussianMixturePrior(LATENT, 3)
    given = {"likelihood": Gaussian(0.5), "prior": prior}
    model = recmix.wrap(encoder, decoder, **given, example=x[:2])
    better = recmix.fit("vae", x.numpy(), init=model, epochs=1, progress=False)
    assert len(better.latent_model.prior.means) == 3
    folder = model.save(tmp_path / "run")
    with pytest.raises(recmix.RecmixError, match="own prior"):
        recmix.load(folder, encoder=networks()[0], decoder=networks()[1])
    again = recmix.load(
        folder,
        encoder=networks()[0],
        decoder=networks()[1],
        prior=recmix.priors.GaussianMixturePrior(LATENT, 3),
        device="cpu",
    )
    torch.testing.assert_close(again.log_likelihood(x, 10), model.log_likelihood(x, 10))


def test_a_wrapped_model_sees_x_as_it_is_given(x):
    encoder, decoder = networks()
    model = recmix.wrap(encoder, decoder, likelihood=Gaussian(0.5), example=x[:2])
    better = recmix.fit("vae", x.numpy() + 5, init=model, epochs=1, progress=False)
    assert not better.latent_model.centre.any()


@pytest.mark.parametrize(
    "form",
    [
        lambda mean, log_variance: (log_variance, mean),
        lambda mean, log_variance: torch.cat([log_variance, mean], 1),
    ],
    ids=["tuple", "tensor"],
)
def test_outputs_of_the_encoder_in_the_wrong_order_are_noted(form):
    class Posterior(nn.Module):
        """The exact posterior of x = 3 z + noise of variance 0.1."""

        def __init__(self, form):
            super().__init__()
            self.form = form

        def forward(self, x):
            variance = torch.full_like(x, 1 / (1 + 9 / 0.1))
            return self.form(30 * variance * x, variance.log())

    decoder = nn.Linear(FEATURES, FEATURES)
    with torch.no_grad():
        decoder.weight.copy_(3 * torch.eye(FEATURES))
        decoder.bias.zero_()
    x = 3 * torch.randn(40, FEATURES, generator=torch.Generator().manual_seed(1))
    how = {"likelihood": Gaussian(0.1), "example": x}
    with pytest.warns(UserWarning, match=r"on 16 examples is -\d.*, but -\d.* as log-variance and mean"):
        recmix.wrap(Posterior(form), decoder, **how)
    recmix.wrap(Posterior(lambda *parts: parts), decoder, **how)  # no warning


def test_without_an_example_the_latent_dimension_is_enough():
    encoder, decoder = networks()
    model = recmix.wrap(encoder, decoder, likelihood=Gaussian(1.0), latent=LATENT)
    assert model.spec.shape == (FEATURES,)
    with pytest.raises(ConfigError, match="give example"):
        recmix.wrap(encoder, decoder, likelihood=Gaussian(1.0))
    with pytest.raises(ConfigError, match="latent is 5"):
        recmix.wrap(
            encoder, decoder, likelihood=Gaussian(1.0), latent=5, example=torch.zeros(1, FEATURES)
        )


def test_mistakes_are_refused(x):
    encoder, decoder = networks()
    with pytest.raises(ConfigError, match=r"recmix\.likelihoods\.Gaussian\(variance\)"):
        recmix.wrap(encoder, decoder, likelihood="gaussian", example=x)
    with pytest.raises(ConfigError, match=r"needs probabilities.*use likelihood='bernoulli'"):
        recmix.wrap(encoder, decoder, likelihood="bernoulli-probabilities", example=x)
    with pytest.raises(ConfigError, match=r"decoder gives \(12,\).*\(24,\)"):
        recmix.wrap(encoder, decoder, likelihood="gaussian-decoded", example=x)
    with pytest.raises(ConfigError, match=r"encoder\.eval\(\)"):
        recmix.wrap(encoder.train(), decoder, likelihood=Gaussian(1.0), example=x)
    encoder.eval()
    with pytest.raises(ConfigError, match=r"but the decoder does: are they swapped\?"):
        recmix.wrap(decoder, encoder, likelihood=Gaussian(1.0), example=x)
    with pytest.raises(recmix.RecmixError, match="needs counts.*but example has the negative value"):
        recmix.wrap(encoder, decoder, likelihood="poisson", example=x)
    model = recmix.wrap(encoder, decoder, likelihood="poisson", example=x.abs().round())
    with pytest.raises(recmix.RecmixError, match="needs counts"):
        model.log_likelihood(x)
    assert model.log_likelihood(np.ones((2, FEATURES), int)).shape == (2,)


def test_images_without_a_batch_dimension_and_flat_outputs_are_refused():
    flat = nn.Linear(2, 64)
    encoder, decoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), nn.Unflatten(1, (1, 8, 8))
    image = torch.zeros(1, 8, 8)
    with pytest.raises(ConfigError, match=r"not a batch: use example\[None\], of shape \(1, 1, 8, 8\)"):
        recmix.wrap(encoder, nn.Sequential(flat, decoder), likelihood=Gaussian(1.0), example=image)
    with pytest.raises(ConfigError, match=r"end the decoder with torch.nn.Unflatten\(1, \(1, 8, 8\)\)"):
        recmix.wrap(encoder, flat, likelihood=Gaussian(1.0), example=image[None])
    conv = nn.Sequential(nn.Conv2d(1, 4, 8), nn.Flatten())
    with pytest.raises(ConfigError, match=r"so use example\[None\]"):
        recmix.wrap(conv, nn.Sequential(flat, decoder), likelihood=Gaussian(1.0), example=image)


class Whole(nn.Module):
    """A VAE in one module, as in many tutorials."""

    def __init__(self):
        super().__init__()
        self.first, self.second = networks()


class Half(nn.Module):
    """One half of a whole VAE, as an encoder or a decoder."""

    def __init__(self, vae, half):
        super().__init__()
        self.vae, self.half = vae, half

    def named_part(self, x):
        return getattr(self.vae, self.half)(x)

    def forward(self, x):
        return self.named_part(x)


def test_halves_of_one_module_are_loaded_as_they_were_trained(x, tmp_path):
    def halves():
        vae = Whole().eval()
        return Half(vae, "first"), Half(vae, "second")

    model = recmix.wrap(*halves(), likelihood=Gaussian(0.1), example=x)
    given = {"epochs": 3, "learning_rate": 1e-2, "progress": False, "device": "cpu"}
    trained = recmix.fit("vae", x, init=model, out=tmp_path / "run", **given)
    encoder, decoder = halves()
    loaded = recmix.load(tmp_path / "run", encoder=encoder, decoder=decoder, device="cpu")
    assert torch.equal(loaded.posterior(x).mean, trained.posterior(x).mean)
    assert not torch.equal(loaded.posterior(x).mean, model.posterior(x).mean)
    assert torch.equal(loaded.decode(torch.ones(1, LATENT)), trained.decode(torch.ones(1, LATENT)))
    third = recmix.wrap(encoder.named_part, decoder, likelihood=Gaussian(0.1), example=x)
    assert torch.equal(third.posterior(x).mean, loaded.posterior(x).mean)


class OneModule(nn.Module):
    """A VAE with encode and decode, a parameter of its own, and a part that neither of them uses."""

    def __init__(self):
        super().__init__()
        self.first, self.second = networks()
        self.shift = nn.Parameter(torch.full((LATENT,), 0.1))
        self.unused = nn.Linear(2, 2)

    def encode(self, x):
        mean, log_variance = self.first(x)
        return mean + self.shift, log_variance

    def decode(self, z):
        return self.second(z)


GIVEN = {
    "whole": lambda vae: (vae,),
    "twice": lambda vae: (vae, vae),
    "methods": lambda vae: (vae.encode, vae.decode),
}


@pytest.mark.parametrize("form", GIVEN)
def test_a_vae_in_one_module(form, x, tmp_path):
    vae = OneModule().eval()
    how = {"likelihood": Gaussian(0.1, learned=False), "example": x[:3]}
    model = recmix.wrap(*GIVEN[form](vae), **how)
    torch.testing.assert_close(model.posterior(x).mean, vae.encode(x)[0].detach())
    names = [name for name in model.state_dict() if "whole" in name]
    assert len(names) == len(vae.state_dict()) - 2  # each weight once, without the unused part
    model(x).mean.sum().backward()
    assert vae.shift.grad.tolist() == pytest.approx([len(x)] * LATENT)
    assert model.refined(2).elbo(x).mean() > model.elbo(x).mean()
    assert model.to(torch.float64).posterior(x).mean.dtype == vae.shift.dtype == torch.float64
    model.to(torch.float32)
    folder = model.save(tmp_path / "run")
    for again in GIVEN.values():
        loaded = recmix.load(folder, *again(OneModule()), device="cpu")
        assert torch.equal(loaded.elbo(x), model.elbo(x))
    better = recmix.fit("vae", x, init=model, epochs=1, learning_rate=0.1, device="cpu", progress=False)
    assert not torch.equal(better.elbo(x), model.elbo(x))
    torch.testing.assert_close(vae.shift.detach(), torch.full((LATENT,), 0.1))  # a copy was trained
    fresh = OneModule().eval()
    given = {"encoder": fresh.encode, "decoder": fresh.decode, "epochs": 1, "device": "cpu"}
    recmix.fit("vae", x, init=folder, out=tmp_path / "on", progress=False, **given)
    assert recmix.load(tmp_path / "on", OneModule(), device="cpu").elbo(x).isfinite().all()


def test_loading_names_the_missing_parts_and_both_forms(x, tmp_path):
    model = recmix.wrap(OneModule().eval(), likelihood=Gaussian(0.1), example=x[:3])
    folder = model.save(tmp_path / "run")
    both = r"own encoder and decoder\. .*pass encoder=…, decoder=….*recmix\.load\(run, VAE\(\)\)"
    with pytest.raises(recmix.RecmixError, match=both):
        recmix.load(folder)
    with pytest.raises(recmix.RecmixError, match=r"own decoder\. .*pass decoder=…$"):
        recmix.load(folder, encoder=networks()[0])


def test_loading_with_networks_of_another_latent_size_names_that_of_the_run(x, tmp_path):
    def made(latent):
        return nn.Linear(FEATURES, 2 * latent), nn.Linear(latent, FEATURES)

    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = made(4)

        def encode(self, x):
            return self.first(x).chunk(2, 1)

        def decode(self, z):
            return self.second(z)

    folder = recmix.wrap(*networks(), likelihood=Gaussian(0.1), example=x).save(tmp_path / "run")
    with pytest.raises(ConfigError, match="gives 4 latent dimensions, but the model has 3"):
        recmix.load(folder, Other())
    with pytest.raises(ConfigError, match="of 3 latent dimensions"):
        recmix.load(folder, *made(4))
    with pytest.raises(ConfigError, match="decoder failed.*In this model z has 3 dimensions"):
        recmix.load(folder, networks()[0], made(4)[1])


class Noisy(OneModule):
    """Its encoder has a layer that is used only in training mode, and normalises batches."""

    def __init__(self):
        super().__init__()
        self.normal = nn.BatchNorm1d(FEATURES)
        self.blur = nn.Linear(FEATURES, FEATURES)

    def encode(self, x):
        x = self.normal(x.flatten(1)).reshape(x.shape)
        if self.training:
            x = x + 0.01 * torch.randn_like(x) * self.blur(x.flatten(1)).reshape(x.shape)
        return super().encode(x)


def test_a_part_that_only_training_uses_is_kept_and_looking_for_it_changes_nothing(x):
    vae = Noisy()
    before = {name: value.clone() for name, value in vae.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    halves = as_networks(vae, None)
    keep_used_parts(Own(*halves), tuple(x.shape[1:]), LATENT)
    assert torch.equal(torch.rand(1), expected)
    assert vae.training
    assert all(torch.equal(value, before[name]) for name, value in vae.state_dict().items())
    names = {name.split(".")[1] for name in halves[0].state_dict()}
    assert names == {"first", "shift", "normal", "blur"}
    assert {name.split(".")[1] for name in halves[1].state_dict()} == {"second"}
    halves[0].train()(x)


class Strange(Noisy):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()  # such a module cannot be copied


def test_a_module_that_cannot_be_copied_is_split_and_stays_as_it_is(x):
    vae = Strange()
    before = {name: value.clone() for name, value in vae.state_dict().items()}
    halves = as_networks(vae, None)
    keep_used_parts(Own(*halves), tuple(x.shape[1:]), LATENT)
    assert vae.training
    assert all(torch.equal(value, before[name]) for name, value in vae.state_dict().items())
    names = [{name.split(".")[1] for name in half.state_dict()} for half in halves]
    assert names == [{"first", "shift", "normal", "blur"}, {"second"}]
    halves[0].train()(x)
    wanted = {"latent": LATENT, "epochs": 1, "progress": False}
    networks = {"encoder": Strange().encode, "decoder": Strange().decode}
    recmix.fit("vae", x.repeat(10, 1), likelihood="gaussian", **networks, **wanted)
    with pytest.raises(ConfigError, match="cannot be copied.*cannot pickle '_thread.lock'"):
        recmix.fit("me", x.repeat(10, 1), likelihood="gaussian", **networks, **wanted)


def test_an_encoder_of_means_only_is_refused(x):
    with pytest.raises(ConfigError, match="read as 2 means and 2 log-variances.*means only"):
        recmix.wrap(nn.Linear(FEATURES, 4), nn.Linear(4, FEATURES), likelihood=Gaussian(1.0), example=x)


def test_a_class_is_not_an_object(tmp_path):
    with pytest.raises(ConfigError, match=r"got a class: give an object, such as OneModule\(\.\.\.\)"):
        recmix.wrap(OneModule, likelihood=Gaussian(1.0), latent=2)
    with pytest.raises(ConfigError, match="got a class"):
        recmix.load(tmp_path, OneModule)


def test_one_network_alone_is_refused():
    with pytest.raises(ConfigError, match="or one module with the methods encode and decode"):
        recmix.wrap(nn.Linear(4, 4), likelihood=Gaussian(1.0), latent=2)


def test_values_on_another_scale_are_noted_once(x):
    vae = OneModule().eval()
    model = recmix.wrap(vae, likelihood=Gaussian(0.1), example=x[:2])
    model.elbo(5 * x, 2)  # no warning
    with pytest.warns(DataWarning, match=r"but the example of wrap had values from -\d.*same scale"):
        model.refined(1).elbo(255 * x, 2)
    model.elbo(255 * x, 2)
    recmix.wrap(vae, likelihood=Gaussian(0.1), example=0 * x).elbo(255 * x, 2)  # a placeholder


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: model.refined(step=2), "argument of refined 'step': did you mean 'steps'"),
        (lambda model: model.tuned(0, ms=1), "argument of tuned 'ms': did you mean 'milliseconds'"),
        (lambda model: model.gap(0, sample=2), "argument of gap 'sample': did you mean 'samples'"),
        (lambda model: model.elbo(0, sample=2), "argument of elbo 'sample': did you mean 'samples'"),
        (lambda model: recmix.wrap(model, liklihood=1), "'liklihood': did you mean 'likelihood'"),
        (lambda model: recmix.load("runs/a", devise="cpu"), "'devise': did you mean 'device'"),
        (
            lambda model: model.refined(1, how="gn"),
            "unknown value of how 'gn': did you mean 'gauss-newton'.*: auto, conj",
        ),
        (lambda model: model.refined(1, how="best"), r"unknown value of how 'best'\. Valid: auto, conj"),
        (lambda model: model.refined(), "missing a required argument: 'steps'"),
        (
            lambda model: recmix.fit("vae"),
            r"fit\(\): missing a required argument: 'data'. Valid: method, data",
        ),
        (lambda model: recmix.fit("vae", date=[]), "missing a required argument: 'data'"),
        (lambda model: recmix.fit("vae", [], model), "too many positional arguments"),
        (lambda model: recmix.fit_many(), "missing a required argument: 'requests'"),
        (lambda model: recmix.fit_preset("best"), "missing a required argument: 'data'"),
    ],
)
def test_misspelt_arguments_are_named(call, message):
    model = recmix.wrap(*networks(), likelihood=Gaussian(1.0), latent=LATENT)
    with pytest.raises(ConfigError, match=message):
        call(model)


def test_calibration_on_few_examples(x):
    model = recmix.wrap(*networks(), likelihood=Gaussian(0.5), example=x)
    with pytest.raises(ConfigError, match="needs at least 2 held-out examples, got 1"):
        model.calibrated(x[:1])
    with pytest.warns(UserWarning, match="29 held-out examples are few"):
        model.calibrated(x[:29], 5)
    model.calibrated(x[:30], 5)
