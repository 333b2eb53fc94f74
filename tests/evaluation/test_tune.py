"""The choice of a refinement within a time limit."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import recmix
from recmix import Inference
from recmix.errors import ConfigError
from recmix.evaluation import tune as module
from recmix.evaluation.tune import Frontier, Trial, best_refinement, candidates, tune
from recmix.model.curvature_network import FULL_UP_TO

TRIED = [Inference(how=how, refine=2) for how in ("gauss-newton", "conjugate")]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Time every inference once."""
    monkeypatch.setattr(module, "REPEATS", 1)
    monkeypatch.setattr(module, "MOST_REPEATS", 1)


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).random((40, 1, 8, 8), np.float32)


@pytest.fixture(scope="module")
def method(images):
    return recmix.fit("vae", images, epochs=1, latent=2, dtype="float64", device="cpu").method


@pytest.fixture(scope="module")
def x(images):
    return torch.from_numpy(images).double()


def trial(milliseconds, bounds, **inference):
    values = torch.as_tensor(bounds, dtype=torch.float64)
    return Trial(Inference(**inference), milliseconds, float(values.mean()), 0.0, values)


@pytest.mark.parametrize("limit", [{"budget": 1.0}, {"budget": 1e6}, {"milliseconds": 1e6}])
def test_the_winner_is_within_the_limit_and_not_below_the_encoder(method, x, limit):
    found = tune(method, x, samples=5, tried=TRIED, **limit)
    assert found.winner.milliseconds <= found.limit
    assert found.winner.bound >= found.encoder.bound
    assert len(found.trials) == 3
    assert [t.milliseconds for t in found.trials] == sorted(t.milliseconds for t in found.trials)
    if "budget" in limit:
        assert found.limit == pytest.approx(limit["budget"] * found.encoder.milliseconds)


def test_an_encoder_that_is_far_from_the_mode_is_refined(method, x):
    with torch.no_grad():
        biases = [p for n, p in method.base_encoder.named_parameters() if n.endswith("bias")]
        biases[-1][:2] += 3
    try:
        found = tune(method, x, samples=5, tried=TRIED, budget=1e6)
        assert found.winner.inference.refine == 2
        assert found.winner.bound > found.encoder.bound + 1
        assert best_refinement(method, x, 2, samples=5).refine == 2
    finally:
        with torch.no_grad():
            biases[-1][:2] -= 3


def test_the_base_is_kept_in_all_candidates(method, x):
    base = Inference(scale=1.5, reuse=1)
    found = tune(method, x, samples=2, tried=candidates(method, [1], base), base=base, budget=1.0)
    assert {t.inference.scale for t in found.trials} == {1.5}
    assert found.encoder.inference == base
    assert best_refinement(method, x, 0, base=base) == base


def test_no_steps_need_no_bound(method, x, monkeypatch):
    monkeypatch.setattr("recmix.evaluation.tune.iwae_at_seed", None)
    assert best_refinement(method, x, 0) == Inference()


def test_candidates_contain_the_inference_of_the_run_once(method):
    used = Inference(how="conjugate", refine=3)
    assert candidates(method, base=used).count(used) == 1
    assert candidates(method, base=replace(used, refine=2)).count(replace(used, refine=2)) == 1
    plain = candidates(method, base=Inference(how="variational"))
    assert sum(not one.refine for one in plain) == 1
    assert "learned" not in {one.how for one in plain}  # the model has no curvature network


@pytest.mark.parametrize(
    ("latent", "curvature", "kinds"),
    [
        (2, None, ["gauss-newton", "conjugate", "variational"]),
        (FULL_UP_TO, object(), ["learned", "gauss-newton", "conjugate", "variational"]),
        (FULL_UP_TO + 1, None, ["gauss-newton", "conjugate"]),
        (256, None, ["gauss-newton", "conjugate"]),
        (257, object(), ["learned", "conjugate"]),
    ],
)
def test_each_kind_that_the_model_allows_is_tried_with_each_number_of_steps(latent, curvature, kinds):
    method = SimpleNamespace(model=SimpleNamespace(latent=latent, curvature=curvature))
    first, *others = candidates(method)
    assert first == Inference()
    assert [(one.how, one.refine) for one in others] == [(how, k) for how in kinds for k in (1, 2, 4, 8)]


def test_a_gain_counts_above_two_standard_errors():
    gain = torch.tensor([-1.0, 1.0], dtype=torch.float64)  # its standard error is 1
    zero = torch.zeros_like(gain)
    assert module._clearly_above(gain + 2.1, zero)
    assert not module._clearly_above(gain + 1.9, zero)


def test_the_winner_is_the_fastest_that_is_as_good_as_the_best():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=200)
    encoder = trial(1, noise)
    same = trial(2, noise + 0.01 * rng.normal(size=200), refine=1)
    good = trial(3, noise + 1 + 0.01 * rng.normal(size=200), refine=2)
    best = trial(4, noise + 1.0001 + 0.01 * rng.normal(size=200), refine=4)
    clearly = trial(5, noise + 2, refine=8)
    assert module._winner(encoder, [same]) is encoder
    assert module._winner(encoder, [same, good, best]) is good
    assert module._winner(encoder, [same, good, best, clearly]) is clearly
    noisy = trial(1.5, noise - 1 + 50 * rng.normal(size=200), refine=1)  # below the encoder
    assert module._winner(encoder, [noisy, good]) is good


