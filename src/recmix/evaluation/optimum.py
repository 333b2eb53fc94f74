"""The best Gaussian posterior of each image: found for that image alone, without an encoder.

First damped Gauss-Newton steps lead from several starts up to modes of p(z | x), where the curvature
gives Laplace's Gaussian. From the best of them the ELBO of a Gaussian, diagonal or full, is climbed
by Adam, in coordinates in which Laplace's Gaussian is the standard one, and the best place met on the
way is kept. What an image gets does not depend on the images beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from recmix.inference.refinement import laplace
from recmix.model.latent import LatentModel
from recmix.posteriors.flow import Reflected
from recmix.posteriors.full import FullGaussian
from recmix.posteriors.gaussian import Gaussian
from recmix.posteriors.mixture import Mixture
from recmix.posteriors.posterior import Posterior

__all__ = ["as_full", "ascend", "balanced_noise", "modes", "noise_pairs", "starts_of"]

FIRST_CLIMB = 6
"""Gauss-Newton steps from every start."""
LAST_CLIMB = 20
"""Further steps from the start that led highest."""
DIAGONAL_ASCENT = 40
"""Adam's steps for a diagonal Gaussian."""
FULL_ASCENT = 80
"""The same for a full one."""
RATE = 0.2
"""Adam's first rate, in standard deviations of Laplace's Gaussian; it falls to 0 along a line."""
LOOK_EVERY = 10
"""Steps between two looks at whether the ELBO is higher than ever."""


def starts_of(q: Posterior) -> Tensor:
    """Where climbs begin, (K, B, D): the means of the posterior, its components and the prior."""
    parts = q.components if isinstance(q, Mixture) and len(q.components) > 1 else []
    return torch.stack([q.mean, *(part.mean for part in parts), torch.zeros_like(q.mean)])


def as_full(q: Posterior) -> FullGaussian | None:
    """A posterior that is one Gaussian, as a full one; nothing for any other.

    >>> as_full(Gaussian(torch.zeros(1, 2), torch.zeros(1, 2))).scale_tril
    tensor([[[1., 0.],
             [0., 1.]]])
    """
    if isinstance(q, Mixture) and len(q.components) == 1:
        q = q.components[0]
    if isinstance(q, FullGaussian):
        return _by_factor(q)
    if isinstance(q, Gaussian):
        return FullGaussian(q.mean, torch.diag_embed(q.stddev))
    if isinstance(q, Reflected):
        normal: torch.distributions.MultivariateNormal = q.as_distribution()  # type: ignore[assignment]
        return FullGaussian(q.mean, normal.scale_tril)
    return None


@torch.no_grad()
def modes(model: LatentModel, x: Tensor, starts: Tensor) -> tuple[FullGaussian, list[FullGaussian]]:
    """Laplace's Gaussian at the best mode of each image, and those where each start's climb led.

    The best is that of the highest evidence by Laplace's formula, p(x, z) / q(z) at the mode z: so a
    wide mode may win against a higher one.

    Args:
        model: p(x, z).
        x: images (B, C, H, W).
        starts: latent points (K, B, D).
    """
    found = [_by_factor(laplace(model, x, start, steps=FIRST_CLIMB)) for start in starts]
    places = torch.stack([q.mean for q in found])
    heights = [model.log_joint(x, q.mean[None]) - q.log_prob(q.mean[None]) for q in found]  # (1, B)
    which = torch.cat(heights).nan_to_num(-torch.inf).argmax(0)
    return _by_factor(laplace(model, x, _chosen(places, which), steps=LAST_CLIMB)), found


