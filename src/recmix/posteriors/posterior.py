"""The base classes of posteriors q(z | x), which are torch distributions for a batch of examples."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Size, Tensor, nn
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal, constraints
from torch.distributions.kl import register_kl

from recmix.errors import ConfigError
from recmix.model.priors import Prior, standard_normal

__all__ = ["AnyGaussian", "FactoredGaussian", "Posterior", "randn"]


class Posterior(Distribution, ABC):
    """Base class of posteriors q(z | x): distributions with batch_shape (B,) and event_shape (D,).

    B is the number of examples, D the dimension of z. A posterior has the usual methods of torch's
    distributions: `sample`, `rsample`, `log_prob`, `mean`, `variance` and `entropy`.
    `torch.distributions.kl_divergence` with a standard normal works where a closed form exists.

    A subclass defines `mean`, `log_prob` and `rsample_and_log_prob`. Arguments are not validated,
    because this would make the CPU wait for the GPU.

    Args:
        mean: any tensor of shape (*batch_shape, D). Only its shape is used.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}  # type: ignore[misc]
    support = constraints.real_vector
    has_rsample = True
    _validate_args = False

    def __init__(self, mean: Tensor) -> None:
        # What Distribution.__init__ does without validation, in less time.
        self._batch_shape, self._event_shape = mean.shape[:-1], mean.shape[-1:]

    @abstractmethod
    def rsample_and_log_prob(
        self, samples: int = 1, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """S = `samples` reparameterised samples z, (S, B, D), and their log densities, (S, B)."""

    def from_noise(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Convert standard normal noise to points z, (S, B, D), with log densities log q(z), (S, B).

        Two posteriors can be compared with less variance if both use the same noise.

        Args:
            noise: standard normal noise (S, B, D), or (S, 1, D) if all examples use the same noise.
        """
        raise NotImplementedError(f"{type(self).__name__} is not a function of Gaussian noise")

    @abstractmethod
    def log_prob(self, value: Tensor) -> Tensor:
        """log q(z | x), (..., B), for latent points z (..., B, D)."""

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """The mean of q(z | x), (B, D)."""

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:  # type: ignore[override]
        """Reparameterised samples, (*sample_shape, B, D)."""
        count = math.prod(sample_shape)
        z, _ = self.rsample_and_log_prob(count)
        return z.reshape(*sample_shape, *z.shape[1:])

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:  # type: ignore[override]
        """Samples without gradients, (*sample_shape, B, D)."""
        with torch.no_grad():
            return self.rsample(sample_shape)

    @property
    def variance(self) -> Tensor:
        """The variance of each latent dimension, (B, D), if it has a closed form.

        Otherwise raise a NotImplementedError.
        """
        raise NotImplementedError(
            f"the variance of a {type(self).__name__} has no closed form: take the variance of samples"
        )

    def entropy(self) -> Tensor:
        """The entropy of q(z | x) for each example, (B,), if it has a closed form.

        Otherwise raise a NotImplementedError.
        """
        raise NotImplementedError(
            f"the entropy of a {type(self).__name__} has no closed form: estimate it by -log_q.mean(0) "
            "with z, log_q = q.rsample_and_log_prob(100)"
        )

    @property
    def weights(self) -> Tensor:
        """The mixing weights of K components, (B, K). K is 1 if the posterior is not a mixture."""
        return torch.ones_like(self.mean[..., :1])

    @property
    def components(self) -> list[Posterior]:
        """The components of a mixture. For other posteriors, the list contains only this posterior."""
        return [self]

    def kl(self, prior: Prior, z: Tensor, log_q: Tensor) -> Tensor:
        """The KL divergence KL(q || p(z)) to the prior p(z), for each of B examples.

        The result is exact, (1, B), if the prior is the standard normal and the KL has a closed form.
        Otherwise it is the estimate log_q - log p(z), (S, B), one value per sample.

        Args:
            prior: p(z).
            z: S samples of q, (S, B, D).
            log_q: the log densities log q(z) of the samples, (S, B).
        """
        return self.kl_to_prior(z, log_q) if prior.standard else log_q - prior.log_prob(z)

    def kl_to_prior(self, z: Tensor, log_q: Tensor) -> Tensor:
        """The KL divergence KL(q || N(0, I)) to the standard normal, for each of B examples.

        The result is exact, (1, B), if a closed form exists. Otherwise it is the estimate
        log_q - log N(z; 0, I), (S, B), one value per sample.

        Args:
            z: S samples of q, (S, B, D).
            log_q: the log densities log q(z) of the samples, (S, B).
        """
        return log_q - standard_normal(z)

    def kl_by_dimension(self) -> Tensor | None:
        """The contribution of each latent dimension to KL(q || N(0, I)), (B, D).

        Return None if the KL is not a sum over latent dimensions.
        """
        return None

    @property
    def can_scale(self) -> bool:
        """Whether the method `scaled` works for this posterior. Calibration of a posterior needs it."""
        return False

    def scaled(self, factor: float | Tensor) -> Posterior:
        """A wider or narrower posterior: standard deviations are multiplied by about f = `factor`.

        The mean of a Gaussian, and of each component of a mixture, stays the same. If f is at most 1,
        each standard deviation σ becomes f σ. If f is above 1, the precision 1/σ² becomes 1 + (1/σ² -
        1)/f². Then a small σ is multiplied by about f, but a σ below 1 stays below 1, the standard
        deviation of the prior N(0, I).

        Args:
            factor: f, one number, or one for each example (B,).
        """
        raise ConfigError(
            f"{type(self).__name__} has no standard deviations to scale: only Gaussians and mixtures of "
            "Gaussians can be calibrated"
        )

    def describe(self) -> dict[str, Tensor] | None:
        """The tensors (B, ...) that define the density, {name: tensor}, for export to files.

        The result is None if tensors cannot describe the density.
        """
        return None

    def copy(self) -> Posterior:
        """The same density with copies of all its tensors."""
        return _copy_tensors(self)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Posterior:
        """The same density with a larger batch_shape, as in torch. `_instance` is not used."""
        raise NotImplementedError(f"{type(self).__name__} cannot be expanded")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_shape={tuple(self.batch_shape)}, D={self.event_shape[0]})"


def _copy_tensors(value: Any) -> Any:
    """Copy a posterior, or a value that it stores. Tensors are copied, but networks are not."""
    if isinstance(value, Size):
        return value
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, list | tuple):
        parts = [_copy_tensors(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, nn.Module) or not hasattr(value, "__dict__") or callable(value):
        return value
    made = copy.copy(value)
    vars(made).update({name: _copy_tensors(part) for name, part in vars(value).items()})
    return made


def randn(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal noise of the given shape, on the device and in the dtype of `like`."""
    return torch.randn(shape, generator=generator, device=like.device, dtype=like.dtype)


class AnyGaussian(Posterior):
    """Base class of Gaussian posteriors. Subclasses add the covariance.

    Args:
        mean: μ, (B, D).
    """

    def __init__(self, mean: Tensor) -> None:
        super().__init__(mean)
        self._mean = mean

    @property
    def mean(self) -> Tensor:
        """The mean μ, (B, D)."""
        return self._mean

    @property
    def mode(self) -> Tensor:
        """The mode, which equals the mean μ, (B, D)."""
        return self._mean

    @property
    def can_scale(self) -> bool:
        """True: every Gaussian can be scaled."""
        return True

    def rsample_and_log_prob(
        self, samples: int = 1, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """S = `samples` reparameterised samples z, (S, B, D), and their log densities, (S, B)."""
        return self.from_noise(randn((samples, *self.mean.shape), self.mean, generator))

    @abstractmethod
    def parts_of(self, other: Any) -> list[Tensor]:
        """Describe the Gaussian `other` by the tensors (B, ...) that a Gaussian like this object stores.

        This object gives only the form of the tensors. For example, a `FullGaussian` describes a
        diagonal Gaussian by a mean and a triangular matrix. `from_parts` makes a Gaussian from such
        tensors. `recmix.posteriors.choice.choose` combines two Gaussians by these two methods.

        Args:
            other: the Gaussian to describe: of the same class as this object, or diagonal. It can be
                this object.
        """

    @abstractmethod
    def from_parts(self, *parts: Tensor) -> Self:
        """Make a Gaussian of this class from tensors like those that `parts_of` returns."""

    def split(self, count: int) -> list[Self]:
        """Split this posterior of B examples into `count` posteriors of B / count examples each.

        The examples of each part are consecutive.
        """
        pieces = (part.unflatten(0, (count, -1)).unbind() for part in self.parts_of(self))
        return [self.from_parts(*some) for some in zip(*pieces, strict=True)]

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Self:
        """The same density with a larger batch_shape, as in torch. `_instance` is not used."""
        old = len(self.batch_shape)
        parts = self.parts_of(self)
        return self.from_parts(*(part.expand(*batch_shape, *part.shape[old:]) for part in parts))


class FactoredGaussian(AnyGaussian):
    """Base class of Gaussian posteriors N(μ, L Lᵀ), where the factor L is a D x D matrix."""

    @abstractmethod
    def multiply(self, noise: Tensor) -> Tensor:
        """The product L ε, (..., B, D), of the factor L of the covariance and vectors ε (..., B, D)."""

    @abstractmethod
    def multiply_transposed(self, v: Tensor) -> Tensor:
        """The product Lᵀ v, (..., B, D), of the factor L of the covariance and vectors v (..., B, D)."""

    @abstractmethod
    def whiten(self, z: Tensor) -> Tensor:
        """The noise ε = L⁻¹ (z - μ), (..., B, D), that gives the points z = μ + L ε, (..., B, D)."""

    @abstractmethod
    def _log_det(self) -> Tensor:
        """log |det L|, (B,)."""

    def _log_normaliser(self) -> Tensor:
        return self._log_det() + 0.5 * self.mean.shape[-1] * math.log(2 * math.pi)

    def from_noise(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Points z = μ + L ε, (S, B, D), and log q(z), (S, B), from standard normal ε (S, B, D)."""
        z = self.mean + self.multiply(noise)
        return z, -0.5 * noise.square().sum(-1) - self._log_normaliser()

    def log_prob(self, value: Tensor) -> Tensor:
        """log q(z | x), (..., B), for latent points z (..., B, D)."""
        return -0.5 * self.whiten(value).square().sum(-1) - self._log_normaliser()

    def entropy(self) -> Tensor:
        """The entropy ½ log det(2πe Σ) of each example, (B,), where Σ = L Lᵀ is the covariance."""
        return self._log_normaliser() + 0.5 * self.mean.shape[-1]


@register_kl(Posterior, Independent)
def _kl_to_normal(q: Posterior, p: Any) -> Tensor:
    """KL(q || p), (B,), for a normal p with independent dimensions.

    The entropy and the variance of q must have a closed form, as those of Gaussians.
    """
    base = p.base_dist
    if not isinstance(base, Normal) or p.reinterpreted_batch_ndims != 1:
        raise NotImplementedError(f"the KL of {type(q).__name__} to {p} has no closed form here")
    entropy = q.entropy()  # raises NotImplementedError where there is no closed form
    second_moment = q.variance + (q.mean - base.loc).square()
    cross = 0.5 * (second_moment / base.scale.square()) + base.scale.log() + 0.5 * math.log(2 * math.pi)
    return cross.sum(-1) - entropy


@register_kl(Posterior, MultivariateNormal)
def _kl_to_multivariate_normal(q: Posterior, p: Any) -> Tensor:
    """KL(q || p), (B,), for a Gaussian q and a normal p with any covariance."""
    entropy = q.entropy()  # raises NotImplementedError where there is no closed form
    unit = torch.eye(q.event_shape[0], dtype=q.mean.dtype, device=q.mean.device)
    unit = unit.view(-1, *(1 for _ in q.batch_shape), unit.shape[-1]).expand(-1, *q.mean.shape)
    factor = (q.from_noise(unit)[0] - q.mean).movedim(0, -1)  # L of the covariance L Lᵀ of q
    whole = torch.cat([factor, (q.mean - p.loc)[..., None]], -1)  # (B, D, D + 1)
    distance = torch.linalg.solve_triangular(p.scale_tril, whole, upper=False).square().sum((-2, -1))
    log_det = p.scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return 0.5 * (distance + len(unit) * math.log(2 * math.pi)) + log_det - entropy
