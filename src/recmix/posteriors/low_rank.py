"""The Gaussian posterior whose covariance is a diagonal matrix changed by a matrix of low rank."""

from __future__ import annotations

import math
from typing import Any, Self

import torch
from torch import Tensor

from recmix.posteriors.gaussian import Gaussian, precision_shares
from recmix.posteriors.posterior import FactoredGaussian

__all__ = ["LowRankGaussian"]


class LowRankGaussian(FactoredGaussian):
    """Gaussian q(z | x) = N(μ(x), L Lᵀ) with L = diag(a) (I + left rightᵀ).

    `left` and `right` have D rows and r columns for each example. Time and memory grow with D·r, because
    L is never formed. So this class can be used where `FullGaussian` would be too large. The r x r
    matrix I + rightᵀ left must be invertible.

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
        """The variance of each latent dimension, (B, D)."""
        # Row i of I + B Cᵀ is eᵢ + C bᵢ, where bᵢ is row i of B.
        across = self.left @ (self.right.mT @ self.right)
        rows = 1 + (2 * self.left * self.right + across * self.left).sum(-1)
        eps = torch.finfo(rows.dtype).eps  # smaller values are rounding errors and may be negative
        return (2 * self.log_scale).exp() * rows.clamp(min=eps)

    def multiply(self, noise: Tensor) -> Tensor:
        """The product L ε, (..., B, D), for vectors ε (..., B, D). The covariance is L Lᵀ."""
        return self.log_scale.exp() * (noise + _expand(self.left, _reduce(self.right, noise)))

    def multiply_transposed(self, v: Tensor) -> Tensor:
        """The product Lᵀ v, (..., B, D), for vectors v (..., B, D). The covariance is L Lᵀ."""
        scaled = self.log_scale.exp() * v
        return scaled + _expand(self.right, _reduce(self.left, scaled))

    def whiten(self, z: Tensor) -> Tensor:
        """The noise ε = L⁻¹ (z - μ), (..., B, D), for latent points z (..., B, D).

        The Woodbury identity gives (I + left rightᵀ)⁻¹ = I - left (I + rightᵀ left)⁻¹ rightᵀ.
        """
        scaled = (z - self.mean) * (-self.log_scale).exp()
        solved = torch.linalg.solve_ex(
            _core(self.left, self.right), self.right.mT
        ).result.mT  # (B, D, r)
        return scaled - _expand(self.left, _reduce(solved, scaled))

    def kl_to_prior(self, z: Tensor, log_q: Tensor) -> Tensor:
        """KL(q || N(0, I)) = ½ (tr L Lᵀ + |μ|² - D) - log |det L|, (1, B). Arguments are not used."""
        second_moment = (self.variance + self.mean.square()).sum(-1)
        return (0.5 * (second_moment - self.mean.shape[-1]) - self._log_det())[None]

    def scaled(self, factor: float | Tensor) -> LowRankGaussian:
        """A Gaussian with the same mean, narrower (factor < 1) or closer to the width of N(0, I).

        Let f be `factor` and Σ the covariance. If f ≤ 1, the new covariance is f² Σ. If f > 1, the new
        precision is I + (Σ⁻¹ - I)/f²: it approaches the precision I of the prior as f grows.

        Let r be the number of columns of `left` and `right`. If f is a Python number of at most 1, the
        result also has r columns. If f is a number above 1, or a tensor of any value, the result has
        min(2 r, D) columns. In this second case the gradient is not finite if the matrix [left, right],
        (B, D, 2 r), does not have full rank.

        Args:
            factor: f, one number, or one for each example (B,).
        """
        if not isinstance(factor, Tensor) and factor <= 1:
            changed = self.log_scale + math.log(factor)
            return LowRankGaussian(self._mean, changed, self.left, self.right)
        share, rest = precision_shares(factor, 1)
        a, left, right = (t.double() for t in (self.log_scale.exp(), self.left, self.right))
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
        """The tensors that define the density: means and log_scales (B, D), left and right (B, D, r)."""
        return dict(zip(("means", "log_scales", "left", "right"), self.parts_of(self), strict=True))

    def parts_of(self, other: Any) -> list[Tensor]:
        """The mean and log_scale, (B, D), and left and right, (B, D, r), of the Gaussian `other`.

        r is the larger number of columns of this object and of `other`; the values of this object are
        not used, see `AnyGaussian.parts_of`. If `other` is diagonal or has fewer columns, columns of
        zeros are added. These do not change the density.
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

    def _log_det(self) -> Tensor:
        """log |det L| = Σ log a + log |det M| with M = I + rightᵀ left, (B,).

        log |det M| is half of log det(M Mᵀ), which is computed from a Cholesky factor, because a CUDA
        graph cannot capture `torch.linalg.slogdet`. The condition number of M Mᵀ is that of M squared,
        so the factorisation needs float64.
        """
        core = _core(self.left, self.right).double()
        factor = torch.linalg.cholesky_ex(core @ core.mT).L
        log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return self.log_scale.sum(-1) + log_det.to(self.log_scale.dtype)


def _core(left: Tensor, right: Tensor) -> Tensor:
    """The matrix I + rightᵀ left, (B, r, r)."""
    return _identity(left) + right.mT @ left


def _identity(columns: Tensor) -> Tensor:
    """The identity matrix (r, r), where r is the number of columns of `columns`, (B, D, r)."""
    return torch.eye(columns.shape[-1], dtype=columns.dtype, device=columns.device)


def _reduce(columns: Tensor, v: Tensor) -> Tensor:
    """The product Mᵀ v, (..., B, r), for M = `columns` (B, D, r) and v (..., B, D)."""
    return torch.einsum("...d,...dr->...r", v, columns)


def _expand(columns: Tensor, weights: Tensor) -> Tensor:
    """The product M w, (..., B, D), for M = `columns` (B, D, r) and w = `weights` (..., B, r)."""
    return torch.einsum("...r,...dr->...d", weights, columns)
