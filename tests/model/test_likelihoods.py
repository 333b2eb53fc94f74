"""Likelihoods: exact against torch.distributions, derivatives against torch.func."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributions, nn

from recmix.errors import ConfigError
from recmix.model import assembly
from recmix.model.assembly import Statistics
from recmix.model.encoder_decoder import reset
from recmix.model.likelihoods import (
    LIKELIHOODS,
    Bernoulli,
    FeatureGaussian,
    Gaussian,
    Likelihood,
    find_likelihood,
)
from recmix.model.options import ModelOptions

few = settings(max_examples=30, deadline=None, derandomize=True)


@pytest.fixture(params=["bernoulli", "gaussian"])
def likelihood(request):
    options = {"variance": 0.3} if request.param == "gaussian" else {}
    return LIKELIHOODS[request.param](**options).double()


def data(scale=1.0, samples=4):
    torch.manual_seed(0)
    x = torch.rand(3, 2, 5, 4, dtype=torch.float64)
    return x, scale * torch.randn(samples, 3, 2, 5, 4, dtype=torch.float64)


@few
@given(variance=st.floats(1e-5, 1e3), scale=st.floats(0.0, 1e3))
def test_gaussian_is_exact(variance, scale):
    x, decoded = data(scale)
    expected = distributions.Normal(decoded, math.sqrt(variance)).log_prob(x).sum((-3, -2, -1))
    likelihood = Gaussian(variance).double()
    nn.init.constant_(likelihood.log_variance, math.log(variance))  # without the rounding of float32
    torch.testing.assert_close(likelihood.log_prob(x, decoded), expected, rtol=1e-12, atol=1e-9)


@few
@given(scale=st.floats(0.0, 100.0), binary=st.booleans())
def test_bernoulli_is_exact(scale, binary):
    x, decoded = data(scale)
    x = x.round() if binary else x
    expected = distributions.Bernoulli(logits=decoded, validate_args=False).log_prob(x)
    got = Bernoulli().log_prob(x, decoded)
    torch.testing.assert_close(got, expected.sum((-3, -2, -1)), rtol=1e-13, atol=1e-12)


def test_shapes_and_broadcasting(likelihood):
    x, decoded = data()
    assert isinstance(likelihood, Likelihood)
    assert likelihood.log_prob(x, decoded).shape == (4, 3)
    assert likelihood.log_prob(x, decoded[0]).shape == (3,)
    for image in (likelihood.mean(decoded), likelihood.sample(decoded)):
        assert image.shape == decoded.shape
    assert likelihood.residual(x, decoded).shape == decoded.shape
    assert likelihood.precision(x, decoded).shape == decoded.shape
    one = likelihood.log_prob(x, decoded[2])
    torch.testing.assert_close(likelihood.log_prob(x, decoded)[2], one)


def test_residual_and_precision_are_the_derivatives(likelihood):
    torch.manual_seed(1)
    x = torch.rand(1, 1, 2, 3, dtype=torch.float64)
    decoded = 2 * torch.randn(1, 1, 1, 2, 3, dtype=torch.float64)

    def log_p(values):
        return likelihood.log_prob(x, values).sum()

    torch.testing.assert_close(likelihood.residual(x, decoded), torch.func.grad(log_p)(decoded))
    hessian = torch.func.hessian(log_p)(decoded).reshape(6, 6)  # forward over reverse
    torch.testing.assert_close(-hessian, likelihood.precision(x, decoded).flatten().diag())


def test_gradients_pass_gradcheck_and_vmap(likelihood):
    x, decoded = data(samples=2)
    x, decoded = x[:, :1, :2, :2], decoded[:, :, :1, :2, :2].clone().requires_grad_()
    inputs = (decoded, *likelihood.parameters())

    def log_p(values, *_):
        return likelihood.log_prob(x, values)

    assert torch.autograd.gradcheck(log_p, inputs)
    assert torch.autograd.gradcheck(log_p, (decoded,), check_forward_ad=True)
    mapped = torch.func.vmap(likelihood.log_prob, in_dims=(None, 0))(x, decoded)
    torch.testing.assert_close(mapped, likelihood.log_prob(x, decoded))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bernoulli_at_extreme_logits(dtype):
    bernoulli = Bernoulli()
    logits = torch.tensor([-1e4, -88.0, -41.0, 0.0, 39.0, 41.0, 88.0, 1e4], dtype=dtype)
    decoded = logits.reshape(8, 1, 1, 1, 1).requires_grad_()
    for value in (0.0, 0.3, 1.0):
        x = torch.full((1, 1, 1, 1), value, dtype=dtype)
        log_p = bernoulli.log_prob(x, decoded)
        assert log_p.isfinite().all()
        assert (log_p <= 0).all()
        (gradient,) = torch.autograd.grad(log_p.sum(), decoded)
        torch.testing.assert_close(gradient, bernoulli.residual(x, decoded))
    assert bernoulli.log_prob(torch.ones(1, 1, 1, 1, dtype=dtype), decoded)[-1] == 0
    assert bernoulli.log_prob(torch.ones(1, 1, 1, 1, dtype=dtype), decoded)[0] == -1e4
    precision = bernoulli.precision(x, decoded)
    assert precision.isfinite().all()
    assert (precision[1:-1] > 0).all()  # p·(1 - p) by sigmoid(l)·(1 - sigmoid(l)) would be 0 at 88


def test_gaussian_is_finite_far_from_the_data():
    gaussian = Gaussian(1e-6)
    x = torch.zeros(2, 1, 8, 8)
    decoded = torch.full((1, 2, 1, 8, 8), 1e4, requires_grad=True)
    log_p = gaussian.log_prob(x, decoded)
    log_p.sum().backward()
    assert log_p.isfinite().all()
    assert decoded.grad.isfinite().all()
    assert gaussian.log_variance.grad.isfinite()


def test_mean_is_the_mean_of_samples(likelihood):
    _, decoded = data()
    decoded = decoded[:1, :1]
    generator = torch.Generator().manual_seed(0)
    count = 4000
    draws = likelihood.sample(decoded.expand(count, -1, -1, -1, -1), generator)
    standard_error = draws.std(0) / math.sqrt(count)
    assert ((draws.mean(0) - likelihood.mean(decoded)[0]).abs() < 5 * standard_error).all()


def test_sample_depends_on_the_generator_and_has_no_gradient(likelihood):
    _, decoded = data()
    decoded.requires_grad_()
    one, two = (likelihood.sample(decoded, torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(one, two)
    assert not one.requires_grad
    assert not torch.equal(one, likelihood.sample(decoded, torch.Generator().manual_seed(8)))


def test_gaussian_samples_have_the_variance():
    decoded = torch.zeros(50, 20, 1, 8, 8, dtype=torch.float64)
    draws = Gaussian(0.3).double().sample(decoded, torch.Generator().manual_seed(0))
    assert abs(draws.var().item() / 0.3 - 1) < 5 * math.sqrt(2 / draws.numel())


def test_bernoulli_samples_are_0_or_1():
    decoded = torch.tensor([-1e4, 1e4]).reshape(1, 2, 1, 1, 1)
    assert Bernoulli().sample(decoded).flatten().tolist() == [0.0, 1.0]


def test_gaussian_variance_learns_the_mean_squared_error():
    x, decoded = data()
    gaussian = Gaussian(5.0).double()
    optimizer = torch.optim.Adam(gaussian.parameters(), lr=0.05)
    for _ in range(400):
        optimizer.zero_grad()
        (-gaussian.log_prob(x, decoded).mean()).backward()
        optimizer.step()
    assert gaussian.variance.item() == pytest.approx((x - decoded).square().mean().item(), rel=1e-3)


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_variance_stays_above_its_floor_and_can_rise_again(optimizer):
    floor = 1e-2
    gaussian = Gaussian(1.0, floor=floor).double()
    optimizer = getattr(torch.optim, optimizer)(gaussian.parameters(), lr=0.02)
    x, _ = data()
    noisy = x + math.sqrt(0.5)  # squared error 0.5 at every pixel

    def train(target, steps):
        for _ in range(steps):
            optimizer.zero_grad()
            (-gaussian.log_prob(x, target[None]).mean() / 40).backward()
            optimizer.step()
            assert gaussian.variance >= floor * (1 - 1e-9)

    train(x, 1000)  # a perfect fit: the best variance is 0
    assert gaussian.variance < 2 * floor
    train(noisy, 1000)
    assert gaussian.variance.item() == pytest.approx(0.5, rel=0.01)


@few
@given(raw=st.floats(-60, 10))
def test_variance_has_a_floor_and_a_gradient_everywhere(raw):
    gaussian = Gaussian().double()
    nn.init.constant_(gaussian.log_variance, raw)
    assert gaussian.variance >= 1e-6 * (1 - 1e-9)
    (gradient,) = torch.autograd.grad(gaussian.variance.log(), gaussian.log_variance)
    assert gradient.abs().item() == pytest.approx(1.0)


def test_gaussian_starts_at_its_variance_and_can_be_reset():
    gaussian = Gaussian(0.1)
    assert gaussian.variance.item() == pytest.approx(0.1)
    assert gaussian.log_variance.shape == ()
    assert [name for name, _ in gaussian.named_parameters()] == ["log_variance"]
    nn.init.constant_(gaussian.log_variance, 3.0)
    reset(gaussian)
    assert gaussian.variance.item() == pytest.approx(0.1)
    assert Gaussian(1e-12).variance.item() == pytest.approx(1e-6)  # starts at the floor


@pytest.mark.parametrize("make", [Gaussian, lambda: FeatureGaussian((3,))])
def test_a_fixed_variance_below_the_floor_is_the_floor(make):
    gaussian = make()
    with pytest.warns(UserWarning, match="the variance 1e-08 is below the smallest one, 1e-06"):
        gaussian.fix(1e-8)
    torch.testing.assert_close(gaussian.variance, torch.full_like(gaussian.variance, 1e-6))
    gaussian.fix(1e-6)  # no warning
    gaussian.fix(float(torch.tensor(1e-6).log().exp()))  # nor after rounding
    torch.testing.assert_close(gaussian.variance, torch.full_like(gaussian.variance, 1e-6))


def test_only_the_gaussian_is_centred():
    assert Gaussian.centred
    assert not Bernoulli.centred
    assert LIKELIHOODS["gaussian"] is Gaussian


@pytest.mark.parametrize("options", [{"variance": 0.0}, {"variance": math.nan}, {"floor": -1.0}])
def test_gaussian_options_out_of_range(options):
    with pytest.raises(ConfigError, match=f"{next(iter(options))}=.*positive"):
        LIKELIHOODS["gaussian"](**options)


def test_an_unknown_name_lists_the_valid_ones():
    with pytest.raises(ConfigError, match=r"unknown likelihood 'gausian'.*'gaussian'.*bernoulli"):
        find_likelihood("gausian")


def test_the_constructor_of_a_new_likelihood_gets_what_it_takes():
    class Own(Bernoulli):
        def __init__(self, shape, classes, variance=1.0, units=3, other=4):  # classes is required
            super().__init__()
            self.given = (shape, classes, variance, units, other)

    assert Own.for_data((5,)).given == ((5,), 0, 1.0, 3, 4)
    made = Own.for_data((5,), variance=0.5, classes=7, units=2, latent=9)
    assert made.given == ((5,), 7, 0.5, 2, 4)
    assert isinstance(Bernoulli.for_data((5,), variance=0.5, classes=7), Bernoulli)


def test_a_new_likelihood_is_made_in_the_same_way_for_training_and_for_loading(monkeypatch):
    class Other(Bernoulli):
        name = "other"

        def __init__(self, variance=0.1, classes=10):
            super().__init__()
            self.given = (variance, classes)

    monkeypatch.setitem(LIKELIHOODS, "other", Other)
    options = ModelOptions(latent=2, likelihood="other")
    for statistics in (Statistics(variance=0.05), Statistics()):  # a loaded run does not know the data
        assert assembly._likelihood(options, (5,), statistics).given == (0.1, 10)
