"""The blind mixture: its bound and gradients, its start, and the collapse report."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Independent, Normal, kl_divergence

from recmix.errors import ConfigError
from recmix.methods.blind_mixture import BlindMixture, collapse_report
from recmix.methods.recursive import RecursiveMixture
from recmix.methods.registry import find_method
from recmix.methods.vae import VAE
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Bernoulli
from recmix.model.likelihoods import Gaussian as GaussianLikelihood
from recmix.model.networks import make_decoder, make_encoder
from recmix.posteriors import FullGaussian, Gaussian, Mixture
from recmix.runs.training_options import Training
from recmix.training.request import by_stage

SHAPE = (1, 8, 8)
LATENT = 3


def make(kind=BlindMixture, *, seed=0, likelihood=None, dtype=torch.float64, **options):
    torch.manual_seed(seed)
    model = LatentModel(
        make_decoder("dense", SHAPE, LATENT, hidden=8),
        likelihood or GaussianLikelihood(0.1),
        latent=LATENT,
        shape=SHAPE,
        centre=torch.full(SHAPE, 0.5),
    )
    encoder = make_encoder("dense", SHAPE, LATENT, hidden=8, width=0.25)
    return kind(model, encoder, **options).to(dtype)


def images(batch=6, dtype=torch.float64, seed=1):
    return torch.rand(batch, *SHAPE, generator=noise(seed), dtype=dtype)


def noise(seed=0):
    return torch.Generator().manual_seed(seed)


def gaussian(batch=5, seed=0, dim=LATENT):
    g = noise(seed)
    mean = torch.randn(batch, dim, generator=g, dtype=torch.float64)
    return Gaussian(mean, torch.randn(batch, dim, generator=g, dtype=torch.float64))


def test_registered_under_the_name_of_the_paper():
    assert find_method("me") is BlindMixture
    assert BlindMixture.starts_from == "vae"


@pytest.mark.parametrize("order", [-1, 0, 1, 17])
def test_order_out_of_range_is_refused(order):
    with pytest.raises(ConfigError, match="2 to 16"):
        make(order=order)


def test_component_that_cannot_be_used_is_refused():
    with pytest.raises(ConfigError, match="did you mean 'gaussian'"):
        make(component="gausian")
    with pytest.raises(ConfigError, match="no setting"):
        make(component_setting=3)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(order=st.integers(2, 16), seed=st.integers(0, 1000))
def test_weights_sum_to_one_for_any_order(order, seed):
    weights = make(order=order, seed=seed).posterior(images()).weights
    assert weights.shape == (6, order)
    assert torch.allclose(weights.sum(-1), torch.ones(6, dtype=weights.dtype))


@settings(max_examples=10, deadline=None, derandomize=True)
@given(order=st.permutations(range(4)))
def test_order_of_components_does_not_change_the_density(order):
    q = make(order=4).posterior(images())
    z, log_q = q.rsample_and_log_prob(3, generator=noise())
    other = Mixture([q.components[k] for k in order], q.log_weights[:, list(order)])
    assert torch.allclose(other.log_prob(z), log_q)
    first, second = collapse_report(q), collapse_report(other)
    for name in ("min_pairwise_kl", "weight_entropy", "max_weight"):
        assert torch.allclose(first[name], second[name])


def test_loss_is_minus_the_stratified_elbo():
    method, x = make(order=3), images()
    loss = method.loss(x, generator=noise())
    q, g, expected = method.posterior(x), noise(), 0
    for m, part in enumerate(q.components):
        z, _ = part.rsample_and_log_prob(1, generator=g)
        expected += q.weights[:, m] * (method.model.log_joint(x, z) - q.log_prob(z))[0]
    assert torch.allclose(loss, -expected.mean())


def test_stratified_elbo_is_unbiased():
    method, x = make(order=3), images(1)
    with torch.no_grad():
        copies = x.expand(4000, *SHAPE)
        stratified = method._bound(copies, noise())[0]
        q = method.posterior(copies)
        z, log_q = q.rsample_and_log_prob(1, generator=noise(1))
        plain = (method.model.log_joint(copies, z) - log_q)[0]
    error = (stratified.var() / 4000 + plain.var() / 4000).sqrt()
    assert abs(stratified.mean() - plain.mean()) < 4 * error
    assert stratified.var() < plain.var()


def test_gradient_of_the_weights_equals_finite_differences():
    method, x = make(order=3), images()
    parameters = list(method.weight_net.parameters())
    gradients = torch.autograd.grad(method.loss(x, generator=noise()), parameters)
    step = 1e-6
    for p, gradient in zip(parameters, gradients, strict=True):
        flat = p.data.view(-1)
        for index in {0, flat.numel() // 2, flat.numel() - 1}:
            value = flat[index].item()
            sides = []
            for side in (step, -step):
                flat[index] = value + side
                sides.append(method.loss(x, generator=noise()).item())
            flat[index] = value
            slope = (sides[0] - sides[1]) / (2 * step)
            assert gradient.view(-1)[index].item() == pytest.approx(slope, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("likelihood", [Bernoulli, GaussianLikelihood])
def test_gradient_reaches_every_parameter(likelihood):
    method = make(order=3, likelihood=likelihood())
    method.loss(images(16), generator=noise()).backward()
    parts = [*method.components, method.weight_net, method.model.decoder, method.model.likelihood]
    for part in parts:
        for name, p in part.named_parameters():
            assert p.grad is not None, name
            assert p.grad.abs().sum() > 0, name


def test_all_samples_are_decoded_in_one_call():
    method, x = make(order=4), images()
    calls = []
    method.model.decoder.register_forward_hook(lambda _m, given, _out: calls.append(len(given[0])))
    method.step(x, method.optimizers(1e-3), generator=noise())
    assert calls == [4 * len(x)]


def test_training_raises_the_bound_and_reports_finite_scalars():
    method, x = make(order=3), images(32)
    optimizers = method.optimizers(3e-3)
    g = noise()
    before = -method.loss(x, generator=noise(7)).item()
    for _ in range(100):
        metrics = method.step(x, optimizers, generator=g)
    assert -method.loss(x, generator=noise(7)).item() > before + 1
    assert set(metrics) == {"loss", "elbo", "weight_entropy", "min_pairwise_kl"}
    for value in metrics.values():
        assert value.shape == ()
        assert value.isfinite()
        assert not value.requires_grad


def test_metrics_agree_with_the_collapse_report():
    method = make(order=3)
    x = images(1).expand(4000, *SHAPE)
    report = collapse_report(method.posterior(x))
    metrics = method.step(x, method.optimizers(0.0), generator=noise())
    assert torch.allclose(metrics["weight_entropy"], report["weight_entropy"])
    scores = method._bound(x, noise(1))[2]
    error = (scores.diagonal().t() - scores).std(-1).max() / math.sqrt(4000)
    assert abs(metrics["min_pairwise_kl"] - report["min_pairwise_kl"]) < 4 * error


def test_first_component_starts_at_the_vae_and_others_at_random():
    vae, method = make(VAE, seed=1), make(order=3, seed=2)
    untouched = [p.clone() for p in method.components[1].parameters()]
    method.start_from(vae)
    x = images()
    q = method.posterior(x)
    assert torch.equal(q.components[0].mean, vae.posterior(x).mean)
    assert torch.equal(q.components[0].log_variance, vae.posterior(x).log_variance)
    z = torch.randn(2, 6, LATENT, generator=noise(), dtype=torch.float64)
    assert torch.equal(method.model.log_joint(x, z), vae.model.log_joint(x, z))
    assert collapse_report(q)["min_pairwise_kl"] > 1e-4
    for p, before in zip(method.components[1].parameters(), untouched, strict=True):
        assert not torch.equal(p, before)


def test_new_components_differ():
    assert collapse_report(make(order=4).posterior(images()))["min_pairwise_kl"] > 1e-4


def test_start_depends_on_the_seed_only():
    vae = make(VAE, seed=1)
    starts = []
    for made in (3, 4):
        method = make(order=3, seed=made)
        torch.manual_seed(9)
        method.start_from(vae)
        starts.append(method.state_dict())
    assert all(torch.equal(starts[0][k], starts[1][k]) for k in starts[0])


def test_continues_from_a_blind_mixture_of_the_same_shapes():
    old, new = make(order=3, seed=1), make(order=3, seed=2)
    new.start_from(old)
    theirs = old.state_dict()
    assert all(torch.equal(v, theirs[k]) for k, v in new.state_dict().items())


def test_takes_the_first_component_of_another_mixture():
    x = images()
    for old in (make(order=2, seed=1), make(RecursiveMixture, order=3, seed=1)):
        new = make(order=3, seed=2)
        new.start_from(old)
        parts = new.posterior(x).components
        assert torch.equal(parts[0].mean, old.component(0, x).mean)
        assert not torch.allclose(parts[1].mean, old.component(1, x).mean)


def test_identical_components_are_reported_as_collapsed():
    part = gaussian()
    q = Mixture([part] * 3, torch.zeros(5, 3).double().log_softmax(-1))
    report = collapse_report(q)
    assert torch.equal(report["pairwise_kl"], torch.zeros(3, 3).double())
    assert report["min_pairwise_kl"] == 0
    assert report["weight_entropy"].item() == pytest.approx(math.log(3))
    assert report["max_weight"].item() == pytest.approx(1 / 3)


def test_kl_of_gaussians_is_exact():
    parts = [gaussian(seed=k) for k in range(3)]
    report = collapse_report(Mixture(parts, torch.zeros(5, 3).double().log_softmax(-1)))
    normals = [Independent(Normal(q.mean, q.stddev), 1) for q in parts]
    for i, one in enumerate(normals):
        for j, two in enumerate(normals):
            expected = kl_divergence(one, two).mean()
            assert torch.allclose(report["pairwise_kl"][i, j], expected, atol=1e-12)
    off_diagonal = report["pairwise_kl"] + torch.diag(torch.full((3,), 1e9).double())
    assert report["min_pairwise_kl"] == off_diagonal.min()


def test_kl_of_other_components_is_sampled():
    parts = [Gaussian(torch.full((50, 2), float(m)).double(), torch.zeros(50, 2)) for m in range(2)]
    flat = torch.zeros(50, 2).double().log_softmax(-1)
    exact = collapse_report(Mixture(parts, flat))["pairwise_kl"]
    hidden = Mixture(
        [parts[0], FullGaussian(parts[1].mean, torch.eye(2).double().expand(50, 2, 2))], flat
    )
    sampled = collapse_report(hidden, samples=100, generator=noise())["pairwise_kl"]
    # The log-ratio of unit Gaussians at distance d has variance d², here 2; 5000 samples in all.
    assert torch.equal(sampled.diagonal(), torch.zeros(2).double())
    assert (sampled - exact).abs().max() < 4 * math.sqrt(2 / 5000)


def test_dominant_component_shows_in_the_weights():
    log_weights = torch.tensor([[30.0, 0.0]]).double().expand(5, 2).log_softmax(-1)
    report = collapse_report(Mixture([gaussian(seed=0), gaussian(seed=1)], log_weights))
    assert report["max_weight"].item() == pytest.approx(1)
    assert report["weight_entropy"].item() == pytest.approx(0, abs=1e-10)


def test_collapse_report_of_a_recursive_mixture():
    method = make(RecursiveMixture, order=3)
    report = collapse_report(method.posterior(images()))
    assert report["min_pairwise_kl"] == 0  # they start as copies
    single = collapse_report(make(RecursiveMixture, order=1).posterior(images()))
    assert single["min_pairwise_kl"] == math.inf
    assert single["max_weight"] == 1


def test_collapse_report_carries_no_gradient():
    assert not any(value.requires_grad for value in collapse_report(make().posterior(images())).values())


@pytest.mark.parametrize(("rate", "fresh"), [(None, 500.0), (1e-5, 50.0), (1e-2, 1.0)])
def test_random_components_learn_at_most_at_the_rate_of_a_first_stage(rate, fresh):
    # 500 times a rate of 1e-3 would throw them so far out that the bound falls to -1e9.
    found = by_stage(Training(learning_rate=rate), BlindMixture, continued=True)
    assert found.fresh_rate == pytest.approx(fresh)
    given = by_stage(Training(learning_rate=rate, fresh_rate=7.0), BlindMixture, continued=True)
    assert given.fresh_rate == 7.0
