"""What every likelihood promises: densities, derivatives, Fisher information, inference with it."""

import math

import pytest
import torch
from cases.likelihoods import CASES, log_marginal
from torch import distributions

from recmix.data import check_values
from recmix.errors import ConfigError
from recmix.inference import Inference
from recmix.inference.gauss_newton import normal_equations
from recmix.model.likelihoods import (
    LIKELIHOODS,
    Autoregressive,
    Categorical,
    CategoricalGraph,
    Likelihood,
    LogisticMixture,
    Multinomial,
    NegativeBinomial,
    ZeroInflatedNegativeBinomial,
    bits_per_dimension,
    register_likelihood,
)
from recmix.model.priors import GaussianMixturePrior, OwnPrior
from recmix.objectives import iwae
from recmix.posteriors import Gaussian as GaussianPosterior


@pytest.fixture(params=sorted(CASES))
def case(request):
    return CASES[request.param]


def test_every_registered_likelihood_has_a_case():
    assert set(LIKELIHOODS) == set(CASES) - {"own"}


def test_shapes(case):
    model = case.model()
    x = case.examples(model)
    decoded = model.decoder_output(torch.randn(4, 3, 2, dtype=torch.float64))
    assert x.shape == (3, *case.shape)
    assert decoded.shape == (4, 3, *model.likelihood.output_shape(case.shape))
    assert model.likelihood.log_prob(x, decoded).shape == (4, 3)
    torch.testing.assert_close(
        model.likelihood.log_prob(x, decoded)[1], model.likelihood.log_prob(x, decoded[1])
    )
    assert len(model.likelihood.mean(decoded)) == 4


def test_a_blank_example_is_possible(case):
    likelihood = case.model().likelihood
    blank = likelihood.blank(case.shape)
    assert blank.shape == (1, *case.shape)
    check_values(blank, likelihood.requirement, likelihood.name)


def test_residual_is_the_derivative(case):
    model = case.model()
    x = case.examples(model)
    decoded = model.decoder(torch.randn(3, 2, dtype=torch.float64)).detach().requires_grad_()
    (expected,) = torch.autograd.grad(model.likelihood.log_prob(x, decoded).sum(), decoded)
    torch.testing.assert_close(model.likelihood.residual(x, decoded.detach()), expected)


def test_fisher_is_the_expected_product_of_residuals(case):
    model = case.model()
    x = case.examples(model, count=1)
    with torch.no_grad():
        decoded = model.decoder(torch.randn(1, 2, dtype=torch.float64))
    size = decoded[0].numel()
    identity = torch.eye(size, dtype=torch.float64)[None]
    with torch.no_grad():
        found = model.likelihood.fisher(x, decoded, identity)[0]
    torch.testing.assert_close(found, found.mT)
    diagonal = model.likelihood.precision(x, decoded).flatten()
    torch.testing.assert_close(found.diagonal(), diagonal.detach())
    assert torch.linalg.eigvalsh(found.detach()).min() > -1e-9
    count = 5_000 if isinstance(model.likelihood, Autoregressive) else 20_000  # it is slow
    words = 9 if isinstance(model.likelihood, Multinomial) else 1
    wide = decoded.expand(count * words, *decoded.shape[1:])
    drawn = model.likelihood.sample(wide, torch.Generator().manual_seed(3))
    drawn = drawn.unflatten(0, (words, count)).sum(0)
    wide = decoded.expand(count, *decoded.shape[1:])
    if isinstance(model.likelihood, Autoregressive | CategoricalGraph):  # it depends on the other values
        with torch.no_grad():
            found = model.likelihood.fisher(drawn, wide, identity.expand(count, -1, -1)).mean(0)
    scores = model.likelihood.residual(drawn, wide).detach().flatten(1)
    torch.testing.assert_close(
        found,
        scores.mT @ scores / count,
        rtol=0.1,
        atol=0.05 * float(found.abs().max()) + 0.3 * rough(model),
    )


def rough(model):
    """Where the Fisher information is itself an average of 64 samples."""
    by_samples = type(model.likelihood).precision is Likelihood.precision
    return 1.0 if by_samples else 0.0


