"""Choose the number of mixture components of the posterior (``order = "auto"``).

Components are added one at a time until the gain of the next one is not significant.

One step trains two mixtures from the same weights for the same number of epochs. The first is the
present mixture, trained further (the control). The second has one more component. One half of the
validation examples selects the best epoch of each mixture. On the other half, the larger mixture is
compared in two one-sided paired tests, and both must be significant:

- with the control. This shows that the gain does not come from longer training.
- with the larger mixture without its new component. This shows that the gain comes from the
  component. Without this test, it could come from the randomness of one training, which changes a
  model by more than the standard error over examples.

If both tests are significant, the next step starts from the larger mixture. If not, the control is
the result.

The trained mixtures depend only on the training examples and the first half of the validation
examples. The second half only decides where to stop. So this is a fixed sequence of tests that ends
at the first failure. The probability of adding too many components is at most the significance
level of one test (Maurer, Hothorn & Lehmacher, Multiple comparisons in drug clinical trials and
preclinical assays: a-priori ordered hypotheses, 1995).
"""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import stdtr

from recmix.data import Data, Examples
from recmix.errors import ConfigError, Interrupted, NonFiniteError
from recmix.evaluation import bounds
from recmix.inference import Inference
from recmix.methods.method import Method
from recmix.runs.files import write_json
from recmix.runs.folder import Run
from recmix.runs.spec import Spec
from recmix.training.batches import mix
from recmix.training.build import Trained
from recmix.training.checkpoint import save_weights
from recmix.training.progress import say
from recmix.training.world import world

__all__ = ["Step", "choose_order", "gains", "halves", "judge"]

SEED = 20201207
SAMPLES = 100
"""Samples of each posterior for each example in a test."""
AT_ONCE = 500
FEWEST = 20
"""Smallest number of validation examples for a test."""


class Step(NamedTuple):
    """The result of testing whether one more mixture component improves the model.

    The control is the mixture without the new component, trained for the same number of epochs.

    Attributes:
        order: number of components, including the new one.
        gain: IWAE bound of the larger mixture minus that of the control, mean over examples, in
            nats.
        error: standard error of `gain`.
        own: IWAE bound of the larger mixture minus that of the same mixture without the new
            component, mean over examples, in nats.
        own_error: standard error of `own`.
        p: the larger of the p-values of the two tests (`gain` above 0, `own` above 0).
        kept: whether `p` is below the significance level, so that the component is kept.

    >>> print(Step(order=2, gain=0.8, error=0.2, own=0.7, own_error=0.1, p=3e-5, kept=True))
    order 2: +0.80 ± 0.20 nats on validation examples, +0.70 ± 0.10 by itself (p = 3e-05), kept
    """

    order: int
    gain: float
    error: float
    own: float
    own_error: float
    p: float
    kept: bool

    def __str__(self) -> str:
        return (
            f"order {self.order}: {_with_error(self.gain, self.error)} nats on validation examples, "
            f"{_with_error(self.own, self.own_error)} by itself (p = {self.p:.1g}), "
            f"{'kept' if self.kept else 'not kept'}"
        )


def halves(examples: Examples) -> tuple[Examples, Examples]:
    """Split the validation examples into two random halves, always in the same way.

    The first half selects the best epochs. The second half is for the significance tests.
    """
    count = len(examples)
    if count < FEWEST:
        raise ConfigError(
            f"order = 'auto' needs at least {FEWEST} validation examples, got {count}: give more, or a "
            "number as the order"
        )
    mixed = np.random.default_rng([SEED, count]).permutation(count)
    middle = (count + 1) // 2
    return examples.subset(np.sort(mixed[:middle])), examples.subset(np.sort(mixed[middle:]))


