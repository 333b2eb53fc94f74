"""Adam on small pieces of the parameters gives the same numbers as torch's Adam."""

import pytest
import torch

from recmix.accelerate.adam import CHUNK, ChunkedAdam, with_tensor_rates
from recmix.methods.optimizers import adam


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pieces_give_the_same_bits_as_the_whole(dtype):
    torch.manual_seed(0)
    shapes = [(CHUNK // 100 + 3, 100), (7,), (64, 32, 4, 4)]
    ours = [torch.nn.Parameter(torch.randn(s, dtype=dtype)) for s in shapes]
    ours[2].data = ours[2].data.to(
        memory_format=torch.channels_last
    )  # not contiguous: it is not divided
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    one, two = ChunkedAdam(ours, lr=1e-2, fused=True), torch.optim.Adam(theirs, lr=1e-2, fused=True)
    for _ in range(4):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        one.step()
        two.step()
    for p, q in zip(ours, theirs, strict=True):
        assert torch.equal(p, q)
        assert torch.equal(one.state[p]["exp_avg"], two.state[q]["exp_avg"])
        assert one.state[p]["step"] == two.state[q]["step"] == 4


def test_parameter_without_gradient_does_not_change():
    moved, still = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    moved.grad = torch.ones(2)
    optimizer = ChunkedAdam([moved, still], lr=0.1, fused=True)
    optimizer.step()
    assert moved.ne(0).all()
    assert still.eq(0).all()
    with pytest.raises(NotImplementedError, match="closure"):
        optimizer.step(lambda: 0.0)


def test_first_learning_rate_is_stored():
    group = {"params": [torch.nn.Parameter(torch.zeros(2))], "lr": 0.25}
    assert adam([group], 0.1).param_groups[0]["initial_lr"] == 0.25
    assert with_tensor_rates(ChunkedAdam([group], lr=0.1)).param_groups[0]["initial_lr"] == 0.25
