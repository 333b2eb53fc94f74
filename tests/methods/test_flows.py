"""Flows: densities against Jacobians, structure, start, and what they learn."""

import copy
import math

import pytest
import torch
from cases.oracle import LinearGaussian
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from recmix.errors import ConfigError
from recmix.methods.householder import HouseholderFlow
from recmix.methods.inverse_autoregressive import GATE_RANGE, InverseAutoregressiveFlow
from recmix.methods.method import update
from recmix.methods.method_options import method_options
from recmix.methods.registry import find_component, find_method
from recmix.model.encoder_decoder import reset
from recmix.model.latent import LatentModel, standard_normal
from recmix.model.likelihoods import Bernoulli
from recmix.model.likelihoods import Gaussian as GaussianLikelihood
from recmix.model.networks import Encoder, make_decoder, make_encoder
from recmix.posteriors import Flow, Gaussian, Mixture, Reflected

SHAPE = (1, 8, 8)
S, B, D = 3, 5, 4
NAMES = ["iaf", "hf"]
SMALL = {"iaf": {"hidden": 24}, "hf": {}}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def images(n=B, seed=0):
    return torch.rand(n, *SHAPE, generator=seeded(seed), dtype=torch.float64)


def build(name, flows=2, *, latent=D, noise=0.0, likelihood=None, seed=0):
    """A small method in float64, with `noise` on the parameters outside encoder and decoder."""
    torch.manual_seed(seed)
    decoder = make_decoder("dense", SHAPE, latent, hidden=16)
    model = LatentModel(decoder, likelihood or Bernoulli(), latent=latent, shape=SHAPE)
    encoder = make_encoder("dense", SHAPE, latent, hidden=16)
    method = find_method(name)(model, encoder, flows=flows, **SMALL[name]).double()
    with torch.no_grad():
        for p in flow_parameters(method).values():
            p.add_(noise * torch.randn_like(p))
        if noise:
            method.base_encoder.head.bias[latent:] = torch.linspace(-2, 1, latent)  # unequal variances
    return method


def flow_parameters(method):
    return {n: p for n, p in method.components[0].named_parameters() if not n.startswith("encoder.")}


def jacobian(q, start):
    """∂z_T/∂z_0 of every sample and example, (S, B, D, D), for `start` (S, B, D)."""
    full = torch.func.jacrev(lambda z: q.forward(z)[0])(start)  # (S, B, D, S, B, D)
    blocks = torch.einsum("sbdsbe->sbde", full)
    torch.testing.assert_close(full.abs().sum(), blocks.abs().sum())  # samples are independent
    return blocks.detach()


# --- every flow -----------------------------------------------------------------------------------


@pytest.mark.parametrize("flows", [1, 2, 3, 8])
@pytest.mark.parametrize("name", NAMES)
def test_density_of_samples_agrees_with_the_full_jacobian(name, flows):
    q = build(name, flows, noise=0.3).posterior(images())
    start, log_base = q.base.rsample_and_log_prob(S, generator=seeded(1))
    z, log_q = q.rsample_and_log_prob(S, generator=seeded(1))
    assert z.shape == (S, B, D)
    assert log_q.shape == (S, B)
    expected = log_base - torch.linalg.slogdet(jacobian(q, start)).logabsdet
    torch.testing.assert_close(log_q, expected, rtol=0, atol=1e-10)
    assert (z - start).abs().max() > 0.1  # not the identity