def gains(
    grown: Method,
    control: Method,
    examples: Examples,
    inference: Inference | None = None,
    *,
    samples: int,
) -> NDArray[np.float64]:
    """Return the IWAE bound of `grown` minus that of `control` for each of N examples, (N,), in nats.

    Both methods get the same noise, so that common errors cancel. The bound is averaged over about
    `SAMPLES` / K repetitions, which reduces its noise. K and the refinement of the posterior are those
    with which the best epoch was selected.

    Args:
        grown: the mixture with the new component.
        control: the mixture to which `grown` is compared.
        inference: how the posterior is refined; None for no refinement.
        samples: K of the IWAE-K bound.
    """
    centre = grown.model.centre
    repetitions = max(1, SAMPLES // samples)
    found = []
    for start in range(0, len(examples), AT_ONCE):
        x = torch.from_numpy(examples[start : start + AT_ONCE]).to(centre.device, centre.dtype)
        total = torch.zeros(len(x), dtype=torch.float64)
        for repetition in range(repetitions):
            for method, sign in ((grown, 1), (control, -1)):
                noise = torch.Generator(centre.device).manual_seed(mix(SEED, start, repetition))
                bound = bounds(method, x, inference, samples=samples, generator=noise).iwae
                total += sign * bound.double().cpu()
        found.append(total / repetitions)
    return torch.cat(found).numpy()


def judge(
    order: int, gained: NDArray[np.float64], own: NDArray[np.float64], significance: float
) -> Step:
    """Decide whether a new mixture component is kept: both mean gains must be significantly above 0.

    The gains are those of the IWAE bound. Two tests that must both be significant at one level are again
    a test at that level (an intersection-union test).

    Args:
        order: number of components, including the new one.
        gained: gain over the control for each of N examples, (N,), in nats.
        own: gain over the same mixture without the new component for each example, (N,), in nats.

    >>> clear = np.array([0.5, 0.7, 0.6, 0.8, 0.4])
    >>> judge(2, clear, clear, 0.05).kept, judge(2, clear, -clear, 0.05).kept
    (True, False)
    """
    gain, error, p = _t_test(gained)
    own_gain, own_error, own_p = _t_test(own)
    p = max(p, own_p)
    return Step(order, gain, error, own_gain, own_error, p, p < significance)


def choose_order(
    spec: Spec,
    data: Data,
    init: Trained,
    *,
    method: type[Method],
    run: Run | None,
    resume: bool,
    train_models: Callable[..., list[Trained]],
    progress: bool | None,
) -> Trained:
    """Add mixture components to a trained model, one at a time, while the gain of each is significant.

    See the module's documentation for the procedure. Each step trains two mixtures. Their run
    folders are inside the run folder: ``order_1`` and ``order_2`` for the first step, ``order_2+``
    (two components, trained further) and ``order_3`` for the second step, and so on.

    Args:
        spec: the options of the run. `spec.auto` holds the largest number of components and the
            significance level.
        data: training and validation examples. Test examples are not used.
        init: the trained model from which both mixtures of the first step start.
        train_models: trains the two mixtures of a step, see `recmix.training.fit.train_models`.

    Returns:
        The mixture with the chosen number of components.
    """
    assert spec.auto is not None
    pick, test = halves(data.x_val)
    out = run if world().writer else None
    if out:
        out.set_status("running", epoch=0)
        if not resume:
            for old in out.folder.glob("order_*"):
                Run(old).clear()
    world().wait()
    steps: list[Step] = []
    path: list[Trained] = []
    for order in range(2, spec.auto["max_order"] + 1):
        began = time.monotonic()
        names = [f"order_{order - 1}" + ("+" if order > 2 else ""), f"order_{order}"]
        asked = {
            "method": method,
            "data": data,
            "init": path[-1] if path else init,
            "select_on": pick,
            "resume": resume,
            **spec.options,
            **vars(spec.training) | {"kl_warmup": 0, "free_bits": 0.0},  # of the first model only
            **vars(spec.inference),
            "seed": spec.training.seed if order == 2 else mix(spec.training.seed, order) % 2**31,
        }
        pair = [
            asked | {"order": size, "out": None if run is None else run.folder / name}
            for size, name in zip((order - 1, order), names, strict=True)
        ]
        try:
            control, grown = train_models(pair, progress=progress)
        except Interrupted as stop:
            raise _name_whole_run(stop, out, names) from None
        except NonFiniteError as error:
            if out:
                out.set_status("failed", epoch=0, reason=f"while choosing the order: {error}")
            raise
        samples = spec.training.validation_samples
        without = copy.deepcopy(control.method)
        without.start_from(grown.method)  # all but the last component
        gained, own = (
            gains(grown.method, other, test, spec.inference.in_training, samples=samples)
            for other in (control.method, without)
        )
        found = judge(order, gained, own, spec.auto["significance"])
        step = found._replace(kept=world().any(found.kept and world().writer))
        steps.append(step)
        path.append(grown if step.kept else control)
        say(step, progress)
        if out:
            write_json(out.folder / "order.json", _record(steps, spec, test))
            seconds = round(time.monotonic() - began, 4)
            out.log("order", epoch=sum(len(p.history) for p in path), seconds=seconds, **step._asdict())
        if not step.kept:
            break
    return _finish(spec, steps, path, test, run)


def summary(steps: Sequence[Step]) -> str:
    """Return a text for the user: the result of each step, and the chosen number of components.

    Each step tests whether one more mixture component improves the model.

    Args:
        steps: the steps that were made, at least one. `kept` can be False only in the last step.

    >>> summary([Step(2, 0.0, 0.1, 0.0, 0.1, 0.5, False)])[-17:]
    'not kept: order 1'
    """
    last = steps[-1]
    end = f": order {last.order}, the most allowed" if last.kept else f": order {last.order - 1}"
    return "; ".join(map(str, steps)) + end


def _record(steps: Sequence[Step], spec: Spec, test: Examples) -> dict[str, Any]:
    assert spec.auto is not None
    return {
        "order": steps[-1].order - (not steps[-1].kept),
        "significance": spec.auto["significance"],
        "images": len(test),
        "samples": spec.training.validation_samples,
        "steps": [step._asdict() for step in steps],
    }


def _finish(
    spec: Spec, steps: Sequence[Step], path: Sequence[Trained], test: Examples, run: Run | None
) -> Trained:
    """Return the chosen mixture with the history of all steps, and write it into the run folder.

    Args:
        path: the mixture that was chosen in each step. The last of them is the result.
        test: the validation examples of the significance tests.
    """
    assert spec.auto is not None
    chosen = path[-1]
    why = summary(steps)
    spec = dataclasses.replace(spec, options=chosen.spec.options, auto=spec.auto | {"why": why})
    history: list[dict[str, float]] = []
    best_epoch = 0
    for part in path:
        if part.outcome["best_epoch"]:
            best_epoch = len(history) + part.outcome["best_epoch"]
        order = part.spec.options["order"]
        done = len(history)
        history += [row | {"epoch": done + row["epoch"], "order": order} for row in part.history]
    outcome = {
        "epoch": len(history),
        "best_epoch": best_epoch,
        "best_validation": chosen.outcome["best_validation"],
        "reason": why,
    }
    if run and world().writer:
        write_json(run.folder / "spec.json", spec.to_json())
        save_weights(run.weights, chosen.method.state_dict())
        write_json(run.folder / "history.json", history)
        write_json(run.folder / "order.json", _record(steps, spec, test))
        run.set_status("done", **outcome)
        run.log("done", epoch=len(history), reason=why)
        for step in run.folder.glob("order_*"):
            Run(step).checkpoint.unlink(missing_ok=True)  # only unfinished steps need theirs
    world().wait()
    folder = None if run is None else run.folder
    return Trained(chosen.method, spec, history, folder, chosen.vocabulary, outcome)


def _t_test(values: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the mean, its standard error, and the p-value of the one-sided t-test of mean > 0."""
    mean = float(values.mean())
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    constant = 0.0 if mean > 0 else 1.0  # if all values are equal
    return mean, error, float(stdtr(len(values) - 1, -mean / error)) if error > 0 else constant


def _with_error(mean: float, error: float) -> str:
    """Write "mean ± standard error", rounded to two significant digits of the standard error."""
    digits = 2 if error <= 0 else max(0, min(6, 1 - math.floor(math.log10(error))))
    return f"{mean:+.{digits}f} ± {error:.{digits}f}"


def _name_whole_run(stop: Interrupted, run: Run | None, names: Sequence[str]) -> Interrupted:
    """Return `stop` with the folder of the whole run in its message, and mark the run as interrupted.

    Args:
        stop: the error that ended the training of two mixtures. Its message names their folders.
        names: the names of the folders of the two mixtures, inside the folder of `run`.
    """
    if run is None:
        return stop
    run.set_status("interrupted", epoch=0, reason="while choosing the order")
    message = str(stop)
    for name in names:
        message = message.replace(f"{run.folder / name}", f"{run.folder}")
    return Interrupted("\n".join(dict.fromkeys(message.splitlines())))
