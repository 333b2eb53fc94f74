"""The Gaussian posterior with a full covariance."""

from __future__ import annotations

import math
from typing import Any, Self

import torch
from torch import Tensor

from recmix.model.replaceable import replaceable
from recmix.posteriors.gaussian import Gaussian, precision_shares
from recmix.posteriors.posterior import AnyGaussian

__all__ = ["FullGaussian", "cholesky", "in_double"]


class FullGaussian(AnyGaussian):
    """Gaussian q(z | x) = N(μ(x), Σ(x)) with a full covariance Σ = L Lᵀ.

    The constructor takes L. `from_precision` takes Σ⁻¹ instead: the object then stores a triangular
    factor of Σ⁻¹ and does not form L, and samples are computed by a triangular solve. Both ways give the
    same samples from the same noise.

    Args:
        mean: μ, (B, D).
        scale_tril: L, lower triangular with a positive diagonal, (B, D, D).

    >>> q = FullGaussian(torch.zeros(4, 2), torch.eye(2).expand(4, 2, 2))
    >>> z, log_q = q.rsample_and_log_prob(3)
    >>> z.shape, log_q.shape
    (torch.Size([3, 4, 2]), torch.Size([3, 4]))
    """

    def __init__(self, mean: Tensor, scale_tril: Tensor) -> None:
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
        """The Gaussian with the same mean and standard deviations multiplied by about f = `factor`.

        Σ is the covariance. For f above 1 the new precision is I + (Σ⁻¹ - I)/f². So a direction that is
        narrower than the prior N(0, I) stays narrower. For f below 1 the new covariance is f² Σ.

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
        """The inverse R = L⁻¹ of the factor L of the covariance L Lᵀ, (B, D, D).

        R is lower triangular. The precision matrix is Rᵀ R.
        """
        return self._factor if self._inverted else _inverse(self._factor)

    @property
    def covariance_matrix(self) -> Tensor:
        """The covariance Σ, (B, D, D)."""
        scale = self.scale_tril
        return scale @ scale.mT

    @property
    def variance(self) -> Tensor:
        """The variance of each latent dimension, the diagonal of the covariance, (B, D)."""
        return self.scale_tril.square().sum(-1)

    def whiten(self, z: Tensor) -> Tensor:
        """Compute the noise ε = L⁻¹ (z - μ), (..., B, D), for latent points z (..., B, D).

        μ is the mean and L the lower triangular factor of the covariance L Lᵀ. If z is a sample of this
        Gaussian, ε is standard normal.
        """
        apply = _multiply if self._inverted else _solve
        return apply(self._factor, z - self.mean)

    def from_noise(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Compute points z = μ + L ε, (S, B, D), from noise ε, and their log densities, (S, B).

        μ is the mean and L the lower triangular factor of the covariance L Lᵀ.

        Args:
            noise: ε, standard normal, (S, B, D), or (S, 1, D) if all examples use the same noise.
        """
        apply = _solve if self._inverted else _multiply
        z = self.mean + apply(self._factor, noise)
        return z, -0.5 * noise.square().sum(-1) - self._log_normaliser()

    def log_prob(self, value: Tensor) -> Tensor:
        """log q(z | x), (..., B), for latent points z (..., B, D)."""
        return -0.5 * self.whiten(value).square().sum(-1) - self._log_normaliser()

    def entropy(self) -> Tensor:
        """The entropy ½ log det(2πe Σ) of each example, (B,), where Σ is the covariance."""
        return self._log_normaliser() + 0.5 * self.mean.shape[-1]

    def kl_to_prior(self, z: Tensor, log_q: Tensor) -> Tensor:
        """KL(q || N(0, I)) in closed form, (1, B); the arguments z and log_q are not used.

        It is ½ (tr Σ + |μ|² - D - log det Σ) for the mean μ and the covariance Σ in D dimensions.
        """
        second_moment = self.scale_tril.square().sum((-2, -1)) + self.mean.square().sum(-1)
        return (0.5 * (second_moment - self.mean.shape[-1]) - self._log_scale())[None]

    def describe(self) -> dict[str, Tensor]:
        """The tensors that define the density: ``{"means": μ, "scale_tril": L}``.

        μ, (B, D), is the mean. L, (B, D, D), is the lower triangular factor of the covariance L Lᵀ.
        """
        return {"means": self.mean, "scale_tril": self.scale_tril}

    def multiply(self, vector: Tensor) -> Tensor:
        """The product L v, (..., B, D), where the covariance is L Lᵀ, for vectors v (..., B, D)."""
        return (_solve if self._inverted else _multiply)(self._factor, vector)

    def multiply_transposed(self, vector: Tensor) -> Tensor:
        """The product Lᵀ v, (..., B, D), where the covariance is L Lᵀ, for vectors v (..., B, D)."""
        if not self._inverted:
            return _multiply(self._factor.mT, vector)
        upper = self._factor.mT.expand(*vector.shape, -1)
        found: Tensor = torch.linalg.solve_triangular(upper, vector[..., None], upper=True)
        return found.squeeze(-1)

    def parts_of(self, other: Any) -> list[Tensor]:
        """The mean (B, D) and a triangular factor (B, D, D) of `other`, in the form of this object.

        If this object stores a factor of the precision, the result has a factor of the precision of
        `other`, else of its covariance. `choose` combines two Gaussians in this way, example by example.

        Args:
            other: a `FullGaussian` or a diagonal Gaussian, for the same number of examples.
        """
        if isinstance(other, Gaussian):
            scale = other.stddev.reciprocal() if self._inverted else other.stddev
            return [other.mean, scale.diag_embed()]
        return [other._mean, other.precision_factor if self._inverted else other.scale_tril]

    def from_parts(self, *parts: Tensor) -> Self:
        """Make a Gaussian from the mean (B, D) and the factor (B, D, D) that `parts_of` returns."""
        return self._from_factor(*parts, inverted=self._inverted)

    def _log_scale(self) -> Tensor:
        """½ log det Σ, (B,)."""
        log_factor = self._factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return -log_factor if self._inverted else log_factor

    def _log_normaliser(self) -> Tensor:
        return self._log_scale() + 0.5 * self.mean.shape[-1] * math.log(2 * math.pi)


