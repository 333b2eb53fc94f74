"""Lower bounds of log p(x), with memory that does not grow with the number of samples.

ELBO = E_q[log p(x, z) - log q(z)] and IWAE-K = E log 1/K Σ_k p(x, z_k) / q(z_k), both from the same
samples (Burda et al., Importance Weighted Autoencoders, 2016).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError
from recmix.inference import Inference
from recmix.methods.method import Method, infer
from recmix.model.latent import LatentModel
from recmix.posteriors import Posterior

__all__ = ["MEMORY", "Bounds", "at_once", "bounds", "bounds_of", "chunks", "decode_bytes"]

MEMORY = 256 * 2**20
"""Most bytes of the decoder's activations at a time, by default."""
CPU_MEMORY = 32 * 2**20
"""The same on a CPU, where smaller chunks fit its caches and are faster."""


class Bounds(NamedTuple):
    """Per example, in nats."""

    elbo: Tensor  # (B,)
    iwae: Tensor  # (B,)


def decode_bytes(model: LatentModel) -> int:
    """Bytes of activations for one latent vector, measured by passing one through the decoder."""
    total = 0

    def count(_module: nn.Module, _inputs: object, output: object) -> None:
        nonlocal total
        if isinstance(output, Tensor):
            total += output.numel() * output.element_size()

    leaves = [m for m in model.decoder.modules() if not list(m.children())]
    hooks = [m.register_forward_hook(count) for m in leaves]
    training = model.training
    try:
        model.eval()
        with torch.no_grad():
            z = torch.zeros(1, 1, model.latent, device=model.centre.device, dtype=model.centre.dtype)
            decoded = model.decoder_output(z)
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return total + 4 * decoded.numel() * decoded.element_size()  # for the likelihood


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
    """ELBO and IWAE-`samples` of x (B, C, H, W) under a method's posterior.

    Args:
        method: gives the posterior and the joint.
        x: examples in [0, 1].
        inference: how the posterior is improved first; by default not at all.
        samples: K.
        generator: the random stream.
        memory: bytes for the decoder's activations; samples are drawn in as many chunks as needed. By
            default what suits the device.
    """
    used = inference or Inference()
    count = at_once(method.model, memory)
    posteriors = [(part, infer(method, part, used)) for part in chunks(x, used, count)]
    model = used.model(method.model)
    found = [bounds_of(model, part, q, samples, generator, count) for part, q in posteriors]
    return Bounds(*(torch.cat(column) for column in zip(*found, strict=True)))


def chunks(x: Tensor, inference: Inference, count: int) -> tuple[Tensor, ...]:
    """Split a batch x into parts that need at most `count` latent vectors at a time.

    An example needs one latent vector for each restart (starting point) of its refinement. A part
    has at least one example, even if that needs more than `count`.
    """
    return x.split(max(1, count // inference.restarts))


def at_once(model: LatentModel, memory: int | None = None) -> int:
    """The number of latent vectors to decode at a time.

    Args:
        model: the model whose decoder is used.
        memory: bytes for its activations; by default what suits the device.
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
    """The bounds of one batch under a posterior, decoding at most `at_once` vectors at a time."""
    if not isinstance(samples, int) or samples < 1:
        raise ConfigError(f"samples must be a whole number, at least 1; got {samples!r}")
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
