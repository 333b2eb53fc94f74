"""Alternatives for a GPU are used where there is one, or where its kernels are interpreted."""

import pytest
import torch

from recmix.model.replaceable import Replaceable


@pytest.mark.parametrize(("gpu", "interpreted"), [(False, ""), (False, "1"), (True, ""), (True, "1")])
def test_alternatives_for_a_gpu(monkeypatch, gpu, interpreted):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setenv("TRITON_INTERPRET", interpreted)
    double = Replaceable(lambda x: x + x)
    fast = double.register_for_gpu(lambda x: 2 * x)
    assert fast(3) == 6
    assert double.alternatives == ([fast] if gpu or interpreted else [])
