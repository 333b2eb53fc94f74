"""Gauss-Newton steps that raise log p(x, z), without large matrices, for latents of any size.

As in `recmix.inference.gauss_newton`, a step solves (H + λ I) δ = g, where g is the gradient of
log p(x, z) and H = Jᵀ W J + C is its Gauss-Newton curvature. J is the Jacobian of the decoder, W the
likelihood's Fisher information, and C the curvature of the prior. Here H, J and W are never formed. C is
formed only for priors other than N(0, I) with up to 64 latent dimensions. The equations are solved by
the conjugate gradient method, which needs only products H v of H and vectors v. Each product takes one
Jacobian-vector product and one vector-Jacobian product of the decoder.

The covariance of the result is diagonal: its variances are 1 / diag(H). This is the diagonal Gaussian q
with the smallest KL(q || p) to the Gaussian p with the precision H and the same mean. diag(H) is
estimated from products of H with fixed vectors of ±1. It is exact for up to 16 latent dimensions, and
for a diagonal H.

References: Hestenes and Stiefel 1952 (conjugate gradients); Martens, Deep learning via Hessian-free
optimization, ICML 2010; Bekas, Kokiopoulou and Saad 2007 (estimate of the diagonal).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import jvp
from torch.nn.attention import SDPBackend, sdpa_kernel

from recmix.errors import ConfigError
from recmix.inference.gauss_newton import LogJoint, check_decoder_has_jacobian
from recmix.model.latent import LatentModel
from recmix.model.likelihoods.likelihood import FISHER_SAMPLES, Likelihood
from recmix.model.priors import LEAST_CURVATURE
from recmix.posteriors import Gaussian

__all__ = ["Curvature", "choose_push", "conjugate"]

VALUES = 2**23
"""Largest number of decoder output values (examples x outputs) in one pass."""
LENGTHS = (1.0, 0.5, 0.2, 0.05)
"""Candidate lengths of a step, as multiples of δ."""
DAMPINGS = (1e-2, 1e6)
"""Smallest damping other than 0, and largest damping, in units of the curvature along the gradient."""
PROBES = 16
"""Number of vectors for the estimate of diag(H), a power of 2."""
SMALL = 64
"""Largest latent dimension for which the curvature matrix of a prior is formed."""

Push = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""A function (decoder, z, v) -> J v, (B, *output): J is the decoder's Jacobian at z; z, v are (B, D)."""


def conjugate(
    model: LatentModel, x: Tensor, start: Tensor, *, steps: int, iterations: int = 10
) -> Gaussian:
    """The diagonal Gaussian N(z*, 1 / diag(H)), where z* is reached by Gauss-Newton steps.

    H is the Gauss-Newton curvature of -log p(x, z) at z*. H is never formed: each step solves its
    equations by conjugate gradients. diag(H) is exact for up to 16 latent dimensions; for more it is
    estimated. A step never lowers log p(x, z): if no candidate step of an example raises it, the z of
    this example stays. The results carry no gradient. Memory grows linearly with the dimension of z.

    For a prior other than N(0, I) with up to 64 latent dimensions, its curvature is a full matrix, whose
    eigenvalues are raised to a small positive minimum. With more dimensions, only its diagonal is
    estimated, and the values are raised to this minimum.

    Args:
        model: the model p(x, z).
        x: examples (B, *shape).
        start: first latent points (B, D).
        steps: number of Gauss-Newton steps; 0 gives the variances at `start`.
        iterations: number of conjugate gradient iterations for each step. Each needs one product of H
            and a vector. D iterations solve the equations exactly, up to rounding.

    >>> from recmix.model.likelihoods import Gaussian as Noise
    >>> decoder = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.Unflatten(1, (1, 8, 8)))
    >>> model = LatentModel(decoder, Noise(), latent=2, shape=(1, 8, 8))
    >>> x, start = torch.rand(3, 1, 8, 8), torch.zeros(3, 2)
    >>> q = conjugate(model, x, start, steps=2)
    >>> bool((model.log_joint(x, q.mean[None]) > model.log_joint(x, start[None])).all())
    True
    """
    for name, value, least in (("steps", steps, 0), ("iterations", iterations, 1)):
        if value < least:
            raise ConfigError(f"{name}={value}: expected a whole number of at least {least}")
    check_decoder_has_jacobian(model)
    size = _examples_per_pass(model)
    # Other attention kernels have no forward mode and no second derivative.
    with torch.inference_mode(False), torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        parts = [
            _one_pass(model, some, z.detach().clone(), steps, iterations)
            for some, z in zip(x.split(size), start.split(size), strict=True)
        ]
    means, log_variances = zip(*parts, strict=True)
    return Gaussian(torch.cat(means), torch.cat(log_variances))


