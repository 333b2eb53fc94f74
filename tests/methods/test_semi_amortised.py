"""Semi-amortised inference: steps raise each example's ELBO and are differentiated."""

import copy
import math

import pytest
import torch
from torch import nn

import recmix
from recmix.errors import ConfigError, NonFiniteError
from recmix.methods.recursive import RecursiveMixture
from recmix.methods.semi_amortised import SemiAmortised, SemiAmortisedComponent, tune_step_size
from recmix.methods.vae import VAE
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Bernoulli
from recmix.model.likelihoods import Gaussian as GaussianLikelihood
from recmix.model.networks import make_decoder, make_encoder

SHAPE = (1, 8, 8)
LATENT = 3


def linear_method(dtype=torch.float64, variance=0.5, **options):
    """A linear decoder with a Gaussian likelihood, and a linear encoder with random weights."""
    torch.manual_seed(0)
    decoder = nn.Sequential(nn.Linear(LATENT, 64), nn.Unflatten(1, SHAPE))
    model = LatentModel(decoder, GaussianLikelihood(variance), latent=LATENT, shape=SHAPE)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 2 * LATENT))
    return SemiAmortised(model.to(dtype), encoder.to(dtype), **options).to(dtype)


def conv_method(dtype=torch.float64, **options):
    torch.manual_seed(0)
    decoder, encoder = (
        make_decoder("conv", SHAPE, LATENT, hidden=16),
        make_encoder("conv", SHAPE, LATENT),
    )
    model = LatentModel(decoder, Bernoulli(), latent=LATENT, shape=SHAPE)
    return SemiAmortised(model.to(dtype), encoder.to(dtype), **options).to(dtype)


def images(count=7, dtype=torch.float64, seed=0):
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def exact_elbo(model, x, q):
    """The ELBO of a linear-Gaussian model under a diagonal Gaussian, (B,), without sampling."""
    weight = model.decoder[0].weight  # (P, D)
    noise = model.likelihood.variance
    variance = q.log_variance.exp()
    spread = (variance * weight.square().sum(0)).sum(-1) / noise
    return model.log_conditional(x, q.mean[None])[0] - 0.5 * spread - q.kl_to_prior(None, None)[0]


@torch.no_grad()
def path(method, x, steps):
    """The posterior after 0, 1, ... steps."""
    component = method.components[0]
    found = [VAE(method.model, component.encoder).posterior(x)]
    for number in range(1, steps + 1):
        component.steps = number
        found.append(method.posterior(x))
    return found


@pytest.mark.parametrize(("samples", "stride"), [(1, 2), (2, 1), (3, 1)])
def test_every_step_raises_the_exact_elbo(samples, stride):
    """For every example.

    With one sample, a step's noise is the opposite of the noise one step before: two steps count as one.
    """
    method, x = linear_method(steps=10, step_size=1e-2, samples=samples), images()
    scores = torch.stack([exact_elbo(method.model, x, q) for q in path(method, x, 10)])
    assert (scores[::stride].diff(dim=0) > 0).all()


