"""Compute what the explorer's HTTP server answers for a batch of examples, as numpy arrays.

The numbers are equal to the results of the methods of `recmix.Model`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from recmix.explore.wire import Array
from recmix.posteriors import Posterior

if TYPE_CHECKING:
    from recmix.explore.catalogue import ExplorableModel

__all__ = ["Moments", "decode", "has_matrices", "moments", "posterior", "prior", "reconstruct", "score"]
__all__ += ["to_array"]

DRAWS = 256
"""Number of samples that estimate the covariance of a component if it has no closed form."""
AT_ONCE = 512
"""Largest number of latent vectors in one pass through the decoder."""


class Moments(NamedTuple):
    """Weights, means and covariances of the K components of q(z | x), for B examples.

    D is the latent dimension.
    """

    weights: Tensor  # mixing weights, (B, K)
    means: Tensor  # means of the components, (B, K, D)
    variances: Tensor  # diagonals of the covariances, (B, K, D)
    covariances: Tensor | None  # full covariances, (B, K, D, D); None if all are diagonal
    exact: bool  # false if a covariance is estimated from samples

    def full(self) -> Tensor:
        """Return the covariances of the K components as full matrices, (B, K, D, D)."""
        return torch.diag_embed(self.variances) if self.covariances is None else self.covariances


def has_matrices(q: Posterior) -> bool:
    """Whether a component of q(z | x) has a covariance that is not diagonal."""
    return not all("log_variances" in (part.describe() or {}) for part in q.components)


@torch.no_grad()
def moments(q: Posterior) -> Moments:
    """Compute the moments of the K components of q(z | x) for B examples.

    A posterior that is not a mixture counts as one component. Covariances without a closed form are
    estimated from samples.
    """
    means = torch.stack([part.mean for part in q.components], 1)
    described = [part.describe() or {} for part in q.components]
    exact = all("log_variances" in part or "scale_tril" in part for part in described)
    if all("log_variances" in part for part in described):
        variances = torch.stack([part["log_variances"].exp() for part in described], 1)
        return Moments(q.weights, means, variances, None, exact)
    pairs = zip(q.components, described, strict=True)
    covariances = torch.stack([_covariance(part, known) for part, known in pairs], 1)
    return Moments(q.weights, means, covariances.diagonal(dim1=-2, dim2=-1), covariances, exact)


def _covariance(q: Posterior, described: dict[str, Tensor]) -> Tensor:
    """Compute the covariance (B, D, D) of a component q of the posterior.

    `described` has the tensors of ``q.describe()``, by name. If the covariance does not follow from
    them, it is estimated from samples.
    """
    if "log_variances" in described:
        return torch.diag_embed(described["log_variances"].exp())
    if "scale_tril" in described:
        return described["scale_tril"] @ described["scale_tril"].mT
    generator = torch.Generator(q.mean.device).manual_seed(0)
    z, _ = q.rsample_and_log_prob(DRAWS, generator=generator)
    centred = (z - z.mean(0)).permute(1, 2, 0)  # (B, D, S)
    return centred @ centred.mT / (DRAWS - 1)


def to_array(tensor: Tensor) -> Array:
    """Convert a tensor to a contiguous numpy array of the same shape."""
    return np.ascontiguousarray(tensor.detach().cpu().numpy())


def posterior(model: ExplorableModel, x: Array) -> dict[str, Any]:
    """Return the `Moments` of q(z | x) for examples x (B, ...), and the ``mean`` (B, D) of q.

    The result is {name: array}, with the names of the fields of `Moments`.
    """
    q = model.posterior(x)
    found = {**moments(q)._asdict(), "mean": q.mean}
    return {name: to_array(v) if isinstance(v, Tensor) else v for name, v in found.items()}


@torch.no_grad()
def reconstruct(model: ExplorableModel, x: Array) -> dict[str, Any]:
    """Reconstruct examples x (B, ...) through the posterior q(z | x) with K components.

    Returns:
        A dict: the mixing ``weights`` (B, K), ``images`` (B, ...) decoded at the mean of q, and
        ``components`` (B, K, ...) decoded at the mean of each component.
    """
    q = model.posterior(x)
    parts = q.components if len(q.components) > 1 else []
    means = torch.stack([q.mean, *(part.mean for part in parts)], 1)  # (B, 1 + K, D)
    at_once = max(1, AT_ONCE // means.shape[1])
    images = torch.cat([model.decode(part) for part in means.split(at_once)])
    components = images[:, 1:] if parts else images  # a single component has the posterior's mean
    found = {"weights": q.weights, "images": images[:, 0], "components": components}
    return {name: to_array(value) for name, value in found.items()}


def decode(model: ExplorableModel, z: Array) -> dict[str, Any]:
    """Return the mean examples E[x | z] of latent vectors z (B, D) as ``images`` (B, ...)."""
    parts = torch.from_numpy(z).split(AT_ONCE)
    return {"images": to_array(torch.cat([model.decode(part) for part in parts]))}


def prior(model: ExplorableModel, count: int, seed: int) -> Array:
    """Draw `count` latent vectors z (count, D) from the prior.

    `recmix.Model.sample` decodes the same vectors if it gets the same seed.
    """
    latent_model = model.latent_model
    generator = torch.Generator(latent_model.centre.device).manual_seed(seed)
    return to_array(latent_model.prior.sample(count, generator=generator))


def score(model: ExplorableModel, x: Array, samples: int, seed: int) -> dict[str, Any]:
    """Compute the ELBO and the IWAE-K bound of examples x (B, ...), where K is `samples`.

    Returns:
        A dict: ``elbo`` (B,) and ``iwae`` (B,) in nats, and the arguments ``samples`` and ``seed``.
    """
    elbo, iwae = model.bounds(x, samples, seed=seed)
    return {"elbo": to_array(elbo), "iwae": to_array(iwae), "samples": samples, "seed": seed}
