"""Lower bounds of log p(x), with memory that does not grow with the number of samples.

ELBO = E_q[log p(x, z) - log q(z)] and IWAE-K = E log 1/K Σ_k p(x, z_k) / q(z_k), both from the same
samples (Burda et al., Importance Weighted Autoencoders, 2016).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError, memory_advice
from recmix.inference import Inference
from recmix.methods.method import Method, infer
from recmix.model.latent import LatentModel
from recmix.posteriors import Posterior

__all__ = ["ADVICE", "MEMORY", "Bounds", "at_once", "bounds", "bounds_of", "chunks", "decode_bytes"]

MEMORY = 256 * 2**20
"""Most bytes of the decoder's activations at a time, by default."""
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


def decode_bytes(model: LatentModel) -> int:
    """The bytes of memory that decoding one latent vector needs, measured by decoding one.

    They include the activations of the decoder and of the likelihood's networks.
    """
    total = largest = 0

    def count(_module: nn.Module, _inputs: object, output: object) -> None:
        nonlocal total, largest
        for tensor in output if isinstance(output, tuple) else (output,):
            if isinstance(tensor, Tensor):
                size = tensor.numel() * tensor.element_size()
                total, largest = total + size, max(largest, size)

    networks = [model.decoder, *model.likelihood.children()]
    leaves = [m for network in networks for m in network.modules() if not list(m.children())]
    hooks = [m.register_forward_hook(count) for m in leaves]
    training = model.training
    try:
        model.eval()
        with torch.no_grad():
            z = torch.zeros(1, 1, model.latent, device=model.centre.device, dtype=model.centre.dtype)
            decoded = model.decoder_output(z)
            if len(networks) > 1:
                x = torch.zeros(1, *model.shape, device=z.device, dtype=z.dtype)
                model.log_density(model.observed(x), decoded)
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    own = largest if len(networks) > 1 else decoded.numel() * decoded.element_size()
    return total + 4 * own  # for the likelihood


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
        x: examples (B, C, H, W) with values in [0, 1].
        inference: refinement and calibration of the posterior; by default none.
        samples: number of samples of z per example, for both bounds.
        generator: source of the random noise.
        memory: bytes for the decoder's activations at a time; by default a value that suits the
            device. If needed, examples and samples are processed in several parts.

    Returns:
        Both bounds of each example, (B,) each, in nats.
    """
    used = inference or Inference()
    count = at_once(method.model, memory)
    posteriors = [(part, infer(method, part, used)) for part in chunks(x, used, count)]
    model = used.model(method.model)
    found = [bounds_of(model, part, q, samples, generator, count) for part, q in posteriors]
    return Bounds(*(torch.cat(column) for column in zip(*found, strict=True)))


def chunks(x: Tensor, inference: Inference, count: int) -> tuple[Tensor, ...]:
    """Split a batch x (B, ...) into parts that need at most `count` latent vectors at a time.

    A part has at least one example, even if this example needs more.

    Args:
        x: examples.
        inference: an example needs `inference.restarts` latent vectors, one for each starting point.
        count: largest number of latent vectors at a time.
    """
    return x.split(max(1, count // inference.restarts))


def at_once(model: LatentModel, memory: int | None = None) -> int:
    """The number of latent vectors whose decoder activations fit into memory together.

    Args:
        model: the model whose decoder is used.
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
        model: p(x, z).
        x: examples (B, C, H, W).
        q: q(z | x) of these examples.
        samples: number of samples of z per example, for both bounds.
        generator: source of the random noise.
        at_once: largest number of latent vectors to decode at a time.

    Returns:
        Both bounds of each example, (B,) each, in nats.
    """
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
