"""The recursive mixture: the paper's pseudocode, its cost and its parts."""

import copy

import pytest
import torch
from cases.literal import LiteralRecursion
from torch import nn

from recmix.errors import ConfigError
from recmix.methods.recursive import RecursiveMixture
from recmix.methods.vae import VAE
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Bernoulli
from recmix.model.likelihoods import Gaussian as GaussianLikelihood
from recmix.model.networks import make_decoder, make_encoder

SHAPE, LATENT, BATCH = (1, 8, 8), 3, 6


def model(likelihood="gaussian"):
    chosen = GaussianLikelihood(0.1) if likelihood == "gaussian" else Bernoulli()
    return LatentModel(
        make_decoder("conv", SHAPE, LATENT), chosen, latent=LATENT, shape=SHAPE, centre=torch.rand(SHAPE)
    )


def recursion(order, likelihood="gaussian", **options):
    torch.manual_seed(0)
    method = RecursiveMixture(
        model(likelihood), make_encoder("conv", SHAPE, LATENT), order=order, **options
    )
    return method.double()


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
@pytest.mark.parametrize("bound", [500.0, 0.02])
def test_steps_equal_the_pseudocode(likelihood, bound):
    order, rate = 4, 1e-3
    method = recursion(order, likelihood, bound=bound, eps_max=0.4)
    literal = copy.deepcopy(method)
    latent_model = literal.model

    def log_likelihood(x, z):
        centred = latent_model.observed(x)
        return latent_model.likelihood.log_prob(centred, latent_model.decoder(z)[None])[0]

    reference = _reference(literal, log_likelihood, rate, bound)
    optimizers = method.optimizers(rate)
    generator = torch.Generator().manual_seed(1)
    table = torch.Generator().manual_seed(1)
    torch.manual_seed(2)
    for _ in range(3):
        x = torch.rand(BATCH, *SHAPE, dtype=torch.float64).round() * 0.9
        first, second = (
            [
                torch.randn(1, BATCH, LATENT, generator=table, dtype=torch.float64)[0]
                for _ in range(order)
            ]
            for _ in range(2)
        )
        noise = list(zip(first, second, strict=True))
        method.step(x, optimizers, generator=generator)
        reference.step(x, noise)
    for (name, ours), theirs in zip(method.named_parameters(), literal.parameters(), strict=True):
        assert (ours - theirs).abs().max() < 1e-6, name
    start = recursion(order, likelihood, bound=bound, eps_max=0.4)
    for (name, ours), first in zip(method.named_parameters(), start.parameters(), strict=True):
        assert not torch.equal(ours, first), f"{name} did not change"


class _Centred(nn.Module):
    """A network that takes the example as the model centres it."""

    def __init__(self, network, latent_model):
        super().__init__()
        self.network = network
        self.latent_model = [latent_model]  # in a list, so that it is not a submodule

    def forward(self, x):
        return self.network(self.latent_model[0].observed(x))


def _reference(literal, log_likelihood, rate, bound):
    latent_model = literal.model
    return LiteralRecursion(
        [_Centred(c.encoder, latent_model) for c in literal.components],
        [_Centred(g, latent_model) for g in literal.gates],
        log_likelihood,
        [*latent_model.decoder.parameters(), *latent_model.likelihood.parameters()],
        rate,
        bound,
    )


def test_network_evaluations_grow_linearly_in_the_order():
    counts = {}
    for order in range(1, 9):
        method = recursion(order)
        calls = {"encoder": 0, "decoder": 0, "gate": 0}

        def count(kind, calls=calls):
            def hook(_module, inputs, _output):
                calls[kind] += len(inputs[0]) / BATCH

            return hook

        for component in method.components:
            component.encoder.register_forward_hook(count("encoder"))
        for gate in method.gates:
            gate.layers.register_forward_hook(count("gate"))
        method.model.decoder.register_forward_hook(count("decoder"))
        method.step(torch.rand(BATCH, *SHAPE, dtype=torch.float64), method.optimizers(1e-4))
        counts[order] = calls
    for order, calls in counts.items():
        assert calls == {"encoder": 2 * order, "decoder": 3 * order, "gate": 2 * (order - 1)}


