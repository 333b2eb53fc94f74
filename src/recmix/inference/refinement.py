"""Refinement: each component of a posterior becomes a Laplace approximation near its mean.

Gauss-Newton steps move the mean of each component to a point z* with a higher log p(x, z). The
component becomes N(z*, H⁻¹), where H is the curvature of -log p(x, z) at z*. The mixing weights
stay the same. The result is a Gaussian, or a mixture of Gaussians, with full covariances. Its
density is computed exactly, so the ELBO and the IWAE bound remain valid lower bounds of log p(x).
The steps never lower log p(x, z), see `recmix.inference.gauss_newton`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from recmix.errors import ConfigError
from recmix.inference.gauss_newton import DAMPING, ascend, damped_step
from recmix.model.latent import LatentModel
from recmix.posteriors import FullGaussian, Mixture, Posterior
from recmix.posteriors.full import cholesky

__all__ = ["best_restart", "check_decoder_has_jacobian", "laplace", "refine", "restart_scales"]

STRIDE = 0.2
"""Distance between the factors that multiply the mean at each restart."""


def laplace(
    model: LatentModel,
    x: Tensor,
    start: Tensor,
    *,
    steps: int,
    damping: float = DAMPING,
    reuse: int = 0,
    restarts: int = 1,
) -> FullGaussian:
    """The Gaussian N(z*, H⁻¹), where z* is reached by damped Gauss-Newton steps from `start`.

    H is the Gauss-Newton curvature of -log p(x, z) at z*. The decoder's parameters receive the
    gradient of a sample z = z* + H^(-½) ε in three ways: through the likelihood at z, through H at
    z*, and through z* by dz* = H⁻¹ dg, where g is the gradient of log p(x, z) at z* (implicit
    function theorem). So only the last Jacobian is differentiated, for any number of steps. The
    change of H that is caused by the movement of z* is neglected; this term is zero for a piecewise
    linear decoder and a Gaussian likelihood. `start` receives no gradient.

    Args:
        model: the model p(x, z).
        x: examples (B, *shape).
        start: first latent points (B, D).
        steps: number of Gauss-Newton steps; 0 gives N(start, H⁻¹) with the curvature at `start`.
        damping: λ of the first step, in units of the prior's precision.
        reuse: number of further steps with the same curvature after each step, see
            `recmix.inference.gauss_newton.ascend`.
        restarts: number of starting points for each example. They are `start` times each of
            `restart_scales`. The end point with the highest Laplace estimate of log p(x), which is
            log p(x, z*) - ½ log |H|, is used.
    """
    check_decoder_has_jacobian(model)
    how: dict[str, Any] = {"steps": steps, "damping": damping, "reuse": reuse}
    if restarts > 1:
        start, how = _best_end(model, x, start, restarts, how), {"steps": 0}
    mode, at = ascend(model, x, start, **how)
    if at.gradient.requires_grad:
        moved = damped_step(at.gradient, at.precision.detach(), torch.zeros_like(mode[:, 0]))
        mode = mode + (moved - moved.detach())  # the value of z*, the derivative H⁻¹ dg
    return FullGaussian.from_precision(mode, at.precision)


@torch.no_grad()
def _best_end(
    model: LatentModel, x: Tensor, start: Tensor, restarts: int, how: dict[str, Any]
) -> Tensor:
    """The best end point (B, D) of Gauss-Newton steps from several starting points per example."""
    many = torch.cat([scale * start for scale in restart_scales(restarts)])  # (T·B, D)
    ends, at = ascend(model, x.repeat(restarts, *(1 for _ in model.shape)), many, **how)
    half = cholesky(at.precision).diagonal(dim1=-2, dim2=-1).log().sum(-1)  # ½ log |H|
    return best_restart(at.log_joint - half, ends, restarts)


def best_restart(score: Tensor, ends: Tensor, restarts: int) -> Tensor:
    """Select, for each example, the end point with the highest score among T starting points.

    Args:
        score: score of each end point, (T·B,). All examples of the first starting point come first.
            Scores that are not finite are never selected if another score is finite.
        ends: end points (T·B, D), in the same order.
        restarts: T, the number of starting points for each example.

    Returns:
        The selected end points, (B, D).

    >>> best_restart(torch.tensor([1.0, 5.0, 2.0, torch.nan]), torch.arange(4.0)[:, None], 2).tolist()
    [[2.0], [1.0]]
    """
    finite = score.nan_to_num(-torch.inf, posinf=-torch.inf)
    which = finite.unflatten(0, (restarts, -1)).argmax(0)
    picked = which[None, :, None].expand(1, -1, ends.shape[-1])
    best: Tensor = ends.unflatten(0, (restarts, -1)).gather(0, picked).squeeze(0)
    return best


def restart_scales(restarts: int) -> list[float]:
    """The factors by which the posterior's mean is multiplied to get several starting points.

    The first factor is 1. Then come smaller and larger factors in turn.

    Args:
        restarts: number of starting points.

    >>> restart_scales(5)
    [1.0, 0.8, 1.2, 0.6, 1.4]
    """
    return [round(1 + (-1) ** k * ((k + 1) // 2) * STRIDE, 6) for k in range(restarts)]


def refine(
    model: LatentModel, x: Tensor, q: Posterior, *, steps: int, reuse: int = 2, restarts: int = 1
) -> Posterior:
    """The posterior q with each component replaced by a Laplace approximation near its mean.

    All components are refined in one batch.

    Args:
        model: the model p(x, z).
        x: examples (B, *shape).
        q: the posterior for x.
        steps: number of Gauss-Newton steps.
        reuse: number of further steps with the same curvature after each step.
        restarts: number of starting points for each example and component, see `laplace`.

    >>> from recmix.model.likelihoods import Gaussian as Noise
    >>> from recmix.posteriors import Gaussian
    >>> decoder = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.Unflatten(1, (1, 8, 8)))
    >>> model = LatentModel(decoder, Noise(), latent=2, shape=(1, 8, 8))
    >>> x, q = torch.rand(3, 1, 8, 8), Gaussian(torch.zeros(3, 2), torch.zeros(3, 2))
    >>> better = refine(model, x, q, steps=1)
    >>> bool((model.log_joint(x, better.mean[None]) > model.log_joint(x, q.mean[None])).all())
    True
    """
    if not isinstance(q, Mixture):
        return laplace(model, x, q.mean, steps=steps, reuse=reuse, restarts=restarts)
    means = torch.cat([part.mean for part in q.components])  # (K·B, D)
    count = len(q.components)
    repeated = x.repeat(count, *(1 for _ in model.shape))
    whole = laplace(model, repeated, means, steps=steps, reuse=reuse, restarts=restarts)
    return Mixture(whole.split(count), q.log_weights)


def check_decoder_has_jacobian(model: LatentModel) -> None:
    """Raise an error if the decoder's output for one example depends on the rest of its batch."""
    for part in model.decoder.modules():
        if isinstance(part, _BatchNorm) and (part.training or part.running_mean is None):
            raise ConfigError(
                "the decoder has batch normalisation in training mode, or without running statistics: "
                "its output for one example depends on the rest of the batch, so it has no Jacobian "
                "per example. Call model.eval() first, or use nn.GroupNorm or nn.LayerNorm instead"
            )
