"""The base classes of posteriors q(z | x), which are torch distributions for a batch of examples."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Size, Tensor, nn
from torch.distributions import Distribution, Independent, Normal, constraints
from torch.distributions.kl import register_kl

from recmix.errors import ConfigError
from recmix.model.priors import Prior, standard_normal

__all__ = ["AnyGaussian", "Posterior", "randn"]


class Posterior(Distribution, ABC):
    """Base class of posteriors q(z | x): distributions with batch_shape (B,) and event_shape (D,).

    A posterior has the usual methods of torch's distributions: `sample`, `rsample`, `log_prob`, `mean`,
    `variance`, `entropy`, and `torch.distributions.kl_divergence` with a standard normal where closed
    forms exist. In addition, `rsample_and_log_prob` gives samples with their log densities in one pass,
    from a given random number generator.

    A subclass holds tensors that carry gradients to the networks that computed them. It defines `mean`,
    `log_prob` and `rsample_and_log_prob`. Arguments are not validated, because this would make the CPU
    wait for the GPU.

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
        """S reparameterised samples z, (S, B, D), and their log densities, (S, B).

        Args:
            samples: S, the number of samples for each example.
            generator: the random number generator.
        """

    def from_noise(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Convert standard normal noise to points z, (S, B, D), with log densities log q(z), (S, B).

        Different posteriors can be compared with less variance if all use the same noise.

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
    def weights(self) -> Tensor:
        """The mixing weights of K components, (B, K), which sum to 1 for each example.

        A posterior that is not a mixture has K = 1.
        """
        return torch.ones_like(self.mean[..., :1])

    @property
    def components(self) -> list[Posterior]:
        """The components of a mixture, in a list. For other posteriors the list has only this object."""
        return [self]

    def kl(self, prior: Prior, z: Tensor, log_q: Tensor) -> Tensor:
        """The KL divergence KL(q || p(z)) to a prior, for each of B examples.

        If a closed form exists, the result is exact and has the shape (B,) or (1, B). Otherwise it is
        the estimate log q(z) - log p(z) for each of the S samples, (S, B).

        Args:
            prior: p(z).
            z: samples of q, (S, B, D), where D is the dimension of z.
            log_q: log densities of the samples under q, (S, B).
        """
        return self.kl_to_prior(z, log_q) if prior.standard else log_q - prior.log_prob(z)

    def kl_to_prior(self, z: Tensor, log_q: Tensor) -> Tensor:
        """The KL divergence KL(q || N(0, I)) to the standard normal prior.

        If a closed form exists, the result is exact and has the shape (1, B). Otherwise it is the
        estimate log q(z) - log N(z; 0, I) for each of the S samples, (S, B).

        Args:
            z: samples of q, (S, B, D).
            log_q: log densities of the samples under q, (S, B).
        """
        return log_q - standard_normal(z)

    def kl_by_dimension(self) -> Tensor | None:
        """KL(q || N(0, I)) of each latent dimension, (B, D).

        The result is None if the KL is not a sum over dimensions.
        """
        return None

    @property
    def can_scale(self) -> bool:
        """Whether `scaled` can make this posterior wider or narrower.

        Calibration needs this: it chooses a factor of the standard deviations on validation examples.
        """
        return False

    def scaled(self, factor: float | Tensor) -> Posterior:
        """A wider or narrower posterior: standard deviations are multiplied by about f = `factor`.

        The mean of a Gaussian, and of each component of a mixture, stays the same. If f is at most 1,
        each standard deviation σ becomes f σ. If f is above 1, the precision 1/σ² becomes
        1 + (1/σ² - 1)/f². Then a small σ is multiplied by about f, but a σ below 1, the standard
        deviation of the prior N(0, I), stays below 1. A σ of 1 does not change: there x gives no
        information on z.

        Args:
            factor: f, one number, or one for each example (B,).
        """
        raise ConfigError(
            f"{type(self).__name__} has no standard deviations to scale: only Gaussians and mixtures of "
            "Gaussians can be calibrated"
        )

    def describe(self) -> dict[str, Tensor] | None:
        """The tensors (B, ...) that define the density, {name: tensor}, for export to files.

        The result is None if the density cannot be described by tensors.
        """
        return None

    def copy(self) -> Posterior:
        """The same density with copies of all its tensors."""
        copied: Posterior = _copy_tensors(self)
        return copied

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Posterior:
        """The same density, expanded to a larger batch_shape; `_instance` is not used."""
        raise NotImplementedError(f"{type(self).__name__} cannot be expanded")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_shape={tuple(self.batch_shape)}, D={self.event_shape[0]})"


def _copy_tensors(value: Any) -> Any:
    """A copy of a posterior, or of a value in it, with all tensors copied; networks are shared."""
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
    """Draw standard normal noise of the given shape, on the device and in the dtype of `like`."""
    return torch.randn(shape, generator=generator, device=like.device, dtype=like.dtype)


class AnyGaussian(Posterior):
    """Base class of Gaussian posteriors q(z | x). The mode is the mean.

    Subclasses add the covariance: `Gaussian` (diagonal), `FullGaussian` and `LowRankGaussian`.

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
        """True: the method `scaled` works for every Gaussian."""
        return True

    def rsample_and_log_prob(
        self, samples: int = 1, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """S = `samples` reparameterised samples z, (S, B, D), and their log densities, (S, B)."""
        return self.from_noise(randn((samples, *self.mean.shape), self.mean, generator))

    @abstractmethod
    def parts_of(self, other: Any) -> list[Tensor]:
        """The tensors (B, ...) that define the Gaussian `other`, as the class of this object needs them.

        For example, a `FullGaussian` gives a diagonal Gaussian as a mean and a triangular matrix.
        `from_parts` makes a Gaussian from these tensors. So the tensors of two Gaussians can be
        combined.

        Args:
            other: this object, another Gaussian of the same class, or a diagonal Gaussian.
        """

    @abstractmethod
    def from_parts(self, *parts: Tensor) -> Self:
        """Make a Gaussian of the class of this object from the tensors that `parts_of` returns."""

    def split(self, count: int) -> list[Self]:
        """Split the batch of B examples into `count` posteriors of B / count consecutive examples."""
        pieces = (part.unflatten(0, (count, -1)).unbind() for part in self.parts_of(self))
        return [self.from_parts(*some) for some in zip(*pieces, strict=True)]

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Self:
        """The same density, expanded to a larger batch_shape; `_instance` is not used."""
        old = len(self.batch_shape)
        parts = self.parts_of(self)
        return self.from_parts(*(part.expand(*batch_shape, *part.shape[old:]) for part in parts))


@register_kl(Posterior, Independent)
def _kl_to_normal(q: Posterior, p: Any) -> Tensor:
    """KL(q || p), (B,), for a Gaussian q and a normal p with independent dimensions."""
    base = p.base_dist
    if not isinstance(base, Normal) or p.reinterpreted_batch_ndims != 1:
        raise NotImplementedError(f"the KL of {type(q).__name__} to {p} has no closed form here")
    entropy = q.entropy()  # raises NotImplementedError where there is no closed form
    second_moment = q.variance + (q.mean - base.loc).square()
    cross = 0.5 * (second_moment / base.scale.square()) + base.scale.log() + 0.5 * math.log(2 * math.pi)
    return cross.sum(-1) - entropy
