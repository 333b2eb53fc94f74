"""`latent_report`: measures how well a model predicts x, and how much its z says about x."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from recmix.data import Examples
from recmix.errors import ConfigError
from recmix.evaluation.bounds import at_once
from recmix.evaluation.score import batch_of, mean_with_error
from recmix.inference import Inference
from recmix.methods.method import Method, infer
from recmix.model.latent import LatentModel
from recmix.posteriors import Posterior

__all__ = ["LatentReport", "aggregated_log_prob", "latent_report"]

AT_ONCE = 500
ACTIVE = 0.01
"""A latent dimension is active if the variance of its posterior mean over examples is above this."""
AGGREGATED = 5000
"""Largest number of examples in the aggregated posterior, and of samples z at which it is evaluated."""
PAIRS_AT_ONCE = 2**22
"""Largest number of values of z in one evaluation of the aggregated posterior."""


@dataclass(frozen=True, kw_only=True)
class LatentReport:
    """How well a model predicts examples x, and how much its latent variable z says about x.

    Values are means over examples in nats, unless something else is said. Names that end with ``_se``
    are standard errors of these means.

    Attributes:
        nll: minus the IWAE-K bound, an upper bound of -log p(x).
        elbo: E_q[log p(x | z)] - KL(q || p(z)).
        reconstruction: E_q[log p(x | z)].
        kl: KL(q(z | x) || p(z)). It is near 0 if the posterior has collapsed to the prior.
        mutual_information: I_q(x; z), the part of the KL that depends on x. The other part is the KL of
            the aggregated posterior q(z) = 1/M Σ q(z | x_m) to the prior. The estimate is at most log M.
        marginal_kl: the KL of the aggregated posterior to the prior.
        aggregated: M, the number of examples in the aggregated posterior.
        active_units: number of latent dimensions whose posterior mean has a variance above 0.01 over
            the examples.
        tokens: number of tokens of all examples, without padding; None if examples have no tokens. The
            end token of a text counts.
        perplexity: exp(total nll / tokens); None if examples have no tokens.

    References: Hoffman & Johnson, ELBO surgery, 2016 (mutual information); Burda et al., Importance
    Weighted Autoencoders, ICLR 2016 (active units).
    """

    examples: int
    samples: int
    nll: float
    nll_se: float
    elbo: float
    elbo_se: float
    reconstruction: float
    reconstruction_se: float
    kl: float
    kl_se: float
    mutual_information: float
    marginal_kl: float
    aggregated: int
    active_units: int
    latent: int
    tokens: int | None = None
    perplexity: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The attributes as {name: value}, for JSON."""
        return dataclasses.asdict(self)

    def rows(self) -> list[tuple[str, str]]:
        """The report as a table: pairs (name of a quantity, its value), both as text."""
        found = [
            (f"NLL, by IWAE-{self.samples}", f"{self.nll:.2f} ± {self.nll_se:.2f} nats"),
            ("ELBO", f"{self.elbo:.2f} ± {self.elbo_se:.2f} nats"),
            ("reconstruction", f"{self.reconstruction:.2f} ± {self.reconstruction_se:.2f} nats"),
            ("KL", f"{self.kl:.2f} ± {self.kl_se:.2f} nats"),
            ("mutual information of x and z", f"{self.mutual_information:.2f} nats"),
            ("KL of the aggregated posterior", f"{self.marginal_kl:.2f} nats"),
            ("active units", f"{self.active_units} of {self.latent}"),
        ]
        if self.perplexity is not None:
            found.append(("perplexity per token", f"{self.perplexity:.2f}"))
        return found

    def __str__(self) -> str:
        return "\n".join(f"{name}: {value}" for name, value in self.rows())


