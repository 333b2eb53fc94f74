"""The pseudocode that training is compared with: it is correct, and its cost is quadratic."""

import copy

import torch
from cases.literal import LiteralRecursion
from torch import nn

from benchmarks.literal import Literal, RecMixVAE
from recmix.methods.recursive import RecursiveMixture
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Gaussian
from recmix.model.networks import make_decoder, make_encoder

SHAPE, LATENT, BATCH = (1, 8, 8), 3, 4


def recursion(order):
    torch.manual_seed(0)
    model = LatentModel(make_decoder("conv", SHAPE, LATENT), Gaussian(0.1), latent=LATENT, shape=SHAPE)
    return RecursiveMixture(model, make_encoder("conv", SHAPE, LATENT), order=order)


def pseudocode(order, rate=1e-3, **more):
    torch.manual_seed(0)
    model = RecMixVAE(order, LATENT, SHAPE, variance=0.1, **more).double()
    return Literal(model, learning_rate=rate)


def test_two_implementations_of_the_pseudocode_agree(monkeypatch):
    """Given the same noise, the benchmark's and the tests' implementation take the same steps."""
    order, rate = 3, 1e-3
    ours = pseudocode(order, rate, eps_max=0.4)
    theirs = copy.deepcopy(ours.model)
    reference = LiteralRecursion(
        [comp.net for comp in theirs.comps],
        [_LogGate(gate) for gate in theirs.eps_regrs],
        theirs.decoder.log_prob,
        list(theirs.decoder.parameters()),
        rate,
        ours.kl_max,
    )
    generator = torch.Generator().manual_seed(1)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    for _ in range(3):
        x = torch.rand(BATCH, *SHAPE, generator=generator, dtype=torch.float64)
        noise = [(draw(BATCH, LATENT), draw(BATCH, LATENT)) for _ in range(order)]
        in_order = [noise[0][0]]
        for m in range(1, order):
            in_order += [noise[m][0], *(noise[j][1] for j in range(m + 1))]
        in_order += [own[1] for own in noise]
        with monkeypatch.context() as patch:
            patch.setattr(torch, "randn_like", lambda _like, in_order=in_order: in_order.pop(0))
            ours.step(x)
        assert not in_order
        reference.step(x, noise)
    for (name, one), two in zip(ours.model.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-7, msg=name)


class _LogGate(nn.Module):
    def __init__(self, gate):
        super().__init__()
        self.gate = gate

    def forward(self, x):
        return (self.gate(x).log(),)


def test_each_parameter_is_updated_once_per_batch():
    ours = pseudocode(3)
    before = copy.deepcopy(ours.model)
    ours.step(torch.rand(BATCH, *SHAPE, dtype=torch.float64))
    for (name, one), two in zip(ours.model.named_parameters(), before.parameters(), strict=True):
        assert not torch.equal(one, two), f"{name} did not change"
    assert {int(state["step"]) for state in ours.optimizer.state.values()} == {1}


def test_cost_is_quadratic_in_the_order_for_the_pseudocode_and_linear_for_the_library():
    counts = {"literal": [], "recmix": []}
    x = torch.rand(BATCH, *SHAPE)
    for order in range(1, 7):
        ours = pseudocode(order)
        ours.model.float()
        networks = [*(comp.net for comp in ours.model.comps), ours.model.decoder.net]
        counts["literal"].append(_batches_evaluated(networks, lambda ours=ours: ours.step(x)))
        method = recursion(order)
        optimizers = method.optimizers(1e-4)
        networks = [*(c.encoder for c in method.components), method.model.decoder]
        counts["recmix"].append(
            _batches_evaluated(networks, lambda m=method, o=optimizers: m.step(x, o))
        )
    second = {name: _differences(_differences(values)) for name, values in counts.items()}
    assert set(second["recmix"]) == {0}
    assert min(second["literal"]) > 0
    assert len(set(second["literal"][1:])) == 1


def _batches_evaluated(networks, work):
    """How many batches the networks evaluate during the work."""
    total = 0

    def count(_module, inputs, _output):
        nonlocal total
        total += len(inputs[0]) // BATCH

    for network in networks:
        network.register_forward_hook(count)
    work()
    return total


def _differences(values):
    return [b - a for a, b in zip(values, values[1:], strict=False)]
