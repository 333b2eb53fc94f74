"""Choose the refinement of a posterior on validation data, within a limit on its computing time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from recmix.errors import ConfigError
from recmix.evaluation.bounds import at_once, bounds
from recmix.inference import Inference
from recmix.methods.method import Method, infer_no_grad
from recmix.model.curvature_network import FULL_UP_TO

__all__ = ["Frontier", "Trial", "best_refinement", "candidates", "tune"]

STEPS = (1, 2, 4, 8)
"""Numbers of refinement steps that are tried."""
EXACT_UP_TO = 256
"""Largest latent dimension for which exact Jacobians are tried."""
BATCH = 128
"""Examples in one timed batch."""
REPEATS = 5
"""Fewest timed repetitions. The shortest time counts: other programs can only make it longer."""
MOST_REPEATS = 50
ENOUGH = 100.0
"""Milliseconds of timed repetitions after which no more than `REPEATS` are needed."""
TOO_SLOW = 1.25
"""A candidate above this multiple of the time limit is timed, but its bound is not computed."""
HOPELESS = 4.0
"""A candidate above this multiple of the time limit is timed only once."""
SETTLED = 2.0
"""The winner is the fastest whose bound is within this many standard errors of the best bound."""


@dataclass(frozen=True)
class Trial:
    """One inference with its time and its bound on validation examples.

    Attributes:
        inference: the refinement.
        milliseconds: time to compute the posterior of one example, in a batch.
        bound: the mean IWAE bound in nats, or None if the inference was too slow.
        standard_error: the standard error of the difference to the encoder's own posterior, for
            which it is 0.
        examples: the bound of each example, for paired comparisons.
    """

    inference: Inference
    milliseconds: float
    bound: float | None = None
    standard_error: float = 0.0
    examples: Tensor | None = None

    @property
    def mean(self) -> float:
        """The mean bound, or minus infinity if there is none or it is not a number."""
        return -math.inf if self.bound is None or math.isnan(self.bound) else self.bound

    def to_json(self) -> dict[str, Any]:
        """The trial as JSON data, without the bounds of single examples."""
        return {
            "inference": self.inference.to_json(),
            "milliseconds": self.milliseconds,
            "bound": self.bound,
            "standard_error": self.standard_error,
        }


@dataclass(frozen=True)
class Frontier:
    """All inferences that were tried, and the one that is best within the time limit.

    Attributes:
        trials: from the fastest to the slowest. The encoder's own posterior is one of them.
        limit: the time limit in milliseconds per example.
        winner: the chosen trial.
        encoder: the trial of the encoder's own posterior, without refinement.
    """

    trials: list[Trial]
    limit: float
    winner: Trial
    encoder: Trial

    @property
    def efficient(self) -> list[Trial]:
        """The trials with a higher bound than every faster one."""
        found: list[Trial] = []
        for trial in self.trials:
            if trial.mean > (found[-1].mean if found else -math.inf):
                found.append(trial)
        return found


def candidates(
    method: Method, steps: Iterable[int] = STEPS, base: Inference | None = None
) -> list[Inference]:
    """The inferences that are possible for a method, from none to many refinement steps.

    Args:
        method: a trained method.
        steps: numbers of refinement steps.
        base: the other options of all inferences, such as the calibration; by default none are
            changed. If it has refinement steps, it is one of the inferences itself.
    """
    base = base or Inference()
    model = method.model
    kinds = ["conjugate"]
    if model.latent <= EXACT_UP_TO:
        kinds.insert(0, "gauss-newton")
    if model.latent <= FULL_UP_TO:
        kinds.append("variational")
    if model.curvature is not None:
        kinds.insert(0, "learned")
    numbers = list(steps)
    found = [_without(base), *(replace(base, how=how, refine=k) for how in kinds for k in numbers)]
    return [*found, base] if base.refine and base not in found else found


def tune(
    method: Method,
    x: Tensor,
    *,
    budget: float | None = None,
    milliseconds: float | None = None,
    samples: int = 100,
    seed: int = 0,
    memory: int | None = None,
    base: Inference | None = None,
    tried: Iterable[Inference] | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Frontier:
    """Measure time and bound of all possible inferences, and choose the best within a time limit.

    The winner is the fastest inference within the limit whose bound is significantly above that of
    the encoder's own posterior, and not significantly below the best bound within the limit. If
    there is none, the winner is the encoder's own posterior, even if it takes longer than the limit.

    Args:
        method: a trained method in evaluation mode.
        x: validation examples (B, *shape) on the method's device, at least 2.
        budget: the limit as a multiple of the time of the encoder's own posterior, at least 1.
        milliseconds: the limit in milliseconds per example; give this or `budget`.
        samples: K of the IWAE-K bound.
        seed: seed of the sampling noise.
        memory: bytes for the decoder's activations at a time.
        base: the other options of all inferences, as in `candidates`.
        tried: the inferences to try; by default all `candidates`.
        report: called with the number of inferences done and their total number.
    """
    if (budget is None) == (milliseconds is None):
        raise ConfigError("give a budget (such as 3 times the encoder's time) or milliseconds, not both")
    given = budget if milliseconds is None else milliseconds
    if not (given is not None and math.isfinite(given) and given > 0):
        raise ConfigError(f"the time limit must be a positive number, got {given}")
    if budget is not None and budget < 1:
        raise ConfigError(
            f"the budget must be at least 1, the time of the encoder's own posterior, got {budget:g}"
        )
    if len(x) < 2:
        raise ConfigError(f"the choice needs at least 2 validation examples, got {len(x)}")
    plain = _without(base or Inference())
    others = candidates(method, base=base) if tried is None else tried
    wanted = [plain, *(one for one in others if one != plain)]
    batch = x[: min(BATCH, at_once(method.model, memory))]
    times = [_milliseconds(method, batch, plain)]
    limit = milliseconds if milliseconds is not None else (budget or 1.0) * times[0]
    report(1, 2 * len(wanted))
    for inference in wanted[1:]:
        times.append(_milliseconds(method, batch, inference, HOPELESS * limit))
        report(len(times), 2 * len(wanted))
    start = _iwae(method, x, plain, samples, seed, memory)
    encoder = Trial(plain, times[0], float(start.mean()), 0.0, start)
    trials = [encoder]
    for inference, taken in zip(wanted[1:], times[1:], strict=True):
        report(len(wanted) + len(trials), 2 * len(wanted))
        trial = Trial(inference, taken)
        if taken <= TOO_SLOW * limit:
            found = _iwae(method, x, inference, samples, seed, memory)
            error = _standard_error(found - start)
            trial = replace(trial, bound=float(found.mean()), standard_error=error, examples=found)
        trials.append(trial)
    report(2 * len(wanted), 2 * len(wanted))
    allowed = [t for t in trials[1:] if t.bound is not None and t.milliseconds <= limit]
    winner = _winner(encoder, allowed)
    return Frontier(sorted(trials, key=lambda t: t.milliseconds), limit, winner, encoder)


def best_refinement(
    method: Method,
    x: Tensor,
    steps: int,
    *,
    samples: int = 100,
    seed: int = 0,
    memory: int | None = None,
    base: Inference | None = None,
) -> Inference:
    """The kind of refinement with the highest IWAE bound on validation examples, or none.

    A kind must raise the bound by more than twice the standard error of the gain.

    Args:
        method: a trained method in evaluation mode.
        x: validation examples (B, *shape) on the method's device.
        steps: number of refinement steps.
        samples: K of the IWAE-K bound.
        seed: seed of the sampling noise.
        memory: bytes for the decoder's activations at a time.
        base: the other options of all inferences, as in `candidates`.
    """
    best = _without(base or Inference())
    bound = _iwae(method, x, best, samples, seed, memory)
    if not steps:
        return best
    for inference in candidates(method, [steps], best)[1:]:
        found = _iwae(method, x, inference, samples, seed, memory)
        if _clearly_above(found, bound):
            best, bound = inference, found
    return best


def _without(inference: Inference) -> Inference:
    """The same inference without refinement."""
    return replace(inference, refine=0, how=Inference().how)


def _winner(encoder: Trial, others: list[Trial]) -> Trial:
    """The fastest trial that is clearly above the encoder and not clearly below the best."""
    better = [t for t in others if _clearly_above(t.examples, encoder.examples)]
    if not better:
        return encoder
    best = max(better, key=lambda t: t.mean)
    good = [t for t in better if not _clearly_above(best.examples, t.examples)]
    return min(good, key=lambda t: t.milliseconds)


def _clearly_above(one: Tensor | None, two: Tensor | None) -> bool:
    """Whether the mean of `one` is above that of `two` by `SETTLED` standard errors of the gain."""
    assert one is not None
    assert two is not None
    gain = one - two
    return float(gain.mean()) > SETTLED * _standard_error(gain)


def _standard_error(gain: Tensor) -> float:
    """The standard error of the mean of `gain` (B,)."""
    return float(gain.std()) / math.sqrt(len(gain)) if len(gain) > 1 else 0.0


def _iwae(
    method: Method, x: Tensor, inference: Inference, samples: int, seed: int, memory: int | None
) -> Tensor:
    """The IWAE bound of each example, (B,), on the CPU in float64."""
    generator = torch.Generator(x.device).manual_seed(seed)
    found = bounds(method, x, inference, samples=samples, generator=generator, memory=memory)
    return found.iwae.double().cpu()


def _milliseconds(method: Method, x: Tensor, inference: Inference, hopeless: float = math.inf) -> float:
    """The time of one example's posterior when it is computed in the batch x.

    Args:
        method: a trained method.
        x: examples (B, *shape).
        inference: the refinement.
        hopeless: above this time, the time is not measured again.
    """
    _once(method, x, inference)
    second = _once(method, x, inference)  # both calls prepare caches and CUDA graphs
    if second > hopeless:
        return second
    times: list[float] = []
    while len(times) < REPEATS or (sum(times) * len(x) < ENOUGH and len(times) < MOST_REPEATS):
        times.append(_once(method, x, inference))
    return min(times)


def _once(method: Method, x: Tensor, inference: Inference) -> float:
    """Milliseconds per example of one computation of the posterior."""
    wait = torch.cuda.synchronize if x.is_cuda else lambda: None
    wait()
    start = time.perf_counter()
    infer_no_grad(method, x, inference)
    wait()
    return 1e3 * (time.perf_counter() - start) / len(x)