def ascend(
    model: LatentModel,
    x: Tensor,
    begin: Sequence[FullGaussian],
    *,
    diagonal: bool,
    generator: torch.Generator,
    at_once: int,
) -> FullGaussian:
    """The Gaussian of highest ELBO that Adam finds for each image, as μ and the factor L of Σ.

    With μ_0 and L_0 the best of `begin`, and C the factor of the first of them, the climb is over a, T
    in μ = μ_0 + C a, L = L_0 T: T is lower triangular with the diagonal exp(t), or, for the diagonal
    family, that diagonal alone. The result is no worse than any of `begin`, as far as one set of noise
    can tell; that set is the same at every look, and not the one that is climbed on.

    Args:
        model: p(x, z).
        x: images (B, C, H, W).
        begin: where to begin; for the diagonal family only the diagonals of their factors count.
        diagonal: keep Σ diagonal.
        generator: of the noise, on the model's device.
        at_once: latent vectors decoded at a time.
    """
    pairs, like = noise_pairs(model.latent), model.centre
    looked = torch.cat([balanced_noise(pairs, model.latent, like, generator) for _ in range(2)])
    tried = [_diagonal_of(q) if diagonal else q for q in begin]
    elbos = torch.stack([_elbo(model, x, q.mean, q.scale_tril, looked, at_once) for q in tried])
    best_elbo, which = elbos.nan_to_num(-torch.inf).max(0)
    mean = _chosen(torch.stack([q.mean for q in tried]), which)
    factor = _chosen(torch.stack([q.scale_tril for q in tried]), which)
    best_mean, best_factor, axes = mean, factor, begin[0].scale_tril

    shift = torch.zeros_like(mean).requires_grad_()  # a
    stretch = torch.zeros_like(mean).requires_grad_()  # t
    shear = torch.zeros_like(factor).requires_grad_()  # T below its diagonal
    free = [shift, stretch] if diagonal else [shift, stretch, shear]
    optimizer = torch.optim.Adam(free, lr=RATE, betas=(0.9, 0.99))

    def place() -> tuple[Tensor, Tensor]:
        turn = torch.diag_embed(stretch.exp())
        turn = turn if diagonal else turn + shear.tril(-1)
        return mean + (axes @ shift[..., None]).squeeze(-1), factor @ turn

    steps = DIAGONAL_ASCENT if diagonal else FULL_ASCENT
    for step in range(1, steps + 1):
        optimizer.param_groups[0]["lr"] = RATE * (1 - (step - 1) / steps)
        optimizer.zero_grad()
        noise = balanced_noise(pairs, model.latent, like, generator)
        with torch.enable_grad():
            for part in noise.split(max(1, at_once // len(x))):
                height = _expected_joint(model, x, *place(), part).sum() * (len(part) / len(noise))
                (-height).backward(inputs=free)
            (-_entropy(place()[1]).sum()).backward(inputs=free[1:])
        for leaf in free:
            assert leaf.grad is not None
            leaf.grad.nan_to_num_(0.0, 0.0, 0.0)
        optimizer.step()
        if step % LOOK_EVERY == 0:
            with torch.no_grad():
                now_mean, now_factor = place()
                now = _elbo(model, x, now_mean, now_factor, looked, at_once)
                higher = now > best_elbo  # never where it is not a number
                best_elbo = torch.where(higher, now, best_elbo)
                best_mean = torch.where(higher[:, None], now_mean, best_mean)
                best_factor = torch.where(higher[:, None, None], now_factor, best_factor)
    return FullGaussian(best_mean, best_factor)


def noise_pairs(latent: int) -> int:
    """Pairs of noise vectors in a step: enough for them to have the covariance I."""
    return max(latent, 16)


def balanced_noise(
    pairs: int, latent: int, like: Tensor, generator: torch.Generator | None = None
) -> Tensor:
    """Normal noise (2 · pairs, D), adjusted to have mean 0 and covariance I to the last digit.

    For a joint that is quadratic in z the gradient of the ELBO is then exact. `pairs` must be at
    least D.
    """
    draw = torch.randn(pairs, latent, device=like.device, dtype=torch.float64, generator=generator)
    # With R from draw = Q R, the rows of √pairs · draw R⁻¹ = √pairs · Q have the covariance I.
    rows = math.sqrt(pairs) * torch.linalg.qr(draw).Q
    return torch.cat([rows, -rows]).to(like.dtype)


def _by_factor(q: FullGaussian) -> FullGaussian:
    """The same Gaussian, given by the factor of its covariance."""
    return FullGaussian(q.mean, q.scale_tril)


def _diagonal_of(q: FullGaussian) -> FullGaussian:
    """The diagonal Gaussian with the same mean and conditional variances, the best for a Gaussian q."""
    identity = torch.eye(q.mean.shape[-1], dtype=q.mean.dtype, device=q.mean.device)
    inverse: Tensor = torch.linalg.solve_triangular(
        q.scale_tril, identity.expand_as(q.scale_tril), upper=False
    )
    return FullGaussian(q.mean, torch.diag_embed(inverse.square().sum(-2).rsqrt()))


def _expected_joint(
    model: LatentModel, x: Tensor, mean: Tensor, factor: Tensor, noise: Tensor
) -> Tensor:
    """E log p(x, μ + L ε), (B,), over noise (S, D) that all images share."""
    z = mean + torch.einsum("bij,sj->sbi", factor, noise)
    return model.log_joint(x, z).mean(0)


def _entropy(factor: Tensor) -> Tensor:
    """Of N(μ, L Lᵀ), (B,)."""
    log_scale = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return log_scale + 0.5 * factor.shape[-1] * (1 + math.log(2 * math.pi))


@torch.no_grad()
def _elbo(
    model: LatentModel, x: Tensor, mean: Tensor, factor: Tensor, noise: Tensor, at_once: int
) -> Tensor:
    total = torch.zeros_like(mean[:, 0])
    for part in noise.split(max(1, at_once // len(x))):
        total = total + _expected_joint(model, x, mean, factor, part) * (len(part) / len(noise))
    return total + _entropy(factor)


def _chosen(values: Tensor, which: Tensor) -> Tensor:
    """values[which[b], b]: (K, B, ...), (B,) -> (B, ...)."""
    return values[which, torch.arange(len(which), device=which.device)]
