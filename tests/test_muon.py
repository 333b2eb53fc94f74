"""Muon: torch's own beside it, convolutions, checkpoints, and that it is worth having."""

import pytest
import torch
from torch import nn

import recmix
from recmix import run
from recmix.accelerate.muon import MOMENTUM, OPTIMIZERS, SIZE, Muon, muon, orthogonal, together
from recmix.errors import ConfigError
from recmix.training.schedule import set_rate


def test_singular_values_come_near_one_and_vectors_stay():
    torch.manual_seed(0)
    for rows, columns in [(20, 50), (64, 7), (130, 130), (3, 900), (1, 5)]:
        size = min(rows, columns)
        u = torch.linalg.qr(torch.randn(rows, size, dtype=torch.float64)).Q
        v = torch.linalg.qr(torch.randn(columns, size, dtype=torch.float64)).Q
        values = torch.logspace(0, -1.5, size, dtype=torch.float64)
        found = orthogonal([u @ values.diag() @ v.t()])[0]
        assert found.shape == (rows, columns)
        inner = u.t() @ found @ v
        torch.testing.assert_close(inner, torch.diag(inner.diagonal()), atol=1e-9, rtol=0)
        assert inner.diagonal().min() > 0.68
        assert inner.diagonal().max() < 1.21


def test_matrices_together_are_as_each_alone():
    torch.manual_seed(1)
    matrices = [torch.randn(s, dtype=torch.float64) for s in [(20, 50), (60, 7), (33, 64), (200, 90)]]
    for matrix, found in zip(matrices, together(matrices), strict=True):
        torch.testing.assert_close(found, orthogonal([matrix])[0])


def test_a_gradient_of_zero_moves_nothing():
    assert not orthogonal([torch.zeros(4, 9)])[0].any()


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch older than 2.9 has no Muon")
def test_moves_a_matrix_as_torchs_own_does():
    torch.manual_seed(2)
    ours, theirs = (nn.Parameter(torch.ones(30, 80)) for _ in range(2))
    optimizer = muon([{"params": [ours]}], 0.01)
    other = torch.optim.Muon(  # type: ignore[attr-defined]
        [theirs],
        lr=0.01 * SIZE / 0.2,
        weight_decay=0.0,
        momentum=MOMENTUM,
        adjust_lr_fn="match_rms_adamw",
    )
    for _ in range(5):
        ours.grad = torch.randn(30, 80)
        theirs.grad = ours.grad.clone()
        optimizer.step()
        other.step()
    moved = (theirs - 1).norm()
    assert (ours - theirs).norm() < 0.02 * moved  # torch's iterates in bfloat16


def test_what_is_no_matrix_moves_as_under_adam():
    torch.manual_seed(3)
    ours, theirs = (nn.Parameter(torch.ones(7)) for _ in range(2))
    optimizer, other = muon([{"params": [ours], "lr": 0.3}], 0.1), torch.optim.Adam([theirs], lr=0.3)
    assert optimizer.param_groups[0]["initial_lr"] == 0.3
    for _ in range(3):
        ours.grad = torch.randn(7)
        theirs.grad = ours.grad.clone()
        optimizer.step()
        other.step()
    torch.testing.assert_close(ours, theirs)


def test_a_convolution_counts_as_a_matrix():
    torch.manual_seed(4)
    layer = nn.Conv2d(3, 8, 4).to(memory_format=torch.channels_last)
    before = layer.weight.detach().clone()
    layer.weight.grad = torch.randn(8, 3, 4, 4)
    muon([{"params": [layer.weight]}], 0.01).step()
    gradient = layer.weight.grad.flatten(1)
    step = (before - layer.weight.detach()).flatten(1)
    torch.testing.assert_close(step, 0.01 * SIZE * 48**0.5 * orthogonal([gradient])[0])


def test_every_group_has_its_own_rate_and_a_schedule_sets_it():
    given = [{"params": [nn.Parameter(torch.ones(3, 4))], "lr": rate} for rate in (0.1, 0.3)]
    optimizer = muon(given, 1.0)
    set_rate([optimizer], 0.5)
    for group in given:
        group["params"][0].grad = torch.eye(3, 4)
    optimizer.step()
    slow, fast = (1 - group["params"][0].detach() for group in given)
    torch.testing.assert_close(3 * slow, fast)
    torch.testing.assert_close(slow, 0.05 * SIZE * 2 * orthogonal([torch.eye(3, 4)])[0])


def test_a_decoder_without_parameters_is_no_trouble():
    decoder = nn.Unflatten(1, (1, 8, 8))
    for name, options in (("vae", {}), ("rme", {"order": 2})):
        for optimizer in OPTIMIZERS:
            made = recmix.fit(
                name,
                data="digits",
                decoder=decoder,
                latent=64,
                likelihood="bernoulli",
                epochs=1,
                vae_epochs=1,
                optimizer=optimizer,
                **options,
            )
            assert len(made.history) == 1


def test_the_names_are_those_of_the_options():
    assert tuple(OPTIMIZERS) == run.OPTIMIZERS


def test_a_parameter_without_gradient_stays():
    one, two = nn.Parameter(torch.ones(3, 3)), nn.Parameter(torch.ones(3, 3))
    one.grad = torch.eye(3)
    muon([{"params": [one, two]}], 0.1).step()
    assert not torch.equal(one, torch.ones(3, 3))
    assert torch.equal(two, torch.ones(3, 3))


@pytest.mark.parametrize(
    ("method", "options"),
    [("vae", {}), ("rme", {"order": 2}), ("vae", {"component": "residual", "moves": "encoder"})],
    ids=["vae", "rme", "residual"],
)
def test_every_optimiser_of_a_method_is_muon_and_a_stop_costs_nothing(tmp_path, method, options):
    start = recmix.fit("vae", data="digits", latent=3, epochs=1, seed=1, out=tmp_path / "vae")
    asked = {**options, "optimizer": "muon", "seed": 0, "learning_rate": 1e-3, "patience": 0}
    whole = recmix.fit(method, data="digits", init=start, epochs=2, out=tmp_path / "a", **asked)
    recmix.fit(method, data="digits", init=start, epochs=1, out=tmp_path / "b", **asked)
    parts = recmix.fit(
        method, data="digits", init=start, epochs=2, out=tmp_path / "b", resume=True, **asked
    )
    assert whole.history == parts.history
    made = whole.method.optimizers(1e-3)
    assert all(isinstance(one, Muon) for one in made.values())


def test_it_learns_sooner_than_adam():
    asked = {"latent": 5, "epochs": 40, "learning_rate": 1e-3, "schedule": "cosine", "seed": 0}
    bounds = {
        name: recmix.fit("vae", data="digits", optimizer=name, **asked).history[-1]["val_iwae"]
        for name in ("adam", "muon")
    }
    assert bounds["muon"] > bounds["adam"] + 1.5  # by 3 to 10, for other seeds


def test_an_unknown_optimiser_is_named():
    with pytest.raises(ConfigError, match="muon"):
        recmix.fit("vae", data="digits", epochs=1, optimizer="muno")
