"""`recmix.objectives`: the bounds as plain functions, and plain training loops that use them."""

import copy
import math
from functools import partial

import pytest
import torch
from cases.oracle import LinearEncoder, LinearGaussian
from cases.training import images
from torch import nn
from torch.distributions import Independent, MultivariateNormal, Normal, kl_divergence

from recmix.errors import ConfigError
from recmix.methods.recursive import RecursiveMixture
from recmix.methods.vae import VAE
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Bernoulli
from recmix.model.likelihoods import Gaussian as GaussianLikelihood
from recmix.model.networks import make_decoder, make_encoder
from recmix.objectives import elbo, iwae, log_mean_exp, log_weights
from recmix.posteriors import FullGaussian, Gaussian, Mixture

COPIES = 20_000


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def exact(world, x):
    """The true posterior of the linear-Gaussian model."""
    true = world.posterior(x)
    return FullGaussian(true.loc, true.scale_tril)


def wrong(world, x, shift=0.2):
    """A diagonal Gaussian near the true posterior."""
    true = world.posterior(x)
    return Gaussian(true.loc + shift, true.variance.log() + shift)


def copies(world):
    """One example many times, so that the mean over the batch is an expectation over noise."""
    return world.images(1).expand(COPIES, *world.shape)


def test_bounds_equal_the_evidence_with_the_exact_posterior():
    """Every importance weight is p(x), so all bounds without a closed-form KL are exact."""
    world = LinearGaussian()
    x = world.images()
    q, evidence = exact(world, x), world.log_evidence(x)
    torch.testing.assert_close(log_weights(world.model, x, q, 4), evidence.expand(4, -1))
    for samples in (1, 3):
        torch.testing.assert_close(iwae(world.model, x, q, samples), evidence)
    single = Mixture([q], torch.zeros(5, 1, dtype=torch.float64))
    double = Mixture([q, q], torch.tensor([[0.3, 0.7]]).double().log().expand(5, 2))
    for mixture in (single, double):
        torch.testing.assert_close(elbo(world.model, x, mixture, 2), evidence)
        torch.testing.assert_close(iwae(world.model, x, mixture, 3), evidence)


def test_elbo_is_unbiased():
    """E[ELBO] = log p(x) - KL(q || p(z | x)): log p(x) itself for the exact posterior."""
    world = LinearGaussian()
    x = copies(world)
    evidence = world.log_evidence(x[:1])
    truth = world.posterior(x[:1])
    for make in (exact, wrong):
        q = make(world, x)
        covariance = torch.diag_embed(q.variance) if make is wrong else q.covariance_matrix
        kl = kl_divergence(MultivariateNormal(q.mean[:1], covariance[:1]), truth)
        with torch.no_grad():
            found = elbo(world.model, x, q, generator=seeded())
        assert found.shape == (COPIES,)
        error = found.std() / math.sqrt(COPIES)
        assert abs(found.mean() - (evidence - kl)) < 4 * error
        assert (kl > 0.1) == (make is wrong)


def test_elbo_averages_over_samples():
    world = LinearGaussian()
    x = world.images(3)
    q = wrong(world, x)
    found = elbo(world.model, x, q, 50, generator=seeded())
    z, log_q = q.rsample_and_log_prob(50, generator=seeded())
    expected = world.model.log_conditional(x, z).mean(0) - q.kl_to_prior(z, log_q)[0]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("samples", [1, 5])
def test_iwae_estimates_the_evidence_without_bias(samples):
    """E[exp IWAE-K] = p(x), and IWAE-K itself is below log p(x) in expectation."""
    world = LinearGaussian()
    x = copies(world)
    with torch.no_grad():
        found = iwae(world.model, x, wrong(world, x), samples, generator=seeded())
        excess = found - world.log_evidence(x[:1])
    ratio = excess.exp()
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / math.sqrt(COPIES)
    assert excess.mean() < -4 * excess.std() / math.sqrt(COPIES)


def test_log_mean_exp_is_stable():
    log_w = torch.tensor([[1000.0, -1000.0], [1000.0, -1001.0]], dtype=torch.float64)
    expected = torch.tensor([1000.0, -1000 + math.log((1 + math.exp(-1)) / 2)], dtype=torch.float64)
    torch.testing.assert_close(log_mean_exp(log_w), expected)