@pytest.mark.parametrize("flows", [1, 2, 3, 8])
@pytest.mark.parametrize("name", NAMES)
def test_density_of_any_point_agrees_with_that_of_samples(name, flows):
    q = build(name, flows, noise=0.3).posterior(images())
    start, _ = q.base.rsample_and_log_prob(S, generator=seeded(1))
    z, log_q = q.rsample_and_log_prob(S, generator=seeded(1))
    torch.testing.assert_close(q.log_prob(z), log_q, rtol=0, atol=1e-9)
    torch.testing.assert_close(q.inverse(z)[0], start, rtol=0, atol=1e-9)
    elsewhere = 2 * torch.randn(S, B, D, generator=seeded(2), dtype=torch.float64)
    there, log_det = q.inverse(elsewhere)
    back, same = q.forward(there)
    torch.testing.assert_close(back, elsewhere, rtol=0, atol=1e-9)
    torch.testing.assert_close(log_det, same, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_density_integrates_to_one(name):
    q = build(name, 2, latent=2, noise=0.3).posterior(images(1))
    side = torch.linspace(-12, 12, 401, dtype=torch.float64)
    grid = torch.cartesian_prod(side, side)[:, None]  # (N, 1, 2)
    with torch.no_grad():
        total = q.log_prob(grid).exp().sum() * (side[1] - side[0]) ** 2
    assert total.item() == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_gradient_of_the_density_equals_finite_differences(name):
    method = build(name, 2, noise=0.3)
    z = torch.randn(S, B, D, generator=seeded(2), dtype=torch.float64)
    weights = list(flow_parameters(method).values())
    direction = [torch.randn(w.shape, generator=seeded(3), dtype=w.dtype) for w in weights]

    def density(point):
        return method.posterior(images()).log_prob(point).sum()

    point = z.requires_grad_()
    slopes = torch.autograd.grad(density(point), [point, *weights])
    step = 1e-5
    along = sum((g * d).sum() for g, d in zip(slopes[1:], direction, strict=True))

    def moved(by):
        with torch.no_grad():
            for w, d in zip(weights, direction, strict=True):
                w.add_(by * d)
            value = density(z)
            for w, d in zip(weights, direction, strict=True):
                w.sub_(by * d)
        return value

    assert along.item() == pytest.approx(((moved(step) - moved(-step)) / (2 * step)).item(), rel=1e-5)
    e = torch.randn(z.shape, generator=seeded(4), dtype=z.dtype)
    with torch.no_grad():
        numeric = (density(z + step * e) - density(z - step * e)) / (2 * step)
    assert (slopes[0] * e).sum().item() == pytest.approx(numeric.item(), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("flows", [1, 2, 4, 8])
@pytest.mark.parametrize("name", NAMES)
def test_starts_at_the_base_encoder(name, flows, dtype):
    base = build("iaf").to(dtype)
    vae = find_method("vae")(base.model, base.base_encoder)
    method = build(name, flows, seed=1).to(dtype)
    method.start_from(vae)
    x = images().to(dtype)
    q, p = method.posterior(x), vae.posterior(x)
    torch.testing.assert_close(q.mean, p.mean, rtol=0, atol=1e-6)
    z, log_q = q.rsample_and_log_prob(S, generator=seeded(1))
    torch.testing.assert_close(
        log_q, p.log_prob(z), rtol=0, atol=1e-5 if dtype is torch.float32 else 1e-9
    )
    elsewhere = torch.randn(S, B, D, generator=seeded(2), dtype=dtype)
    torch.testing.assert_close(q.log_prob(elsewhere), p.log_prob(elsewhere), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_reset_flow_starts_at_its_encoder(name):
    method = build(name, 3, noise=0.3)
    reset(method.components[0])
    q = method.posterior(images())
    p = Gaussian.from_parameters(method.base_encoder(images()))
    torch.testing.assert_close(q.mean, p.mean)
    z, log_q = q.rsample_and_log_prob(S)
    torch.testing.assert_close(log_q, p.log_prob(z))


@pytest.mark.parametrize("flows", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_every_parameter(name, flows):
    method = build(name, flows)
    optimizers = method.optimizers(1e-2)
    for _ in range(2):  # the last layer starts at zero: layers below it move one step later
        method.step(images(32), optimizers, generator=seeded(1))
    loss = method.loss(images(32, seed=1), generator=seeded(2))
    slopes = torch.autograd.grad(loss, list(method.parameters()))
    for (path, _), slope in zip(method.named_parameters(), slopes, strict=True):
        assert slope.isfinite().all(), path
        assert slope.abs().max() > 0, path


@pytest.mark.parametrize("name", NAMES)
def test_first_step_has_a_gradient(name):
    method = build(name, 2)
    slopes = torch.autograd.grad(
        method.loss(images(32), generator=seeded(1)),
        list(flow_parameters(method).values()),
    )
    encoder = torch.autograd.grad(
        method.loss(images(32), generator=seeded(1)), [method.base_encoder.head.weight]
    )
    largest = max(slope.abs().max().item() for slope in slopes)
    assert largest > 0.01 * encoder[0].abs().max().item()


@pytest.mark.parametrize("name", NAMES)
def test_flow_depends_on_x(name):
    """Two examples map one z_0 to different points, not only by their μ and σ²."""
    q = build(name, 1, noise=0.3).posterior(images())
    start = torch.randn(1, 1, D, generator=seeded(1), dtype=torch.float64).expand(1, B, D)
    z, _ = q.forward(start)
    spread = z[0].std(0)  # over examples, for each dimension
    assert (spread > 1e-3).all()


@pytest.mark.parametrize("name", NAMES)
def test_features_are_computed_once_for_all_samples(name):
    method = build(name, 2, noise=0.3)
    seen = []
    hook = method.base_encoder.features.register_forward_hook(lambda _m, _i, out: seen.append(out.shape))
    q = method.posterior(images())
    z, _ = q.rsample_and_log_prob(20)
    q.log_prob(z)
    assert isinstance(q.mean, torch.Tensor)
    hook.remove()
    assert [len(shape) for shape in seen] == [2]
    assert seen[0][0] == B


@pytest.mark.parametrize("name", NAMES)
def test_posterior_does_not_change_with_later_parameter_updates(name):
    method = build(name, 3, noise=0.3)
    with torch.no_grad():
        q = method.posterior(images())
        z, before = q.rsample_and_log_prob(S, generator=seeded(1))
        for p in method.parameters():
            p.add_(1.0)
    assert not q.log_prob(z).requires_grad
    torch.testing.assert_close(q.log_prob(z), before, rtol=0, atol=1e-9)


class NoWaiting(TorchDispatchMode):
    """Refuses operations that make the host wait for the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        waits = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "unique", "masked_select")
        assert func.overloadpacket.__name__.removesuffix("_dim") not in waits, func
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", NAMES)
def test_nothing_waits_for_the_device(name):
    method = build(name, 2, noise=0.3)
    x = images()
    with NoWaiting():
        method.loss(x).backward()
        q = method.posterior(x)
        q.log_prob(q.rsample_and_log_prob(S)[0]).sum().backward()
        assert q.mean.shape == (B, D)
    with pytest.raises(AssertionError), NoWaiting():
        x.sum().item()


@pytest.mark.parametrize("kind", ["iaf", "householder"])
def test_recursive_mixture_of_flows_trains_every_parameter(kind):
    torch.manual_seed(0)
    model = LatentModel(make_decoder("dense", SHAPE, D), GaussianLikelihood(0.1), latent=D, shape=SHAPE)
    encoder = make_encoder("dense", SHAPE, D, hidden=16)
    method = find_method("rme")(model, encoder, order=2, component=kind, component_setting=2).double()
    optimizers = method.optimizers(1e-3)
    x = images(16)
    before = copy.deepcopy(method.state_dict())
    for step in range(3):
        metrics = method.step(x, optimizers, generator=seeded(step))
        assert all(value.isfinite() for value in metrics.values())
    unchanged = [n for n, p in method.named_parameters() if torch.equal(p, before[n])]
    assert not unchanged


@pytest.mark.parametrize("name", NAMES)
def test_state_dict_round_trip(name):
    method, other = build(name, 3, noise=0.3), build(name, 3, seed=9)
    other.load_state_dict(method.state_dict())
    mine, theirs = (
        m.posterior(images()).rsample_and_log_prob(S, generator=seeded(1)) for m in (method, other)
    )
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    again = copy.deepcopy(method).posterior(images()).rsample_and_log_prob(S, generator=seeded(1))
    torch.testing.assert_close(mine, again, rtol=0, atol=0)


@pytest.mark.parametrize("size", [0.0, 1e4, -1e4, 1e30])
@pytest.mark.parametrize("name", NAMES)
def test_extreme_encoder_outputs_stay_finite(name, size):
    method = build(name, 4, noise=0.3).float()
    with torch.no_grad():
        method.base_encoder.features[-2].bias.fill_(size)  # the features, hence contexts and vectors
        if abs(size) <= 1e4:
            method.base_encoder.head.bias.copy_(torch.tensor([size] * D + [-size] * D))
        else:
            method.base_encoder.head.weight.zero_()  # features alone
    x = images().float()
    q = method.posterior(x)
    z, log_q = q.rsample_and_log_prob(S, generator=seeded(1))
    assert z.isfinite().all()
    assert log_q.isfinite().all()
    assert q.mean.isfinite().all()
    if abs(size) <= 1e4:
        density = q.log_prob(z)
        assert density.isfinite().all()
        assert q.log_prob(z + 1e3).isfinite().all()
        for loss in ((log_q - standard_normal(z)).mean(), density.mean()):
            slopes = torch.autograd.grad(loss, list(method.components.parameters()), retain_graph=True)
            assert all(slope.isfinite().all() for slope in slopes)


@pytest.mark.parametrize("name", NAMES)
def test_encoder_without_features_gives_its_output_as_context(name):
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 2 * D))
    model = LatentModel(make_decoder("dense", SHAPE, D), GaussianLikelihood(0.1), latent=D, shape=SHAPE)
    method = find_method(name)(model, encoder, **SMALL[name]).double()
    z, log_q = method.posterior(images()).rsample_and_log_prob(S)
    assert z.shape == (S, B, D)
    assert log_q.isfinite().all()


@pytest.mark.parametrize(("kind", "made"), [("iaf", Flow), ("householder", Reflected)])
def test_mixture_of_flows_has_the_summed_density(kind, made):
    torch.manual_seed(0)
    model = LatentModel(make_decoder("dense", SHAPE, D), Bernoulli(), latent=D, shape=SHAPE)
    parts = [
        find_component(kind)(make_encoder("dense", SHAPE, D), model, flows=3).double() for _ in range(2)
    ]
    with torch.no_grad():
        for p in (p for part in parts for p in part.parameters()):
            p.add_(0.1 * torch.randn_like(p))
    components = [part(images(), model) for part in parts]
    assert all(type(q) is made for q in components)
    q = Mixture(components, torch.full((B, 2), 0.5, dtype=torch.float64).log())
    z, log_q = q.rsample_and_log_prob(S, generator=seeded(1))
    expected = torch.stack([c.log_prob(z) for c in components]).logsumexp(0) - math.log(2)
    torch.testing.assert_close(log_q, expected)
    assert q.mean.shape == (B, D)
    assert components[0].weights.tolist() == [[1.0]] * B


@pytest.mark.parametrize("name", NAMES)
def test_bad_settings_name_the_valid_range(name):
    with pytest.raises(
        ConfigError, match=r"flows=0: expected 1 or more \(the paper uses 1, 2, 4 and 8\)"
    ):
        build(name, 0)
    with pytest.raises(ConfigError, match="latent=1: expected a latent dimension of 2 or more"):
        build(name, 2, latent=1)


def test_too_few_hidden_units_are_refused():
    torch.manual_seed(0)
    model = LatentModel(make_decoder("dense", SHAPE, D), Bernoulli(), latent=D, shape=SHAPE)
    with pytest.raises(ConfigError, match="hidden=3: expected at least the latent dimension, 4"):
        InverseAutoregressiveFlow(model, make_encoder("dense", SHAPE, D), hidden=3)


def test_options_and_their_defaults():
    assert {n: o.default for n, o in method_options(InverseAutoregressiveFlow).items()} == {
        "flows": 2,
        "hidden": 500,
    }
    assert {n: o.default for n, o in method_options(HouseholderFlow).items()} == {"flows": 2}


@pytest.mark.parametrize(
    "likelihood", [Bernoulli(), GaussianLikelihood(0.1)], ids=["bernoulli", "gaussian"]
)
@pytest.mark.parametrize("name", NAMES)
def test_steps_raise_the_elbo(name, likelihood):
    method = build(name, 2, likelihood=copy.deepcopy(likelihood))
    optimizers = method.optimizers(3e-3)
    x = images(4).round().repeat(16, 1, 1, 1)
    before = method.loss(x, generator=seeded(3)).item()
    for step in range(30):
        method.step(x, optimizers, generator=seeded(step))
    assert method.loss(x, generator=seeded(3)).item() < before - 1


# --- posteriors with correlations -----------------------------------------------------------------


def correlated():
    """A linear-Gaussian model whose two latent dimensions depend on each other given x.

    Returns the model, its best diagonal encoder, and the nats that this encoder loses.
    """
    world = LinearGaussian(latent=2, variance=0.05)
    linear = world.model.decoder.linear
    with torch.no_grad():
        shared = torch.randn(6, 1, generator=seeded(4), dtype=torch.float64)
        own = torch.randn(6, 2, generator=seeded(5), dtype=torch.float64)
        linear.weight.copy_(shared * torch.tensor([0.8, 0.3]) + 0.1 * own)
        linear.bias.zero_()
        precision = torch.eye(2, dtype=torch.float64) + linear.weight.T @ linear.weight / 0.05
        head = nn.Linear(6, 4).double()
        head.weight.zero_()
        head.bias.zero_()
        head.weight[:2] = torch.linalg.solve(precision, linear.weight.T / 0.05)
        head.bias[2:] = -precision.diagonal().log()
    gap = 0.5 * (precision.diagonal().log().sum() - torch.logdet(precision)).item()
    return world, Encoder(nn.Flatten(), head), gap


@pytest.mark.parametrize(("name", "flows"), [("iaf", 1), ("iaf", 2), ("hf", 1), ("hf", 2)])
def test_flow_closes_the_gap_of_a_diagonal_gaussian(name, flows):
    world, encoder, gap = correlated()
    torch.manual_seed(0)
    method = find_method(name)(world.model, encoder, flows=flows, **SMALL[name]).double()
    z = torch.randn(2000, 2, generator=seeded(1), dtype=torch.float64)
    noise = torch.randn(2000, *world.model.shape, generator=seeded(2), dtype=torch.float64)
    with torch.no_grad():
        x = world.model.decode(z) + 0.05**0.5 * noise
    evidence = world.log_evidence(x)

    def loss():
        """Nats between log p(x) and the ELBO, and the standard error."""
        with torch.no_grad():
            z, log_q = method.posterior(x).rsample_and_log_prob(20, generator=seeded(3))
            lost = (evidence - (world.model.log_joint(x, z) - log_q)).mean(0)
        return lost.mean().item(), (lost.std() / len(lost) ** 0.5).item()

    assert gap > 0.5
    start, error = loss()
    assert start == pytest.approx(gap, abs=5 * error)
    decoder = {id(p) for p in world.model.parameters()}
    optimizer = torch.optim.Adam([p for p in method.parameters() if id(p) not in decoder], 1e-2)
    for step in range(400):
        update(method.loss(x[torch.arange(128) + 128 * (step % 15)], generator=seeded(step)), optimizer)
    end, error = loss()
    assert end > -5 * error  # the ELBO is a lower bound
    assert end < 0.4 * gap


# --- the inverse autoregressive flow --------------------------------------------------------------


@pytest.mark.parametrize("backward", [False, True])
def test_one_step_is_triangular_in_its_order(backward):
    q = build("iaf", 2, noise=0.3).posterior(images())
    step = Flow(q.base, [q.transforms[int(backward)]])
    start, _ = q.base.rsample_and_log_prob(S, generator=seeded(1))
    found = jacobian(step, start)
    zero = found.tril(-1) if backward else found.triu(1)
    used = found.triu(1) if backward else found.tril(-1)
    assert zero.abs().max() == 0
    allowed = torch.ones(D, D).triu(1) if backward else torch.ones(D, D).tril(-1)
    assert ((used.abs().amax((0, 1)) > 1e-6) == allowed.bool()).all()  # every allowed dependence is used


def test_order_is_reversed_from_step_to_step():
    q = build("iaf", 4).posterior(images())
    assert [list(step.order) for step in q.transforms] == [[0, 1, 2, 3], [3, 2, 1, 0]] * 2
    q = build("iaf", 2, noise=0.3).posterior(images())
    both = jacobian(q, q.base.mean[None])
    off = both[..., ~torch.eye(D, dtype=torch.bool)]
    assert (
        off.abs().amax((0, 1)) > 1e-6
    ).all()  # after two steps every dimension depends on every other


def test_step_is_the_gated_update():
    method = build("iaf", 1, noise=0.3)
    network = method.components[0].steps[0]
    x = images()
    z = torch.randn(S, B, D, generator=seeded(1), dtype=torch.float64)
    features = method.base_encoder.features(x).expand(S, B, -1)
    m, s = network.layers(torch.cat([z, features], -1)).chunk(2, -1)  # the network without our shortcuts
    gate, start = torch.sigmoid(s + 2), torch.sigmoid(torch.tensor(2.0, dtype=torch.float64))
    image, log_det = method.posterior(x).forward(z)
    torch.testing.assert_close(image, gate / start * z + (1 - gate) * m)
    torch.testing.assert_close(log_det, (gate / start).log().sum(-1))


def test_every_output_depends_on_the_context():
    method = build("iaf", 2, noise=0.3)
    for network in method.components[0].steps:
        assert network.layers[0].mask[:, D:].all()
    features = torch.randn(1, method.base_encoder.hidden, generator=seeded(1), dtype=torch.float64)
    z = torch.randn(1, 1, D, generator=seeded(2), dtype=torch.float64)
    for network in method.components[0].steps:
        slopes = torch.func.jacrev(lambda h, net=network: net(h).forward(z)[0])(features)
        assert (
            slopes.abs().amax((0, 1, 3, 4)) > 1e-6
        ).all()  # also for the first dimension of the order


def test_closed_gate_is_bounded_and_invertible():
    method = build("iaf", 1, noise=0.3)
    with torch.no_grad():
        method.components[0].steps[0].layers[-1].bias[D:] = -1e6
    q = method.posterior(images())
    z, log_q = q.rsample_and_log_prob(S, generator=seeded(1))
    assert log_q.isfinite().all()
    start, log_det = q.inverse(z)
    assert log_det.min() > D * GATE_RANGE[0]
    torch.testing.assert_close(q.forward(start)[0], z, rtol=0, atol=1e-12)


# --- the Householder flow -------------------------------------------------------------------------


def matrices(q):
    """H of each example, (B, D, D)."""
    axes = torch.eye(D, dtype=torch.float64)[:, None].expand(D, B, D)
    return q.forward(axes)[0].permute(1, 2, 0)


def test_reflections_are_those_of_the_definition():
    method = build("hf", 3, noise=0.5)
    x = images()
    component = method.components[0]
    features = method.base_encoder.features(x)
    v = component.vectors.first(features)
    h = torch.eye(D, dtype=torch.float64).expand(B, D, D)
    for t in range(3):
        v = component.vectors.later[t - 1](v) if t else v
        outer = v[:, :, None] * v[:, None] / v.square().sum(-1)[:, None, None]
        h = (torch.eye(D, dtype=torch.float64) - 2 * outer) @ h
    torch.testing.assert_close(matrices(method.posterior(x)), h)
