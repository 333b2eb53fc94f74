"""The Gaussian posterior with a full covariance."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from recmix.model.replaceable import replaceable
from recmix.posteriors.gaussian import Gaussian, precision_shares
from recmix.posteriors.posterior import FactoredGaussian

__all__ = ["FullGaussian", "cholesky", "in_double"]


class FullGaussian(FactoredGaussian):
    """Gaussian q(z | x) = N(μ(x), Σ(x)) with a full covariance Σ = L Lᵀ.

    The constructor takes L. `from_precision` takes the precision matrix Σ⁻¹. It makes an object that
    stores a triangular factor of Σ⁻¹ and draws samples by a triangular solve. Objects made in both ways
    give the same samples from the same noise.

    Args:
        mean: μ, (B, D).
        scale_tril: L, lower triangular with a positive diagonal, (B, D, D), or (D, D) for all examples.

    >>> q = FullGaussian(torch.zeros(4, 2), torch.eye(2).expand(4, 2, 2))
    >>> z, log_q = q.rsample_and_log_prob(3)
    >>> z.shape, log_q.shape
    (torch.Size([3, 4, 2]), torch.Size([3, 4]))
    """

    def __init__(self, mean: Tensor, scale_tril: Tensor) -> None:
        if scale_tril.shape != (*mean.shape, mean.shape[-1]):
            scale_tril = scale_tril.expand(*mean.shape, -1)
        super().__init__(mean)
        self._factor = scale_tril  # L, or Uᵀ: lower triangular in both cases
        self._inverted = False

    @classmethod
    def from_precision(cls, mean: Tensor, precision: Tensor) -> FullGaussian:
        """The Gaussian N(μ, P⁻¹) with mean μ and precision matrix P.

        Args:
            mean: μ, (B, D).
            precision: P, symmetric and positive definite, (B, D, D).

        >>> q = FullGaussian.from_precision(torch.zeros(1, 2), 4 * torch.eye(2).expand(1, 2, 2))
        >>> q.scale_tril.diagonal(dim1=-2, dim2=-1)
        tensor([[0.5000, 0.5000]])
        """
        # P = U Uᵀ with U upper triangular: a Cholesky factor of P with rows and columns reversed.
        upper = cholesky(precision.flip(-2, -1)).flip(-2, -1)
        return cls._from_factor(mean, upper.mT, inverted=True)

    @classmethod
    def _from_factor(cls, mean: Tensor, factor: Tensor, *, inverted: bool) -> Self:
        made = cls(mean, factor)
        made._inverted = inverted
        return made

    def scaled(self, factor: float | Tensor) -> FullGaussian:
        """A wider or narrower Gaussian with the same mean.

        For f = `factor` above 1 the new precision is I + (Σ⁻¹ - I)/f², otherwise the new covariance is
        f² Σ.

        Args:
            factor: f, one number, or one for each example (B,).
        """
        if not isinstance(factor, Tensor) and factor <= 1:
            changed = self._factor * (1 / factor if self._inverted else factor)
            return self._from_factor(self._mean, changed, inverted=self._inverted)
        share, rest = precision_shares(factor, 2)
        root = in_double(self._factor)
        identity = torch.eye(root.shape[-1], dtype=root.dtype, device=root.device)
        if not self._inverted:
            root = _inverse(root)
        made = FullGaussian.from_precision(self._mean, share * (root.mT @ root) + rest * identity)
        made._factor = made._factor.to(self._factor.dtype)
        return made

    @property
    def scale_tril(self) -> Tensor:
        """The lower triangular factor L of the covariance Σ = L Lᵀ, (B, D, D)."""
        if not self._inverted:
            return self._factor
        return _inverse(self._factor)

    @property
    def precision_factor(self) -> Tensor:
        """The lower triangular matrix R, (B, D, D), for which Rᵀ R is the precision matrix."""
        return self._factor if self._inverted else _inverse(self._factor)

    @property
    def covariance_matrix(self) -> Tensor:
        """The covariance Σ, (B, D, D)."""
        scale = self.scale_tril
        return scale @ scale.mT

    @property
    def variance(self) -> Tensor:
        """The variance of each latent dimension, (B, D)."""
        return self.scale_tril.square().sum(-1)

    def whiten(self, z: Tensor) -> Tensor:
        """The noise ε = L⁻¹ (z - μ), (..., B, D), for latent points z (..., B, D)."""
        apply = _multiply if self._inverted else _solve
        return apply(self._factor, z - self.mean)

    def kl_to_prior(self, z: Tensor, log_q: Tensor) -> Tensor:
        """KL(q || N(0, I)) = ½ (tr Σ + |μ|² - D - log det Σ), (1, B). Arguments are not used."""
        second_moment = self.scale_tril.square().sum((-2, -1)) + self.mean.square().sum(-1)
        return (0.5 * (second_moment - self.mean.shape[-1]) - self._log_det())[None]

    def describe(self) -> dict[str, Tensor]:
        """The mean μ and the factor L of the covariance L Lᵀ: ``{"means": μ, "scale_tril": L}``."""
        return {"means": self.mean, "scale_tril": self.scale_tril}

    def multiply(self, noise: Tensor) -> Tensor:
        """The product L ε, (..., B, D), for vectors ε (..., B, D). The covariance is L Lᵀ."""
        return (_solve if self._inverted else _multiply)(self._factor, noise)

    def multiply_transposed(self, v: Tensor) -> Tensor:
        """The product Lᵀ v, (..., B, D), for vectors v (..., B, D). The covariance is L Lᵀ."""
        if not self._inverted:
            return _multiply(self._factor.mT, v)
        upper = self._factor.mT.expand(*v.shape, -1)
        found: Tensor = torch.linalg.solve_triangular(upper, v[..., None], upper=True)
        return found.squeeze(-1)

    def parts_of(self, other: Any) -> list[Tensor]:
        """The mean (B, D) and a triangular factor (B, D, D) of the Gaussian `other`.

        This object only says which factor, see `AnyGaussian.parts_of`. If it stores a factor of its own
        precision, the result has a factor of the precision of `other`. Otherwise the result has a factor
        of the covariance of `other`.
        """
        if isinstance(other, Gaussian):
            scale = other.stddev.reciprocal() if self._inverted else other.stddev
            return [other.mean, scale.diag_embed()]
        return [other._mean, other.precision_factor if self._inverted else other.scale_tril]

    def from_parts(self, *parts: Tensor) -> Self:
        """Make a Gaussian from the mean (B, D) and the factor (B, D, D) that `parts_of` returns."""
        return self._from_factor(*parts, inverted=self._inverted)

    def _log_det(self) -> Tensor:
        """½ log det Σ, (B,)."""
        log_factor = self._factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return -log_factor if self._inverted else log_factor


def _inverse(factor: Tensor) -> Tensor:
    """The inverse of lower triangular matrices (B, D, D)."""
    identity = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    return torch.linalg.solve_triangular(factor, identity.expand_as(factor), upper=False)


@replaceable
def in_double(factor: Tensor) -> Tensor:
    """Convert a Cholesky factor of a precision matrix, or of a covariance, to float64.

    In float32, the sum of a precision of 1e8 and 1 would lose the 1.
    """
    return factor.double()


@replaceable
def cholesky(matrix: Tensor) -> Tensor:
    """Lower Cholesky factors of symmetric matrices (B, D, D) with positive diagonals, always finite.

    Rounding to float32 can make a matrix with condition number 1e7 indefinite. So the function adds a
    small multiple of the identity: 4 times the machine precision times the trace. If the matrix is a
    precision, this makes the Gaussian slightly narrower. If the factorisation still fails, all entries
    off the diagonal are replaced by 0. The CPU does not wait for the GPU.
    """
    eps = torch.finfo(matrix.dtype).eps
    size = matrix.shape[-1]
    identity = torch.eye(size, dtype=matrix.dtype, device=matrix.device)
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    ridged = matrix + 4 * eps * diagonal.detach().sum(-1)[..., None, None] * identity
    # Decided on the input: the gradient of a failed factor is not a number even where the factor is
    # not selected, so it must not be part of the graph.
    failed = torch.linalg.cholesky_ex(ridged.detach()).info > 0
    safe = torch.where(failed[..., None, None], matrix * identity, ridged)
    return torch.linalg.cholesky_ex(safe).L


def _multiply(factor: Tensor, noise: Tensor) -> Tensor:
    """The product L ε, (..., B, D), for L = `factor` (B, D, D) and ε = `noise` (..., B, D)."""
    if noise.dim() != 3 or factor.dim() != 3:
        return (factor @ noise[..., None]).squeeze(-1)
    return (factor @ noise.permute(1, 2, 0)).permute(2, 0, 1)


def _solve(factor: Tensor, difference: Tensor) -> Tensor:
    """The product L⁻¹ v, (..., B, D), for L = `factor` (B, D, D) and v = `difference` (..., B, D)."""
    if difference.dim() != 3 or factor.dim() != 3:
        wide = difference[..., None]
        lower = factor.expand(*wide.shape[:-2], -1, -1)
        return torch.linalg.solve_triangular(lower, wide, upper=False).squeeze(-1)
    columns = difference.permute(1, 2, 0)
    solved: Tensor = torch.linalg.solve_triangular(factor, columns, upper=False)
    return solved.permute(2, 0, 1)
