"""Find the best Gaussian posterior of each example by optimisation, without an encoder.

First, damped Gauss-Newton steps from several starting points lead to modes of p(z | x), where the
curvature gives Laplace approximations. Then Adam maximises the ELBO of a Gaussian, diagonal or
full. It starts from the best Laplace approximation, and works in coordinates in which this
approximation is a standard normal. The Gaussian with the highest ELBO seen during the optimisation
is kept. The result of an example does not depend on the other examples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from recmix.inference.refinement import laplace
from recmix.model.latent import LatentModel
from recmix.posteriors import FullGaussian, Gaussian, Posterior, Reflected

__all__ = ["as_full", "balanced_noise", "maximise_elbo", "modes", "noise_pairs", "starts_of"]

FIRST_STEPS = 6
"""Number of Gauss-Newton steps from every starting point."""
LAST_STEPS = 20
"""Number of Gauss-Newton steps from the best of the points that these steps reach."""
DIAGONAL_STEPS = 40
"""Steps of Adam for a diagonal Gaussian."""
FULL_STEPS = 80
"""Steps of Adam for a full Gaussian."""
RATE = 0.2
"""Adam's first learning rate, in standard deviations of the Laplace approximation; decays to 0."""
CHECK_EVERY = 10
"""Number of Adam's steps between two comparisons with the highest ELBO so far."""


def starts_of(q: Posterior) -> Tensor:
    """Return K points from which modes of p(z | x) are searched, (K, B, D), for B examples.

    They are the mean of q, the means of its components if q is a mixture, and the point z = 0.

    Args:
        q: the posterior q(z | x) of the examples.
    """
    parts = q.components if len(q.components) > 1 else []
    return torch.stack([q.mean, *(part.mean for part in parts), torch.zeros_like(q.mean)])


def as_full(q: Posterior) -> FullGaussian | None:
    """Convert a posterior that is a single Gaussian to a `FullGaussian`; return None for all others.

    >>> as_full(Gaussian(torch.zeros(1, 2), torch.zeros(1, 2))).scale_tril
    tensor([[[1., 0.],
             [0., 1.]]])
    """
    if len(q.components) == 1:
        q = q.components[0]
    if isinstance(q, FullGaussian):
        return _by_factor(q)
    if isinstance(q, Gaussian):
        return FullGaussian(q.mean, torch.diag_embed(q.stddev))
    if isinstance(q, Reflected):
        return FullGaussian(q.mean, q.scale_tril)
    return None


@torch.no_grad()
def modes(model: LatentModel, x: Tensor, starts: Tensor) -> tuple[FullGaussian, list[FullGaussian]]:
    """Find modes of p(z | x) by Gauss-Newton steps, with a Laplace approximation at each.

    The best mode z of an example has the highest Laplace estimate of p(x), which is p(x, z) / q(z) for
    the Laplace approximation q. So a wide mode may be preferred to a higher one.

    Args:
        x: examples (B, *shape).
        starts: K starting points for each example, (K, B, D).

    Returns:
        The Laplace approximation at the best mode of each example; and a list of K Laplace
        approximations, one for each starting point.
    """
    found = [_by_factor(laplace(model, x, start, steps=FIRST_STEPS)) for start in starts]
    places = torch.stack([q.mean for q in found])
    heights = [model.log_joint(x, q.mean[None]) - q.log_prob(q.mean[None]) for q in found]  # (1, B)
    which = torch.cat(heights).nan_to_num(-torch.inf).argmax(0)
    return _by_factor(laplace(model, x, _chosen(places, which), steps=LAST_STEPS)), found


