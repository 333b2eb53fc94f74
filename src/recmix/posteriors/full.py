"""The Gaussian posterior with a full covariance."""

from __future__ import annotations

import math
import os
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, MultivariateNormal

from recmix.posteriors.gaussian import randn, shares
from recmix.posteriors.posterior import Posterior

__all__ = ["FullGaussian", "cholesky", "own_kernels"]


class FullGaussian(Posterior):
    """Gaussian q(z | x) = N(μ(x), Σ(x)) with Σ = L Lᵀ.

    Made either from L itself or, by `from_precision`, from Σ⁻¹: then U with Σ⁻¹ = U Uᵀ is upper
    triangular, L = U⁻ᵀ is never formed, and z = μ + U⁻ᵀ ε is a triangular solve. The same covariance
    gives the same samples from the same noise, whichever way it came.

    Args:
        mean: μ, (B, D).
        scale_tril: L, lower triangular with a positive diagonal, (B, D, D).

    >>> q = FullGaussian(torch.zeros(4, 2), torch.eye(2).expand(4, 2, 2))
    >>> z, log_q = q.rsample_and_log_prob(3)
    >>> z.shape, log_q.shape
    (torch.Size([3, 4, 2]), torch.Size([3, 4]))
    """

    def __init__(self, mean: Tensor, scale_tril: Tensor) -> None:
        self._mean = mean
        self._factor = scale_tril  # L, or Uᵀ: lower triangular either way
        self._inverted = False

    @classmethod
    def from_precision(cls, mean: Tensor, precision: Tensor) -> FullGaussian:
        """N(μ, P⁻¹) for a symmetric positive definite precision P (B, D, D).

        >>> q = FullGaussian.from_precision(torch.zeros(1, 2), 4 * torch.eye(2).expand(1, 2, 2))
        >>> q.scale_tril.diagonal(dim1=-2, dim2=-1)
        tensor([[0.5000, 0.5000]])
        """
        # P = U Uᵀ with U upper triangular: a Cholesky factor of P with rows and columns reversed.
        upper = cholesky(precision.flip(-2, -1)).flip(-2, -1)
        made = cls(mean, upper.mT)
        made._inverted = True
        return made

    def widened(self, factor: float | Tensor) -> FullGaussian:
        """N(μ, P⁻¹) with P = I + (Σ⁻¹ - I) / f²; (f² Σ)⁻¹ where f < 1."""
        if not isinstance(factor, Tensor) and factor <= 1:
            made = FullGaussian(self._mean, self._factor * (1 / factor if self._inverted else factor))
            made._inverted = self._inverted
            return made
        share, rest = shares(factor, 2)
        # In double where it can be: beside a precision of 1e7 the prior's 1 is lost in float32.
        root = self._factor if own_kernels(self._factor) else self._factor.double()
        identity = torch.eye(root.shape[-1], dtype=root.dtype, device=root.device)
        if not self._inverted:
            root = torch.linalg.solve_triangular(root, identity.expand_as(root), upper=False)
        made = FullGaussian.from_precision(self._mean, share * (root.mT @ root) + rest * identity)
        made._factor = made._factor.to(self._factor.dtype)
        return made

    def split(self, count: int) -> list[FullGaussian]:
        """The same in `count` parts of as many examples each."""
        parts = []
        means, factors = (t.unflatten(0, (count, -1)).unbind() for t in (self._mean, self._factor))
        for mean, factor in zip(means, factors, strict=True):
            part = FullGaussian(mean, factor)
            part._inverted = self._inverted
            parts.append(part)
        return parts

    @property
    def mean(self) -> Tensor:
        """μ, (B, D)."""
        return self._mean

    @property
    def scale_tril(self) -> Tensor:
        """L, (B, D, D); solved for where the precision was given."""
        if not self._inverted:
            return self._factor
        identity = torch.eye(self.mean.shape[-1], dtype=self.mean.dtype, device=self.mean.device)
        scale: Tensor = torch.linalg.solve_triangular(
            self._factor, identity.expand_as(self._factor), upper=False
        )
        return scale

    @property
    def covariance(self) -> Tensor:
        """Σ, (B, D, D)."""
        scale = self.scale_tril
        return scale @ scale.mT

    def rsample_and_log_prob(
        self, samples: int = 1, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Reparameterised samples z = μ + L ε (S, B, D) and their log-densities log_q (S, B)."""
        noise = randn((samples, *self.mean.shape), self.mean, generator)
        apply = _solve if self._inverted else _multiply
        z = self.mean + apply(self._factor, noise)
        return z, -0.5 * noise.square().sum(-1) - self._log_normaliser()

    def log_prob(self, z: Tensor) -> Tensor:
        """log q(z | x): (S, B, D) -> (S, B)."""
        whiten = _multiply if self._inverted else _solve
        noise = whiten(self._factor, z - self.mean)
        return -0.5 * noise.square().sum(-1) - self._log_normaliser()

    def kl_to_prior(self, z: Tensor, log_q: Tensor) -> Tensor:
        """KL(q || N(0, I)) = ½ (tr Σ + |μ|² - D - log det Σ) in closed form, (1, B)."""
        second_moment = self.scale_tril.square().sum((-2, -1)) + self.mean.square().sum(-1)
        return (0.5 * (second_moment - self.mean.shape[-1]) - self._log_scale())[None]

    def as_distribution(self) -> Distribution:
        """The same density as a `MultivariateNormal`: batch_shape (B,), event_shape (D,)."""
        return MultivariateNormal(self.mean, scale_tril=self.scale_tril)  # type: ignore[no-untyped-call]

    def _log_scale(self) -> Tensor:
        """½ log det Σ, (B,)."""
        log_factor = self._factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return -log_factor if self._inverted else log_factor

    def _log_normaliser(self) -> Tensor:
        return self._log_scale() + 0.5 * self.mean.shape[-1] * math.log(2 * math.pi)


def cholesky(matrix: Tensor) -> Tensor:
    """Lower Cholesky factors of symmetric matrices (B, D, D), which always exist and never wait.

    A matrix of condition number 1e7 is no longer positive definite after rounding to float32. So a
    ridge of a few units in the last place of the trace is added, and a matrix that fails all the same
    is replaced by its diagonal: a density made from the factor stays a proper density, only a little
    narrower. Nothing is read back to the host to find out which.
    """
    ours = own_kernels(matrix)
    made: Tensor | None = ours and ours.factor(matrix)
    if made is not None:
        return made
    eps = torch.finfo(matrix.dtype).eps
    size = matrix.shape[-1]
    identity = torch.eye(size, dtype=matrix.dtype, device=matrix.device)
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    ridged = matrix + 4 * eps * diagonal.detach().sum(-1)[:, None, None] * identity
    # The choice is made on the input: a failed factor must not be part of the graph, for its
    # gradient is not a number even where it is not selected.
    failed = torch.linalg.cholesky_ex(ridged.detach()).info > 0
    safe = torch.where(failed[:, None, None], matrix * identity, ridged)
    factor: Tensor = torch.linalg.cholesky_ex(safe).L
    return factor


def own_kernels(like: Tensor) -> Any:
    """The module of our own kernels where they are to be tried, else None.

    That is on a GPU (or under Triton's interpreter) in float32, without gradients or a trace.
    """
    there = like.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"
    traced = torch.compiler.is_compiling() or torch._C._get_tracing_state()
    if not there or like.dtype != torch.float32 or torch.is_grad_enabled() or traced:
        return None
    from recmix.accelerate import newton_kernels

    return newton_kernels


def _multiply(factor: Tensor, noise: Tensor) -> Tensor:
    """L ε for every sample: (B, D, D), (S, B, D) -> (S, B, D)."""
    return (factor @ noise.permute(1, 2, 0)).permute(2, 0, 1)


def _solve(factor: Tensor, difference: Tensor) -> Tensor:
    """L⁻¹ v for every sample: (B, D, D), (S, B, D) -> (S, B, D)."""
    columns = difference.permute(1, 2, 0)
    solved: Tensor = torch.linalg.solve_triangular(factor, columns, upper=False)
    return solved.permute(2, 0, 1)
