"""Estimates of log p(x) with standard errors."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from recmix.model.latent import LatentModel
from recmix.posteriors import Posterior

__all__ = ["Evidence", "evidence_of", "importance"]


class Evidence(NamedTuple):
    """Per example, in nats."""

    log: Tensor  # (B,)
    error: Tensor  # (B,) its standard error


def evidence_of(log_weights: Tensor) -> Evidence:
    """The log of the mean of importance weights, from log-weights (K, B). It underestimates log p(x).

    The standard error is that of the mean weight, relative to the mean weight; NaN for one weight.

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
    """log p(x) of x (B, C, H, W) by samples of q: IWAE-`samples`.

    Args:
        model: p(x, z).
        x: examples.
        q: the proposal.
        samples: per example.
        generator: of the noise, on the model's device.
        at_once: latent vectors decoded at a time.
    """
    parts, done = [], 0
    while done < samples:
        now = min(max(1, at_once // len(x)), samples - done)
        z, log_q = q.rsample_and_log_prob(now, generator=generator)
        parts.append(model.log_joint(x, z) - log_q)
        done += now
    return evidence_of(torch.cat(parts))
