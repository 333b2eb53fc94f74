"""The class `Inference`: the settings of the refinement and the calibration of posteriors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from recmix.errors import ConfigError
from recmix.model.options import Option, Options, option, options_of

if TYPE_CHECKING:
    from torch import Tensor

    from recmix.model.latent import LatentModel
    from recmix.posteriors.posterior import Posterior

__all__ = ["UNCALIBRATED", "Inference"]

REFINEMENT = {
    "gauss-newton": ("refine", "reuse", "restarts", "checks"),
    "learned": ("refine", "restarts", "checks"),
    "variational": ("refine", "reuse", "checks"),
    "conjugate": ("refine", "checks"),
}
"""The options that each kind of refinement uses."""
NOT_TRACEABLE = ("conjugate",)
"""Kinds of refinement whose steps `torch.export` cannot trace."""
CALIBRATION = ("scale", "slope", "reference")
UNCALIBRATED: dict[str, Any] = {"scale": 1.0, "slope": 0.0, "reference": 0.0, "noise": 1.0}
"""The options that a calibration chooses, with the values that change nothing."""


@dataclass(frozen=True, kw_only=True)
class Inference(Options):
    """The settings that say how a posterior q(z | x) is refined and then calibrated.

    Refinement makes a few steps from the mean of each component of q, and replaces the component by a
    better Gaussian. An example keeps its q if its estimated ELBO would become lower. Calibration
    multiplies the standard deviations by a factor that was chosen on validation data. The noise of the
    likelihood can be calibrated too; this changes the model of the data. By default nothing is changed.

    A call returns the improved posterior: ``inference(model, x, q)``.

    >>> Inference(refine=2).changed()
    {'refine': 2}
    >>> Inference(refine=2).key, Inference(reuse=5).key
    ('gauss-newton,refine=2,reuse=2,restarts=1,checks=1', '')
    """

    how: str = option(
        "gauss-newton",
        "Kind of refinement. gauss-newton: Laplace approximation, with exact Jacobians. learned: the "
        "same with the curvature from a network (method curvature); one gradient a step. variational: "
        "raises the ELBO itself, for any likelihood. conjugate: without matrices, for a latent space "
        "of any size; gives a diagonal Gaussian.",
        choices=list(REFINEMENT),
    )
    refine: int = option(
        0, "Refinement steps for each example, such as 1, 2 or 4.", at_least=0, at_most=1000
    )
    reuse: int = option(
        2,
        "gauss-newton and variational: extra steps after each step that use the same curvature.",
        at_least=0,
    )
    restarts: int = option(
        1,
        "Starting points for each example: the encoder's mean times 1, 0.8, 1.2, 0.6, 1.4 and so on. "
        "The result with the highest estimate of log p(x) is used. Also for residual corrections.",
        at_least=1,
        at_most=9,
    )
    checks: int = option(
        1,
        "Pairs of points at which the ELBO before and after refinement is compared for each example, "
        "to keep the better posterior. 0: no check.",
        at_least=0,
        at_most=64,
    )
    scale: float = option(1.0, "Factor of the posterior's standard deviations.", above=0)
    slope: float = option(0.0, "Log-scale added per nat that log p(x, mean) lies below the reference.")
    reference: float = option(0.0, "The log p(x, mean), in nats, at which `scale` applies.")
    noise: float = option(
        1.0,
        "Factor of the likelihood's noise: variance, or temperature of the logits. Changes p(x).",
        above=0,
    )

    def __call__(self, model: LatentModel, x: Tensor, q: Posterior) -> Posterior:
        """The posterior q, refined and then calibrated.

        Args:
            model: the model p(x, z).
            x: examples (B, *shape).
            q: the posterior that the encoder gives for x.
        """
        from recmix.inference.improve import improve

        return improve(self, self.model(model), x, q)

    def model(self, model: LatentModel) -> LatentModel:
        """The model p(x, z), with the noise of its likelihood multiplied by the option `noise`.

        Bounds of log p(x) must be computed with the returned model if these settings are used.
        """
        return model if self.noise == 1 else model.with_noise(self.noise)

    @property
    def uncalibrated(self) -> Inference:
        """A copy of these settings with the same refinement and without calibration."""
        return replace(self, **UNCALIBRATED)

    @property
    def for_training(self) -> Inference:
        """A copy of these settings for training: without calibration, and with `checks` = 0.

        With `checks` = 0 the refined posterior is always used. Its ELBO is not compared with the ELBO
        before the refinement.
        """
        return replace(self.uncalibrated, checks=0)

    @property
    def in_training(self) -> Inference:
        """The settings with which training computes posteriors and selects the best epoch.

        If `refine` is above 0, the result is `for_training`. Otherwise it is the default `Inference`,
        without refinement.
        """
        return self.for_training if self.refine else Inference()

    @property
    def traceable(self) -> bool:
        """Whether `torch.export` can trace the refinement, so that it can be exported."""
        return not self.refine or self.how not in NOT_TRACEABLE

    @property
    def calibrated(self) -> bool:
        """Whether calibration changes the standard deviations of the posterior."""
        return self.scale != 1 or self.slope != 0

    @property
    def key(self) -> str:
        """These settings as one line of text, for the names of evaluation results.

        The text is empty if the settings do not change the posterior.
        Options without effect are left out, so two objects with the same effect have the same key.
        More than one restart is always named, because residual corrections use restarts.
        """
        shown: list[str] = []
        used = REFINEMENT[self.how] if self.refine else ()
        if self.refine:
            named = [name for name in used if name != "checks" or self.checks]
            shown += [self.how, *(f"{name}={getattr(self, name)}" for name in named)]
        if self.restarts > 1 and "restarts" not in used:
            shown.append(f"restarts={self.restarts}")
        if self.calibrated:
            shown += [f"{name}={getattr(self, name)!r}" for name in CALIBRATION]
        if self.noise != 1:
            shown.append(f"noise={self.noise!r}")
        return ",".join(shown)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Inference:
        """Make the `Inference` with the options that were stored in a file, {name: value}.

        If `checks` is missing, it becomes 0, because the file is from a version without this option.
        """
        return cls(**{"checks": 0} | dict(stored))

    @classmethod
    def from_key(cls, key: str) -> Inference:
        """Make the `Inference` whose property `key` is this text.

        >>> Inference.from_key("gauss-newton,refine=4,reuse=0,restarts=3").refine
        4
        """
        known: dict[str, Option] = options_of(cls)
        found: dict[str, Any] = {"checks": 0} if key.partition(",")[0] in REFINEMENT else {}
        for part in filter(None, key.split(",")):
            name, equals, value = part.partition("=")
            if not equals:
                name, value = "how", part
            if name not in known:
                raise ConfigError(f"{key!r} does not name an inference: {part!r} is not an option of it")
            found[name] = known[name].read(value)
        return cls(**found)