def test_elbo_of_a_mixture_is_the_stratified_sum():
    world = LinearGaussian()
    x = world.images(4)
    parts = [wrong(world, x, shift) for shift in (0.2, -0.3, 0.5)]
    logits = torch.randn(4, 3, generator=seeded(1), dtype=torch.float64)
    for components in (parts, [exact(world, x), *parts[1:]]):
        q = Mixture(components, logits.log_softmax(-1))
        generator, expected = seeded(2), 0
        for k, part in enumerate(q.components):
            z, _ = part.rsample_and_log_prob(2, generator=generator)
            log_w = world.model.log_joint(x, z) - q.log_prob(z)
            expected = expected + q.weights[:, k] * log_w.mean(0)
        torch.testing.assert_close(elbo(world.model, x, q, 2, generator=seeded(2)), expected)


def test_stratified_elbo_of_a_mixture_is_unbiased():
    world = LinearGaussian()
    x = copies(world)
    parts = [wrong(world, x, shift) for shift in (0.2, -0.5)]
    q = Mixture(parts, torch.tensor([[0.3, 0.7]]).double().log().expand(COPIES, 2))
    with torch.no_grad():
        stratified = elbo(world.model, x, q, generator=seeded())
        plain = log_weights(world.model, x, q, 1, generator=seeded(1))[0]
    error = ((stratified.var() + plain.var()) / COPIES).sqrt()
    assert abs(stratified.mean() - plain.mean()) < 4 * error
    assert stratified.var() < plain.var()


BOUNDS = {
    "elbo": lambda model, x, q: elbo(model, x, q, 2, generator=seeded()),
    "iwae": lambda model, x, q: iwae(model, x, q, 4, generator=seeded()),
}


@pytest.mark.parametrize(
    ("name", "mixture"), [("elbo", False), ("iwae", False), ("elbo", True)], ids=str
)
def test_gradients_reach_encoder_and_decoder(name, mixture):
    """The derivative along a random direction equals a finite difference, for encoder and decoder."""
    world = LinearGaussian()
    torch.manual_seed(3)
    encoders = nn.ModuleList(LinearEncoder(3) for _ in range(2)).double()
    x, weights = world.images(6), torch.tensor([[0.4, 0.6]]).double().log().expand(6, 2)
    modules = nn.ModuleList([world.model, encoders])

    def bound(modules):
        model, encoders = modules
        parts = [Gaussian.from_parameters(encoder(model.observed(x))) for encoder in encoders]
        q = Mixture(parts, weights) if mixture else parts[0]
        return BOUNDS[name](model, x, q).mean()

    value = bound(modules)
    parameters = [p for p in modules.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(value, parameters, allow_unused=True)
    used = [(p, g) for p, g in zip(parameters, gradients, strict=True) if g is not None]
    model_ids = {id(p) for p in world.model.parameters()}
    for mine in (True, False):  # decoder, encoders
        torch.manual_seed(5)
        chosen = [(p, g) for p, g in used if (id(p) in model_ids) == mine]
        assert chosen
        directions = [torch.randn_like(p) for p, _ in chosen]
        slope = sum((g * d).sum() for (_, g), d in zip(chosen, directions, strict=True))
        ends = []
        for sign in (1, -1):
            with torch.no_grad():
                for (p, _), d in zip(chosen, directions, strict=True):
                    p.add_(sign * 1e-6 * d)
                ends.append(bound(modules).item())
                for (p, _), d in zip(chosen, directions, strict=True):
                    p.sub_(sign * 1e-6 * d)
        assert slope.item() == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5)
        assert abs(slope.item()) > 1e-3


def test_posterior_without_gradients_trains_the_decoder_alone():
    world = LinearGaussian()
    torch.manual_seed(3)
    encoder, x = LinearEncoder(3).double(), world.images(6)
    with torch.no_grad():
        q = Gaussian.from_parameters(encoder(x))
    (-iwae(world.model, x, q, 5).mean()).backward()
    assert all(p.grad.abs().sum() > 0 for p in world.model.parameters())
    assert all(p.grad is None for p in encoder.parameters())


