"""Mixtures of posteriors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import (
    Categorical,
    Distribution,
    Independent,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
)

from recmix.accelerate.fusion import fusible
from recmix.errors import ConfigError
from recmix.posteriors.gaussian import Gaussian, gaussian_log_prob, randn
from recmix.posteriors.posterior import Posterior

__all__ = ["Mixture", "recursive_log_weights"]


SMALL = 2**20
"""Values (components x samples x examples x dimensions) up to which components are scored together."""


class Mixture(Posterior):
    """Q(z | x) = Σ_m α_m(x) q_m(z | x).

    Samples are ancestral: a component by its weight, then a draw from it. For diagonal Gaussian
    components they are reparameterised in full, weights included, by implicit differentiation of the
    mixture's distribution function (Figurnov et al., Implicit Reparameterization Gradients, 2018), so
    that ``rsample`` may be used in any objective. For other components the path goes through the chosen
    component and the weights receive a gradient through log Q only.

    Args:
        components: q_0 … q_{K-1}.
        log_weights: log α, (B, K).

    >>> parts = [Gaussian(torch.full((4, 2), float(m)), torch.zeros(4, 2)) for m in range(3)]
    >>> q = Mixture(parts, torch.zeros(4, 3).log_softmax(-1))
    >>> q.weights.sum(-1)
    tensor([1.0000, 1.0000, 1.0000, 1.0000])
    >>> q.as_distribution().event_shape
    torch.Size([2])
    """

    _joined: tuple[Tensor, Tensor] | None = None

    def __init__(self, components: Sequence[Posterior], log_weights: Tensor) -> None:
        if len(components) != log_weights.shape[-1]:
            raise ConfigError(
                f"a mixture of {len(components)} components needs as many weights per example, "
                f"got log_weights of shape {tuple(log_weights.shape)}"
            )
        self._components = list(components)
        self.log_weights = log_weights

    @classmethod
    def of_gaussians(cls, parts: Gaussian, log_weights: Tensor) -> Mixture:
        """From all components in one object, (K, B, D), and log-weights (B, K)."""
        made = cls.__new__(cls)
        made._components, made.log_weights = [], log_weights
        made._joined = (parts.mean, parts.log_variance)
        return made

    @property
    def components(self) -> list[Posterior]:
        """q_0 … q_{K-1}."""
        if not self._components and self._joined is not None:
            pairs = zip(*(part.unbind() for part in self._joined), strict=True)
            self._components = [Gaussian.clamped(*pair) for pair in pairs]
        return self._components

    def widened(self, factor: float | Tensor) -> Mixture:
        """Every component widened about its own mean; the weights stay."""
        if self._joined is not None:
            return self.of_gaussians(Gaussian.clamped(*self._joined).widened(factor), self.log_weights)
        return Mixture([q.widened(factor) for q in self.components], self.log_weights)

    def copy(self) -> Posterior:
        """The same density in tensors of its own; all components of a joined mixture at once."""
        if self._joined is None:
            return super().copy()
        whole = Gaussian.clamped(*torch.stack(self._joined).unbind())
        return self.of_gaussians(whole, self.log_weights.clone())

    @property
    def weights(self) -> Tensor:
        """α, (B, K)."""
        return self.log_weights.exp()

    @property
    def mean(self) -> Tensor:
        """Σ_m α_m μ_m, (B, D)."""
        if self._joined is not None:
            return (self.weights.t()[..., None] * self._joined[0]).sum(0)
        means = torch.stack([q.mean for q in self.components], 1)  # (B, K, D)
        return (self.weights[..., None] * means).sum(1)

    def log_prob(self, z: Tensor) -> Tensor:
        """log Q(z): (S, B, D) -> (S, B)."""
        if self._gaussian and z.numel() * self.log_weights.shape[-1] <= SMALL:
            means, log_variances = self._stacked()
            return _log_prob(z, means, log_variances, self.log_weights)
        scores = [q.log_prob(z) + self.log_weights[:, k] for k, q in enumerate(self.components)]
        return torch.stack(scores).logsumexp(0)

    def rsample_and_log_prob(
        self,
        samples: int = 1,
        *,
        generator: torch.Generator | None = None,
        stratified: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Samples and their densities under the whole mixture.

        Args:
            samples: S.
            generator: the random stream.
            stratified: spread the S component choices of each example evenly over the weights instead
                of drawing them independently: the same expectations, less variance.
        """
        choice = self._choose(samples, generator, stratified)  # (S, B)
        z = self._ancestral(choice, generator)
        if self._gaussian and torch.is_grad_enabled() and self._needs_grad:
            z = self._implicit(z.detach())
        return z, self.log_prob(z)

    def component_samples(self, *, generator: torch.Generator | None = None) -> Tensor:
        """One reparameterised sample of every component, (K, B, D)."""
        return torch.cat([q.rsample_and_log_prob(1, generator=generator)[0] for q in self.components])

    def as_distribution(self) -> Distribution:
        """A `MixtureSameFamily`, for Gaussian components, diagonal or full."""
        from recmix.posteriors.full import FullGaussian

        full = [q for q in self.components if isinstance(q, FullGaussian)]
        if len(full) == len(self.components):
            each: list[Any] = [q.as_distribution() for q in full]
            means = torch.stack([d.mean for d in each], 1)
            factors = torch.stack([d.scale_tril for d in each], 1)
            parts: Distribution = MultivariateNormal(means, scale_tril=factors)
            return MixtureSameFamily(Categorical(logits=self.log_weights), parts)
        if not self._gaussian:
            return super().as_distribution()
        means, log_variances = self._stacked()
        parts = Independent(
            Normal(means.transpose(0, 1), (0.5 * log_variances).exp().transpose(0, 1)), 1
        )  # type: ignore[no-untyped-call]
        return MixtureSameFamily(Categorical(logits=self.log_weights), parts)  # type: ignore[no-untyped-call]

    @property
    def _gaussian(self) -> bool:
        return self._joined is not None or all(isinstance(q, Gaussian) for q in self.components)

    @property
    def _needs_grad(self) -> bool:
        return any(t.requires_grad for t in (*self._stacked(), self.log_weights))

    def _stacked(self) -> tuple[Tensor, Tensor]:
        """Means and log-variances of Gaussian components, (K, B, D) each."""
        if self._joined is not None:
            return self._joined
        parts = [q for q in self.components if isinstance(q, Gaussian)]
        return torch.stack([q.mean for q in parts]), torch.stack([q.log_variance for q in parts])

    def _choose(self, samples: int, generator: torch.Generator | None, stratified: bool) -> Tensor:
        weights = self.weights.detach()
        shape = (samples, weights.shape[0])
        u = torch.rand(shape, generator=generator, device=weights.device, dtype=weights.dtype)
        if stratified:
            strata = torch.arange(samples, device=weights.device, dtype=weights.dtype)
            u = (strata[:, None] + u) / samples
        edges = weights.cumsum(-1)[:, :-1]  # (B, K - 1)
        return (u[..., None] > edges).sum(-1)

    def _ancestral(self, choice: Tensor, generator: torch.Generator | None) -> Tensor:
        if self._gaussian:
            means, log_variances = self._stacked()
            batch = torch.arange(choice.shape[1], device=choice.device)
            mean, scale = means[choice, batch], (0.5 * log_variances[choice, batch]).exp()
            return mean + scale * randn(mean.shape, mean, generator)
        samples = choice.shape[0]
        z, _ = self.components[0].rsample_and_log_prob(samples, generator=generator)
        for k, q in enumerate(self.components[1:], start=1):
            other, _ = q.rsample_and_log_prob(samples, generator=generator)
            z = torch.where((choice == k)[..., None], other, z)
        return z

    def _implicit(self, z: Tensor) -> Tensor:
        """Z (S, B, D) with the gradient of a reparameterised sample.

        Let T(z; φ) be the mixture's conditional distribution functions, T_d = F(z_d | z_<d). A sample
        solves T(z; φ) = u for a fixed u, so dz/dφ = -(∂T/∂z)⁻¹ ∂T/∂φ, and ∂T/∂z is lower triangular.
        """
        means, log_variances = self._stacked()  # (K, B, D)
        scale = (0.5 * log_variances).exp()
        standard = (z.unsqueeze(0) - means.unsqueeze(1)) / scale.unsqueeze(1)  # (K, S, B, D)
        log_pdf = -0.5 * (standard.square() + math.log(2 * math.pi)) - 0.5 * log_variances.unsqueeze(1)
        before = log_pdf.cumsum(-1) - log_pdf  # Σ_{j<d} log N(z_j), (K, S, B, D)
        share = (before + self.log_weights.t()[:, None, :, None]).log_softmax(0)  # p(k | z_<d)
        cdf = torch.special.ndtr(standard)
        transform = (share.exp() * cdf).sum(0)  # T, (S, B, D)
        with torch.no_grad():
            r = share.exp()
            slope = -standard / scale.unsqueeze(1)  # ∂ log N(z_j) / ∂ z_j
            lean = r * (cdf - transform)  # Σ_k of it times slope_kj is ∂ T_d / ∂ z_j for j < d
            jacobian = torch.einsum("ksbd,ksbj->sbdj", lean, slope).tril(-1)
            density = (r * log_pdf.exp()).sum(0).clamp_min(1e-30)
            jacobian = jacobian + torch.diag_embed(density)
        moved: Tensor = torch.linalg.solve_triangular(
            jacobian, (transform - transform.detach()).unsqueeze(-1), upper=False
        )
        return z - moved.squeeze(-1)