def _inverse(factor: Tensor) -> Tensor:
    """The inverse of lower triangular matrices (B, D, D)."""
    identity = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    found: Tensor = torch.linalg.solve_triangular(factor, identity.expand_as(factor), upper=False)
    return found


@replaceable
def in_double(factor: Tensor) -> Tensor:
    """Convert a triangular factor of a precision or covariance to float64.

    In float32 the sum of a precision of 1e7 and the prior's precision of 1 would lose the 1.
    """
    return factor.double()


@replaceable
def cholesky(matrix: Tensor) -> Tensor:
    """Compute lower Cholesky factors of symmetric matrices (B, D, D). The result is always finite.

    A matrix with a condition number of 1e7 is no longer positive definite after rounding to float32. So
    a small multiple of the identity is added: 4 times the machine precision times the trace. If the
    factorisation of a matrix still fails, the matrix is replaced by its diagonal. For a precision matrix
    this gives a valid, slightly narrower Gaussian. The CPU does not wait for the GPU.
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
    factor: Tensor = torch.linalg.cholesky_ex(safe).L
    return factor


def _multiply(factor: Tensor, noise: Tensor) -> Tensor:
    """The product L ε for every sample: L (B, D, D), ε (..., B, D) -> (..., B, D)."""
    if noise.dim() != 3 or factor.dim() != 3:
        product: Tensor = (factor @ noise[..., None]).squeeze(-1)
        return product
    return (factor @ noise.permute(1, 2, 0)).permute(2, 0, 1)


def _solve(factor: Tensor, difference: Tensor) -> Tensor:
    """The solution L⁻¹ v for every sample: L (B, D, D), v (..., B, D) -> (..., B, D)."""
    if difference.dim() != 3 or factor.dim() != 3:
        wide = difference[..., None]
        lower = factor.expand(*wide.shape[:-2], -1, -1)
        found: Tensor = torch.linalg.solve_triangular(lower, wide, upper=False).squeeze(-1)
        return found
    columns = difference.permute(1, 2, 0)
    solved: Tensor = torch.linalg.solve_triangular(factor, columns, upper=False)
    return solved.permute(2, 0, 1)
