"""Normalising flows: posteriors that transform samples of a Gaussian by invertible functions."""

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
    """Base class of invertible functions f of latent points z. f may be different for each example."""

    @abstractmethod
    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """f(z), (S, B, D), and log |det ∂f/∂z|, (S, B), for z (S, B, D)."""

    @abstractmethod
    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """u = f⁻¹(z), (S, B, D), and log |det ∂f/∂u|, (S, B), for z (S, B, D)."""


class Flow(Posterior):
    """The density of z_T = f_T(… f_1(z_0)), where z_0 is drawn from a diagonal Gaussian.

    log q(z_T) = log N(z_0; μ, diag σ²) - Σ_t log |det ∂z_t/∂z_{t-1}|. Drawing a sample also gives its
    density. The density of any other z needs the inverse functions. It is exact, but may be slower.

    The property `mean` is the transformed μ. It equals E[z] if the functions are affine in z; otherwise
    E[z] has no closed form.

    Args:
        base: the Gaussian N(μ, diag σ²) of z_0.
        transforms: the functions f_1 … f_T.

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
        """Transform samples z_0 of the base, (S, B, D), to samples z_T of the flow, (S, B, D).

        The second result is log |det ∂z_T/∂z_0|, (S, B).
        """
        log_det = torch.zeros_like(z[..., 0])
        for transform in self.transforms:
            z, part = transform.forward(z)
            log_det = log_det + part
        return z, log_det

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Transform points z_T of the flow, (S, B, D), back to points z_0 of the base, (S, B, D).

        The second result is log |det ∂z_T/∂z_0|, (S, B).
        """
        log_det = torch.zeros_like(z[..., 0])
        for transform in reversed(self.transforms):
            z, part = transform.inverse(z)
            log_det = log_det + part
        return z, log_det

    @property
    def mean(self) -> Tensor:
        """The mean of the base Gaussian, transformed by all functions of the flow, (B, D)."""
        return self.forward(self.base.mean[None])[0].squeeze(0)

    @property
    def weights(self) -> Tensor:
        """The mixing weights, (B, 1). They are 1, because a flow is not a mixture."""
        return self.base.weights

    def rsample_and_log_prob(
        self, samples: int = 1, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """S = `samples` samples z, (S, B, D), and their log densities, (S, B), computed in one pass."""
        return self._pushed(*self.base.rsample_and_log_prob(samples, generator=generator))

    def from_noise(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Points z, (S, B, D), and log q(z), (S, B), from standard normal noise (S, B, D)."""
        return self._pushed(*self.base.from_noise(noise))

    def _pushed(self, start: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
        """Transform samples of the base Gaussian to samples z of the flow, and compute log q(z).

        Args:
            start: samples of the base, (S, B, D).
            log_q: log densities of these samples under the base, (S, B).

        Returns:
            The samples z (S, B, D) and their log densities log q(z) under the flow (S, B).
        """
        z, log_det = self.forward(start)
        return z, log_q - log_det

    def log_prob(self, value: Tensor) -> Tensor:
        """log q(z | x), (..., B), for latent points z (..., B, D), by the inverse of the flow."""
        start, log_det = self.inverse(value)
        return self.base.log_prob(start) - log_det


class Reflections(Transform):
    """Householder reflections, one after another: z <- (I - 2 u uᵀ) z for each unit vector u.

    Args:
        units: the vectors u_1 … u_T of norm 1. Each has the shape (B, D), or (D,) if the vector is the
            same for all examples.
    """

    def __init__(self, units: Sequence[Tensor]) -> None:
        self.units = list(units)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The reflected z, (S, B, D), and log |det| of the Jacobian, (S, B), which is 0."""
        return self._reflect(z, self.units)

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The points before the reflections, (S, B, D), and log |det|, (S, B), which is 0."""
        return self._reflect(z, self.units[::-1])

    @staticmethod
    def _reflect(z: Tensor, units: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        for u in units:
            z = z - 2 * (z * u).sum(-1, keepdim=True) * u
        return z, torch.zeros_like(z[..., 0])


class Reflected(Flow):
    """A diagonal Gaussian, reflected by an orthogonal matrix H: N(H μ, H diag σ² Hᵀ).

    Args:
        base: the diagonal Gaussian N(μ, diag σ²).
        reflections: the Householder reflections whose product is H.

    >>> q = Reflected(Gaussian(torch.ones(4, 2), torch.zeros(4, 2)), Reflections([torch.eye(2)[0]]))
    >>> q.mean[0], q.event_shape
    (tensor([-1.,  1.]), torch.Size([2]))
    """

    def __init__(self, base: Gaussian, reflections: Reflections) -> None:
        super().__init__(base, [reflections])

    def kl_to_prior(self, z: Tensor, log_q: Tensor) -> Tensor:
        """KL(q || N(0, I)), (1, B). It is the KL of the base: reflections do not change N(0, I)."""
        return self.base.kl_to_prior(z, log_q)

    @property
    def scale_tril(self) -> Tensor:
        """The lower triangular factor L of the covariance L Lᵀ, (B, D, D)."""
        # diag(σ) Hᵀ = Q R gives the covariance Rᵀ R without forming it: its condition number would be
        # the square.
        batch, latent = self.base.mean.shape
        axes = torch.eye(latent, device=self.base.mean.device, dtype=self.base.mean.dtype)
        columns, _ = self.forward(axes[:, None].expand(latent, batch, latent))  # H of each axis
        r = torch.linalg.qr(self.base.stddev[..., None] * columns.transpose(0, 1)).R  # (B, D, D)
        sign = torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(r.dtype)
        return (sign[..., None] * r).mT

    @property
    def variance(self) -> Tensor:
        """The variance of each latent dimension, (B, D)."""
        return self.scale_tril.square().sum(-1)

    def entropy(self) -> Tensor:
        """The entropy of the base Gaussian, (B,). Reflections do not change the entropy."""
        return self.base.entropy()

    def describe(self) -> dict[str, Tensor]:
        """The mean μ and the factor L of the covariance L Lᵀ: ``{"means": μ, "scale_tril": L}``."""
        return {"means": self.mean, "scale_tril": self.scale_tril}


def unit(v: Tensor) -> Tensor:
    """The unit vectors v / |v| of vectors v (..., D). A zero vector stays zero.

    v is first divided by its largest entry: in float32 the squares of entries overflow above 1e19 and
    vanish below 1e-23.
    """
    largest = v.detach().abs().amax(-1, keepdim=True)
    safe = torch.where(largest >= torch.finfo(v.dtype).tiny, largest, torch.ones_like(largest))
    scaled = v / safe
    return scaled / scaled.square().sum(-1, keepdim=True).clamp_min(0.5).sqrt()


def check_flows(name: str, flows: int, latent: int) -> None:
    """Raise a ConfigError if the options of a flow are not valid.

    Args:
        name: name of the method, for the error message.
        flows: number of steps of the flow, at least 1.
        latent: the latent dimension, at least 2.
    """
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
