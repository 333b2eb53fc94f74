"""The Gaussian posterior whose covariance is a diagonal matrix changed by a matrix of low rank."""

from __future__ import annotations

import math
from typing import Any, Self

import torch
from torch import Tensor

from recmix.posteriors.full import in_double
from recmix.posteriors.gaussian import Gaussian, precision_shares
from recmix.posteriors.posterior import AnyGaussian

__all__ = ["LowRankGaussian"]


class LowRankGaussian(AnyGaussian):
    """Gaussian q(z | x) = N(μ(x), L Lᵀ) with L = diag(a) (I + left rightᵀ).

    `left` and `right` are matrices with D rows and r columns, for each example. The D x D matrices L and
    L Lᵀ are never formed. Time and memory grow with D·r, so this class can be used where `FullGaussian`
    would be too large. With left = 0, q is the diagonal Gaussian with standard deviations a. The r x r
    matrix I + rightᵀ left must be invertible. (Comments in the code call `left` and `right` B and C.)

    Args:
        mean: μ, (B, D).
        log_scale: log a, (B, D). It is not clamped.
        left: the left matrix, (B, D, r).
        right: the right matrix, (B, D, r).

    >>> left, right = 0.1 * torch.ones(4, 5, 2), torch.ones(4, 5, 2)
    >>> q = LowRankGaussian(torch.zeros(4, 5), torch.zeros(4, 5), left, right)
    >>> z, log_q = q.rsample_and_log_prob(3)
    >>> z.shape, torch.allclose(q.log_prob(z), log_q, atol=1e-4)
    (torch.Size([3, 4, 5]), True)
    """

    def __init__(self, mean: Tensor, log_scale: Tensor, left: Tensor, right: Tensor) -> None:
        super().__init__(mean)
        self.log_scale = log_scale
        self.left = left
        self.right = right

    @property
    def variance(self) -> Tensor:
        """The variance of each latent dimension, the diagonal of the covariance, (B, D)."""
        # Row i of I + B Cᵀ is eᵢ + C bᵢ, where bᵢ is row i of B.
        across = self.left @ (self.right.mT @ self.right)
        rows = 1 + (2 * self.left * self.right + across * self.left).sum(-1)
        eps = torch.finfo(rows.dtype).eps  # smaller values are rounding errors and may be negative
        return (2 * self.log_scale).exp() * rows.clamp(min=eps)

    def multiply(self, noise: Tensor) -> Tensor:
        """The product L ε, (..., B, D), where the covariance is L Lᵀ.

        Args:
            noise: vectors ε, (..., B, D), or (..., 1, D) if all examples use the same vectors.
        """
        return self.log_scale.exp() * (noise + _expand(self.left, _reduce(self.right, noise)))

    def multiply_transposed(self, v: Tensor) -> Tensor:
        """The product Lᵀ v, (..., B, D), where the covariance is L Lᵀ.

        Args:
            v: vectors (..., B, D), or (..., 1, D) if all examples use the same vectors.
        """
        scaled = self.log_scale.exp() * v
        return scaled + _expand(self.right, _reduce(self.left, scaled))

    def whiten(self, z: Tensor) -> Tensor:
        """Compute the noise ε = L⁻¹ (z - μ), (..., B, D), for latent points z (..., B, D).

        μ is the mean and L Lᵀ the covariance. If z is a sample of this Gaussian, ε is standard normal.
        The inverse uses the Woodbury identity (I + left rightᵀ)⁻¹ = I - left (I + rightᵀ left)⁻¹ rightᵀ.
        """
        scaled = (z - self.mean) * (-self.log_scale).exp()
        solved = torch.linalg.solve_ex(self._core(), self.right.mT).result.mT  # (B, D, r)
        return scaled - _expand(self.left, _reduce(solved, scaled))

    def from_noise(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Compute points z = μ + L ε, (S, B, D), from noise ε, and their log densities, (S, B).

        μ is the mean and L Lᵀ the covariance.

        Args:
            noise: ε, standard normal, (S, B, D), or (S, 1, D) if all examples use the same noise.
        """
        z = self.mean + self.multiply(noise)
        return z, -0.5 * noise.square().sum(-1) - self._log_normaliser()

    def log_prob(self, value: Tensor) -> Tensor:
        """log q(z | x), (..., B), for latent points z (..., B, D)."""
        return -0.5 * self.whiten(value).square().sum(-1) - self._log_normaliser()

    def entropy(self) -> Tensor:
        """The entropy ½ log det(2πe L Lᵀ) of each example, (B,), where L Lᵀ is the covariance."""
        return self._log_normaliser() + 0.5 * self.mean.shape[-1]

    def kl_to_prior(self, z: Tensor, log_q: Tensor) -> Tensor:
        """KL(q || N(0, I)) in closed form, (1, B); the arguments z and log_q are not used.

        It is ½ (tr L Lᵀ + |μ|² - D) - log |det L| for the mean μ and the covariance L Lᵀ in D
        dimensions.
        """
        second_moment = (self.variance + self.mean.square()).sum(-1)
        return (0.5 * (second_moment - self.mean.shape[-1]) - self._log_det())[None]

    def scaled(self, factor: float | Tensor) -> LowRankGaussian:
        """The Gaussian with the same mean and standard deviations multiplied by about f = `factor`.

        Σ is the covariance. For f above 1 the new precision is I + (Σ⁻¹ - I)/f². So a direction that is
        narrower than the prior N(0, I) stays narrower. For f below 1 the new covariance is f² Σ. Both
        are exact.

        If f is one number of at most 1, only `log_scale` changes. Otherwise the new matrices `left` and
        `right` have up to 2 r columns. Then the gradient is not finite if the columns of the old `left`
        and `right`, taken together, are linearly dependent.

        Args:
            factor: f, one number, or one for each example (B,).
        """
        if not isinstance(factor, Tensor) and factor <= 1:
            changed = self.log_scale + math.log(factor)
            return LowRankGaussian(self._mean, changed, self.left, self.right)
        share, rest = precision_shares(factor, 1)
        a, left, right = (in_double(t) for t in (self.log_scale.exp(), self.left, self.right))
        # Σ⁻¹ = diag(1/a) (I + U G Uᵀ) diag(1/a) with U = [B, C], by the Woodbury identity.
        inverse = torch.linalg.solve_ex(_core(left, right), _identity(left)).result
        solved = left @ inverse
        zero = torch.zeros_like(inverse)
        middle = torch.cat(
            [torch.cat([zero, -inverse], -1), torch.cat([-inverse.mT, solved.mT @ solved], -1)], -2
        )
        # The new precision is diag(1/b) (I + V G Vᵀ) diag(1/b), where V is U with rescaled rows.
        b = (share / a.square() + rest).rsqrt()
        ratio = share**0.5 * (b / a)
        columns = ratio[..., None] * torch.cat([left, right], -1)
        # With V = Q R, the inverse of I + V G Vᵀ has the symmetric square root I + Q T Qᵀ.
        q, r = torch.linalg.qr(columns)
        values, vectors = torch.linalg.eigh(_identity(q) + r @ middle @ r.mT)
        axes = q @ vectors
        roots = values.clamp(min=torch.finfo(values.dtype).tiny).rsqrt()
        made = (b.log(), axes * (roots - 1)[..., None, :], axes)
        return LowRankGaussian(self._mean, *(t.to(self.log_scale.dtype) for t in made))

    def describe(self) -> dict[str, Tensor]:
        """The tensors that define the density, {name: tensor}, for L = diag(a) (I + left rightᵀ).

        The covariance is L Lᵀ. ``means`` and ``log_scales`` (log a) are (B, D). ``left`` and ``right``
        are (B, D, r).
        """
        return dict(zip(("means", "log_scales", "left", "right"), self.parts_of(self), strict=True))

    def parts_of(self, other: Any) -> list[Tensor]:
        """The tensors that define the Gaussian `other`: mean, log_scale, left and right.

        The mean and log_scale are (B, D). The matrices left and right are (B, D, r), where r is at least
        as large as in this object. Missing columns are filled with zeros, which do not change the
        density. `choose` combines two Gaussians in this way, example by example.

        Args:
            other: a `LowRankGaussian` or a diagonal Gaussian, for the same number of examples.
        """
        if isinstance(other, Gaussian):
            zero = torch.zeros_like(self.left)
            return [other.mean, 0.5 * other.log_variance, zero, zero]
        left, right = other.left, other.right
        if (missing := self.left.shape[-1] - left.shape[-1]) > 0:
            left, right = (torch.nn.functional.pad(t, (0, missing)) for t in (left, right))
        return [other.mean, other.log_scale, left, right]

    def from_parts(self, *parts: Tensor) -> Self:
        """Make a Gaussian from the tensors mean, log_scale, left and right, which `parts_of` returns."""
        return type(self)(*parts)

    def _core(self) -> Tensor:
        return _core(self.left, self.right)

    def _log_det(self) -> Tensor:
        """log |det L| = Σ log a + log |det M| with M = I + rightᵀ left, (B,).

        log |det M| is half of log det(M Mᵀ), which has a Cholesky factorisation, as in `FullGaussian`.
        With `torch.linalg.slogdet` instead, the posterior could not be captured as a CUDA graph. M Mᵀ
        has the squared condition number of M, so it is computed in float64, and M must have a condition
        number below 1e7.
        """
        core = in_double(self._core())
        factor = torch.linalg.cholesky_ex(core @ core.mT).L
        log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return self.log_scale.sum(-1) + log_det.to(self.log_scale.dtype)

    def _log_normaliser(self) -> Tensor:
        return self._log_det() + 0.5 * self.mean.shape[-1] * math.log(2 * math.pi)


def _core(left: Tensor, right: Tensor) -> Tensor:
    """The matrix I + rightᵀ left, (B, r, r)."""
    return _identity(left) + right.mT @ left


def _identity(columns: Tensor) -> Tensor:
    """The identity matrix (r, r) for a matrix of r columns, in its data type and on its device."""
    return torch.eye(columns.shape[-1], dtype=columns.dtype, device=columns.device)


def _reduce(columns: Tensor, v: Tensor) -> Tensor:
    """The products Mᵀ v: M = `columns` (B, D, r), v (..., B, D) -> (..., B, r)."""
    return torch.einsum("...d,...dr->...r", v, columns)


def _expand(columns: Tensor, weights: Tensor) -> Tensor:
    """The products M w: M = `columns` (B, D, r), w = `weights` (..., B, r) -> (..., B, D)."""
    return torch.einsum("...r,...dr->...d", weights, columns)
