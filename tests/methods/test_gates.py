"""Mixing weights: gates and softmax weights, in log space."""

import math

import pytest
import torch
from cases.networks import trace
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from recmix.errors import ConfigError
from recmix.methods.gates import Gate, WeightNet

few = settings(max_examples=40, deadline=None, derandomize=True)


@few
@given(
    low=st.floats(1e-6, 0.5),
    room=st.floats(0.01, 0.99),
    scale=st.sampled_from([0.0, 1.0, 100.0, 1e6]),
    seed=st.integers(0, 100),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_gate_stays_within_its_bounds_and_sums_to_one(low, room, scale, seed, dtype):
    torch.manual_seed(seed)
    high = low + room * (1 - low)
    gate = Gate((1, 4, 4), minimum=low, maximum=high).to(dtype)
    x = (scale * torch.randn(8, 1, 4, 4)).to(dtype)
    log_eps, log_rest = gate(x)
    assert log_eps.shape == log_rest.shape == (8,)
    slack = 1e-5
    assert (log_eps.exp() >= low * (1 - slack)).all()
    assert (log_eps.exp() <= high * (1 + slack)).all()
    total = torch.logaddexp(log_eps, log_rest)
    torch.testing.assert_close(total, torch.zeros(8, dtype=dtype), rtol=0, atol=1e-6)
    (log_eps.sum() + log_rest.sum()).backward()
    assert all(p.grad.isfinite().all() for p in gate.parameters())


def test_gate_has_the_network_and_formula_of_the_paper():
    gate = Gate((1, 28, 28)).double()
    assert trace(gate, torch.zeros(2, 1, 28, 28).double()) == [((10,), 7_850), ((1,), 11)]
    x = torch.rand(5, 1, 28, 28, dtype=torch.float64)
    eps = 0.001 + (0.1 - 0.001) * gate.layers(x)[:, 0].sigmoid()
    log_eps, log_rest = gate(x)
    torch.testing.assert_close(log_eps, eps.log())
    torch.testing.assert_close(log_rest, (1 - eps).log())


def test_gate_with_a_maximum_near_one_is_finite():
    gate = Gate((1, 2, 2), minimum=1e-9, maximum=1 - 1e-9)  # 1 - 1e-9 is 1 in float32
    nn.init.constant_(gate.layers[-1].bias, 1e3)
    log_eps, log_rest = gate(torch.zeros(1, 1, 2, 2))
    torch.testing.assert_close(log_rest, torch.tensor([math.log(1e-9)]), rtol=1e-5, atol=0)
    (log_eps + log_rest).sum().backward()
    assert all(p.grad.isfinite().all() for p in gate.parameters())


@pytest.mark.parametrize("bounds", [(0, 0.1), (0.1, 0.1), (0.2, 0.1), (0.1, 1), (math.nan, 0.5)])
def test_gate_bounds_out_of_range_are_refused(bounds):
    with pytest.raises(ConfigError, match="eps_min=.*0 < eps_min < eps_max < 1"):
        Gate((1, 8, 8), minimum=bounds[0], maximum=bounds[1])


@few
@given(order=st.integers(1, 6), scale=st.sampled_from([1.0, 1e4]), seed=st.integers(0, 100))
def test_weight_net_gives_log_weights(order, scale, seed):
    torch.manual_seed(seed)
    net = WeightNet((2, 3, 4), order).double()
    log_weights = net(scale * torch.randn(7, 2, 3, 4, dtype=torch.float64))
    assert log_weights.shape == (7, order)
    assert log_weights.isfinite().all()
    torch.testing.assert_close(log_weights.logsumexp(-1), torch.zeros(7, dtype=torch.float64))


def test_weight_net_has_one_small_hidden_layer():
    rows = trace(WeightNet((1, 28, 28), 5), torch.zeros(2, 1, 28, 28))
    assert rows == [((10,), 7_850), ((5,), 55)]
    with pytest.raises(ConfigError, match="order=0"):
        WeightNet((1, 8, 8), 0)


@few
@given(shape=st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple), batch=st.integers(1, 4))
def test_gates_and_weights_take_examples_of_any_shape(shape, batch):
    torch.manual_seed(0)
    x = torch.randn(batch, *shape)
    log_eps, log_rest = Gate(shape)(x)
    assert log_eps.shape == log_rest.shape == (batch,)
    assert WeightNet(shape, 3)(x).shape == (batch, 3)


@pytest.mark.parametrize("shape", [(), (3, 0), (2.5,), 7], ids=str)
@pytest.mark.parametrize("make", [Gate, lambda shape: WeightNet(shape, 2)], ids=["gate", "weights"])
def test_what_is_not_a_shape_is_refused(make, shape):
    with pytest.raises(ConfigError, match=r"expected a tuple of whole numbers.*\(784,\)"):
        make(shape)
