"""Mixtures of posteriors, Q(z | x) = Σ_m α_m(x) q_m(z | x)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from recmix.errors import ConfigError
from recmix.model.replaceable import fusable
from recmix.posteriors.full import FullGaussian
from recmix.posteriors.gaussian import Gaussian, gaussian_log_prob
from recmix.posteriors.posterior import Posterior, randn

__all__ = ["Mixture"]

SMALL = 2**20
"""Up to this number of values (components x samples x examples x dimensions), the log densities of all
diagonal Gaussian components are computed in one operation; above it, one component at a time."""


class Mixture(Posterior):
    """A mixture of posteriors, Q(z | x) = Σ_m α_m(x) q_m(z | x).

    To draw a sample, component m is picked with the probability α_m, and z is drawn from it. If all
    components are Gaussians, all diagonal or all full, `rsample` is reparameterised in all parameters,
    also in the weights. The gradient is the implicit derivative of the mixture's distribution function
    (Figurnov et al., Implicit Reparameterization Gradients, 2018). For other components the gradient
    flows only through the component that was picked. The weights then receive a gradient only through
    log Q, and `has_rsample` is False.

    Args:
        components: the components q_0 … q_{K-1}.
        log_weights: log α, (B, K). They are normalised: each row of α sums to 1.

    >>> parts = [Gaussian(torch.full((4, 2), float(m)), torch.zeros(4, 2)) for m in range(3)]
    >>> q = Mixture(parts, torch.zeros(4, 3).log_softmax(-1))
    >>> torch.allclose(q.weights.sum(-1), torch.ones(4))
    True
    >>> round(q.mean[0, 0].item(), 4), round(q.variance[0, 0].item(), 4)
    (1.0, 1.6667)
    """

    _stack: tuple[Tensor, Tensor] | None = None
    """Means and log-variances (K, B, D) of a mixture made by `from_stack`; None for other mixtures."""

    def __init__(self, components: Sequence[Posterior], log_weights: Tensor) -> None:
        if not components or not all(isinstance(q, Posterior) for q in components):
            raise ConfigError("a mixture needs at least one component, a posterior of recmix.posteriors")
        if len(components) != log_weights.shape[-1]:
            raise ConfigError(
                f"a mixture of {len(components)} components needs as many weights per example, "
                f"got log_weights of shape {tuple(log_weights.shape)}"
            )
        super().__init__(components[0].mean)
        self._components = list(components)
        self.log_weights = log_weights.log_softmax(-1)

    @classmethod
    def from_stack(cls, stack: Gaussian, log_weights: Tensor) -> Mixture:
        """Make a mixture of K diagonal Gaussians from one `Gaussian` object with tensors (K, B, D).

        Args:
            stack: a Gaussian whose tensors have the index of the component as their first axis.
            log_weights: log α, (B, K). They must be normalised: each row of α sums to 1.
        """
        made = cls.__new__(cls)
        Posterior.__init__(made, stack.mean[0])
        made._components, made.log_weights = [], log_weights
        made._stack = (stack.mean, stack.log_variance)
        return made

    @property
    def components(self) -> list[Posterior]:
        """The list of the K components q_0 … q_{K-1}."""
        if not self._components and self._stack is not None:
            pairs = zip(*(part.unbind() for part in self._stack), strict=True)
            self._components = [Gaussian.from_clamped(*pair) for pair in pairs]
        return self._components

    @property
    def weights(self) -> Tensor:
        """The mixing weights α of the K components, (B, K)."""
        return self.log_weights.exp()

    @property
    def mean(self) -> Tensor:
        """The mean of the mixture, Σ_m α_m μ_m, (B, D). Component m has the mean μ_m."""
        means = self._stack[0] if self._stack else torch.stack([q.mean for q in self.components])
        return (self.weights.movedim(-1, 0)[..., None] * means).sum(0)

    @property
    def variance(self) -> Tensor:
        """The variance of each latent dimension, Σ_m α_m (σ_m² + (μ_m - mean)²), (B, D)."""
        mean = self.mean
        moments = torch.stack([q.variance + (q.mean - mean).square() for q in self.components])
        return (self.weights.movedim(-1, 0)[..., None] * moments).sum(0)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether samples carry gradients to all parameters of the mixture, including the weights."""
        return self._diagonal or all(isinstance(q, FullGaussian) for q in self.components)

    @property
    def can_scale(self) -> bool:
        """Whether the standard deviations of all components can be scaled."""
        return all(q.can_scale for q in self.components)

    def scaled(self, factor: float | Tensor) -> Mixture:
        """The mixture of the scaled components, see `Posterior.scaled`. The weights stay the same."""
        if self._stack is not None:
            return self.from_stack(Gaussian.from_clamped(*self._stack).scaled(factor), self.log_weights)
        return Mixture([q.scaled(factor) for q in self.components], self.log_weights)

    def describe(self) -> dict[str, Tensor] | None:
        """The tensors that define the density: ``log_weights`` (B, K), and those of the components.

        The tensors of the components have the shape (B, K, ...). The result is None if `describe` of a
        component returns None, or if the components have tensors with different names.
        """
        parts = [q.describe() for q in self.components]
        if any(part is None or part.keys() != (parts[0] or {}).keys() for part in parts):
            return None
        names = list(parts[0] or {})
        stacked = {name: torch.stack([part[name] for part in parts if part], 1) for name in names}
        return {"log_weights": self.log_weights, **stacked}

    def copy(self) -> Posterior:
        """The same density with copies of all tensors. After `from_stack` this is one operation."""
        if self._stack is None:
            return super().copy()
        whole = Gaussian.from_clamped(*torch.stack(self._stack).unbind())
        return self.from_stack(whole, self.log_weights.clone())

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Mixture:
        """The same density with a larger batch_shape, as in torch. `_instance` is not used."""
        log_weights = self.log_weights.expand(*batch_shape, -1)
        return Mixture([q.expand(batch_shape) for q in self.components], log_weights)

    def log_prob(self, value: Tensor) -> Tensor:
        """log Q(z | x) of the whole mixture, (..., B), for latent points z (..., B, D)."""
        if self._diagonal and value.numel() * self.log_weights.shape[-1] <= SMALL:
            means, log_variances = self._means_and_log_variances()
            if value.dim() == 3 and means.dim() == 3:
                return _log_prob(value, means, log_variances, self.log_weights)
        scores = [q.log_prob(value) + self.log_weights[..., k] for k, q in enumerate(self.components)]
        return torch.stack(scores).logsumexp(0)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:  # type: ignore[override]
        """Samples, (*sample_shape, B, D), reparameterised if `has_rsample` is True."""
        z = super().rsample(sample_shape)
        if z.requires_grad and not self.has_rsample:
            warnings.warn(
                "samples of this mixture carry no gradient of its weights (has_rsample is False): only "
                "mixtures of diagonal or of full Gaussians are reparameterised in all parameters",
                stacklevel=2,
            )
        return z

    def rsample_and_log_prob(
        self, samples: int = 1, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """S samples z, (S, B, D), and their log densities under the whole mixture, (S, B)."""
        choice = self._choose(samples, generator)  # (S, B)
        z = self._draw(choice, generator)
        needs_grad = z.requires_grad or self.log_weights.requires_grad
        if self.has_rsample and torch.is_grad_enabled() and needs_grad:
            z = self._implicit(z.detach())
        return z, self.log_prob(z)

    def component_samples(self, *, generator: torch.Generator | None = None) -> Tensor:
        """One reparameterised sample of each of the K components for each example, (K, B, D)."""
        return torch.cat([q.rsample_and_log_prob(1, generator=generator)[0] for q in self.components])

    @property
    def _diagonal(self) -> bool:
        return self._stack is not None or all(isinstance(q, Gaussian) for q in self.components)

    def _means_and_log_variances(self) -> tuple[Tensor, Tensor]:
        """The means and log-variances of diagonal Gaussian components, (K, B, D) each."""
        if self._stack is not None:
            return self._stack
        parts = [q for q in self.components if isinstance(q, Gaussian)]
        return torch.stack([q.mean for q in parts]), torch.stack([q.log_variance for q in parts])

    def _choose(self, samples: int, generator: torch.Generator | None) -> Tensor:
        """For each sample, the index of the component that it is drawn from, (S, B)."""
        weights = self.weights.detach()
        shape = (samples, *weights.shape[:-1])
        u = torch.rand(shape, generator=generator, device=weights.device, dtype=weights.dtype)
        edges = weights.cumsum(-1)[..., :-1]  # (B, K - 1)
        return (u[..., None] > edges).sum(-1)

    def _draw(self, choice: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw samples z, (S, B, D), from the components with the indices `choice` (S, B)."""
        if self._diagonal and choice.dim() == 2:
            means, log_variances = self._means_and_log_variances()
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
        """The samples z (S, B, D) with the gradient of reparameterised samples attached.

        Let φ be the parameters of the mixture and T_d(z; φ) = F(z_d | z_<d) its conditional distribution
        function in dimension d. A sample z solves T(z; φ) = u for a fixed uniform u. So dz/dφ =
        -(∂T/∂z)⁻¹ ∂T/∂φ, and ∂T/∂z is lower triangular. With z = μ_k + L_k ε_k, component k has F_k(z_d
        | z_<d) = Φ(ε_kd), the standard normal distribution function.
        """
        noise, scale, root = self._standardised(z)  # ε (K, S, B, D), L_dd (K, 1, B, D), L⁻¹ or None
        log_pdf = -0.5 * (noise.square() + math.log(2 * math.pi)) - scale.log()
        before = log_pdf.cumsum(-1) - log_pdf  # Σ_{j<d} log p_k(z_j | z_<j), (K, S, B, D)
        log_weights = self.log_weights.movedim(-1, 0).unsqueeze(1).unsqueeze(-1)  # (K, 1, B, 1)
        share = (before + log_weights).log_softmax(0)  # p(k | z_<d)
        cdf = torch.special.ndtr(noise)
        transform = (share.exp() * cdf).sum(0)  # T, (S, B, D)
        with torch.no_grad():
            r = share.exp()
            change = r * (cdf - transform)  # weight of ∂ log p_k(z_<d) / ∂z_j in ∂T_d / ∂z_j
            density = r * (-0.5 * (noise.square() + math.log(2 * math.pi))).exp()  # of φ(ε) ∂ε_d / ∂z_j
            if root is None:
                slope = -noise / scale  # ∂ log p_k(z_j) / ∂z_j
                jacobian = torch.einsum("k...d,k...j->...dj", change, slope).tril(-1)
                diagonal = (density / scale).sum(0).clamp_min(1e-30)
                jacobian = jacobian + torch.diag_embed(diagonal)
            else:
                rows = -noise.unsqueeze(-1) * root  # -ε_i ∂ε_i / ∂z_j, (K, S, B, D, D)
                past = rows.cumsum(-2) - rows  # Σ_{i<d}
                jacobian = (change.unsqueeze(-1) * past + density.unsqueeze(-1) * root).sum(0)
                diagonal = jacobian.diagonal(dim1=-2, dim2=-1)
                jacobian = jacobian + torch.diag_embed(diagonal.clamp_min(1e-30) - diagonal)
        moved: Tensor = torch.linalg.solve_triangular(
            jacobian, (transform - transform.detach()).unsqueeze(-1), upper=False
        )
        return z - moved.squeeze(-1)

    def _standardised(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """The noise ε_k = L_k⁻¹ (z - μ_k), (K, S, B, D), the diagonals of L_k (K, 1, B, D), and L_k⁻¹.

        The last result is None for diagonal covariances.
        """
        if self._diagonal:
            means, log_variances = self._means_and_log_variances()
            scale = (0.5 * log_variances).exp().unsqueeze(1)
            return (z.unsqueeze(0) - means.unsqueeze(1)) / scale, scale, None
        parts = [q for q in self.components if isinstance(q, FullGaussian)]
        noise = torch.stack([q.whiten(z) for q in parts])
        factors = torch.stack([q.scale_tril for q in parts]).unsqueeze(1)  # (K, 1, B, D, D)
        identity = torch.eye(z.shape[-1], dtype=z.dtype, device=z.device).expand_as(factors)
        root = torch.linalg.solve_triangular(factors.detach(), identity, upper=False)
        return noise, factors.diagonal(dim1=-2, dim2=-1), root


@fusable
def _log_prob(z: Tensor, means: Tensor, log_variances: Tensor, log_weights: Tensor) -> Tensor:
    """log Q(z), (S, B), for z (S, B, D), K diagonal Gaussians (K, B, D) and log-weights (B, K)."""
    scores = gaussian_log_prob(z, means.unsqueeze(1), log_variances.unsqueeze(1))  # (K, S, B)
    return (scores + log_weights.t().unsqueeze(1)).logsumexp(0)
