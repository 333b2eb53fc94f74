"""Choose the refinement of a posterior on validation data, within a limit on its computing time."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from recmix.errors import ConfigError, shown
from recmix.evaluation.bounds import at_once, iwae_at_seed
from recmix.inference import Inference
from recmix.methods.method import Method, infer_no_grad
from recmix.model.curvature_network import FULL_UP_TO

__all__ = [
    "Frontier",
    "Trial",
    "best_refinement",
    "candidates",
    "read_limit",
    "tune",
    "with_calibration_of",
    "without_calibration",
]

STEPS = (1, 2, 4, 8)
"""Numbers of refinement steps that are tried."""
EXACT_UP_TO = 256
"""Largest latent dimension for which exact Jacobians are tried."""
BATCH = 128
"""Largest number of examples in the timed batch."""
REPEATS = 7
"""Smallest number of timed repetitions of each inference. The result is their median."""
MOST_REPEATS = 51
ENOUGH = 100.0
"""Milliseconds of timed repetitions after which no more than `REPEATS` are needed."""
TOO_SLOW = 1.25
"""A candidate above this multiple of the time limit is timed, but its bound is not computed."""
HOPELESS = 4.0
"""A candidate above this multiple of the time limit is timed only once."""
SETTLED = 2.0
"""A difference of two bounds is clear if it is larger than this many of its standard errors."""


@dataclass(frozen=True)
class Trial:
    """One way to refine the posterior, with its time and its IWAE bound on validation examples.

    Attributes:
        inference: how the posterior is refined and calibrated.
        milliseconds: time to compute the posterior of a batch, divided by its number of examples.
        bound: the mean IWAE bound over the examples in nats, or None if the refinement was too slow.
        standard_error: the standard error of the gain in `bound` over the encoder's own posterior; 0 for
            the encoder's own posterior.
        examples: the IWAE bound of each example, (B,), for paired comparisons.
    """

    inference: Inference
    milliseconds: float
    bound: float | None = None
    standard_error: float = 0.0
    examples: Tensor | None = None

    @property
    def mean(self) -> float:
        """The IWAE bound in nats, averaged over the validation examples.

        It is minus infinity if `bound` is None or NaN.
        """
        return -math.inf if self.bound is None or math.isnan(self.bound) else self.bound

    def to_json(self) -> dict[str, Any]:
        """The attributes as {name: value}, for JSON. `examples` is left out."""
        return {
            "inference": self.inference.to_json(),
            "milliseconds": self.milliseconds,
            "bound": self.bound,
            "standard_error": self.standard_error,
        }


@dataclass(frozen=True)
class Frontier:
    """All refinements of a posterior that were tried, and the best refinement within a time limit.

    Attributes:
        trials: all trials, from the fastest to the slowest. `encoder` is one of them.
        limit: the time limit in milliseconds per example.
        winner: the trial of the best refinement within the limit, or `encoder`; see `tune`.
        encoder: the trial of the encoder's own posterior, without refinement.
    """

    trials: list[Trial]
    limit: float
    winner: Trial
    encoder: Trial

    def __str__(self) -> str:
        """One line for each trial: milliseconds per example, IWAE bound, and kind of refinement."""
        lines = ["ms per example  bound (nats)  inference"]
        for trial in self.trials:
            bound = "too slow" if trial.bound is None else f"{trial.bound:.2f}"
            mark = "  <- chosen" if trial is self.winner else ""
            lines.append(f"{trial.milliseconds:14.4f}  {bound:>12}  {_name(trial)}{mark}")
        return "\n".join(lines)

    @property
    def reason(self) -> str:
        """A text for the user that says why `winner` was chosen."""
        clear = f"clear means more than {SETTLED:g} standard errors"
        first = _fastest_clear(self.encoder, self.within_limit)
        if first is None:
            return (
                "no refinement within the limit has a clear gain in the IWAE bound over the encoder; "
                f"{clear}"
            )
        if first is self.winner:
            return (
                "the fastest refinement that is clearly above the encoder and not clearly below the "
                f"best; {clear}"
            )
        return (
            f"faster and higher than {_name(first)}, the fastest refinement that is clearly above the "
            f"encoder and not clearly below the best; {clear}"
        )

    @property
    def within_limit(self) -> list[Trial]:
        """The trials with refinement that have an IWAE bound and whose time is within the limit."""
        others = [t for t in self.trials if t is not self.encoder and t.bound is not None]
        return [t for t in others if t.milliseconds <= self.limit]

    @property
    def smallest_budget(self) -> float | None:
        """Time of the fastest trial with refinement, divided by the time without refinement.

        None if no trial has refinement.
        """
        times = [t.milliseconds for t in self.trials if t.inference.refine]
        return min(times) / self.encoder.milliseconds if times else None

    @property
    def efficient(self) -> list[Trial]:
        """The trials that have a higher IWAE bound than every faster trial, from fast to slow."""
        found: list[Trial] = []
        for trial in self.trials:
            if trial.mean > (found[-1].mean if found else -math.inf):
                found.append(trial)
        return found


def candidates(
    method: Method, steps: Iterable[int] = STEPS, base: Inference | None = None
) -> list[Inference]:
    """Return the inference settings to try: no refinement, and each kind with each number of steps.

    A kind of refinement is left out if the model does not allow it, or if the latent dimension is too
    large for it.

    Args:
        steps: numbers of refinement steps to try.
        base: inference settings whose other options, such as the calibration, are used in all results;
            None for the default options. If `base` has refinement steps, it is tried too.
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
    budget: float | str | None = None,
    milliseconds: float | None = None,
    samples: int = 100,
    seed: int = 0,
    memory: int | None = None,
    base: Inference | None = None,
    tried: Iterable[Inference] | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Frontier:
    """Measure time and IWAE bound of several refinements, and choose the best within a time limit.

    Only refinements within the limit are compared. First, the fastest refinement is found whose bound
    is clearly above that of the encoder's own posterior, and not clearly below that of the best
    refinement. A difference is clear if it is larger than two standard errors. The winner is the
    refinement with the highest bound among this one and all faster refinements. If no refinement is
    clearly above the encoder's own posterior, the winner is the encoder's own posterior, even if it
    takes longer than the limit.

    Args:
        x: validation examples (B, *shape) on the method's device, at least 2.
        budget: the limit as a multiple of the time of the encoder's own posterior, at least 1.
        milliseconds: the limit in milliseconds per example; give this or `budget`.
        base: inference settings whose other options, such as the calibration, all refinements use.
        tried: the inference settings to try; by default all `candidates`.
        report: function that is called with the number of measurements done and of all measurements.
    """
    budget, milliseconds = read_limit(budget, milliseconds)
    if len(x) < 2:
        raise ConfigError(f"the choice needs at least 2 validation examples, got {len(x)}")
    plain = _without(base or Inference())
    others = candidates(method, base=base) if tried is None else tried
    wanted = [plain, *(one for one in others if one != plain)]
    batch = x[: min(BATCH, at_once(method.model, memory))]
    times = _milliseconds(method, batch, wanted, budget=budget, limit=milliseconds, report=report)
    limit = milliseconds if milliseconds is not None else (budget or 1.0) * times[0]
    start = iwae_at_seed(method, x, plain, samples, seed, memory)
    encoder = Trial(plain, times[0], float(start.mean()), 0.0, start)
    trials = [encoder]
    for inference, taken in zip(wanted[1:], times[1:], strict=True):
        report(len(wanted) + len(trials), 2 * len(wanted))
        trial = Trial(inference, taken)
        if taken <= TOO_SLOW * limit:
            found = iwae_at_seed(method, x, inference, samples, seed, memory)
            error = _standard_error(found - start)
            trial = replace(trial, bound=float(found.mean()), standard_error=error, examples=found)
        trials.append(trial)
    report(2 * len(wanted), 2 * len(wanted))
    measured = Frontier(sorted(trials, key=lambda t: t.milliseconds), limit, encoder, encoder)
    return replace(measured, winner=_winner(encoder, measured.within_limit))


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
    """Choose the best kind of refinement for a number of steps, by the IWAE bound.

    The search begins without refinement, and tries the kinds one after the other. A kind replaces the
    best one so far if it raises the bound by more than twice the standard error of the gain. If no kind
    does this, the result has no refinement.

    Args:
        x: validation examples (B, *shape) on the method's device.
        steps: number of refinement steps. If it is 0, the result has no refinement.
        base: inference settings whose other options, such as the calibration, all refinements use.
    """
    best = _without(base or Inference())
    if not steps:
        return best
    bound = iwae_at_seed(method, x, best, samples, seed, memory)
    for inference in candidates(method, [steps], best)[1:]:
        found = iwae_at_seed(method, x, inference, samples, seed, memory)
        if _clearly_above(found, bound):
            best, bound = inference, found
    return best