@torch.no_grad()
def latent_report(
    method: Method,
    examples: Examples | Tensor,
    inference: Inference | None = None,
    *,
    samples: int = 100,
    seed: int = 0,
    memory: int | None = None,
    report: Callable[[int], None] = lambda done: None,
) -> LatentReport:
    """Measure how well a model predicts examples x, and how much its latent variable z says about x.

    The result is a `LatentReport` with bounds of log p(x), the parts of the ELBO, the mutual
    information of x and z, and more.

    Args:
        examples: the examples (N, *shape), at least two.
        inference: refinement and calibration of the posterior; None for neither.
        samples: K of the IWAE-K bound; the reconstruction is averaged over the same samples.
        seed: seed of the sampling noise and of the choice of examples for the aggregated posterior.
        memory: bytes for the decoder's activations; by default a value that suits the device.
        report: function that is called with the number of examples done.
    """
    if len(examples) < 2:
        raise ConfigError(
            f"a report of the latent variable needs at least 2 examples, got {len(examples)}"
        )
    if not isinstance(samples, int) or samples < 1:
        raise ConfigError(f"samples must be a whole number, at least 1; got {samples!r}")
    used, centre = inference or Inference(), method.model.centre
    model = used.model(method.model)
    generator = torch.Generator(centre.device).manual_seed(seed)
    count = at_once(method.model, memory)
    each = max(1, count // used.restarts)
    found: list[_Parts] = []
    tokens = 0
    for start in range(0, len(examples), AT_ONCE):
        batch = batch_of(examples, slice(start, start + AT_ONCE), centre)
        tokens += int((batch >= 0).sum())
        for x in batch.split(each):
            found.append(_parts_of(model, x, infer(method, x, used), samples, generator, count))
        report(min(start + AT_ONCE, len(examples)))
    iwae, reconstruction, kl, mean = (torch.cat(part).double() for part in zip(*found, strict=True))
    size = min(len(examples), AGGREGATED)
    rows = np.sort(np.random.default_rng(seed).choice(len(examples), size, replace=False))
    posteriors = [
        infer(method, x, used)
        for start in range(0, size, AT_ONCE)
        for x in batch_of(examples, rows[start : start + AT_ONCE], centre).split(each)
    ]
    information, marginal = _information(model, posteriors, generator)
    has_tokens = model.likelihood.values == "classes" and model.fields is None
    return LatentReport(
        examples=len(examples),
        samples=samples,
        **mean_with_error("nll", -iwae),
        **mean_with_error("elbo", reconstruction - kl),
        **mean_with_error("reconstruction", reconstruction),
        **mean_with_error("kl", kl),
        mutual_information=information,
        marginal_kl=marginal,
        aggregated=size,
        active_units=int((mean.var(0) > ACTIVE).sum()),
        latent=model.latent,
        tokens=tokens if has_tokens else None,
        perplexity=float((-iwae.sum() / tokens).exp()) if has_tokens and tokens else None,
    )


def aggregated_log_prob(posteriors: list[Posterior], z: Tensor) -> Tensor:
    """Compute log q(z), (N,), of the aggregated posterior q(z) = 1/M Σ_m q(z | x_m) at N points z.

    Args:
        posteriors: the posteriors q(z | x_m) of M examples, one object for each batch of examples.
        z: the points (N, D).

    >>> from recmix.posteriors import Gaussian
    >>> q = Gaussian(torch.zeros(3, 2), torch.zeros(3, 2))  # three times the prior
    >>> aggregated_log_prob([q], torch.zeros(1, 2))
    tensor([-1.8379])
    """
    total = sum(len(q.mean) for q in posteriors)
    found = []
    for part in z.split(max(1, PAIRS_AT_ONCE // (max(len(q.mean) for q in posteriors) * z.shape[-1]))):
        densities = [
            q.log_prob(part[:, None].expand(-1, len(q.mean), -1)).logsumexp(-1) for q in posteriors
        ]
        found.append(torch.stack(densities).logsumexp(0) - math.log(total))
    return torch.cat(found)


class _Parts(NamedTuple):
    """The IWAE bound, the parts of the ELBO and the posterior mean of each example; bounds in nats."""

    iwae: Tensor  # (B,)
    reconstruction: Tensor  # (B,) E_q[log p(x | z)]
    kl: Tensor  # (B,) KL(q(z | x) || p(z))
    mean: Tensor  # (B, D) mean of q(z | x)


def _parts_of(
    model: LatentModel,
    x: Tensor,
    q: Posterior,
    samples: int,
    generator: torch.Generator,
    at_once: int,
) -> _Parts:
    """Compute the `_Parts` of the examples x (B, *shape). The arguments are those of `bounds_of`."""
    log_w, reconstruction, kl = [], x.new_zeros(len(x)), x.new_zeros(len(x))
    for done in range(0, samples, max(1, at_once // len(x))):
        now = min(max(1, at_once // len(x)), samples - done)
        z, log_q = q.rsample_and_log_prob(now, generator=generator)
        log_p = model.log_conditional(x, z)  # (now, B)
        log_w.append(log_p + model.prior.log_prob(z) - log_q)
        reconstruction += log_p.sum(0)
        kl += q.kl(model.prior, z, log_q).expand(now, -1).sum(0)
    iwae = torch.cat(log_w).logsumexp(0) - math.log(samples)
    return _Parts(iwae, reconstruction / samples, kl / samples, q.mean)


def _information(
    model: LatentModel, posteriors: list[Posterior], generator: torch.Generator
) -> tuple[float, float]:
    """Estimate I_q(x; z) and KL(q(z) || p(z)), where q(z) is the aggregated posterior.

    Both are estimated from samples of each posterior q(z | x_m) in `posteriors`.
    """
    samples = max(1, AGGREGATED // sum(len(q.mean) for q in posteriors))
    drawn = [q.rsample_and_log_prob(samples, generator=generator) for q in posteriors]
    z = torch.cat([z.flatten(0, 1) for z, _ in drawn])
    log_q = torch.cat([log_q.flatten() for _, log_q in drawn])
    marginal = aggregated_log_prob(posteriors, z)
    information = (log_q - marginal).double().mean()
    return float(information), float((marginal - model.prior.log_prob(z)).double().mean())
