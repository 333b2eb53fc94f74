"""The class `ImprovablePosterior`: the part of `Model` that refines and calibrates its posterior."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from numbers import Integral
from typing import Any, Self

from recmix.api.evaluates import evaluates
from recmix.api.trained_posterior import TrainedPosterior
from recmix.errors import ConfigError, check_arguments, shown, unknown
from recmix.evaluation.calibrate import calibrate
from recmix.evaluation.tune import (
    Frontier,
    best_refinement,
    tune,
    with_calibration_of,
    without_calibration,
)
from recmix.inference.inference import REFINEMENT

__all__ = ["ImprovablePosterior"]

FEW = 30
"""Calibration on fewer held-out examples than this gives a warning."""
USERS_LINE = 4
"""`stacklevel` with which a warning in a method names the user's line, such as ``model.refined(2)``. The
decorators of the method are in between."""


class ImprovablePosterior(TrainedPosterior):
    """A trained method whose posterior can be refined, calibrated and tuned; see `recmix.Model`."""

    @check_arguments
    @evaluates
    def refined(
        self,
        steps: int,
        *,
        how: str | None = None,
        restarts: int | None = None,
        reuse: int | None = None,
        checks: int | None = None,
        x: Any = None,
    ) -> Self:
        """The same model with every component of its posterior refined by a few steps.

        Nothing is trained and nothing is copied: the new model shares the weights of this one. If
        an option is None, its present value is kept. A calibration was fitted to the posterior
        before this refinement, so it is removed with a warning: call `calibrated` after `refined`.

        Args:
            steps: refinement steps from each component's mean; 0 removes the refinement.
            how: the kind of refinement: ``gauss-newton``, ``learned``, ``variational``, ``conjugate``
                (see `recmix.Inference`); or ``auto``, which chooses the kind, or none, on the
                validation examples x.
            restarts: number of starting points for each example, 1 to 9. The result with the
                highest estimate of log p(x) is used. A method with residual corrections uses
                restarts even if `steps` is 0.
            reuse: number of cheap extra steps after each step; they use the same curvature matrix.
            checks: number of pairs of points z at which the ELBO of each example is estimated. An
                example whose ELBO is lower than before keeps its old posterior. 0: no comparison.
            x: validation examples, only for ``auto``. Only the first thousand are used.
        """
        if isinstance(steps, bool) or not isinstance(steps, Integral) or steps < 0:
            raise ConfigError(
                f"steps must be a whole number of 0 or more, got {shown(steps)}: try 1, 2 or 4"
            )
        if isinstance(how, str) and how not in (kinds := [*REFINEMENT, "auto"]):
            raise ConfigError(unknown("value of how", how, kinds))
        if how == "auto":
            if x is None:
                raise ConfigError("how = 'auto' chooses on validation examples: give them as x")
            base = without_calibration(self.inference)
            found = best_refinement(self.method, self._first_examples(x), steps, base=base)
            steps, how = found.refine, found.how
        elif x is not None:
            raise ConfigError(f"x is for how = 'auto', got how = {how!r}: leave x out")
        given = {"refine": steps, "how": how, "restarts": restarts, "reuse": reuse, "checks": checks}
        made = self.using(**{name: value for name, value in given.items() if value is not None})
        if not self.inference.calibrated or made.inference.key == self.inference.key:
            return made
        warnings.warn(
            "the model was calibrated without this refinement, so its calibration is removed: call "
            "calibrated(x) after refined()",
            stacklevel=USERS_LINE,
        )
        return made.using(**vars(without_calibration(made.inference)))

    @check_arguments
    @evaluates
    def calibrated(
        self,
        x: Any,
        samples: int = 100,
        *,
        noise: bool = False,
        seed: int = 0,
        memory: int | None = None,
    ) -> Self:
        """The same model with the scale of its posterior chosen on held-out examples.

        Encoders are overconfident on examples that they were not trained on. Two numbers are fitted
        to held-out examples: a factor of the posterior's standard deviations, and how much this
        factor grows for examples that the posterior explains worse. The estimate of the
        log-likelihood improves. The ELBO, for which the encoder was trained, falls.

        Args:
            x: held-out examples that no reported score uses, at least 2, better 30 or more; only
                the first thousand are used.
            samples: K of the IWAE-K bound that is maximised.
            noise: whether the likelihood's noise (its variance, or the temperature of its logits)
                is chosen too. The result is another model of the data: it has another p(x).
            seed: seed of the sampling noise.
            memory: bytes for the decoder's activations at a time; by default a value that suits the
                device.
        """
        examples = self._first_examples(x)
        if len(examples) < 2:
            raise ConfigError(f"calibration needs at least 2 held-out examples, got {len(examples)}")
        if len(examples) < FEW:
            warnings.warn(
                f"{len(examples)} held-out examples are few for a calibration: give at least {FEW}",
                stacklevel=USERS_LINE,
            )
        found = calibrate(
            self.method,
            examples,
            self.inference,
            samples=samples,
            seed=seed,
            memory=memory,
            noise=noise,
        )
        return self.using(**vars(found.inference))

    @check_arguments
    @evaluates
    def frontier(
        self,
        x: Any,
        *,
        budget: float | str | None = None,
        milliseconds: float | None = None,
        samples: int = 100,
        seed: int = 0,
        memory: int | None = None,
        report: Callable[[int, int], None] = lambda done, total: None,
    ) -> Frontier:
        """Measure the time and the IWAE-K bound of many refinements of the posterior on this machine.

        All are measured without the calibration of this model, which was chosen for one refinement. The
        arguments are those of `tuned`.

        Returns:
            All measured refinements, and the best one within the time limit.
        """
        return tune(
            self.method,
            self._first_examples(x),
            budget=budget,
            milliseconds=milliseconds,
            samples=samples,
            seed=seed,
            memory=memory,
            base=without_calibration(self.inference),
            report=report,
        )

    @check_arguments
    @evaluates
    def tuned(
        self,
        x: Any,
        *,
        budget: float | str | None = None,
        milliseconds: float | None = None,
        samples: int = 100,
        seed: int = 0,
        memory: int | None = None,
        report: Callable[[int, int], None] = lambda done, total: None,
    ) -> Self:
        """The same model with a refinement that is chosen by its IWAE bound within a time limit.

        Only refinements within the limit are considered. Two bounds differ clearly if the difference is
        more than twice its standard error. The first candidate is the fastest refinement that is clearly
        better than none and not clearly worse than the best. It is chosen, unless a faster refinement
        has a higher bound. If no refinement is clearly better than none, the posterior is not refined.

        Refinements are compared without calibration. If `tuned` changes the refinement, it removes the
        calibration of this model with a warning: call `calibrated` after `tuned`.

        Args:
            x: validation examples (B, ...); only the first thousand are used.
            budget: time limit as a multiple of the time of the encoder's own posterior, such as 30
                or "30x". There is a warning if no refinement is fast enough.
            milliseconds: time limit in milliseconds per example; give this or `budget`.
            samples: K of the IWAE-K bound.
            seed: seed of the sampling noise.
            memory: bytes for the decoder's activations at a time; by default a value that suits the
                device.
            report: function that is called with the number of refinements done and their total.
        """
        how: dict[str, Any] = {"samples": samples, "seed": seed, "memory": memory, "report": report}
        found = self.frontier(x, budget=budget, milliseconds=milliseconds, **how)
        fastest, own = found.smallest_budget, found.encoder.milliseconds
        if fastest is not None and fastest * own > found.limit:
            warnings.warn(
                f"no refinement fits the limit of {found.limit:.3g} ms per example, so the posterior is "
                "not refined: the smallest limit with a refinement is "
                f"budget={math.ceil(1.1 * fastest)}, or milliseconds={1.1 * fastest * own:.3g}",
                stacklevel=USERS_LINE,
            )
        elif not found.winner.inference.refine:
            warnings.warn(
                f"the posterior is not refined: {found.reason}. More examples may decide otherwise",
                stacklevel=USERS_LINE,
            )
        chosen = with_calibration_of(self.inference, found.winner.inference)
        if self.inference.calibrated and not chosen.calibrated:
            warnings.warn(
                "the model was calibrated with another refinement, so its calibration is removed: "
                "call calibrated(x) after tuned()",
                stacklevel=USERS_LINE,
            )
        return self.using(**vars(chosen))