def test_noise_comes_from_the_generator():
    world = LinearGaussian()
    x = world.images(3)
    q = wrong(world, x)
    for bound in BOUNDS.values():
        assert torch.equal(bound(world.model, x, q), bound(world.model, x, q))


@pytest.mark.parametrize("samples", [0, -1, 2.5])
def test_wrong_number_of_samples_is_refused(samples):
    world = LinearGaussian()
    x = world.images(2)
    for bound in (elbo, iwae, log_weights):
        with pytest.raises(ConfigError, match=f"whole number, at least 1; got {samples}"):
            bound(world.model, x, exact(world, x), samples)


def test_plain_pytorch_loop_trains_a_vae():
    torch.manual_seed(0)
    data = torch.from_numpy(images(200))  # (N, 1, 8, 8) in [0, 1]
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2 * 2))
    decoder = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.Unflatten(1, (1, 8, 8)))
    model = LatentModel(decoder, Bernoulli(), latent=2, shape=(1, 8, 8))
    optimizer = torch.optim.Adam([*encoder.parameters(), *model.parameters()], lr=5e-3)
    history = []
    for _epoch in range(60):
        for x in data[torch.randperm(len(data))].split(50):
            q = Gaussian.from_parameters(encoder(x))
            loss = -elbo(model, x, q).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            history.append(loss.item())
    assert sum(history[-4:]) < 0.6 * sum(history[:4])
    with torch.no_grad():
        q = Gaussian.from_parameters(encoder(data))
        bounds = [iwae(model, data, q, samples).mean() for samples in (1, 10, 100)]
    assert bounds[0] < bounds[1] < bounds[2]
    blank = Bernoulli().log_prob(data, data.mean(0).clamp(0.01, 0.99).logit().expand(1, *data.shape))
    assert bounds[2] > blank.mean() + 5  # better than independent pixels


def test_plain_pytorch_loop_trains_a_recursive_mixture():
    torch.manual_seed(0)
    data = torch.from_numpy(images(200))
    shape, latent = (1, 8, 8), 2
    model = LatentModel(
        make_decoder("dense", shape, latent, hidden=16),
        GaussianLikelihood(float(data.var())),
        latent=latent,
        shape=shape,
        centre=data.mean(0),
    )
    vae = VAE(model, make_encoder("dense", shape, latent, hidden=16))
    method = RecursiveMixture(copy.deepcopy(model), copy.deepcopy(vae.base_encoder), order=3, bound=1.0)

    @torch.no_grad()
    def log_likelihood(trained):
        return iwae(trained.model, data, trained.posterior(data), 100).mean()

    found = [log_likelihood(vae)]
    for stage in (vae, method):
        if stage is method:
            method.start_from(vae)
        optimizers = stage.optimizers(2e-3)
        for _epoch in range(40):
            for x in data[torch.randperm(len(data))].split(50):
                stage.step(x, optimizers)
        found.append(log_likelihood(stage))
    assert method.posterior(data).weights.shape == (200, 3)
    assert found[1] > found[0] + 5
    assert found[2] > found[1] + 5


def test_wrong_models_and_posteriors_are_refused():
    decoder = torch.nn.Sequential(torch.nn.Linear(2, 3))
    model = LatentModel(decoder, Bernoulli(), latent=2, shape=(3,))
    x, q = torch.zeros(4, 3), Gaussian(torch.zeros(4, 2), torch.zeros(4, 2))
    for bound in (elbo, partial(iwae, samples=2)):
        assert bound(model, x, q).shape == (4,)
        with pytest.raises(ConfigError, match=r"got a Linear: give model\.latent_model"):
            bound(decoder[0], x, q)
        with pytest.raises(ConfigError, match=r"got a Independent: give model\(x\)"):
            bound(model, x, Independent(Normal(torch.zeros(4, 2), 1.0), 1))


def test_a_likelihood_that_forgets_the_sum_is_refused():
    class NoSum(Bernoulli):
        def log_prob(self, x, decoded):
            return decoded * x

    model = LatentModel(torch.nn.Linear(2, 4), NoSum(), latent=2, shape=(4,))
    with pytest.raises(ConfigError, match=r"NoSum gave shape \(1, 4, 4\).*sum_event"):
        elbo(model, torch.zeros(4, 4), Gaussian(torch.zeros(4, 2), torch.zeros(4, 2)))