@fusible
def _log_prob(z: Tensor, means: Tensor, log_variances: Tensor, log_weights: Tensor) -> Tensor:
    """log Q(z) for z (S, B, D) and components (K, B, D) with log-weights (B, K): (S, B)."""
    scores = gaussian_log_prob(z, means.unsqueeze(1), log_variances.unsqueeze(1))  # (K, S, B)
    return (scores + log_weights.t().unsqueeze(1)).logsumexp(0)


def recursive_log_weights(log_eps: Tensor, log_rest: Tensor) -> Tensor:
    """log α of the recursion Q_m = (1 - ε_m) Q_{m-1} + ε_m q_m.

    α_m = ε_m Π_{j>m} (1 - ε_j) with ε_0 = 1, in log space.

    Args:
        log_eps: log ε_1 … log ε_M, (B, M).
        log_rest: log(1 - ε_1) … log(1 - ε_M), (B, M).

    Returns:
        (B, M + 1).

    >>> half = torch.full((1, 2), 0.5).log()
    >>> recursive_log_weights(half, half).exp()
    tensor([[0.2500, 0.2500, 0.5000]])
    """
    first = torch.zeros_like(log_eps[:, :1])
    later = log_rest.flip(-1).cumsum(-1).flip(-1)  # Σ_{j>=m} log(1 - ε_j), m = 1 … M
    return torch.cat([first, log_eps], -1) + torch.cat([later, first], -1)