def without_calibration(inference: Inference) -> Inference:
    """Return the same inference settings without calibration of the posterior.

    The noise of the likelihood stays: it is part of the model p(x).
    """
    return replace(inference, scale=1.0, slope=0.0, reference=0.0)


def with_calibration_of(used: Inference, chosen: Inference) -> Inference:
    """Return the settings `chosen`, with the calibration of `used` if both refine in the same way.

    A calibration is chosen for one refinement. With another refinement it has no meaning.

    >>> with_calibration_of(Inference(refine=2, scale=1.5), Inference(refine=2)).scale
    1.5
    >>> with_calibration_of(Inference(refine=2, scale=1.5), Inference(refine=4)).scale
    1.0
    """
    same = without_calibration(used).key == chosen.key
    return used if used.calibrated and same else chosen


def read_limit(
    budget: float | str | None, milliseconds: float | None
) -> tuple[float | None, float | None]:
    """Check that exactly one of two time limits is given; return (budget, milliseconds) as numbers.

    The limit that is not given is None.

    >>> read_limit("3x", None)
    (3.0, None)

    Args:
        budget: a multiple of the time of the encoder's own posterior, such as 3 or ``3x``.
    """
    if (budget is None) == (milliseconds is None):
        raise ConfigError(
            "give a time limit: a budget (--budget), such as 100 for 100 times the encoder's time, or "
            "milliseconds (--milliseconds) per example, but not both"
        )
    given = budget if milliseconds is None else milliseconds
    if isinstance(budget, str):
        try:
            given = float(budget.strip().lower().removesuffix("x"))
        except ValueError:
            given = math.nan
    if not (isinstance(given, int | float) and math.isfinite(given) and given > 0):
        found = shown(budget if milliseconds is None else milliseconds)
        raise ConfigError(
            f"the time limit must be a positive number such as 3, got {found}: budget is a multiple of "
            "the encoder's time, and milliseconds is the time for one example"
        )
    if milliseconds is not None:
        return None, given
    if given < 1:
        raise ConfigError(
            f"the budget must be at least 1, the time of the encoder's own posterior, got {given:g}"
        )
    return given, None