def maximise_elbo(
    model: LatentModel,
    x: Tensor,
    begin: Sequence[FullGaussian],
    *,
    diagonal: bool,
    generator: torch.Generator,
    at_once: int,
) -> FullGaussian:
    """The Gaussian N(μ, L Lᵀ) with the highest ELBO that Adam finds for each example.

    Adam starts at N(μ_0, L_0 L_0ᵀ), the Gaussian of `begin` with the highest ELBO. It optimises a vector
    a and a matrix T, with μ = μ_0 + C a and L = L_0 T. C is the covariance factor of the first Gaussian
    of `begin`, so that a is in units of the standard deviations of this Gaussian. T is lower triangular
    with a positive diagonal, or diagonal for the diagonal family. ELBOs are compared with fixed noise
    that is not used for optimisation. With this noise the result is never worse than any Gaussian of
    `begin`.

    Args:
        x: examples (B, *shape).
        begin: Gaussians to start from. The first should be a Laplace approximation of p(z | x). For the
            diagonal family each is replaced by the diagonal Gaussian with its mean and its conditional
            variances.
        diagonal: whether the covariance L Lᵀ must be diagonal.
        at_once: largest number of latent vectors that are decoded at a time.
    """
    pairs, like = noise_pairs(model.latent), model.centre
    fixed = torch.cat([balanced_noise(pairs, model.latent, like, generator) for _ in range(2)])
    tried = [_diagonal_of(q) if diagonal else q for q in begin]
    elbos = torch.stack([_elbo(model, x, q, fixed, at_once) for q in tried])
    best_elbo, which = elbos.nan_to_num(-torch.inf).max(0)
    mean = _chosen(torch.stack([q.mean for q in tried]), which)
    factor = _chosen(torch.stack([q.scale_tril for q in tried]), which)
    best_mean, best_factor, axes = mean, factor, begin[0].scale_tril

    shift = torch.zeros_like(mean).requires_grad_()  # a
    stretch = torch.zeros_like(mean).requires_grad_()  # t
    shear = torch.zeros_like(factor).requires_grad_()  # T below its diagonal
    free = [shift, stretch] if diagonal else [shift, stretch, shear]
    optimizer = torch.optim.Adam(free, lr=RATE, betas=(0.9, 0.99))

    def current() -> FullGaussian:
        turn = torch.diag_embed(stretch.exp())
        turn = turn if diagonal else turn + shear.tril(-1)
        return FullGaussian(mean + (axes @ shift[..., None]).squeeze(-1), factor @ turn)

    steps = DIAGONAL_STEPS if diagonal else FULL_STEPS
    for step in range(1, steps + 1):
        optimizer.param_groups[0]["lr"] = RATE * (1 - (step - 1) / steps)
        optimizer.zero_grad()
        noise = balanced_noise(pairs, model.latent, like, generator)
        with torch.enable_grad():
            for part in noise.split(max(1, at_once // len(x))):
                value = _elbo_at(model, x, current(), part).sum() * (len(part) / len(noise))
                (-value).backward(inputs=free)
        for leaf in free:
            assert leaf.grad is not None
            leaf.grad.nan_to_num_(0.0, 0.0, 0.0)
        optimizer.step()
        if step % CHECK_EVERY == 0:
            with torch.no_grad():
                q = current()
                now = _elbo(model, x, q, fixed, at_once)
                higher = now > best_elbo  # false where it is not a number
                best_elbo = torch.where(higher, now, best_elbo)
                best_mean = torch.where(higher[:, None], q.mean, best_mean)
                best_factor = torch.where(higher[:, None, None], q.scale_tril, best_factor)
    return FullGaussian(best_mean, best_factor)


def noise_pairs(latent: int) -> int:
    """The number of noise pairs (ε, -ε) that `maximise_elbo` uses in each step of Adam.

    It is at least D, the latent dimension, because `balanced_noise` needs at least D pairs.
    """
    return max(latent, 16)


def balanced_noise(
    pairs: int, latent: int, like: Tensor, generator: torch.Generator | None = None
) -> Tensor:
    """Draw normal noise (2 · pairs, D), and adjust it to have exactly mean 0 and covariance I.

    With this noise the gradient of the ELBO is exact if log p(x, z) is quadratic in z. `pairs` must
    be at least D = `latent`, the latent dimension.

    Args:
        pairs: number of pairs of a noise vector and its negative.
        like: a tensor whose device and dtype the noise gets.
    """
    draw = torch.randn(pairs, latent, device=like.device, dtype=torch.float64, generator=generator)
    # With draw = Q R, the rows of √pairs · Q have covariance I.
    rows = math.sqrt(pairs) * torch.linalg.qr(draw).Q
    return torch.cat([rows, -rows]).to(like.dtype)


def _by_factor(q: FullGaussian) -> FullGaussian:
    """The same Gaussian, stored as its mean and the Cholesky factor of its covariance."""
    return FullGaussian(q.mean, q.scale_tril)


def _diagonal_of(q: FullGaussian) -> FullGaussian:
    """The diagonal Gaussian with the mean and the conditional variances of q.

    A conditional variance is the variance of one dimension of z, given all other dimensions.
    """
    return FullGaussian(q.mean, torch.diag_embed(q.precision_factor.square().sum(-2).rsqrt()))


def _elbo_at(model: LatentModel, x: Tensor, q: FullGaussian, noise: Tensor) -> Tensor:
    """An estimate of the ELBO of q for each example, (B,), from noise vectors (S, D).

    The entropy of q is exact if the noise is balanced, see `balanced_noise`.
    """
    z, log_q = q.from_noise(noise[:, None])
    return (model.log_joint(x, z) - log_q).mean(0)


@torch.no_grad()
def _elbo(model: LatentModel, x: Tensor, q: FullGaussian, noise: Tensor, at_once: int) -> Tensor:
    """`_elbo_at`, with at most `at_once` latent vectors decoded at a time."""
    total = torch.zeros_like(q.mean[:, 0])
    for part in noise.split(max(1, at_once // len(x))):
        total = total + _elbo_at(model, x, q, part) * (len(part) / len(noise))
    return total


def _chosen(values: Tensor, which: Tensor) -> Tensor:
    """Select one of K candidates for each example b: values[which[b], b], together (B, ...)."""
    return values[which, torch.arange(len(which), device=which.device)]
