"""`Gap`: the difference between log p(x) and a posterior's ELBO, divided by its causes.

    log p(x) - L_q  =  (log p(x) - L*)     +  (L* - L_q)
    total              approximation gap      amortisation gap

L_q is the ELBO of the method's posterior. L* is the ELBO of the best member of its family, optimised for
each example. Reference: Cremer, Li & Duvenaud, Inference suboptimality in variational
autoencoders, ICML 2018.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

__all__ = ["QUANTITIES", "Gap", "with_error"]

SMALL_TOTAL = 1.0
"""A total gap below this value, in nats, is not worth reducing."""
SIGNIFICANT = 3.0
"""A difference counts if it is more than this many standard errors."""
NEGLIGIBLE = 0.05
"""A difference of two estimates of log p(x) below this value, in nats, does not count."""
WORTH_IT = 0.1
"""Share of the total gap that a refinement must gain."""
SIMPLER = 0.8
"""Gauss-Newton refinement is advised if it gains at least this share of what the best kind gains."""

QUANTITIES = {
    "log_evidence": "log p(x)",
    "elbo": "ELBO of the method's posterior",
    "diagonal": "ELBO of the best diagonal Gaussian",
    "full": "ELBO of the best full Gaussian",
    "approximation": "approximation gap",
    "approximation_full": "approximation gap of a full Gaussian",
    "amortisation": "amortisation gap",
    "total": "total gap",
}
"""The quantities of a summary, with their names in tables."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Gap:
    """The gap between log p(x) and the ELBO on N examples, and its two parts, in nats per example.

    L_q is the ELBO of the method's posterior. L* is the highest ELBO that a Gaussian of `family`
    reaches, optimised for each example. log p(x) - L* is the approximation gap, L* - L_q the
    amortisation gap.

    Args:
        name: name of the examples: test, train …
        family: the Gaussians that L* is optimised over, ``diagonal`` or ``full``.
        exact: whether the posterior is a Gaussian of `family`. If not (mixtures, flows), the family of
            the posterior is larger. Then the approximation gap given here is at least the true gap. The
            amortisation gap given here is at most the true gap and can be negative.
        elbo: L_q, (N,).
        diagonal: the ELBO of the best diagonal Gaussian, (N,).
        full: the ELBO of the best full Gaussian, (N,).
        log_evidence: log p(x), estimated by importance sampling around the best Gaussian, (N,).
        checked: indices of the n examples whose log p(x) was checked, (n,).
        annealed: log p(x) of the checked examples by annealed importance sampling, (n,).
        train: the gap on training examples, to compare with; None if it was not measured.
        refined: {kind of refinement: ELBO after two steps of this refinement, (N,)}. Empty if the
            posterior is refined already.
        used: what the posterior already uses, such as ``refinement`` or ``residual corrections``. The
            advice does not recommend these again.

    >>> import torch
    >>> one = torch.ones(3)
    >>> found = Gap(
    ...     name="test", family="diagonal", exact=True, elbo=-90 * one, diagonal=-86 * one,
    ...     full=-85 * one, log_evidence=-85 * one, checked=torch.arange(1), annealed=-85 * one[:1],
    ... )
    >>> found.summary()["test"]["amortisation"]
    {'mean': 4.0, 'se': 0.0}
    """

    name: str
    family: str
    exact: bool
    elbo: Tensor
    diagonal: Tensor
    full: Tensor
    log_evidence: Tensor
    checked: Tensor
    annealed: Tensor
    train: Gap | None = None
    refined: Mapping[str, Tensor] = field(default_factory=dict)
    used: tuple[str, ...] = ()

    @property
    def best(self) -> Tensor:
        """The highest ELBO that a Gaussian of `family` reaches for each example, (N,)."""
        return self.diagonal if self.family == "diagonal" else self.full

    @property
    def approximation(self) -> Tensor:
        """The approximation gap of each example, (N,): log p(x) minus the ELBO of the best Gaussian.

        The best Gaussian of `family` is optimised for each example.
        """
        return self.log_evidence - self.best

    @property
    def approximation_full(self) -> Tensor:
        """log p(x) minus the ELBO of the best full Gaussian, for each example, (N,).

        This is the approximation gap of the family of full Gaussians, for any `family`.
        """
        return self.log_evidence - self.full

    @property
    def amortisation(self) -> Tensor:
        """The amortisation gap of each example, (N,): what the encoder loses against the best Gaussian.

        It is the ELBO of the best Gaussian of `family` minus the ELBO of the method's posterior.
        """
        return self.best - self.elbo

    @property
    def total(self) -> Tensor:
        """The total gap of each example, (N,): log p(x) minus the ELBO of the method's posterior."""
        return self.log_evidence - self.elbo

    def summary(self) -> dict[str, Any]:
        """Return means over examples and their standard errors.

        The result is {name: {quantity: {"mean": ..., "se": ...}}}. The name is the name of the examples,
        such as ``test``. The quantities are the keys of `QUANTITIES`, such as ``elbo``. If the gap was
        also measured on training examples, there are two more names: ``train``, and ``difference`` for
        the means minus those of the training examples.
        """
        found: dict[str, Any] = {self.name: self._means()}
        if self.train is not None:
            mine, theirs = found[self.name], self.train._means()
            found[self.train.name] = theirs
            found["difference"] = {
                key: {
                    "mean": mine[key]["mean"] - theirs[key]["mean"],
                    "se": (mine[key]["se"] ** 2 + theirs[key]["se"] ** 2) ** 0.5,
                }
                for key in QUANTITIES
            }
        return found

    def check(self) -> dict[str, Any] | None:
        """Compare the estimates of log p(x) with those of annealed importance sampling.

        Returns:
            {"images": number of checked examples, "log_evidence": mean of the estimates, "annealed":
            mean by annealed importance sampling, "difference": mean difference, "agrees": bool}. Each
            mean is {"mean": ..., "se": standard error}. ``agrees`` is False if the difference is larger
            than 3 standard errors and larger than 0.05 nats, or if only one example was checked. The
            result is None if no example was checked.
        """
        if not len(self.checked):
            return None
        used = self.log_evidence[self.checked]
        difference = _mean(self.annealed - used)
        limit = max(SIGNIFICANT * difference["se"], NEGLIGIBLE)
        return {
            "images": len(self.checked),
            "log_evidence": _mean(used),
            "annealed": _mean(self.annealed),
            "difference": difference,
            "agrees": abs(difference["mean"]) <= limit,
        }

    @property
    def advice(self) -> str:
        """Advice on how to reduce the gap between the ELBO and log p(x), with Python calls."""
        refine, variational = "model.refined(2)", 'model.refined(2, how="variational")'
        tune = "model.tuned(x_val, milliseconds=2)"
        return self.advice_for(refine, "gap(x, train=...)", variational, tune)

    def advice_for(
        self, refine: str, train: str, variational: str = "", tune: str = "recmix tune"
    ) -> str:
        """Advice on how to reduce the gap between the ELBO and log p(x), in one or two sentences.

        The first rule that applies determines the advice:

        1. The total gap is below 1 nat: nothing is worth doing.
        2. The approximation gap is at least as large as the amortisation gap: use a richer posterior.
           If a full Gaussian closes at least half of the approximation gap, the advice names it.
           Otherwise the advice names a mixture or a flow.
        3. The gap was not measured on training examples: improve the encoder or refine the posterior,
           and measure the gap on training examples too.
        4. The amortisation gap is at least 1.5 times that of the training examples, and the difference
           is more than 3 standard errors: the encoder does not generalise.
        5. Otherwise the encoder is too weak, on training examples too.

        Rules 3 to 5 also recommend a refinement of the posterior. If the posterior is refined already,
        this is more steps. If the best kind of refinement in `refined` gains less than a tenth of the
        total gap, it is a search for a refinement with `tune`. Otherwise it is Gauss-Newton refinement
        if this gains at least 0.8 times as much as the best kind, else variational refinement.

        Args:
            refine: the Python call or command that the text recommends for refinement.
            train: the same for measuring the gap on training examples.
            variational: the same for variational refinement; by default `refine` with the option
                ``--how variational``.
            tune: the same for choosing a refinement on validation data.
        """
        mine = {key: value["mean"] for key, value in self._means().items()}
        total, lost, left = mine["total"], mine["amortisation"], mine["approximation"]
        if total < SMALL_TOTAL:
            return (
                f"Nothing is worth doing: {total:.2f} nats are lost in total, and a loss below "
                f"{SMALL_TOTAL:g} nat is small."
            )
        if left >= lost:
            left = min(left, total)  # a mixture may be better than every Gaussian
            closed = left - mine["approximation_full"]
            if closed >= 0.5 * left:
                kind = f"a full covariance gains {closed:.1f} nats of it"
            else:
                kind = "a mixture or a flow may do better"
            start = (
                f"{left:.1f} of {total:.1f} nats are lost because no {self.family} Gaussian fits better"
            )
            if not self.exact:
                start = f"up to {left:.1f} of {total:.1f} nats are lost because the family is too small"
            return f"Use a richer posterior: {start}; {kind}."
        variational = variational or f"{refine} --how variational"
        refinement = self._refinement(refine, variational, tune, total)
        correction = ", residual corrections"
        if "residual corrections" in self.used:
            correction = ""
        least = "" if self.exact else "at least "
        start = f"{least}{lost:.1f} of {total:.1f} nats are lost by the encoder"
        if self.train is None:
            return (
                f"Use a better encoder or {refinement}: {start}. "
                f"Measure training examples too ({train}) to see whether it generalises."
            )
        between = self.summary()["difference"]["amortisation"]
        theirs = self.train._means()["amortisation"]["mean"]
        if lost >= 1.5 * theirs and between["mean"] > SIGNIFICANT * between["se"]:
            return (
                f"The encoder does not generalise: {start}, against {theirs:.1f} on training examples. "
                f"Use {refinement}{correction} or augmented training data; "
                "a richer posterior will not help."
            )
        return (
            f"Use a wider encoder, longer training or {refinement}: {start}, "
            f"and {theirs:.1f} on training examples."
        )

    def _refinement(self, refine: str, variational: str, tune: str, total: float) -> str:
        """The words that recommend a refinement in the text of `advice_for`.

        `total` is the mean total gap in nats. The other arguments are those of `advice_for`.
        """
        if "refinement" in self.used:
            return "more refinement steps"
        gains = {how: float((values - self.elbo).mean()) for how, values in self.refined.items()}
        if not gains:
            return f"refinement ({refine})"
        best = max(gains.values())
        if best < WORTH_IT * total:
            return f"another refinement ({tune}; two steps gain little here)"
        if gains["gauss-newton"] >= SIMPLER * best:
            return f"refinement ({refine}, {gains['gauss-newton']:.1f} nats)"
        return f"refinement ({variational}, {best:.1f} nats)"

    def to_json(self) -> dict[str, Any]:
        """Return means over examples, checks of log p(x), advice and all values, as a dict for JSON."""
        return {
            "family": self.family,
            "exact": self.exact,
            "summary": self.summary(),
            "check": {part.name: part.check() for part in self._parts()},
            "advice": self.advice,
            "images": {part.name: part._values() for part in self._parts()},
        }

    def __str__(self) -> str:
        """The gap as text: a table of means over examples, the notes, and advice to reduce the gap."""
        parts = self.summary()
        lines = [["nats per example", *parts]]
        for key, words in QUANTITIES.items():
            cells = [with_error(part[key]["mean"], part[key]["se"]) for part in parts.values()]
            lines.append([words, *cells])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        rows = [
            "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
            for line in lines
        ]
        return "\n".join([*rows, *self.notes(), self.advice])

    def notes(self) -> list[str]:
        """Lines of text below the table of gaps.

        They say whether the best Gaussian was searched among diagonal or among full Gaussians, and
        whether the two estimates of log p(x) agree.
        """
        lines = [f"Approximation and amortisation gap refer to {self.family} Gaussians."]
        if not self.exact:
            lines[0] += (
                " The posterior's own family is larger: its approximation gap is at most, and its "
                "amortisation gap at least, the value given."
            )
        for part in self._parts():
            if (found := part.check()) is None:
                continue
            by, error = found["difference"]["mean"], found["difference"]["se"]
            verdict = "they agree" if found["agrees"] else "they DISAGREE: do not trust log p(x)"
            if not math.isfinite(error):
                verdict = "one example cannot show whether they agree"
            lines.append(
                f"Annealed importance sampling on {found['images']} {part.name} examples differs by "
                f"{with_error(by, error, '+.3f')} nats from this estimate of log p(x): {verdict}."
            )
        return lines

    def _parts(self) -> list[Gap]:
        return [self] if self.train is None else [self, self.train]

    def _means(self) -> dict[str, dict[str, float]]:
        return {key: _mean(getattr(self, key)) for key in QUANTITIES}

    def _values(self) -> dict[str, list[float]]:
        names = ("elbo", "diagonal", "full", "log_evidence", "checked", "annealed")
        return {name: getattr(self, name).tolist() for name in names}


def with_error(mean: float, error: float, form: str = ".2f") -> str:
    """A mean with its standard error, as text. The error is left out if it is NaN, as for one example.

    `form` is the format of the numbers, such as ``.2f``.

    >>> with_error(1.5, 0.1), with_error(1.5, math.nan, "+.3f")
    ('1.50 ± 0.10', '+1.500')
    """
    return f"{mean:{form}}" + (f" ± {error:{form.lstrip('+')}}" if math.isfinite(error) else "")


def _mean(values: Tensor) -> dict[str, float]:
    """Return {"mean": mean over examples, "se": its standard error, NaN for one example}."""
    values = values.double()
    error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return {"mean": float(values.mean()), "se": error}
