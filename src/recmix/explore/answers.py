"""What the model says of a batch, as arrays: the numbers of `recmix.load(...)`, ready to be sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recmix.api import Fitted
from recmix.errors import ConfigError
from recmix.explore.wire import Array
from recmix.posteriors import Gaussian, Mixture
from recmix.posteriors.posterior import Posterior

__all__ = ["Moments", "decode", "moments", "plain", "posterior", "prior", "reconstruct", "score"]

DRAWS = 256
"""From which the covariance of a component is estimated where it has no closed form."""
AT_ONCE = 512
"""Latent vectors that pass through the decoder at a time."""


@dataclass(frozen=True)
class Moments:
    """Weights, means and spread of the components of a posterior.

    Args:
        weights: (B, K).
        means: (B, K, D).
        variances: (B, K, D), the diagonals of the covariances.
        covariances: (B, K, D, D); nothing where all are diagonal.
        exact: false where a spread is estimated from samples (flows).
    """

    weights: Tensor
    means: Tensor
    variances: Tensor
    covariances: Tensor | None
    exact: bool

    def full(self) -> Tensor:
        """Covariances (B, K, D, D), diagonal or not."""
        return torch.diag_embed(self.variances) if self.covariances is None else self.covariances


@torch.no_grad()
def moments(q: Posterior) -> Moments:
    """Those of any posterior; one that is no mixture has one component."""
    parts = q.components if isinstance(q, Mixture) else [q]
    means = torch.stack([part.mean for part in parts], 1)
    diagonal = [part.log_variance.exp() for part in parts if isinstance(part, Gaussian)]
    if len(diagonal) == len(parts):
        return Moments(q.weights, means, torch.stack(diagonal, 1), None, True)
    found = [_covariance(part) for part in parts]
    covariances = torch.stack([covariance for covariance, _ in found], 1)
    variances = covariances.diagonal(dim1=-2, dim2=-1)
    return Moments(q.weights, means, variances, covariances, all(exact for _, exact in found))


def _covariance(q: Posterior) -> tuple[Tensor, bool]:
    """(B, D, D), and whether it is exact."""
    if isinstance(q, Gaussian):
        return torch.diag_embed(q.log_variance.exp()), True
    try:
        known: Any = q.as_distribution()
        covariance: Tensor = known.covariance_matrix
        return covariance, True
    except (ConfigError, AttributeError):  # a flow
        generator = torch.Generator(q.mean.device).manual_seed(0)
        z, _ = q.rsample_and_log_prob(DRAWS, generator=generator)
        apart = (z - z.mean(0)).permute(1, 2, 0)  # (B, D, S)
        return apart @ apart.mT / (DRAWS - 1), False


def plain(tensor: Tensor) -> Array:
    """A contiguous array on the host."""
    return np.ascontiguousarray(tensor.detach().cpu().numpy())


@torch.no_grad()
def posterior(fitted: Fitted, x: Array) -> dict[str, Any]:
    """Weights, component means and spreads, and the mean, for images (B, C, H, W)."""
    q = fitted.posterior(x)
    found = moments(q)
    return {
        "weights": plain(found.weights),
        "mean": plain(q.mean),
        "means": plain(found.means),
        "variances": plain(found.variances),
        "covariances": None if found.covariances is None else plain(found.covariances),
        "exact": found.exact,
    }


@torch.no_grad()
def reconstruct(fitted: Fitted, x: Array) -> dict[str, Any]:
    """The image of the posterior mean (B, C, H, W) and of each component's (B, K, C, H, W)."""
    q = fitted.posterior(x)
    if not isinstance(q, Mixture):
        only = plain(torch.cat([fitted.model.decode(part) for part in q.mean.split(AT_ONCE)]))
        return {"weights": plain(q.weights), "images": only, "components": only[:, None]}
    means = torch.stack([q.mean, *(part.mean for part in q.components)], 1)  # (B, 1 + K, D)
    images = torch.cat([fitted.model.decode(part) for part in means.split(_at_once(means.shape[1]))])
    return {
        "weights": plain(q.weights),
        "images": plain(images[:, 0]),
        "components": plain(images[:, 1:]),
    }


def decode(fitted: Fitted, z: Array) -> dict[str, Any]:
    """The mean images of z (B, D)."""
    parts = torch.from_numpy(z).split(AT_ONCE)
    return {"images": plain(torch.cat([fitted.decode(part) for part in parts]))}


def prior(fitted: Fitted, count: int, seed: int) -> Array:
    """The draws z (B, D) from the prior whose images `Fitted.sample` gives under this seed."""
    generator = torch.Generator(fitted.device).manual_seed(seed)
    centre = fitted.model.centre
    shape = (count, fitted.model.latent)
    return plain(torch.randn(shape, generator=generator, device=centre.device, dtype=centre.dtype))


def _at_once(components: int) -> int:
    return max(1, AT_ONCE // components)


def score(fitted: Fitted, x: Array, samples: int, seed: int) -> dict[str, Any]:
    """ELBO and IWAE-`samples`, (B,) each."""
    elbo, iwae = fitted.bounds(x, samples, seed=seed)
    return {"elbo": plain(elbo), "iwae": plain(iwae), "samples": samples, "seed": seed}