def test_many_steps_reach_the_best_diagonal_gaussian():
    """It has the mean of the exact posterior and the diagonal of its precision."""
    method, x = linear_method(steps=200, step_size=0.3, samples=2), images()
    with torch.no_grad():
        # With orthogonal columns, fixed signs give the exact expectation.
        method.model.decoder[0].weight.copy_(torch.linalg.qr(torch.randn(64, LATENT).double()).Q)
        q = method.posterior(x)
        weight, noise = method.model.decoder[0].weight, method.model.likelihood.variance
        precision = weight.T @ weight / noise + torch.eye(LATENT).double()
        target = (x.flatten(1) - method.model.decoder[0].bias) @ weight / noise
    torch.testing.assert_close(q.mean, torch.linalg.solve(precision, target.T).T, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(
        q.log_variance, -precision.diagonal().log().expand_as(q.log_variance), rtol=1e-6, atol=1e-8
    )


@pytest.mark.parametrize("options", [{}, {"momentum": 0.5, "clip": 2.0, "samples": 3}])
def test_examples_do_not_depend_on_each_other_with_any_options(options):
    method, x = conv_method(steps=3, step_size=1e-2, **options), images()
    together = method.posterior(x)
    for row in range(len(x)):
        alone = method.posterior(x[row : row + 1])
        torch.testing.assert_close(alone.mean[0], together.mean[row], rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(
            alone.log_variance[0], together.log_variance[row], rtol=1e-9, atol=1e-11
        )


def loss_and_gradient(method, x):
    method.zero_grad()
    loss = method.loss(x, generator=torch.Generator().manual_seed(3))
    loss.backward()
    return loss.item(), [p.grad.clone() for p in method.parameters()]


def slope(method, x, direction, size=1e-6):
    """The derivative of the loss along a direction in the parameters, by central differences."""
    ends = []
    for sign in (1, -1):
        moved = copy.deepcopy(method)
        with torch.no_grad():
            for p, d in zip(moved.parameters(), direction, strict=True):
                p.add_(sign * size * d)
            moved.train()
            ends.append(moved.loss(x, generator=torch.Generator().manual_seed(3)).item())
    return (ends[0] - ends[1]) / (2 * size)


@pytest.mark.parametrize("options", [{}, {"momentum": 0.5, "clip": 30.0, "samples": 2}])
def test_gradient_through_the_steps_equals_finite_differences(options):
    torch.manual_seed(1)
    options = {"steps": 3, "step_size": 5e-2, **options}
    method, x = linear_method(**options), images(4)
    method.model.decoder.insert(1, nn.Tanh())
    torch.manual_seed(2)
    direction = [torch.randn_like(p) for p in method.parameters()]
    expected = slope(method, x, direction)

    _, second = loss_and_gradient(method, x)
    found = sum((g * d).sum().item() for g, d in zip(second, direction, strict=True))
    assert found == pytest.approx(expected, rel=1e-6)

    method.components[0].first_order = True
    _, first = loss_and_gradient(method, x)
    rough = sum((g * d).sum().item() for g, d in zip(first, direction, strict=True))
    assert abs(rough - expected) > 1e-2 * abs(expected)


def test_first_order_gives_the_same_loss_and_a_gradient_for_every_parameter():
    exact, rough = (conv_method(steps=2, first_order=flag) for flag in (False, True))
    x = images(4)
    (loss_a, grads_a), (loss_b, grads_b) = (loss_and_gradient(m, x) for m in (exact, rough))
    assert loss_a == pytest.approx(loss_b, rel=1e-6)
    assert all(g.isfinite().all() and g.abs().sum() > 0 for g in (*grads_a, *grads_b))


def test_momentum_keeps_a_share_of_the_last_step():
    method, x = linear_method(steps=2, momentum=0.5, step_size=1e-2), images(2)
    component = method.components[0]
    first, second = (component.noise[t] for t in (0, 1))
    assert torch.equal(first, -second)  # signs and their opposites
    with torch.no_grad():
        start = component.encoder(x)

    def gradient(parameters, step):
        parameters = parameters.detach().requires_grad_()
        elbo = component.inner_elbo(x, parameters, method.model, step)
        return torch.autograd.grad(elbo.sum(), parameters)[0]

    velocity = gradient(start, 0)
    moved = start + 1e-2 * velocity
    velocity = 0.5 * velocity + gradient(moved, 1)
    moved = moved + 1e-2 * velocity
    q = method.posterior(x)
    torch.testing.assert_close(torch.cat([q.mean, q.log_variance], -1), moved)


def test_clip_limits_the_gradient_norm_of_each_example():
    x, largest = images(5), 33.0
    free, clipped = (linear_method(steps=1, step_size=1.0, clip=c) for c in (0.0, largest))
    with torch.no_grad():
        start = free.components[0].encoder(x)
        found = (method.posterior(x) for method in (free, clipped))
        steps = [torch.cat([q.mean, q.log_variance], -1) - start for q in found]
    norms, short = (s.norm(dim=-1) for s in steps)
    long = (norms > largest).sum()
    assert 0 < long < 5, f"the test needs norms on both sides of the limit, got {norms}"
    torch.testing.assert_close(short, norms.clamp_max(largest))
    torch.testing.assert_close(steps[1] / short[:, None], steps[0] / norms[:, None])


def test_clip_of_a_zero_gradient_is_zero_with_a_finite_derivative():
    method = linear_method(steps=1, clip=1.0)
    with torch.no_grad():
        method.model.decoder[0].weight.zero_()
        method.components[0].encoder[1].weight.zero_()
        method.components[0].encoder[1].bias.zero_()
    loss, grads = loss_and_gradient(method, images(2))
    assert math.isfinite(loss)
    assert all(g.isfinite().all() for g in grads)


def test_decoder_gradient_does_not_need_a_trainable_encoder():
    method, x = conv_method(steps=2, step_size=1e-2), images(3)
    _, expected = loss_and_gradient(method, x)
    method.zero_grad()
    for p in method.base_encoder.parameters():
        p.requires_grad_(False)
    method.loss(x, generator=torch.Generator().manual_seed(3)).backward()
    for p, gradient in zip(method.parameters(), expected, strict=True):
        if p.requires_grad:
            torch.testing.assert_close(p.grad, gradient)


def test_bfloat16_images_and_other_dtypes():
    method = conv_method(torch.float32, steps=1)
    x = images(2).bfloat16()
    assert method.posterior(x).mean.dtype == torch.float32
    assert method.loss(x).dtype == torch.float32
    assert method.double().posterior(x).mean.dtype == torch.float64


def test_weights_fit_any_number_of_steps():
    few, many = conv_method(steps=1), conv_method(steps=8, samples=2)
    many.load_state_dict(few.state_dict())
    assert "noise" not in " ".join(few.state_dict())


def test_component_of_a_mixture_takes_its_number_of_steps():
    torch.manual_seed(0)
    method = conv_method()
    mixture = RecursiveMixture(
        method.model, method.base_encoder, order=2, component="sa", component_setting=2
    ).double()
    assert all(isinstance(part, SemiAmortisedComponent) for part in mixture.components)
    assert mixture.components[1].steps == 2
    metrics = mixture.step(images(4), mixture.optimizers(1e-3))
    assert all(value.isfinite() for value in metrics.values())


def test_tuning_selects_the_step_size_with_the_highest_elbo():
    method, x = linear_method(steps=4), images(40)
    grid = [1e-6, 1e-4, 3e-2, 1e2, 1e200]
    assert tune_step_size(method, x, grid) == 3e-2
    assert method.components[0].step_size == 3e-2
    q = method.posterior(x)
    method.components[0].step_size = 1e-4
    worse = method.posterior(x)
    assert exact_elbo(method.model, x, q).mean() > exact_elbo(method.model, x, worse).mean()
    assert all(p.grad is None for p in method.parameters())


def test_tuning_errors_say_what_is_wrong():
    method, x = linear_method(steps=4, step_size=1e-3), images(3)
    with pytest.raises(ConfigError, match="no semi-amortised component"):
        tune_step_size(VAE(method.model, method.base_encoder), x, [1e-3])
    with pytest.raises(ConfigError, match="at least one"):
        tune_step_size(method, x, [])
    with pytest.raises(ConfigError, match="positive"):
        tune_step_size(method, x, [-1e-3])
    with pytest.raises(ConfigError, match="finite"):
        tune_step_size(method, x, [1e200])
    assert method.components[0].step_size == 1e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "at least 1"),
        ({"samples": 0}, "at least 1"),
        ({"step_size": 0.0}, "positive"),
        ({"step_size": math.nan}, "positive"),
        ({"momentum": 1.0}, r"\[0, 1\)"),
        ({"clip": -1.0}, "norm"),
    ],
)
def test_options_out_of_range_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        linear_method(**options)


def test_step_size_is_tuned_before_a_second_stage_and_saved(tmp_path):
    x = images(40, torch.float32).numpy()
    vae = recmix.fit("vae", x, latent=2, epochs=2, progress=False)
    with torch.no_grad():
        vae.latent_model.likelihood.log_variance.fill_(math.log(1e-5))  # too narrow for steps of 1e-3
    free = recmix.fit("sa", x, init=vae, epochs=1, progress=False, out=tmp_path / "sa")
    assert free.method.components[0].step_size < 1e-4
    assert recmix.load(tmp_path / "sa").method.components[0].step_size < 1e-4
    try:
        fixed = recmix.fit("sa", x, init=vae, epochs=1, tune=False, progress=False)
    except NonFiniteError:  # on a GPU steps of 1e-3 diverge, which shows the same
        return
    assert fixed.method.components[0].step_size == 1e-3
    assert free.elbo(x[:8]).mean() > fixed.elbo(x[:8]).mean()
