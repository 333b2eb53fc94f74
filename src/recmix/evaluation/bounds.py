"""Compute lower bounds of log p(x). The memory does not grow with the number of samples.

ELBO = E_q[log p(x, z) - log q(z)] and IWAE-K = E log 1/K Σ_k p(x, z_k) / q(z_k). Both are estimated
from the same samples (Burda et al., Importance Weighted Autoencoders, 2016).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from recmix.errors import ConfigError, DataError, memory_advice
from recmix.inference import Inference
from recmix.methods.method import Method, infer
from recmix.model.latent import LatentModel, decode_bytes
from recmix.posteriors import Posterior

__all__ = ["ADVICE", "MEMORY", "Bounds", "at_once", "bounds", "bounds_of", "iwae_at_seed"]

MEMORY = 256 * 2**20
"""Default of the largest number of bytes that the decoder's activations have at a time."""
CPU_MEMORY = 32 * 2**20
"""The same on a CPU, where smaller chunks fit its caches and are faster."""
ADVICE = (
    "lower memory (--memory, the decoder's part of it), restarts (--restarts) or samples (--samples)"
)
"""What to do if the memory is too small."""


class Bounds(NamedTuple):
    """Two lower bounds of log p(x) for each example, in nats.

    Attributes:
        elbo: the ELBO, (B,).
        iwae: the IWAE bound, (B,).
    """

    elbo: Tensor  # (B,)
    iwae: Tensor  # (B,)


@memory_advice(ADVICE)
@torch.no_grad()
def bounds(
    method: Method,
    x: Tensor,
    inference: Inference | None = None,
    *,
    samples: int = 100,
    generator: torch.Generator | None = None,
    memory: int | None = None,
) -> Bounds:
    """Compute the ELBO and the IWAE bound of examples x for a method's posterior.

    Args:
        method: gives the posterior q(z | x) and the model p(x, z).
        x: examples (B, *shape).
        inference: refinement and calibration of the posterior; None for neither.
        samples: number of samples of z per example, for both bounds.
        memory: bytes for the decoder's activations; by default a value that suits the device.

    Returns:
        Both bounds of each example, (B,) each, in nats.
    """
    used = inference or Inference()
    count = at_once(method.model, memory)
    parts = x.split(max(1, count // used.restarts))
    posteriors = [(part, infer(method, part, used)) for part in parts]
    model = used.model(method.model)
    found = [bounds_of(model, part, q, samples, generator, count) for part, q in posteriors]
    return Bounds(*(torch.cat(column) for column in zip(*found, strict=True)))


def iwae_at_seed(
    method: Method, x: Tensor, inference: Inference, samples: int, seed: int, memory: int | None
) -> Tensor:
    """The IWAE bound of each example, (B,), in float64 on the CPU, with the sampling noise of a seed."""
    generator = torch.Generator(x.device).manual_seed(seed)
    found = bounds(method, x, inference, samples=samples, generator=generator, memory=memory)
    return found.iwae.double().cpu()


def at_once(model: LatentModel, memory: int | None = None) -> int:
    """The largest number of latent vectors z to decode at a time, at least 1.

    The decoder's activations for this number of vectors fit into `memory`.

    Args:
        memory: bytes for the decoder's activations; by default a value that suits the device.
    """
    if memory is None:
        memory = CPU_MEMORY if model.centre.device.type == "cpu" else MEMORY
    return max(1, memory // decode_bytes(model))


def bounds_of(
    model: LatentModel,
    x: Tensor,
    q: Posterior,
    samples: int,
    generator: torch.Generator | None,
    at_once: int,
) -> Bounds:
    """Compute the ELBO and the IWAE bound of one batch x for a given posterior q.

    Args:
        x: examples (B, *shape).
        q: q(z | x) of these examples.
        samples: number of samples of z per example, for both bounds.
        at_once: largest number of latent vectors that are decoded at a time.

    Returns:
        Both bounds of each example, (B,) each, in nats.
    """
    if not isinstance(samples, int) or samples < 1:
        raise ConfigError(f"samples must be a whole number, at least 1; got {samples!r}")
    if not len(x):
        raise DataError("expected a batch of at least one example, got an empty batch")
    chunk = max(1, at_once // len(x))
    total = log_sum = None
    done = 0
    while done < samples:
        now = min(chunk, samples - done)
        z, log_q = q.rsample_and_log_prob(now, generator=generator)
        log_w = model.log_joint(x, z) - log_q  # (now, B)
        part_total, part_log_sum = log_w.sum(0), log_w.logsumexp(0)
        total = part_total if total is None else total + part_total
        log_sum = part_log_sum if log_sum is None else torch.logaddexp(log_sum, part_log_sum)
        done += now
    assert total is not None
    assert log_sum is not None
    return Bounds(total / samples, log_sum - math.log(samples))