def _examples_per_pass(model: LatentModel) -> int:
    """The number of examples for which one pass needs moderate memory."""
    values = max(model.latent, math.prod(model.likelihood.output_shape(model.shape)))
    kind = type(model.likelihood)
    own = kind.precision if _is_diagonal(model.likelihood) else kind.fisher
    if own in (Likelihood.precision, Likelihood.fisher):
        values *= FISHER_SAMPLES  # the Fisher information is an average over samples
    return max(1, VALUES // values)


def _is_diagonal(likelihood: Likelihood) -> bool:
    """Whether the Fisher information W of a likelihood is the diagonal matrix of its `precision`."""
    kind = type(likelihood)
    return kind.fisher is Likelihood.fisher and kind.blocks is Likelihood.blocks


def _one_pass(
    model: LatentModel, x: Tensor, z: Tensor, steps: int, iterations: int
) -> tuple[Tensor, Tensor]:
    """The mean and log-variance, (B, D) each, that `conjugate` gives for one chunk of examples."""
    joint = LogJoint(model, x.clone() if x.is_inference() else x, z.dtype)
    push = choose_push(model.decoder, z[:1])
    level = torch.zeros_like(z[:, :1])  # damping, in units of the curvature along the gradient
    for _ in range(steps):
        step, before = _direction(joint, z, push, level, iterations)
        length = _best_length(joint, z, step, before)
        z = torch.where(length > 0, z + length * step, z)  # also where the step is not finite
        low, high = DAMPINGS
        less = torch.where(level > low, 0.1 * level, torch.zeros_like(level))
        more = torch.where(length > 0, 10 * level, 100 * level).clamp(10 * low, high)
        level = torch.where(length == LENGTHS[0], less, more)
    return z, -Curvature(joint, z, push).diagonal().log()


def _direction(
    joint: LogJoint, z: Tensor, push: Push, level: Tensor, iterations: int
) -> tuple[Tensor, Tensor]:
    """The step δ (B, D) from z that solves (H + λ I) δ = g approximately, and log p(x, z), (B,).

    H is the Gauss-Newton curvature and g the gradient of log p(x, z) at z.

    Args:
        push: computes Jacobian-vector products of the decoder.
        level: decides the damping λ, see `_solve`, (B, 1).
    """
    here = Curvature(joint, z, push)
    with torch.enable_grad():
        value = joint.model.log_density(joint.observed, here.decoded[None]).squeeze(0)
        value = value + joint.model.prior.log_prob(here.at)
        (gradient,) = torch.autograd.grad(value.sum(), here.at, retain_graph=True)
    return _solve(here.multiply, gradient, level, iterations), value.detach()


def _best_length(joint: LogJoint, z: Tensor, step: Tensor, before: Tensor) -> Tensor:
    """Choose the best factor from `LENGTHS` for the step of each example, (B, 1).

    The best factor gives the highest log p(x, z) after the step. The result is 0 if no factor gives more
    than `before` (B,), which is log p(x, z) before the step.
    """
    best, chosen = before, torch.zeros_like(before)
    for length in LENGTHS:  # one after another: this needs less memory
        reached = LogJoint.log_joint(joint, (z + length * step)[None]).squeeze(0)
        rose = (reached > best) & reached.isfinite()
        best = torch.where(rose, reached, best)
        chosen = torch.where(rose, torch.full_like(chosen, length), chosen)
    return chosen[:, None]


def _solve(
    multiply: Callable[[Tensor], Tensor], gradient: Tensor, level: Tensor, iterations: int
) -> Tensor:
    """An approximate solution δ (B, D) of (H + λ I) δ = g, by conjugate gradients from δ = 0.

    `multiply` gives the product of H and vectors (B, D), and g is `gradient` (B, D). λ is `level` (B, 1)
    times the curvature along the gradient, gᵀ H g / gᵀ g. When the equations of an example are solved
    exactly, further iterations do not change the δ of this example.
    """
    step, residual, direction = torch.zeros_like(gradient), gradient, gradient
    squared = _dot(residual, residual)
    damping = level
    for k in range(iterations):
        product = multiply(direction)
        if k == 0:
            damping = level * _ratio(_dot(direction, product), squared)
        product = product + damping * direction
        length = _ratio(squared, _dot(direction, product))
        step = step + length * direction
        residual = residual - length * product
        before, squared = squared, _dot(residual, residual)
        direction = residual + _ratio(squared, before) * direction
    return step


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """The scalar product of each example's vectors: (B, D), (B, D) -> (B, 1)."""
    return (a * b).sum(-1, keepdim=True)


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b where b is positive, else 0."""
    positive = b > 0
    return torch.where(positive, a, torch.zeros_like(a)) / torch.where(positive, b, torch.ones_like(b))


class Curvature:
    """Products of the Gauss-Newton curvature H of -log p(x, z) at z with vectors. H is never formed.

    Args:
        joint: log p(x, z) of the examples.
        z: latent points (B, D).
        push: function that computes Jacobian-vector products of the decoder, from `choose_push`.
    """

    def __init__(self, joint: LogJoint, z: Tensor, push: Push) -> None:
        self.model, self.observed, self.push = joint.model, joint.observed, push
        model = self.model
        with torch.enable_grad():
            self.at = z.detach().requires_grad_()
            self.decoded: Tensor = model.decoder(self.at)  # with a graph, for Jᵀ
        self.weights: Tensor | None = None  # the diagonal of W, computed once if W has no other entries
        if _is_diagonal(model.likelihood):
            self.weights = model.likelihood.precision(self.observed, self.decoded.detach()).detach()
        self.prior = _prior_curvature(model, z)

    def multiply(self, v: Tensor) -> Tensor:
        """The product H v for vectors v (B, D), (B, D). It carries no gradient."""
        return self.multiply_likelihood(v) + _times(self.prior, v)

    def multiply_likelihood(self, v: Tensor) -> Tensor:
        """The product Jᵀ W J v for vectors v (B, D), (B, D)."""
        pushed = self.push(self.model.decoder, self.at.detach(), v)
        if self.weights is not None:
            weighted = self.weights * pushed
        else:
            column, decoded = pushed.flatten(1)[..., None], self.decoded.detach()
            weighted = self.model.likelihood.fisher(self.observed, decoded, column).detach()
        with torch.enable_grad():
            (pulled,) = torch.autograd.grad(
                self.decoded, self.at, weighted.reshape(self.decoded.shape), retain_graph=True
            )
        return pulled

    def diagonal(self) -> Tensor:
        """An estimate of diag(H), (B, D). It is never below the diagonal of the prior's curvature."""
        estimate = _diagonal(self.multiply_likelihood, self.at.detach())
        whole = self.prior.shape == estimate.shape
        prior = self.prior if whole else self.prior.diagonal(dim1=-2, dim2=-1)
        return torch.where(estimate > 0, estimate, torch.zeros_like(estimate)) + prior


def _prior_curvature(model: LatentModel, z: Tensor) -> Tensor:
    """The curvature C = -∇² log p(z) of the prior at z (B, D): a matrix (B, D, D) or a diagonal (B, D).

    It is a diagonal in two cases: for the prior N(0, I), where it is exact, and for other priors if D is
    above `SMALL`, where it is an estimate. Otherwise it is the full matrix.
    """
    if model.prior.standard:
        return torch.ones_like(z)
    if z.shape[-1] <= SMALL:
        _, curvature = model.prior.gradient_and_curvature(z)
        return curvature.detach().expand(len(z), -1, -1)
    with torch.enable_grad():
        at = z.detach().requires_grad_()
        (slope,) = torch.autograd.grad(model.prior.log_prob(at).sum(), at, create_graph=True)

    def multiply(v: Tensor) -> Tensor:
        if not slope.requires_grad:  # log p(z) is linear in z
            return torch.zeros_like(v)
        (product,) = torch.autograd.grad(slope, at, -v, retain_graph=True)
        return product

    estimate = _diagonal(multiply, z)
    least = torch.full_like(estimate, LEAST_CURVATURE)
    return torch.where(estimate > least, estimate, least)


def _diagonal(multiply: Callable[[Tensor], Tensor], like: Tensor) -> Tensor:
    """Estimate the diagonal of a matrix A of each example, (B, D), from products of A with vectors.

    The estimate is the average of v ⊙ A v over the vectors v of ±1 from `_probes`.

    Args:
        multiply: function that returns A v, (B, D), for vectors v (B, D).
        like: a tensor (B, D) with the wanted shape, dtype and device.
    """
    total = torch.zeros_like(like)
    for probe in _probes(like.shape[-1], like.dtype, like.device):
        wide = probe.expand_as(like)
        total = total + wide * multiply(wide)
    return total / PROBES


@functools.lru_cache(maxsize=32)
def _probes(latent: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Fixed vectors v with entries ±1, (PROBES, D), with which `_diagonal` estimates the diagonal of A.

    The entries of dimension d in all vectors are a column of a Hadamard matrix, times a random sign. Two
    columns of this matrix are orthogonal. So the entry A_ij causes an error of the estimate only if
    dimensions i and j have the same column. The columns are assigned to the dimensions at random,
    because A_ij is often largest for neighbouring dimensions.
    """
    matrix = torch.ones(1, 1)
    while len(matrix) < PROBES:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    generator = torch.Generator().manual_seed(0)
    column = torch.randperm(latent, generator=generator) % PROBES
    sign = 2.0 * torch.randint(2, (latent,), generator=generator) - 1
    return (matrix[:, column] * sign).to(device, dtype)


def _has_forward_mode(decoder: nn.Module, z: Tensor) -> bool:
    """Whether all modules of a decoder support forward-mode differentiation, by a test at z (1, D)."""
    try:
        _by_forward_mode(decoder, z, z)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, NotImplementedError):
        return False
    return True


def _by_forward_mode(decoder: nn.Module, z: Tensor, v: Tensor) -> Tensor:
    """The Jacobian-vector product J v, (B, *output), by forward-mode differentiation."""
    pushed: Tensor = jvp(decoder, (z,), (v,))[1]
    return pushed


def _by_reverse_mode(decoder: nn.Module, z: Tensor, v: Tensor) -> Tensor:
    """The Jacobian-vector product J v, (B, *output), by reverse-mode differentiation."""
    pushed: Tensor = torch.autograd.functional.jvp(decoder, z, v)[1]
    return pushed


def choose_push(decoder: nn.Module, z: Tensor) -> Push:
    """Choose the function (decoder, z, v) -> J v, where J is the decoder's Jacobian at z.

    It uses forward-mode differentiation if all modules of the decoder support it, else reverse mode.
    Forward mode is tried at z, (1, D).
    """
    return _by_forward_mode if _has_forward_mode(decoder, z) else _by_reverse_mode


def _times(curvature: Tensor, v: Tensor) -> Tensor:
    """The product of a matrix and vectors v (B, D). The matrix is (B, D, D), or its diagonal (B, D)."""
    return curvature * v if curvature.shape == v.shape else (curvature @ v[..., None]).squeeze(-1)
