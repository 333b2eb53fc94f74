"""Estimate log p(x) by importance sampling, with standard errors."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from recmix.model.latent import LatentModel
from recmix.posteriors import Posterior

__all__ = ["Evidence", "evidence_of", "importance"]


class Evidence(NamedTuple):
    """Estimates of log p(x) for each example, in nats.

    Attributes:
        log: the estimates (B,).
        error: their standard errors (B,).
    """

    log: Tensor  # (B,)
    error: Tensor  # (B,) its standard error


def evidence_of(log_weights: Tensor) -> Evidence:
    """Estimate log p(x) of each example by the log of its mean importance weight.

    The expected value of this estimate is at most log p(x). The standard error of the estimate is the
    standard error of the mean weight, divided by the mean weight. It is NaN if K = 1.

    Args:
        log_weights: logs of K importance weights per example, (K, B).

    >>> evidence_of(torch.tensor([[1.0], [3.0]]).log())
    Evidence(log=tensor([0.6931]), error=tensor([0.5000]))
    """
    count = len(log_weights)
    log_mean = log_weights.logsumexp(0) - math.log(count)
    spread = (log_weights - log_mean).exp().var(0, correction=1) if count > 1 else torch.nan * log_mean
    return Evidence(log_mean, (spread / count).sqrt())


@torch.no_grad()
def importance(
    model: LatentModel,
    x: Tensor,
    q: Posterior,
    *,
    samples: int,
    generator: torch.Generator,
    at_once: int,
) -> Evidence:
    """Estimate log p(x) of examples x by importance sampling from q (the IWAE bound).

    Args:
        x: examples (B, *shape).
        q: the proposal density of z for each example.
        samples: number of importance samples per example.
        at_once: largest number of latent vectors that are decoded at a time.

    Returns:
        The estimates and their standard errors, (B,) each, in nats.
    """
    parts, done = [], 0
    while done < samples:
        now = min(max(1, at_once // len(x)), samples - done)
        z, log_q = q.rsample_and_log_prob(now, generator=generator)
        parts.append(model.log_joint(x, z) - log_q)
        done += now
    return evidence_of(torch.cat(parts))
