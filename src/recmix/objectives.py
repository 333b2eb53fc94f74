"""The ELBO and the IWAE bound as plain differentiable functions, for your own training loop."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from recmix.errors import ConfigError
from recmix.model.latent import LatentModel
from recmix.posteriors import Posterior

__all__ = ["elbo", "iwae", "log_mean_exp", "log_weights"]


def elbo(
    model: LatentModel,
    x: Tensor,
    posterior: Posterior,
    samples: int = 1,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """ELBO = E_q[log p(x | z)] - KL(q || p(z)) for each example, (B,), in nats.

    The KL divergence is exact where it has a closed form. Gradients flow to the decoder, and
    through reparameterised samples to the networks that computed the posterior. For a mixture
    posterior, each component is sampled `samples` times, and its samples are weighted by its mixing
    weight (stratified sampling).

    Args:
        model: the model p(x, z).
        x: examples (B, *shape).
        posterior: q(z | x) for these examples.
        samples: number of samples of z for each example, and for each component of a mixture.
        generator: the random number generator.

    >>> from recmix.model.likelihoods import Bernoulli
    >>> from recmix.posteriors import Gaussian
    >>> decoder = torch.nn.Sequential(torch.nn.Linear(2, 6), torch.nn.Unflatten(1, (1, 2, 3)))
    >>> model = LatentModel(decoder, Bernoulli(), latent=2, shape=(1, 2, 3))
    >>> elbo(model, torch.zeros(4, 1, 2, 3), Gaussian(torch.zeros(4, 2), torch.zeros(4, 2))).shape
    torch.Size([4])
    """
    _check(samples)
    parts = posterior.components
    if len(parts) == 1:
        z, log_q = posterior.rsample_and_log_prob(samples, generator=generator)
        return (model.log_conditional(x, z) - model.kl(posterior, z, log_q)).mean(0)
    drawn = [q.rsample_and_log_prob(samples, generator=generator)[0] for q in parts]
    z = torch.cat(drawn)  # (K S, B, D)
    log_w = (model.log_joint(x, z) - posterior.log_prob(z)).unflatten(0, (len(parts), samples))
    return (posterior.weights.t()[:, None] * log_w).sum(0).mean(0)


def iwae(
    model: LatentModel,
    x: Tensor,
    posterior: Posterior,
    samples: int,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """IWAE bound log 1/K Σ_k p(x, z_k) / q(z_k | x) for each example, (B,), in nats.

    z_1 … z_K are samples of the posterior q(z | x). To train only a decoder, compute `posterior`
    under `torch.no_grad`: every z_k is then a constant.

    Args:
        model: the model p(x, z).
        x: examples (B, *shape).
        posterior: q(z | x) for these examples.
        samples: K, the number of samples of z for each example.
        generator: the random number generator.

    Reference: Burda et al., Importance Weighted Autoencoders, ICLR 2016.
    """
    return log_mean_exp(log_weights(model, x, posterior, samples, generator=generator))


def log_weights(
    model: LatentModel,
    x: Tensor,
    posterior: Posterior,
    samples: int,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The log importance weights log p(x, z_k) - log q(z_k | x) of K samples z_k, (K, B).

    Args:
        model: the model p(x, z).
        x: examples (B, *shape).
        posterior: q(z | x), from which the z_k are drawn.
        samples: K, the number of samples of z for each example.
        generator: the random number generator.
    """
    _check(samples)
    z, log_q = posterior.rsample_and_log_prob(samples, generator=generator)
    return model.log_joint(x, z) - log_q


def log_mean_exp(log_w: Tensor) -> Tensor:
    """The log of the mean of K weights, log 1/K Σ_k w_k, from log weights: (K, B) -> (B,)."""
    return log_w.logsumexp(0) - math.log(log_w.shape[0])


def _check(samples: int) -> None:
    if not isinstance(samples, int) or samples < 1:
        raise ConfigError(f"samples must be a whole number, at least 1; got {samples!r}")