def _without(inference: Inference) -> Inference:
    """Return the same inference settings without refinement."""
    return replace(inference, refine=0, how=Inference().how)


def _winner(encoder: Trial, others: list[Trial]) -> Trial:
    """Choose the winner as described in `tune`: one of the trials `others`, or `encoder`.

    `others` are the trials with refinement that are within the time limit.
    """
    first = _fastest_clear(encoder, others)
    if first is None:
        return encoder
    return max((t for t in others if t.milliseconds <= first.milliseconds), key=lambda t: t.mean)


def _fastest_clear(encoder: Trial, others: list[Trial]) -> Trial | None:
    """Return the fastest trial that is clearly above `encoder` and not clearly below the best trial.

    The trials in `others` are compared by their IWAE bounds. The result is None if no trial is clearly
    above `encoder`.
    """
    better = [t for t in others if _clearly_above(t.examples, encoder.examples)]
    if not better:
        return None
    best = max(better, key=lambda t: t.mean)
    good = [t for t in better if not _clearly_above(best.examples, t.examples)]
    return min(good, key=lambda t: t.milliseconds)


def _name(trial: Trial) -> str:
    """Return the kind of refinement and the number of steps as text, such as ``variational 4``."""
    inference = trial.inference
    return f"{inference.how} {inference.refine}" if inference.refine else "encoder"


def _clearly_above(one: Tensor | None, two: Tensor | None) -> bool:
    """Whether the bounds `one` (B,) are clearly above the bounds `two` (B,) of the same examples.

    The mean gain over examples must be more than `SETTLED` times its standard error. The bounds of both
    trials must have been computed: None raises an AssertionError.
    """
    assert one is not None
    assert two is not None
    gain = one - two
    return float(gain.mean()) > SETTLED * _standard_error(gain)


def _standard_error(gain: Tensor) -> float:
    """The standard error of the mean of `gain` (B,)."""
    return float(gain.std()) / math.sqrt(len(gain)) if len(gain) > 1 else 0.0


def _milliseconds(
    method: Method,
    x: Tensor,
    inferences: list[Inference],
    *,
    budget: float | None,
    limit: float | None,
    report: Callable[[int, int], None],
) -> list[float]:
    """Measure the median time to compute the posterior of the batch x with each inference.

    The times are in milliseconds per example. The inferences take turns, so that another program that
    runs for a while slows all of them.

    Args:
        x: examples (B, *shape).
        inferences: the inferences; the first is the encoder's own posterior.
        budget: the time limit as a multiple of the time of the first inference, or None.
        limit: the time limit in milliseconds per example, if there is no budget.
        report: function that is called with the number of inferences done, and with twice the number
            of all inferences.
    """
    first: list[float] = []
    for done, inference in enumerate(inferences, 1):
        _once(method, x, inference)
        first.append(_once(method, x, inference))  # both calls prepare caches and CUDA graphs
        report(done, 2 * len(inferences))
    most = HOPELESS * (limit if limit is not None else (budget or 1.0) * first[0])
    times = [[taken] for taken in first]
    timed = [i for i, taken in enumerate(first) if i == 0 or taken <= most]
    while (count := len(times[0]) - 1) < REPEATS or (
        sum(times[0]) * len(x) < ENOUGH and count < MOST_REPEATS
    ):
        for i in timed:
            if count < REPEATS or sum(times[i]) * len(x) < ENOUGH:
                times[i].append(_once(method, x, inferences[i]))
    return [statistics.median(taken[1:] or taken) for taken in times]


def _once(method: Method, x: Tensor, inference: Inference) -> float:
    """Compute the posterior of the batch x once. Return the time in milliseconds per example."""
    wait = torch.cuda.synchronize if x.is_cuda else lambda: None
    wait()
    start = time.perf_counter()
    infer_no_grad(method, x, inference)
    wait()
    return 1e3 * (time.perf_counter() - start) / len(x)