def test_a_faster_trial_with_a_higher_bound_does_not_lose():
    """The faster one is higher, but its gain is noisy: it is less than two standard errors."""
    encoder = trial(1, [0.0] * 10)
    noisy = trial(2, [9.0, -7.0] * 5, how="variational", refine=1)
    clear = trial(3, [0.5, 0.6] * 5, refine=1)
    assert not module._clearly_above(noisy.examples, encoder.examples)
    assert module._winner(encoder, [noisy, clear]) is noisy
    found = Frontier([encoder, noisy, clear], 9.0, noisy, encoder)
    assert found.reason.startswith("faster and higher than gauss-newton 1, the fastest")
    assert replace(found, trials=[encoder, clear], winner=clear).reason.startswith("the fastest")
    assert "no refinement within the limit" in replace(found, limit=2.5, winner=encoder).reason


def test_bounds_that_are_not_numbers_never_win():
    encoder, broken = trial(1, [0.0, 1.0]), trial(0.5, [math.nan, 5.0], refine=1)
    good = trial(2, [3.0, 4.0], refine=2)
    assert module._winner(encoder, [broken]) is encoder
    assert module._winner(encoder, [broken, good]) is good
    assert Frontier([broken, encoder, good], 9.0, good, encoder).efficient == [encoder, good]


def test_efficient_trials_have_a_higher_bound_than_every_faster_one():
    trials = [
        trial(1, [-1.0, -1.0]),
        trial(2, [0.0, 0.0], refine=1),
        trial(3, [-0.5, -0.5], refine=2),
        Trial(Inference(refine=3), 3.5),
        trial(4, [1.0, 1.0], refine=4),
    ]
    found = Frontier(trials, 9.0, trials[0], trials[0])
    assert found.efficient == [trials[0], trials[1], trials[4]]
    lines = str(found).splitlines()
    assert len(lines) == 1 + len(trials)
    assert lines[1].split() == ["1.0000", "-1.00", "encoder", "<-", "chosen"]
    assert lines[4].split()[1:] == ["too", "slow", "gauss-newton", "3"]


def test_slow_candidates_are_timed_once_and_have_no_bound(method, x, monkeypatch):
    calls = []

    def once(_method, _x, inference):
        calls.append(inference.refine)
        return 1.0 + 100 * inference.refine

    monkeypatch.setattr(module, "_once", once)
    found = tune(method, x, samples=2, tried=[Inference(refine=1)], budget=2)
    assert calls.count(1) == 2
    assert found.limit == 2
    assert found.trials[-1].bound is None
    assert found.trials[-1].to_json()["milliseconds"] == 101
    assert found.winner is found.encoder


@pytest.mark.parametrize(
    ("taken", "timings", "bounded"),
    [(2.0, 3, True), (2.5, 3, True), (2.6, 3, False), (8.0, 3, False), (8.1, 2, False)],
)
def test_limits_of_time_decide_what_is_measured(method, x, monkeypatch, taken, timings, bounded):
    """Above 1.25 times the limit of 2 ms there is no bound, above 4 times it no third timing."""
    calls = []

    def once(_method, _x, inference):
        calls.append(inference.refine)
        return taken if inference.refine else 1.0

    monkeypatch.setattr(module, "_once", once)
    found = tune(method, x, samples=2, tried=[Inference(refine=1)], budget=2)
    assert calls.count(1) == timings
    assert (found.trials[-1].bound is not None) == bounded


def test_auto_never_picks_a_kind_that_is_clearly_worse(method, x, monkeypatch):
    rng = np.random.default_rng(1)
    gains = {"gauss-newton": -1.0, "conjugate": 1.0, "variational": 0.5}

    def iwae(_method, x, inference, *_):
        gain = gains[inference.how] if inference.refine else 0.0
        return torch.from_numpy(gain + 0.01 * rng.normal(size=len(x)))

    monkeypatch.setattr(module, "iwae_at_seed", iwae)
    assert best_refinement(method, x, 2) == Inference(how="conjugate", refine=2)
    gains = dict.fromkeys(gains, -1.0)
    assert best_refinement(method, x, 2) == Inference()


def test_times_are_medians_of_inferences_that_take_turns(method, x, monkeypatch):
    monkeypatch.setattr(module, "REPEATS", 5)
    called, seconds = [], {0: 1.0, 2: 2.0}

    def once(_method, _x, inference):
        called.append((inference.how, inference.refine))
        slow = 50.0 if len(called) == 10 else 1.0  # another program, once
        return seconds[inference.refine] * slow

    monkeypatch.setattr(module, "_once", once)
    found = tune(method, x, budget=3.0, samples=2, tried=TRIED)
    assert [t.milliseconds for t in found.trials] == [1.0, 2.0, 2.0]
    assert found.smallest_budget == 2.0
    turns = called[6:]  # after two calls of each
    assert turns[:3] == turns[3:6]
    assert len(set(turns[:3])) == 3


def test_progress_reaches_the_total(method, x):
    seen = []
    tune(method, x, samples=2, tried=TRIED, budget=1.0, report=lambda *now: seen.append(now))
    assert seen[-1] == (6, 6)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ({}, "give a time limit"),
        ({"budget": 2.0, "milliseconds": 2.0}, "not both"),
        ({"budget": 0.5}, "at least 1"),
        ({"budget": math.nan}, "positive"),
        ({"milliseconds": 0.0}, "positive"),
    ],
)
def test_wrong_limits_are_refused(method, x, limit, message):
    with pytest.raises(ConfigError, match=message):
        tune(method, x, **limit)


def test_one_example_is_too_few(method, x):
    with pytest.raises(ConfigError, match="at least 2"):
        tune(method, x[:1], budget=2.0)
