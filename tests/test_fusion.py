"""Fusible functions give the same inside and outside of fusing, and are compiled only inside."""

import torch

from recmix.accelerate import fusion
from recmix.accelerate.fusion import fusible, fusing
from recmix.methods.recursive import _mixture_elbo
from recmix.posteriors.gaussian import gaussian_log_prob


def test_compiled_only_where_it_is_asked_for(monkeypatch):
    compiled = []

    def watch(function):
        compiled.append(function.__name__)
        return function

    monkeypatch.setattr(torch, "compile", watch)

    @fusible
    def thrice(x):
        return 3 * x

    assert thrice(2) == 6
    assert compiled == []
    with fusing():
        assert thrice(2) == 6
        assert thrice(3) == 9
    assert compiled == ["thrice"]
    assert not fusion._active


def test_what_is_marked_can_be_traced_with_its_gradient(monkeypatch):
    """The compiler's front end and its differentiation, without generating code."""
    plain = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f: plain(f, backend="aot_eager", fullgraph=True))
    torch.manual_seed(0)
    z, mean = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    log_variance = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    score = torch.randn(4, dtype=torch.float64, requires_grad=True)
    table = torch.randn(4, 2, 4, dtype=torch.float64)
    for function, arguments, leaf in (
        (gaussian_log_prob, (z, mean, log_variance), log_variance),
        (_mixture_elbo, (score, 0.001, 0.1, table[0, :1], table[1], table[2], table[3]), score),
    ):
        expected = function(*arguments).sum()
        (slope,) = torch.autograd.grad(expected, leaf)
        with fusing():
            got = function(*arguments).sum()
            (again,) = torch.autograd.grad(got, leaf)
        torch.testing.assert_close(got, expected)
        torch.testing.assert_close(again, slope)
