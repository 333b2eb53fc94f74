"""Fusable functions give the same results inside and outside `fusing`; only inside they are compiled."""

import pytest
import torch

from recmix.accelerate import fusion
from recmix.accelerate.fusion import branch, fusing
from recmix.model.replaceable import FUSABLE, fusable
from recmix.posteriors.gaussian import gaussian_log_prob
from recmix.posteriors.recursion import extended_elbo


@pytest.fixture(autouse=True)
def no_compiled_functions():
    """Compiled forms are cached; a test that replaces the compiler must not leave any."""
    fusion._fused.cache_clear()
    yield
    fusion._fused.cache_clear()


def test_functions_are_compiled_once_and_only_inside_fusing(monkeypatch):
    compiled = []

    def record(function):
        compiled.append(function.__name__)
        return function

    monkeypatch.setattr(torch, "compile", record)

    @fusable
    def thrice(x):
        return 3 * x

    assert FUSABLE[-1] is thrice
    try:
        assert thrice(2) == 6
        assert compiled == []
        with fusing():
            assert thrice(2) == 6
            assert thrice(3) == 9
        with fusing():
            assert thrice(3) == 9
        assert compiled.count("thrice") == 1
    finally:
        FUSABLE.remove(thrice)
    assert not any(function.alternatives for function in (thrice, gaussian_log_prob, extended_elbo))


def test_fusable_functions_can_be_traced_with_their_gradients(monkeypatch):
    """The compiler's front end and its differentiation, without generated code."""
    plain = torch.compile
    traced = []

    def compile_and_record(function):
        made = plain(function, backend="aot_eager", fullgraph=True)

        def call(*args, **kwargs):
            traced.append(function.__name__)
            return made(*args, **kwargs)

        return call

    monkeypatch.setattr(torch, "compile", compile_and_record)
    torch.manual_seed(0)
    z, mean = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    log_variance = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    score = torch.randn(4, dtype=torch.float64, requires_grad=True)
    table = torch.randn(4, 2, 4, dtype=torch.float64)
    for function, arguments, leaf in (
        (gaussian_log_prob, (z, mean, log_variance), log_variance),
        (extended_elbo, (score, 0.001, 0.1, table[0, :1], table[1], table[2], table[3]), score),
    ):
        expected = function(*arguments).sum()
        (slope,) = torch.autograd.grad(expected, leaf)
        with fusing():
            found = function(*arguments).sum()
            (again,) = torch.autograd.grad(found, leaf)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(again, slope)
    assert traced == ["gaussian_log_prob", "extended_elbo"]


def test_branch_without_a_capture_changes_nothing():
    x = torch.ones(2)
    with branch(x) as join:
        y = x + 1
    join()
    assert y.tolist() == [2, 2]
