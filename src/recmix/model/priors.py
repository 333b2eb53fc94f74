"""Priors p(z): standard normal, mixture of Gaussians, VampPrior, flow, and a density of your own."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Transform

from recmix.errors import ConfigError, unknown
from recmix.model.replaceable import fusable

__all__ = [
    "PRIORS",
    "GaussianMixturePrior",
    "OwnPrior",
    "Prior",
    "StandardNormal",
    "VampPrior",
    "as_prior",
    "make_prior",
    "standard_normal",
]

LEAST_CURVATURE = 1e-3
"""Smaller eigenvalues of a prior's curvature are raised to this value.

Between two modes of a prior, eigenvalues can be negative.
"""


@fusable
def standard_normal(z: Tensor) -> Tensor:
    """log N(z; 0, I), summed over the D dimensions of z: (..., D) -> (...)."""
    return -0.5 * (z.square().sum(-1) + z.shape[-1] * math.log(2 * math.pi))


class Prior(nn.Module, ABC):
    """Base class of priors p(z), which are densities of latent points z (..., D).

    Attributes:
        name: name of the prior in options.
        standard: whether the prior is N(0, I), for which KL divergences have closed forms.
    """

    name: ClassVar[str] = "own"
    standard: ClassVar[bool] = False

    @abstractmethod
    def log_prob(self, z: Tensor) -> Tensor:
        """log p(z) in nats, (...), for latent points z (..., D)."""

    @abstractmethod
    def sample(self, n: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw n latent points z from the prior: (n, D), without gradient."""

    def gradient_and_curvature(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient ∇ log p(z), (B, D), and the curvature -∇² log p(z), (B, D, D), at z (B, D).

        Eigenvalues of the curvature below `LEAST_CURVATURE` are raised to it, so the curvature is
        positive definite. No gradient flows from the results to the prior's parameters.
        """
        with torch.enable_grad():
            at = z.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.log_prob(at).sum(), at, create_graph=True)
            rows = [
                torch.autograd.grad(slope[:, d].sum(), at, retain_graph=True, allow_unused=True)[0]
                if slope.requires_grad
                else None
                for d in range(z.shape[-1])
            ]
        zero = torch.zeros_like(z)
        curvature = -torch.stack([zero if row is None else row for row in rows], 1)
        values, vectors = torch.linalg.eigh(0.5 * (curvature + curvature.mT))
        positive = (vectors * values.clamp(min=LEAST_CURVATURE)[:, None, :]) @ vectors.mT
        return slope.detach(), positive


class StandardNormal(Prior):
    """The standard normal prior N(0, I).

    Args:
        latent: D, the dimension of z.

    >>> StandardNormal(2).log_prob(torch.zeros(3, 2))
    tensor([-1.8379, -1.8379, -1.8379])
    """

    name = "standard"
    standard = True
    like: Tensor

    def __init__(self, latent: int) -> None:
        super().__init__()
        self.register_buffer("like", torch.zeros(latent), persistent=False)

    def log_prob(self, z: Tensor) -> Tensor:
        """log N(z; 0, I), (...), for latent points z (..., D)."""
        return standard_normal(z)

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw n latent points z from N(0, I): (n, D)."""
        like = self.like
        return torch.randn(n, len(like), generator=generator, device=like.device, dtype=like.dtype)

    def gradient_and_curvature(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient ∇ log p(z) = -z, (B, D), and the curvature -∇² log p(z) = I, (D, D)."""
        identity = torch.eye(z.shape[-1], dtype=z.dtype, device=z.device)
        return -z, identity


class GaussianMixturePrior(Prior):
    """A mixture of diagonal Gaussians with learned weights, means and variances.

    Args:
        latent: D, the dimension of z.
        components: number of Gaussians.

    >>> GaussianMixturePrior(2, 5).sample(3).shape
    torch.Size([3, 2])
    """

    name = "mixture"

    def __init__(self, latent: int, components: int = 50) -> None:
        super().__init__()
        if components < 1:
            raise ConfigError(f"a mixture prior needs at least 1 component, got {components}")
        self.logits = nn.Parameter(torch.zeros(components))
        self.means = nn.Parameter(torch.randn(components, latent))
        self.log_variances = nn.Parameter(torch.zeros(components, latent))

    def log_prob(self, z: Tensor) -> Tensor:
        """log p(z) = log Σ_k w_k N(z; μ_k, σ²_k), (...), for latent points z (..., D)."""
        return _log_mixture(z, self.means, self.log_variances, self.logits.log_softmax(-1))

    @torch.no_grad()
    def sample(self, n: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw n latent points z from the mixture: (n, D)."""
        weights = self.logits.softmax(-1)
        return _sample_mixture(n, self.means, self.log_variances, weights, generator)


class VampPrior(Prior):
    """A prior that is the average of the encoder's posteriors for learned pseudo-examples.

    p(z) = 1/K Σ_k N(z; μ(u_k), σ²(u_k)), where u_k are the pseudo-examples, and μ and σ² are the
    encoder's outputs. The encoder is not a submodule of the prior: its parameters are trained as part of
    the posterior.

    Args:
        encoder: maps (K, *shape) to (K, 2 D), the means and log-variances.
        shape: shape of an example, as the encoder gets it.
        components: K, the number of pseudo-examples. They start as random noise, see `start_at`.

    Reference: Tomczak and Welling, VAE with a VampPrior, AISTATS 2018.
    """

    name = "vamp"

    def __init__(self, encoder: nn.Module, shape: tuple[int, ...], components: int = 50) -> None:
        super().__init__()
        if components < 1:
            raise ConfigError(f"a VampPrior needs at least 1 pseudo-example, got {components}")
        self.pseudo_examples = nn.Parameter(0.1 * torch.randn(components, *shape))
        self.use(encoder)

    def use(self, encoder: nn.Module) -> None:
        """Set the encoder, which computes the posteriors of the pseudo-examples."""
        self._encoder = (encoder,)  # in a tuple, so that it is not a submodule

    def start_at(self, examples: Tensor) -> None:
        """Replace the first N pseudo-examples by `examples` (N, *shape).

        If there are more examples than pseudo-examples, the other examples are not used. The examples
        must be in the form that the encoder takes, for example centred.
        """
        count = min(len(examples), len(self.pseudo_examples))
        with torch.no_grad():
            self.pseudo_examples[:count] = examples[:count].to(self.pseudo_examples)

    def _parameters_of_components(self) -> tuple[Tensor, Tensor]:
        means, log_variances = self._encoder[0](self.pseudo_examples).chunk(2, dim=-1)
        return means, log_variances

    def log_prob(self, z: Tensor) -> Tensor:
        """log p(z), (...), for z (..., D). p(z) is the average of the pseudo-examples' posteriors."""
        means, log_variances = self._parameters_of_components()
        weights = means.new_full((len(means),), -math.log(len(means)))
        return _log_mixture(z, means, log_variances, weights)

    @torch.no_grad()
    def sample(self, n: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw n latent points z, (n, D), each from the posterior of a random pseudo-example."""
        means, log_variances = self._parameters_of_components()
        weights = means.new_full((len(means),), 1 / len(means))
        return _sample_mixture(n, means, log_variances, weights, generator)


class OwnPrior(Prior):
    """Adapter that makes a user's own density a `Prior`.

    Args:
        density: a `torch.distributions.Distribution` over vectors (D,); or a module with the methods
            `log_prob(z)` and `sample((n,))`; or a module that returns a distribution when it is called
            without arguments, such as a flow of the library zuko.

    >>> normal = torch.distributions.MultivariateNormal(torch.ones(2), torch.eye(2))
    >>> OwnPrior(normal).log_prob(torch.ones(2))
    tensor(-1.8379)
    """

    def __init__(self, density: Any) -> None:
        super().__init__()
        self.density = density
        found = self._distribution()
        if not (hasattr(found, "log_prob") and hasattr(found, "sample")):
            raise ConfigError(
                f"the prior {type(density).__name__} has no log_prob and sample: give a "
                "torch.distributions.Distribution over latent points, or a module with these two methods"
            )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> OwnPrior:
        """Apply `fn` to all tensors, for example to move them to another device.

        A density that is a torch distribution, and not a module, is moved too.
        """
        super()._apply(fn, recurse)
        if isinstance(self.density, Distribution):
            self.density = _applied(self.density, fn)
        return self

    def _distribution(self) -> Any:
        has_both = hasattr(self.density, "log_prob") and hasattr(self.density, "sample")
        return self.density if has_both or not callable(self.density) else self.density()

    def log_prob(self, z: Tensor) -> Tensor:
        """log p(z), (...), for z (..., D).

        Raise a `ConfigError` if the density returns a tensor of another shape.
        """
        found: Tensor = self._distribution().log_prob(z)
        if found.shape != z.shape[:-1]:
            raise ConfigError(
                f"the prior's log_prob gave shape {tuple(found.shape)} for z of shape {tuple(z.shape)}: "
                f"expected {tuple(z.shape[:-1])}, one number per latent point; torch.distributions."
                "Independent(prior, 1) sums over the last axis"
            )
        return found

    @torch.no_grad()
    def sample(self, n: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw n latent points z from the user's density: (n, D).

        The density uses torch's global random generator. If `generator` is given, the global generator
        is seeded from it for this draw, and then gets back its old state.
        """
        if generator is None:
            return self._distribution().sample((n,))
        seed = int(torch.randint(2**62, (1,), generator=generator, device=generator.device))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            drawn = self._distribution().sample((n,))
        return drawn


def _applied(part: Any, fn: Callable[[Tensor], Tensor]) -> Any:
    """Copy a distribution, with `fn` applied to all its tensors.

    Tensors of distributions and transforms inside it are included. Other objects are returned unchanged.
    """
    if isinstance(part, Tensor):
        return fn(part)
    if isinstance(part, list):
        return [_applied(one, fn) for one in part]
    if isinstance(part, Distribution | Transform):
        made = copy.copy(part)
        made.__dict__.update({name: _applied(value, fn) for name, value in vars(part).items()})
        return made
    return part


PRIORS = ("standard", "mixture", "vamp", "flow")
"""Names of the priors that the option `prior` accepts."""


def make_prior(
    name: str, latent: int, components: int, encoder: nn.Module, shape: tuple[int, ...]
) -> Prior:
    """Make the built-in prior of this name, which is one of `PRIORS`.

    Args:
        components: number of Gaussians of a mixture, or of pseudo-examples of a VampPrior.
        encoder: the encoder that a VampPrior uses.
        shape: shape of an example, for the pseudo-examples of a VampPrior.
    """
    if name == "standard":
        return StandardNormal(latent)
    if name == "mixture":
        return GaussianMixturePrior(latent, components)
    if name == "vamp":
        return VampPrior(encoder, shape, components)
    if name == "flow":
        from zuko.flows import NSF

        return OwnPrior(NSF(latent, transforms=3, hidden_features=(64, 64)))
    raise ConfigError(unknown("prior", name, PRIORS))


def as_prior(prior: Any, latent: int) -> Prior:
    """Convert an object to a `Prior`.

    None becomes N(0, I), and a `Prior` is returned unchanged. Other objects become an `OwnPrior`. Raise
    a `ConfigError` if an object cannot be used, or if its samples do not have `latent` dimensions. An
    object whose `sample` raises a `NotImplementedError` is accepted: only drawing from it will fail.
    """
    if prior is None:
        return StandardNormal(latent)
    if isinstance(prior, Prior):
        return prior
    made = OwnPrior(prior)
    try:
        with torch.random.fork_rng():
            shape = tuple(made.sample(2).shape)
    except NotImplementedError:
        return made
    except Exception as error:  # whatever a user's code raises
        raise ConfigError(
            f"sample((2,)) of the prior {type(prior).__name__} failed: {type(error).__name__}: {error}. "
            "It gets the shape of the draws as a tuple, as in torch.distributions"
        ) from error
    if shape != (2, latent):
        raise ConfigError(
            f"sample((2,)) of the prior {type(prior).__name__} gave shape {shape}: expected "
            f"(2, {latent}), two latent points of {latent} dimensions"
        )
    return made


def _log_mixture(z: Tensor, means: Tensor, log_variances: Tensor, log_weights: Tensor) -> Tensor:
    """log Σ_k w_k N(z; μ_k, σ²_k), (...), for z (..., D) and K Gaussians with means (K, D)."""
    errors = (z[..., None, :] - means).square() * (-log_variances).exp()
    each = -0.5 * (errors + log_variances + math.log(2 * math.pi)).sum(-1)
    return (each + log_weights).logsumexp(-1)


def _sample_mixture(
    n: int, means: Tensor, log_variances: Tensor, weights: Tensor, generator: torch.Generator | None
) -> Tensor:
    which = torch.multinomial(weights, n, replacement=True, generator=generator)
    noise = torch.randn(n, means.shape[1], generator=generator, device=means.device, dtype=means.dtype)
    return means[which] + (0.5 * log_variances[which]).exp() * noise
