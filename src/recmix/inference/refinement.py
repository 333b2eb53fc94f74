"""Refinement: each component of a posterior becomes a better Gaussian near its mean.

The kind ``gauss-newton`` makes Laplace approximations. Gauss-Newton steps move the mean of each
component to a point z* with a higher log p(x, z). The component becomes N(z*, H⁻¹), where H is the
curvature of -log p(x, z) at z*. The other kinds have their own files in this folder. All kinds keep the
mixing weights. The density of the result is computed exactly, so the ELBO and the IWAE bound remain
valid lower bounds of log p(x).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from recmix.inference.conjugate import conjugate
from recmix.inference.gauss_newton import (
    DAMPING,
    ascend,
    check_decoder_has_jacobian,
    damped_step,
)
from recmix.inference.learned import learned
from recmix.inference.restarts import best_restart, repeated, restart_scales
from recmix.inference.safeguard import common_noise
from recmix.inference.variational import variational
from recmix.model.latent import LatentModel
from recmix.posteriors import FullGaussian, Gaussian, Mixture, Posterior
from recmix.posteriors.full import cholesky

__all__ = ["HOW", "laplace", "refine"]

Gaussians = Gaussian | FullGaussian
MOMENT_PAIRS = 16
"""Pairs of points from which the variance of a posterior without a closed form is estimated."""


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

    H is the Gauss-Newton curvature of -log p(x, z) at z*. Both z* and H carry gradients to the decoder's
    parameters. The gradient of z* is dz* = H⁻¹ dg, where g is the gradient of log p(x, z) at z*
    (implicit function theorem). So only the last Jacobian is differentiated, for any number of steps. H
    also changes when z* moves, but this term is neglected. It is zero for a piecewise linear decoder and
    a Gaussian likelihood. `start` receives no gradient.

    Args:
        model: the model p(x, z).
        x: examples (B, *shape).
        start: first latent points (B, D).
        steps: number of Gauss-Newton steps; 0 gives N(start, H⁻¹) with the curvature at `start`.
        damping: λ of the first step. For comparison, the precision of the prior N(0, I) is 1.
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
    """Make Gauss-Newton steps from several starting points per example; return the best ends, (B, D).

    `how` has further arguments of `ascend`, such as the number of steps.
    """
    many = torch.cat([scale * start for scale in restart_scales(restarts)])  # (T·B, D)
    ends, at = ascend(model, repeated(x, restarts), many, **how)
    half = cholesky(at.precision).diagonal(dim1=-2, dim2=-1).log().sum(-1)  # ½ log |H|
    return best_restart(at.log_joint - half, ends, restarts)


def refine(
    model: LatentModel,
    x: Tensor,
    q: Posterior,
    *,
    steps: int,
    how: str = "gauss-newton",
    reuse: int = 2,
    restarts: int = 1,
) -> Posterior:
    """The posterior q with each component replaced by a better Gaussian near its mean.

    The mixing weights stay. All components are refined in one batch.

    Args:
        model: the model p(x, z).
        x: examples (B, *shape).
        q: the posterior for x.
        steps: number of steps.
        how: the kind of refinement, a key of `HOW`.
        reuse: number of further steps with the same curvature after each step.
        restarts: number of starting points for each example and component. The best end point is used.

    >>> from recmix.model.likelihoods import Gaussian as Noise
    >>> decoder = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.Unflatten(1, (1, 8, 8)))
    >>> model = LatentModel(decoder, Noise(), latent=2, shape=(1, 8, 8))
    >>> x, q = torch.rand(3, 1, 8, 8), Gaussian(torch.zeros(3, 2), torch.zeros(3, 2))
    >>> better = refine(model, x, q, steps=1)
    >>> bool((model.log_joint(x, better.mean[None]) > model.log_joint(x, q.mean[None])).all())
    True
    """
    count = len(q.components)
    start = _joined(q.components)
    whole: Any = HOW[how](model, repeated(x, count), start, steps, reuse, restarts)
    return Mixture(whole.split(count), q.log_weights) if isinstance(q, Mixture) else whole


HOW: dict[str, Callable[[LatentModel, Tensor, Gaussians, int, int, int], Posterior]] = {
    "gauss-newton": lambda model, x, start, steps, reuse, restarts: laplace(
        model, x, start.mean, steps=steps, reuse=reuse, restarts=restarts
    ),
    "learned": lambda model, x, start, steps, _reuse, restarts: learned(
        model, x, start.mean, steps=steps, restarts=restarts
    ),
    "variational": lambda model, x, start, steps, reuse, _restarts: variational(
        model, x, start, steps=steps, reuse=reuse
    ),
    "conjugate": lambda model, x, start, steps, _reuse, _restarts: conjugate(
        model, x, start.mean, steps=steps
    ),
}
"""The kinds of refinement by name: functions (model, x, start, steps, reuse, restarts) -> posterior.

`start` has one Gaussian for each example. `steps`, `reuse` and `restarts` are the arguments of `refine`.
"""


def _joined(parts: Sequence[Posterior]) -> Gaussians:
    """Concatenate the K components of a posterior to one Gaussian with the batch size K · B.

    The B examples of the first component come first. The result is a `FullGaussian` if all components
    are. Otherwise it is a diagonal `Gaussian` with the means and variances of the components.
    """
    if len(parts) == 1 and isinstance(parts[0], Gaussian | FullGaussian):
        return parts[0]
    mean = torch.cat([part.mean for part in parts])
    if all(isinstance(part, FullGaussian) for part in parts):
        return FullGaussian(mean, torch.cat([part.scale_tril for part in parts]))  # type: ignore[attr-defined]
    return Gaussian(mean, torch.cat([_variance(part).log() for part in parts]))


def _variance(q: Posterior) -> Tensor:
    """The variance of a posterior, (B, D). Without a closed form, it is estimated from a few points."""
    try:
        return q.variance
    except NotImplementedError:
        return q.from_noise(common_noise(MOMENT_PAIRS, q.mean))[0].var(0, correction=0)
