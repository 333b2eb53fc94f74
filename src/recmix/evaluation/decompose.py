"""Measure a `Gap`, the difference between log p(x) and the ELBO, for each example.

Four numbers are computed for each example: the ELBO of the method's posterior, the highest ELBO of a
diagonal Gaussian and of a full Gaussian (both optimised for this example alone), and an estimate of
log p(x). The ELBO after refinement is measured, too, to recommend a refinement only if it helps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from recmix.errors import ConfigError, NonFiniteError
from recmix.evaluation.annealing import annealed
from recmix.evaluation.bounds import at_once, bounds_of
from recmix.evaluation.gap import Gap
from recmix.evaluation.optimum import as_full, maximise_elbo, modes, noise_pairs, starts_of
from recmix.inference import Inference
from recmix.inference.variational import LARGEST
from recmix.methods.method import Method, infer
from recmix.posteriors import FullGaussian, Gaussian, Mixture, Posterior

__all__ = ["decompose"]

ELBO_SAMPLES = 100
"""Number of samples of z for every ELBO."""
BEST_SHARE = 0.8
"""Share of the samples for log p(x) from the best Gaussian; the rest come from all modes."""
TRIED_STEPS = 2
"""Steps of the refinements that are tried for the advice."""


def decompose(
    method: Method,
    x: Tensor,
    inference: Inference | None = None,
    *,
    name: str = "test",
    samples: int = 1000,
    check: int = 20,
    seed: int = 0,
    memory: int | None = None,
    report: Callable[[int], None] = lambda done: None,
) -> Gap:
    """Measure the gap between the ELBO and log p(x) on examples x, and divide it into two parts.

    The parts are the approximation gap (the posterior family is too small) and the amortisation gap
    (the encoder does not give the best posterior of the family).

    log p(x) is estimated by importance sampling. The proposal is a mixture of the best full
    Gaussian and the Laplace approximations at all modes found. Some examples, evenly spread, are
    checked by annealed importance sampling.

    Args:
        x: examples (B, *shape).
        inference: refinement and calibration of the posterior; None for neither.
        name: name of the examples in the result, such as ``test`` or ``train``.
        samples: importance samples per example for the estimate of log p(x).
        check: largest number of examples whose log p(x) is checked.
        report: function that is called with the number of examples done.
    """
    for word, value, least in (("samples", samples, 2), ("check", check, 0)):
        if not isinstance(value, int) or value < least:
            raise ConfigError(f"{word} must be a whole number, at least {least}; got {value!r}")
    if not len(x):
        raise ConfigError("there are no examples to measure a gap on: give at least one")
    inference = inference or Inference()
    model = inference.model(method.model)
    x = x.to(model.centre)
    count = at_once(model, memory)
    rows = max(1, count // (2 * noise_pairs(model.latent)))
    generator = torch.Generator(x.device).manual_seed(seed)
    picked = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    if check:
        picked[torch.linspace(0, len(x) - 1, min(check, len(x)), device=x.device).round().long()] = True
    kinds = ["gauss-newton", *(["variational"] if model.latent <= LARGEST else [])]
    tried = [replace(inference, how=how, refine=TRIED_STEPS) for how in kinds if not inference.refine]
    found: list[tuple[Tensor, ...]] = []
    family, exact = "diagonal", True
    for start in range(0, len(x), rows):
        part, here = x[start : start + rows], picked[start : start + rows]
        with torch.no_grad():
            q = infer(method, part, inference)
        family, exact = family_of(q)
        own = as_full(q)
        mode, every_mode = modes(model, part, starts_of(q))
        # The same noise for every part, so that results do not depend on the division into parts.
        steps = torch.Generator(x.device).manual_seed(seed + 1)
        begin = [mode] if own is None else [mode, own]
        diagonal = maximise_elbo(model, part, begin, diagonal=True, generator=steps, at_once=count)
        full = maximise_elbo(
            model, part, [*begin, diagonal], diagonal=False, generator=steps, at_once=count
        )
        with torch.no_grad():
            elbos = [
                bounds_of(model, part, one, ELBO_SAMPLES, generator, count).elbo
                for one in (q, diagonal, full)
            ]
            fresh = torch.Generator(x.device).manual_seed(seed + 2)
            elbos += [
                bounds_of(model, part, infer(method, part, one), ELBO_SAMPLES, fresh, count).elbo
                for one in tried
            ]
            proposal = _proposal(full, every_mode)
            evidence = bounds_of(model, part, proposal, samples, generator, count).iwae
        checked = evidence[:0]
        if here.any():
            checked = annealed(
                model,
                part[here],
                FullGaussian(full.mean[here], full.scale_tril[here]),
                generator=generator,
                at_once=count,
            )
        found.append((*elbos, evidence, checked))
        report(min(start + rows, len(x)))
    elbo, diagonal_elbo, full_elbo, *refined, log_evidence, path = (
        torch.cat(column).cpu() for column in zip(*found, strict=True)
    )
    for what, values in (("the ELBO", elbo), ("log p(x)", log_evidence)):
        if bad := int((~values.isfinite()).sum()):
            raise NonFiniteError(
                f"{what} is not a finite number for {bad} of {len(x)} {name} examples: "
                "the gap needs a trained model whose weights are finite"
            )
    return Gap(
        name=name,
        family=family,
        exact=exact,
        elbo=elbo,
        diagonal=diagonal_elbo,
        full=full_elbo,
        log_evidence=log_evidence,
        checked=picked.nonzero().squeeze(-1).cpu(),
        annealed=path,
        refined={one.how: values for one, values in zip(tried, refined, strict=True)},
        used=(
            *(["refinement"] if inference.refine else []),
            *(["residual corrections"] if method.feed_forward else []),
        ),
    )


def family_of(q: Posterior) -> tuple[str, bool]:
    """Choose the family of Gaussians, diagonal or full, with which a posterior q is compared.

    Returns:
        Two values: ``full`` if all components of q have a full covariance, else ``diagonal``; and
        whether q is a single Gaussian of this family, not a mixture or a flow.
    """
    parts = q.components
    family = "full" if all(isinstance(part, FullGaussian) for part in parts) else "diagonal"
    exact = len(parts) == 1 and isinstance(parts[0], FullGaussian | Gaussian)
    return family, exact


def _proposal(best: FullGaussian, others: list[FullGaussian]) -> Mixture:
    """Make the proposal for importance sampling: a mixture in which the best Gaussian dominates.

    The Laplace approximations `others` share the rest of the weight, so that no mode is missed.
    """
    rest = [(1 - BEST_SHARE) / len(others)] * len(others)
    shares = torch.tensor([BEST_SHARE, *rest], dtype=torch.float64)
    log_weights = shares.log().to(best.mean).expand(len(best.mean), -1)
    return Mixture([best, *others], log_weights)