def test_the_mean_of_samples_is_the_mean(case):
    model = case.model()
    if isinstance(model.likelihood, Autoregressive | CategoricalGraph):
        pytest.skip("the mean is that of the most likely tokens, or of nodes that may not exist")
    with torch.no_grad():
        decoded = model.decoder(torch.zeros(1, 2, dtype=torch.float64))
    wide = decoded.expand(20_000, *decoded.shape[1:])
    drawn = model.likelihood.sample(wide, torch.Generator().manual_seed(5))
    if isinstance(model.likelihood, Categorical):
        drawn = torch.nn.functional.one_hot(drawn.long(), 4).double()
    error = 5 * drawn.std(0) / math.sqrt(len(drawn)) + (0.3 if rough(model) else 1e-9)
    assert ((drawn.mean(0) - model.likelihood.mean(decoded)[0]).abs() < error).all()


def test_the_gradient_of_the_log_joint(case):
    model = case.model()
    x, z = case.examples(model), torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(model.log_joint(x, z[None]).sum(), z)
    with torch.no_grad():
        found = normal_equations(model, x, z.detach())
    torch.testing.assert_close(found.gradient, expected)
    torch.testing.assert_close(found.log_joint, model.log_joint(x, z[None])[0].detach())


PRIORS = {
    "standard": lambda: None,
    "mixture": lambda: GaussianMixturePrior(2, 3),
    "own": lambda: OwnPrior(
        distributions.MultivariateNormal(torch.ones(2).double(), 2 * torch.eye(2).double())
    ),
}