def test_distance_above_the_bound_has_no_gradient():
    method = recursion(2, bound=5.0)
    distance = torch.tensor([[4.0, 10.0]], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(method.novelty(1, None, distance, distance).sum(), distance)
    assert gradient.abs().sum() == 0
    method.per_instance = True
    (gradient,) = torch.autograd.grad(method.novelty(1, None, distance, distance).sum(), distance)
    assert gradient[0, 0] > 0
    assert gradient[0, 1] == 0


def test_posterior_is_the_recursion_written_out():
    method = recursion(3, eps_max=0.5)
    x = torch.rand(BATCH, *SHAPE, dtype=torch.float64)
    q = method.posterior(x)
    eps = [gate(method.model.observed(x))[0].exp() for gate in method.gates]
    torch.manual_seed(1)
    z = torch.randn(5, BATCH, LATENT, dtype=torch.float64)
    density = method.component(0, x).log_prob(z).exp()
    for m in (1, 2):
        density = (1 - eps[m - 1]) * density + eps[m - 1] * method.component(m, x).log_prob(z).exp()
    torch.testing.assert_close(q.log_prob(z), density.log())
    torch.testing.assert_close(q.weights.sum(-1), torch.ones(BATCH, dtype=torch.float64))


def test_all_components_start_at_the_vae_encoder():
    torch.manual_seed(5)
    vae = VAE(model(), make_encoder("conv", SHAPE, LATENT)).double()
    method = recursion(3)
    method.start_from(vae)
    x = torch.rand(BATCH, *SHAPE, dtype=torch.float64)
    for m in range(3):
        torch.testing.assert_close(method.component(m, x).mean, vae.posterior(x).mean)
    z = torch.randn(2, BATCH, LATENT, dtype=torch.float64)
    torch.testing.assert_close(method.posterior(x).log_prob(z), vae.posterior(x).log_prob(z))
    jittered = recursion(3, jitter=0.01)
    jittered.start_from(vae)
    torch.testing.assert_close(jittered.component(0, x).mean, vae.posterior(x).mean)
    assert not torch.allclose(jittered.component(1, x).mean, vae.posterior(x).mean)


def test_larger_mixture_keeps_the_smaller_one():
    small, large = recursion(2), recursion(4)
    torch.manual_seed(9)
    for p in small.parameters():
        p.data.add_(0.1 * torch.randn_like(p))
    large.start_from(small)
    x = torch.rand(BATCH, *SHAPE, dtype=torch.float64)
    for m in (0, 1):
        torch.testing.assert_close(large.component(m, x).mean, small.component(m, x).mean)
    torch.testing.assert_close(large.component(3, x).mean, small.component(0, x).mean)


def test_components_separate_and_the_bound_rises():
    method = recursion(3)
    optimizers = method.optimizers(2e-3)
    torch.manual_seed(3)
    x = torch.rand(64, *SHAPE, dtype=torch.float64).round()
    first = method.step(x, optimizers)
    for _ in range(60):
        last = method.step(x, optimizers)
    assert last["elbo"] > first["elbo"] + 1
    assert last["kl"] > first["kl"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": 0}, "1 to 16; got 0"),
        ({"order": 17}, "1 to 16; got 17"),
        ({"order": 2, "bound": 0.0}, "bound"),
        ({"order": 2, "jitter": -1.0}, "jitter"),
        ({"order": 2, "component": "gausian"}, "did you mean 'gaussian'"),
        ({"order": 2, "component_setting": 2}, "no setting"),
    ],
)
def test_bad_settings_say_what_is_valid(options, message):
    with pytest.raises(ConfigError, match=message):
        recursion(**options)


def test_loss_names_step():
    with pytest.raises(ConfigError, match=r"rme has no single loss.*Call step\(x, optimizers\)"):
        recursion(2).loss(torch.rand(BATCH, *SHAPE, dtype=torch.float64))


def test_one_optimizer_for_each_component_gate_and_the_decoder():
    method = recursion(3)
    optimizers = method.optimizers(1e-3)
    names = [f"component_{m}" for m in range(3)] + ["gate_1", "gate_2", "decoder"]
    assert list(optimizers) == names
