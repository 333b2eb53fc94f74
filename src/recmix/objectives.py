"""The ELBO and the IWAE bound as plain differentiable functions, for your own training loop."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from recmix.errors import ConfigError
from recmix.model.latent import LatentModel
from recmix.posteriors import Posterior

__all__ = [
    "elbo",
    "elbo_parts",
    "iwae",
    "kl_by_dimension",
    "log_mean_exp",
    "log_weights",
    "weighted_elbo",
]


def elbo(
    model: LatentModel,
    x: Tensor,
    posterior: Posterior,
    samples: int = 1,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """ELBO = E_q[log p(x | z)] - KL(q || p(z)) for each example, (B,), in nats.

    The KL divergence is exact where it has a closed form. Gradients flow to the decoder, and through
    reparameterised samples to the networks that computed the posterior. For a mixture, `samples` samples
    are drawn from each component and weighted by its mixing weight (stratified sampling).

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
    _check(model, posterior, samples)
    parts = posterior.components
    if len(parts) == 1:
        z, log_q = posterior.rsample_and_log_prob(samples, generator=generator)
        return (model.log_conditional(x, z) - posterior.kl(model.prior, z, log_q)).mean(0)
    drawn = [q.rsample_and_log_prob(samples, generator=generator)[0] for q in parts]
    z = torch.cat(drawn)  # (K S, B, D)
    log_w = (model.log_joint(x, z) - posterior.log_prob(z)).unflatten(0, (len(parts), samples))
    return (posterior.weights.t()[:, None] * log_w).sum(0).mean(0)


def elbo_parts(
    model: LatentModel,
    x: Tensor,
    posterior: Posterior,
    samples: int = 1,
    *,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """The two parts of the ELBO for each example: E_q[log p(x | z)] and KL(q || p(z)), (B,) each.

    The first minus the second is the ELBO. The KL is exact where it has a closed form. Each component of
    a mixture is sampled `samples` times.

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
    >>> q = Gaussian(torch.full((4, 2), 3.0), torch.zeros(4, 2))
    >>> elbo_parts(model, torch.zeros(4, 1, 2, 3), q)[1]
    tensor([9., 9., 9., 9.])
    """
    _check(model, posterior, samples)
    parts = posterior.components
    if len(parts) == 1:
        z, log_q = posterior.rsample_and_log_prob(samples, generator=generator)
        kl = posterior.kl(model.prior, z, log_q).expand(samples, -1)
        return model.log_conditional(x, z).mean(0), kl.mean(0)
    z = torch.cat([q.rsample_and_log_prob(samples, generator=generator)[0] for q in parts])
    shares = posterior.weights.t().repeat_interleave(samples, 0) / samples  # (K S, B)
    kl = posterior.log_prob(z) - model.prior.log_prob(z)
    return (shares * model.log_conditional(x, z)).sum(0), (shares * kl).sum(0)


def weighted_elbo(
    model: LatentModel,
    x: Tensor,
    posterior: Posterior,
    *,
    kl_weight: float | Tensor = 1.0,
    free_bits: float = 0.0,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """The ELBO with a weighted KL: a training objective that helps against posterior collapse.

    The objective is E_q[log p(x | z)] - β KL(q || p(z)), with the weight β (KL annealing). With
    `free_bits` λ the KL is replaced by Σ_d max(λ, KL_d), where KL_d is the KL of latent dimension d,
    averaged over the batch. So a KL_d below λ has no gradient. One sample of z is drawn for each
    example.

    Args:
        model: the model p(x, z).
        x: examples (B, *shape).
        posterior: q(z | x) for these examples.
        kl_weight: the weight β.
        free_bits: λ, in nats. It needs a KL that is a sum over dimensions, see `kl_by_dimension`.
        generator: the random number generator.

    Returns:
        The objective and the ELBO itself, both scalars averaged over the batch. The ELBO has no
        gradient.

    Reference: Bowman et al., Generating Sentences from a Continuous Space, CoNLL 2016 (β); Kingma et
    al., Improved Variational Inference with Inverse Autoregressive Flow, NeurIPS 2016 (λ).
    """
    found, kl = (part.mean() for part in elbo_parts(model, x, posterior, generator=generator))
    charged = kl
    if free_bits:
        charged = kl_by_dimension(model, posterior).mean(0).clamp(min=free_bits).sum()
    return found - kl_weight * charged, (found - kl).detach()


def kl_by_dimension(model: LatentModel, posterior: Posterior) -> Tensor:
    """KL(q || p(z)) of each latent dimension, (B, D), in nats.

    Args:
        model: the model p(x, z). Its prior must be the standard normal.
        posterior: q(z | x) for B examples. It must be a diagonal Gaussian.

    Raises:
        ConfigError: the KL is not a sum over dimensions.
    """
    found = posterior.kl_by_dimension() if model.prior.standard else None
    if found is None:
        raise ConfigError(
            "free_bits needs a KL that is a sum over latent dimensions, so a diagonal Gaussian and "
            f"prior = 'standard'; got a {type(posterior).__name__} and a "
            f"{type(model.prior).__name__} prior: use free_bits for a vae, or use kl_warmup"
        )
    return found


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
    _check(model, posterior, samples)
    z, log_q = posterior.rsample_and_log_prob(samples, generator=generator)
    return model.log_joint(x, z) - log_q


def log_mean_exp(log_w: Tensor) -> Tensor:
    """The log of the mean of K weights, log 1/K Σ_k w_k, from log weights: (K, B) -> (B,)."""
    return log_w.logsumexp(0) - math.log(log_w.shape[0])


def _check(model: Any, posterior: Any, samples: int) -> None:
    if not hasattr(model, "log_conditional"):
        given = type(model).__name__
        raise ConfigError(f"model must be the model p(x, z), got a {given}: give model.latent_model")
    if not isinstance(posterior, Posterior):
        raise ConfigError(
            f"posterior must be a posterior of recmix.posteriors, got a {type(posterior).__name__}: "
            "give model(x), or recmix.posteriors.Gaussian(mean, log_variance)"
        )
    if not isinstance(samples, int) or samples < 1:
        raise ConfigError(f"samples must be a whole number, at least 1; got {samples!r}")