@pytest.mark.parametrize("prior", PRIORS)
def test_refined_bounds_agree_with_quadrature(case, prior):
    torch.manual_seed(7)
    model = case.model(prior=PRIORS[prior]())
    x = case.examples(model)
    exact = log_marginal(model, x, points=case.points)
    start = GaussianPosterior(torch.zeros(3, 2).double(), torch.zeros(3, 2).double())
    with torch.no_grad():
        refined = Inference(refine=8)(model, x, start)
        after = iwae(model, x, refined, 2000, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(after, exact, atol=0.2, rtol=0)


@pytest.mark.parametrize("name", ["poisson", "negative-binomial", "zero-inflated-negative-binomial"])
def test_counts_are_distributions(name):
    model = CASES[name].model()
    x = torch.arange(400.0).double()[:, None].expand(-1, 6)
    with torch.no_grad():
        decoded = model.decoder(torch.zeros(1, 2).double())
        each = torch.stack(
            [
                model.likelihood.log_prob(torch.where(torch.arange(6) == f, x, 0.0), decoded)
                for f in range(6)
            ]
        )  # all other counts 0
        zeros = model.likelihood.log_prob(torch.zeros(1, 6).double(), decoded)
    marginal = (each - zeros).exp().sum(1)  # Σ_k p(x_f = k) / p(x_f = 0)
    assert torch.isfinite(marginal).all()
    total = zeros + marginal.log().sum()  # Π_f Σ_k p(k) = 1
    torch.testing.assert_close(total, torch.zeros_like(total), atol=1e-8, rtol=0)


def test_negative_binomial_against_torch():
    likelihood = NegativeBinomial((4,), 1.7).double()
    log_mean = torch.randn(3, 4).double()
    x = torch.tensor([0.0, 1, 3, 7]).double().expand(3, 4)
    theta = likelihood.log_inverse_dispersion.exp()
    reference = distributions.NegativeBinomial(theta, logits=log_mean - theta.log())
    torch.testing.assert_close(likelihood.log_prob(x, log_mean), reference.log_prob(x).sum(-1))


@pytest.mark.parametrize("kind", [NegativeBinomial, ZeroInflatedNegativeBinomial])
def test_library_scales_the_mean_by_the_total(kind):
    scaled, plain = kind((3,), 2.0, library=True).double(), kind((3,), 2.0).double()
    x = torch.tensor([[4.0, 0.0, 6.0]]).double()
    share = torch.randn(1, 3).double()
    rest = (
        torch.randn(1, 3).double()
        if kind is ZeroInflatedNegativeBinomial
        else torch.empty(1, 0).double()
    )
    one = scaled.log_prob(x, torch.cat([share, rest], 1))
    two = plain.log_prob(x, torch.cat([share + math.log(10), rest], 1))
    torch.testing.assert_close(one, two)
    weights = [
        m.precision(x, torch.cat([s, rest], 1))
        for m, s in ((scaled, share), (plain, share + math.log(10)))
    ]
    torch.testing.assert_close(*weights)


def test_multinomial_against_torch():
    decoded, x = torch.randn(2, 3, 5).double(), torch.tensor([[3.0, 0, 1, 0, 2]]).double().expand(3, 5)
    reference = distributions.Multinomial(6, logits=decoded)
    torch.testing.assert_close(Multinomial().log_prob(x, decoded), reference.log_prob(x))


def test_categorical_padding_has_no_weight():
    likelihood = Categorical(3)
    x, decoded = torch.tensor([[0.0, 2.0, -1.0]]), torch.randn(1, 3, 3)
    shorter = likelihood.log_prob(x[:, :2], decoded[:, :2])
    torch.testing.assert_close(likelihood.log_prob(x, decoded), shorter)
    assert not likelihood.residual(x, decoded)[0, 2].any()
    assert not likelihood.fisher(x, decoded, torch.randn(1, 9, 4))[0, 6:].any()


@pytest.mark.parametrize("channels", [1, 3])
def test_logistic_mixture_is_a_distribution_over_256_values(channels):
    torch.manual_seed(0)
    likelihood = LogisticMixture((channels, 1, 1), 2).double()
    decoded = torch.randn(1, *likelihood.output_shape((channels, 1, 1))).double()
    decoded[:, 2 * (1 + channels) :] -= 1.0  # narrower logistics
    values = torch.arange(256).double() / 255
    with torch.no_grad():
        if channels == 1:
            total = likelihood.log_prob(values[:, None, None, None], decoded).logsumexp(0)
        else:  # the sum over blue and green is the probability of red
            red = torch.tensor([0.0, 100.0, 200.0]).double() / 255
            grid = torch.cartesian_prod(red, values, values)[..., None, None]
            found = likelihood.log_prob(grid, decoded).unflatten(0, (3, -1)).logsumexp(-1)
            alone = LogisticMixture((1, 1, 1), 2).double()
            of_red = decoded[:, [0, 1, 2, 3, 8, 9]]  # logits, means and log-scales of red
            total = found - alone.log_prob(red[:, None, None, None], of_red)
    torch.testing.assert_close(total, torch.zeros_like(total), atol=1e-5, rtol=0)


def test_bits_per_dimension_of_uniform_noise():
    assert bits_per_dimension(torch.tensor(-8 * 12 * math.log(2)), (3, 2, 2)).item() == pytest.approx(8)


@pytest.mark.parametrize(
    "make", [lambda: Categorical(1), lambda: LogisticMixture((2, 4, 4)), lambda: LogisticMixture((7,))]
)
def test_bad_options(make):
    with pytest.raises(ConfigError, match="expected"):
        make()


def test_names_are_unique():
    with pytest.raises(ConfigError, match="another likelihood"):

        @register_likelihood("poisson")
        class Other(Categorical):
            pass


def test_tempered_likelihoods_are_consistent(case):
    model = case.model()
    if not model.likelihood.can_temper:
        with pytest.raises(ConfigError, match="no noise"):
            model.likelihood.tempered(2.0)
        return
    x = case.examples(model)
    noisy = model.with_noise(2.0)
    z = torch.randn(3, 2, dtype=torch.float64)
    with torch.no_grad():
        assert not torch.allclose(noisy.log_joint(x, z[None]), model.log_joint(x, z[None]))
    decoded = model.decoder(z).detach().requires_grad_()
    (expected,) = torch.autograd.grad(noisy.likelihood.log_prob(x, decoded).sum(), decoded)
    torch.testing.assert_close(noisy.likelihood.residual(x, decoded.detach()), expected)
    assert [id(p) for p in noisy.parameters()] == [id(p) for p in model.parameters()]
    assert model.likelihood.noise == 1
    exact = log_marginal(noisy, x, points=case.points)
    start = GaussianPosterior(torch.zeros(3, 2).double(), torch.zeros(3, 2).double())
    with torch.no_grad():
        refined = Inference(refine=8)(noisy, x, start)
        after = iwae(noisy, x, refined, 2000, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(after, exact, atol=0.2, rtol=0)
