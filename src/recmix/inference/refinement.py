"""Posteriors refined at the image in hand: a few Gauss-Newton steps from where an encoder points.

Every component of q(z | x) climbs log p(x, z) from its mean and becomes N(z*, H⁻¹), with H the
curvature where it arrives; the mixing weights stay. With several `starts` it climbs from as many points
on the ray through its mean, and the end that explains most of the image counts. The refined posterior is
a Gaussian, or a mixture of Gaussians, with full covariances, so its densities are exact and every bound
of log p(x) under it is one. See `recmix.inference.gauss_newton` for the steps: log p(x, z)
never falls.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from recmix.errors import ConfigError
from recmix.inference.gauss_newton import DAMPING, climb, damped_step
from recmix.methods.method import Method
from recmix.model.latent import LatentModel
from recmix.posteriors import Mixture
from recmix.posteriors.full import FullGaussian, cholesky
from recmix.posteriors.posterior import Posterior
from recmix.runs.options import REUSE

__all__ = [
    "check_can_be_taught",
    "check_decoder_has_jacobian",
    "highest",
    "laplace",
    "refined",
    "scales",
]

STRIDE = 0.2
"""How far apart the starts of one climb are on the ray through the mean, as a share of it."""


def laplace(
    model: LatentModel,
    x: Tensor,
    start: Tensor,
    *,
    steps: int,
    damping: float = DAMPING,
    reuse: int = 0,
    starts: int = 1,
) -> FullGaussian:
    """N(z*, H⁻¹) where `steps` damped Gauss-Newton steps from `start` (B, D) lead.

    The decoder's parameters receive the gradient of a sample z = z* + H^(-½) ε through the likelihood
    at z, through H at z*, and through the mode by dz* = H⁻¹ dg, the implicit function theorem: so only
    the last Jacobian is differentiated, however many steps there are. (That H also changes because z*
    moves is left out; it does not where the decoder is piecewise linear and the likelihood Gaussian.)
    `start` receives none.

    Args:
        model: p(x, z).
        x: images (B, C, H, W).
        start: latent points.
        steps: number of steps; with none it is the curvature at `start`.
        damping: λ of the first step, in units of the prior's precision.
        reuse: how often the curvature of a step serves again, see `recmix.inference.gauss_newton.climb`.
        starts: climbs for each example, from `start` times each of `scales`; of their ends the one is
            kept whose Gaussian says most of log p(x), by Laplace's estimate log p(x, z*) - ½ log |H|.
    """
    how: dict[str, Any] = {"steps": steps, "damping": damping, "reuse": reuse}
    if starts > 1:
        start, how = _best_end(model, x, start, starts, how), {"steps": 0}
    mode, at = climb(model, x, start, **how)
    if at.gradient.requires_grad:
        moved = damped_step(at.gradient, at.precision.detach(), torch.zeros_like(mode[:, 0]))
        mode = mode + (moved - moved.detach())  # the value of z*, the derivative H⁻¹ dg
    return FullGaussian.from_precision(mode, at.precision)


@torch.no_grad()
def _best_end(model: LatentModel, x: Tensor, start: Tensor, starts: int, how: dict[str, Any]) -> Tensor:
    """The best of the points (B, D) where the climbs from all starts end; they climb together."""
    many = torch.cat([scale * start for scale in scales(starts)])  # (T·B, D)
    ends, at = climb(model, x.repeat(starts, *(1 for _ in model.shape)), many, **how)
    half = cholesky(at.precision).diagonal(dim1=-2, dim2=-1).log().sum(-1)  # ½ log |H|
    return highest(at.log_joint - half, ends, starts)


def highest(told: Tensor, ends: Tensor, starts: int) -> Tensor:
    """Of what as many starts led to, (T·B, D), what is told to be best for each example, (B, D).

    >>> highest(torch.tensor([1.0, 5.0, 2.0, torch.nan]), torch.arange(4.0)[:, None], 2).tolist()
    [[2.0], [1.0]]
    """
    which = told.nan_to_num(-torch.inf, posinf=-torch.inf).unflatten(0, (starts, -1)).argmax(0)
    picked = which[None, :, None].expand(1, -1, ends.shape[-1])
    best: Tensor = ends.unflatten(0, (starts, -1)).gather(0, picked).squeeze(0)
    return best


def scales(starts: int) -> list[float]:
    """What the mean is multiplied by at each start: itself first, then less and more in turn.

    >>> scales(5)
    [1.0, 0.8, 1.2, 0.6, 1.4]
    """
    return [round(1 + (-1) ** k * ((k + 1) // 2) * STRIDE, 6) for k in range(starts)]


def refined(
    model: LatentModel, x: Tensor, q: Posterior, *, steps: int, reuse: int = REUSE, starts: int = 1
) -> Posterior:
    """q with every component refined by `steps` steps; all of them climb together.

    >>> from recmix.model.likelihoods import Gaussian as Noise
    >>> from recmix.posteriors import Gaussian
    >>> decoder = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.Unflatten(1, (1, 8, 8)))
    >>> model = LatentModel(decoder, Noise(), latent=2, shape=(1, 8, 8))
    >>> x, q = torch.rand(3, 1, 8, 8), Gaussian(torch.zeros(3, 2), torch.zeros(3, 2))
    >>> better = refined(model, x, q, steps=1)
    >>> bool((model.log_joint(x, better.mean[None]) > model.log_joint(x, q.mean[None])).all())
    True
    """
    check_decoder_has_jacobian(model)
    if not isinstance(q, Mixture):
        return laplace(model, x, q.mean, steps=steps, reuse=reuse, starts=starts)
    means = torch.cat([part.mean for part in q.components])  # (K·B, D)
    count = len(q.components)
    images = x.repeat(count, *(1 for _ in model.shape))
    whole = laplace(model, images, means, steps=steps, reuse=reuse, starts=starts)
    return Mixture(whole.split(count), q.log_weights)


def check_decoder_has_jacobian(model: LatentModel) -> None:
    """Refuse a decoder that makes an image depend on the others in its batch."""
    if any(isinstance(part, _BatchNorm) for part in model.decoder.modules()):
        raise ConfigError(
            "the decoder has batch normalisation, which makes an image depend on the others in its "
            "batch, so it has no Jacobian of its own: use nn.GroupNorm or nn.LayerNorm instead"
        )


def check_can_be_taught(method: Method) -> None:
    """Refuse distillation where samples of the refined posterior could teach no encoder."""
    check_decoder_has_jacobian(method.model)
    parts: Any = method.components
    for part in parts:
        if not part.teachable:
            raise ConfigError(
                "distil teaches encoders by samples of the refined posterior, but the density of a "
                f"{part.kind} component gives its encoder no gradient: use vae, or another component"
            )
