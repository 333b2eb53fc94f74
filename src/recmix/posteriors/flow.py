"""Normalising flows: posteriors that map a Gaussian's samples by invertible functions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from recmix.errors import ConfigError
from recmix.posteriors.gaussian import Gaussian
from recmix.posteriors.posterior import Posterior

__all__ = ["Flow", "Reflected", "Reflections", "Transform", "check_flows", "unit"]


class Transform(ABC):
    """One invertible function of z for one batch. It holds tensors that depend on x."""

    @abstractmethod
    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """f(z) for z (S, B, D), and log |det ∂f/∂z| (S, B)."""

    @abstractmethod
    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """u = f⁻¹(z) (S, B, D), and log |det ∂f/∂u| (S, B): that of the forward function."""


class Flow(Posterior):
    """The density of z_T = f_T(… f_1(z_0)) for z_0 from a diagonal Gaussian.

    log q(z_T) = log N(z_0; μ, diag σ²) - Σ_t log |det ∂z_t/∂z_{t-1}|. A sample with its density takes
    one pass. The density of any other z takes the inverse functions; that is exact but may be slower.

    `mean` is the image of μ. It equals E[z] if the functions are affine in z; otherwise E[z] has no
    closed form.

    Args:
        base: N(μ, diag σ²).
        transforms: f_1 … f_T.

    >>> q = Flow(Gaussian(torch.zeros(4, 2), torch.zeros(4, 2)), [Reflections([torch.eye(2)[0]])])
    >>> z, log_q = q.rsample_and_log_prob(3)
    >>> z.shape, torch.allclose(q.log_prob(z), log_q)
    (torch.Size([3, 4, 2]), True)
    """

    def __init__(self, base: Gaussian, transforms: Sequence[Transform]) -> None:
        super().__init__(base.mean)
        self.base = base
        self.transforms = list(transforms)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """z_T for z_0 (S, B, D), and log |det ∂z_T/∂z_0| (S, B)."""
        log_det = torch.zeros_like(z[..., 0])
        for transform in self.transforms:
            z, part = transform.forward(z)
            log_det = log_det + part
        return z, log_det

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """z_0 for z_T (S, B, D), and log |det ∂z_T/∂z_0| (S, B)."""
        log_det = torch.zeros_like(z[..., 0])
        for transform in reversed(self.transforms):
            z, part = transform.inverse(z)
            log_det = log_det + part
        return z, log_det

    @property
    def mean(self) -> Tensor:
        """The image of the base's mean, (B, D)."""
        return self.forward(self.base.mean[None])[0].squeeze(0)

    @property
    def weights(self) -> Tensor:
        """Ones, (B, 1)."""
        return self.base.weights

    def rsample_and_log_prob(
        self, samples: int = 1, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Samples z (S, B, D) and their log densities (S, B), in one pass through the flow."""
        start, log_q = self.base.rsample_and_log_prob(samples, generator=generator)
        z, log_det = self.forward(start)
        return z, log_q - log_det

    def log_prob(self, value: Tensor) -> Tensor:
        """log q(z | x) by the inverse functions: (..., B, D) -> (..., B)."""
        start, log_det = self.inverse(value)
        return self.base.log_prob(start) - log_det


class Reflections(Transform):
    """Householder reflections one after another: z <- (I - 2 u uᵀ) z for each unit vector u.

    Args:
        units: u_1 … u_T, each (B, D), or (D,) for all examples alike; of length 1 (see `unit`).
    """

    def __init__(self, units: Sequence[Tensor]) -> None:
        self.units = list(units)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The reflected z; the log determinant is 0, because reflections preserve volumes."""
        return self._reflect(z, self.units)

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the same reflections in reverse order: each is its own inverse."""
        return self._reflect(z, self.units[::-1])

    @staticmethod
    def _reflect(z: Tensor, units: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        for u in units:
            z = z - 2 * (z * u).sum(-1, keepdim=True) * u
        return z, torch.zeros_like(z[..., 0])


class Reflected(Flow):
    """A diagonal Gaussian under an orthogonal map H: N(H μ, H diag σ² Hᵀ), a full covariance.

    Args:
        base: N(μ, diag σ²).
        reflections: H.

    >>> q = Reflected(Gaussian(torch.ones(4, 2), torch.zeros(4, 2)), Reflections([torch.eye(2)[0]]))
    >>> q.mean[0], q.event_shape
    (tensor([-1.,  1.]), torch.Size([2]))
    """

    def __init__(self, base: Gaussian, reflections: Reflections) -> None:
        super().__init__(base, [reflections])

    def kl_to_prior(self, z: Tensor, log_q: Tensor) -> Tensor:
        """KL(q || N(0, I)) in closed form, (1, B): that of the base, because H preserves N(0, I)."""
        return self.base.kl_to_prior(z, log_q)

    @property
    def scale_tril(self) -> Tensor:
        """L, lower triangular with H diag σ² Hᵀ = L Lᵀ, (B, D, D)."""
        # diag(σ) Hᵀ = Q R gives the covariance Rᵀ R without forming it: its condition number would be
        # the square.
        batch, latent = self.base.mean.shape
        axes = torch.eye(latent, device=self.base.mean.device, dtype=self.base.mean.dtype)
        columns, _ = self.forward(axes[:, None].expand(latent, batch, latent))  # H of each axis
        r = torch.linalg.qr(self.base.stddev[..., None] * columns.transpose(0, 1)).R  # (B, D, D)
        sign = torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(r.dtype)
        scale: Tensor = (sign[..., None] * r).mT
        return scale

    @property
    def variance(self) -> Tensor:
        """The diagonal of the covariance, (B, D)."""
        return self.scale_tril.square().sum(-1)

    def entropy(self) -> Tensor:
        """The base's entropy, (B,), because H preserves volumes."""
        return self.base.entropy()

    def describe(self) -> dict[str, Tensor]:
        """Mean (B, D) and L (B, D, D)."""
        return {"means": self.mean, "scale_tril": self.scale_tril}


def unit(v: Tensor) -> Tensor:
    """v / |v| for vectors v (..., D); a zero vector stays zero, and its reflection is the identity.

    Divides by the largest entry first: in float32, squares overflow above 1e19 and vanish below 1e-23. A
    constant ε in the norm would also avoid division by zero, but then I - 2 v vᵀ is not orthogonal.
    """
    largest = v.detach().abs().amax(-1, keepdim=True)
    safe = torch.where(largest >= torch.finfo(v.dtype).tiny, largest, torch.ones_like(largest))
    scaled = v / safe
    return scaled / scaled.square().sum(-1, keepdim=True).clamp_min(0.5).sqrt()


def check_flows(name: str, flows: int, latent: int) -> None:
    """Refuse fewer than one flow or fewer than two latent dimensions."""
    if flows < 1:
        raise ConfigError(
            f"{name} with flows={flows}: expected 1 or more (the paper uses 1, 2, 4 and 8); "
            "without a flow it is the method 'vae'"
        )
    if latent < 2:
        raise ConfigError(
            f"{name} with latent={latent}: expected a latent dimension of 2 or more, since a flow makes "
            "dimensions depend on each other; for one dimension use the method 'vae'"
        )
