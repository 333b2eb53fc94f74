"""The class `Likelihood`: p(x | z) as a function of the decoder's output."""

from __future__ import annotations

import copy
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError, shown, unknown

__all__ = [
    "LIKELIHOODS",
    "Likelihood",
    "Shape",
    "bits_per_dimension",
    "find_likelihood",
    "register_likelihood",
    "sum_event",
]

Shape = tuple[int, ...]
"""Sizes of the axes of one example, without the batch axis."""

FISHER_SAMPLES = 64
"""Number of samples of x that estimate the Fisher information, where a class has no formula for it."""
MEAN_SAMPLES = 256
"""Number of samples of x that estimate E[x | z], where a class has no formula for it."""


class Likelihood(nn.Module, ABC):
    """Base class of likelihoods: p(x | z) as a function of the decoder's output.

    Examples x have shape (B, *event): B is the number of examples, `event` the shape of one example.
    Decoder outputs have shape (S, B, *output) or (B, *output): S is the number of samples of z for each
    example, `output` is the result of `output_shape(event)`. Log densities are in nats.

    A likelihood of your own defines `log_prob` and `sample`. The other methods have defaults, which use
    automatic differentiation and averages over samples. Formulas are faster and have no sampling error,
    so override the defaults where you can.

    Attributes:
        name: the name of the likelihood in options; "own" for a class that is not registered.
        values: what an example may hold: "real", "unit" ([0, 1]), "counts" (0, 1, 2, ...), "classes" (0
            to K - 1; negative values are padding) or "eight_bit" (k / 255).
        can_temper: whether the method `tempered` can be used.
        noise: the factor that was given to `tempered`; 1 if `tempered` was not used.
        centred: whether the likelihood takes x minus the training mean. The model then subtracts this
            mean from x before it calls the likelihood, and adds it to the result of `mean`. This is
            possible only if a shift of x and of the means by the same amount does not change p(x | z).

    >>> class Laplace(Likelihood):
    ...     def log_prob(self, x, decoded):
    ...         return sum_event(-(x - decoded).abs() - math.log(2), x)
    ...     def sample(self, decoded, generator=None):
    ...         return torch.distributions.Laplace(decoded, 1.0).sample()
    >>> x, decoded = torch.zeros(2, 5), torch.ones(2, 5)
    >>> Laplace().log_prob(x, decoded), Laplace().residual(x, decoded)[0, 0]
    (tensor([-8.4657, -8.4657]), tensor(-1.))
    >>> bool((Laplace().precision(x, decoded) == 1).all())  # E[sign²]
    True
    """

    name: ClassVar[str] = "own"
    values: ClassVar[str] = "real"
    centred: ClassVar[bool] = False
    can_temper: ClassVar[bool] = False
    noise: float = 1.0

    @property
    def named(self) -> bool:
        """Whether a saved model can store this likelihood by its name and weights alone.

        This is not possible for classes that are not registered, nor with some constructor arguments.
        Then the user must pass the likelihood again when the model is loaded.
        """
        return self.name in LIKELIHOODS

    @property
    def requirement(self) -> str:
        """The values that examples may have, as a text such as "counts".

        `recmix.data.check_values` takes this text and lists all possible texts.
        """
        return self.values

    @abstractmethod
    def log_prob(self, x: Tensor, decoded: Tensor) -> Tensor:
        """log p(x | z) in nats, (S, B), summed over all values of each example.

        Args:
            x: B examples (B, *event), where `event` is the shape of one example.
            decoded: decoder outputs (S, B, *output), for S samples of z for each example.
        """

    @abstractmethod
    def sample(self, decoded: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw one example, (..., *event), for each decoder output (..., *output), without gradient."""

    def blank(self, shape: Shape) -> Tensor:
        """One example (1, *shape) that the likelihood accepts, to try networks on. Here it is zeros."""
        return torch.zeros(1, *shape)

    def mean(self, decoded: Tensor) -> Tensor:
        """E[x | z], (..., *event), for decoder outputs (..., *output). This default averages samples."""
        generator = torch.Generator(decoded.device).manual_seed(0)
        drawn: Tensor = sum(self.sample(decoded, generator) for _ in range(MEAN_SAMPLES))  # type: ignore[assignment]
        return drawn / MEAN_SAMPLES

    def most_likely(self, decoded: Tensor) -> Tensor:
        """A typical example, (..., *event), for each decoder output (..., *output), without gradient.

        It is E[x | z] by default. Likelihoods of classes give the most likely class numbers.
        """
        with torch.no_grad():
            return self.mean(decoded)

    def residual(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The derivative of log p(x | z) with respect to the decoder's output, (B, *output)."""
        keep = torch.is_grad_enabled() and decoded.requires_grad
        with torch.enable_grad():
            at = decoded if keep else decoded.detach().requires_grad_()
            total = self.log_prob(x, at).sum()
            (found,) = torch.autograd.grad(total, at, create_graph=keep)
        return found

    def precision(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The diagonal of the Fisher information with respect to the decoder's output, (B, *output).

        Args:
            x: examples (B, *event). The result depends only on those properties of x that the
                likelihood does not model: the total count of an example, or which values are padding.
            decoded: decoder outputs (B, *output), where `output` is the shape for one example.
        """
        return self._scores(decoded).square().mean(0)

    def mean_precision(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The mean of `precision` over all decoder outputs of each example, (B,)."""
        return self.precision(x, decoded).flatten(1).mean(1)

    def fisher(self, x: Tensor, decoded: Tensor, vectors: Tensor) -> Tensor:
        """The Fisher information W with respect to the decoder's output, times `vectors`: (B, P, D).

        P is the number of decoder outputs for one example. W = E[r rᵀ], where r is the `residual` and
        the expectation is over x ~ p(x | z). This default averages over samples of x. It treats outputs
        in different blocks (see `blocks`) as uncorrelated.

        Args:
            x: examples (B, *event). The result depends on them only as in `precision`.
            decoded: decoder outputs (B, *output).
            vectors: D column vectors for each example, (B, P, D), such as the decoder's Jacobian.
        """
        if type(self).blocks is Likelihood.blocks:
            return self.precision(x, decoded).flatten(1)[..., None] * vectors
        scores = self.blocks(self._scores(decoded))  # (K, B, features, n)
        columns = vectors.mT.unflatten(-1, decoded.shape[1:]).movedim(1, 0)  # (D, B, *output)
        columns = self.blocks(columns)  # (D, B, features, n)
        along = torch.einsum("kbfn,dbfn->kdbf", scores, columns) / len(scores)
        weighted = torch.einsum("kdbf,kbfn->dbfn", along, scores)
        return self.unblock(weighted, decoded.shape[1:]).flatten(2).movedim(0, 2)

    def blocks(self, values: Tensor) -> Tensor:
        """Group decoder outputs that may be correlated: (S, B, *output) -> (S, B, blocks, n).

        `fisher` treats the n outputs of one block, such as the outputs of one pixel, as correlated. In
        this default each output is a block of its own, so n is 1.
        """
        return values.flatten(2)[..., None]

    def unblock(self, values: Tensor, output: Shape) -> Tensor:
        """Undo `blocks`, which groups outputs: (S, B, blocks, n) -> (S, B, *output)."""
        return values.reshape(*values.shape[:2], *output)

    def output_shape(self, shape: Shape) -> Shape:
        """The shape of the decoder's output for examples of this shape. By default both are the same."""
        return shape

    def tempered(self, noise: float) -> Likelihood:
        """Make a likelihood like this one with more or less noise. Both share their parameters.

        Raise a `ConfigError` if `can_temper` is False.

        Args:
            noise: a factor. It multiplies the variance (Gaussian), the scale (logistic), the dispersion
                (negative binomial) or the temperature of the logits (Bernoulli, multinomial,
                likelihoods of classes). 1 gives the trained likelihood.
        """
        if not self.can_temper:
            raise ConfigError(
                f"the {self.name} likelihood has no noise that can be calibrated: leave out noise=True"
            )
        made = copy.copy(self)
        made.noise = float(noise)
        return made

    def model_options(self) -> dict[str, Any]:
        """The settings of this likelihood as model options, {name: value}, which `for_data` takes."""
        return {}

    @classmethod
    def for_data(cls, shape: Shape, **options: Any) -> Likelihood:
        """Make a new likelihood of this class for a data set.

        Args:
            shape: shape of an example.
            **options: `variance`, the variance of the data around their mean, and model options
                (`recmix.model.options.ModelOptions`). Options that the constructor does not take are
                ignored.
        """
        taken = constructor_options(cls)
        known: dict[str, Any] = {"shape": shape, **options}
        if (
            "classes" in taken
            and inspect.signature(cls).parameters["classes"].default is inspect.Parameter.empty
        ):
            known.setdefault("classes", 0)  # the constructor says what is wrong with it
        return cls(**{name: known[name] for name in taken if name in known})

    def _scores(self, decoded: Tensor) -> Tensor:
        """Draw K samples x ~ p(x | z) with a fixed seed and return their residuals, (K, B, *output)."""
        generator = torch.Generator(decoded.device).manual_seed(0)
        wide = decoded.expand(FISHER_SAMPLES, *decoded.shape).flatten(0, 1)
        drawn = self.sample(wide.detach(), generator)
        return self.residual(drawn, wide).unflatten(0, (FISHER_SAMPLES, -1))


def sum_event(values: Tensor, x: Tensor) -> Tensor:
    """Sum `values` over the axes of one example: (S, B, *event) -> (S, B).

    Args:
        values: one number for each value of the examples, (S, B, *event) or (B, *event).
        x: examples (B, *event). Only their number of axes is read.
    """
    return values.sum(tuple(range(1 - x.ndim, 0)))


def bits_per_dimension(log_prob: Tensor, shape: Shape) -> Tensor:
    """Convert log p(x) in nats to bits per value of x: -log_prob / (number of values · log 2).

    `shape` is the shape of an example x. For discrete x, the result is the length of x, in bits per
    value, in a code that is optimal for the model.

    >>> bits_per_dimension(torch.tensor(-64 * math.log(2)), (1, 8, 8))
    tensor(1.)
    """
    return -log_prob / (math.prod(shape) * math.log(2))


LIKELIHOODS: dict[str, type[Likelihood]] = {}
"""All registered likelihoods by name."""

Kind = TypeVar("Kind", bound=type[Likelihood])


def register_likelihood(name: str) -> Callable[[Kind], Kind]:
    """Class decorator that registers a likelihood under a name.

    The model option `likelihood` and saved models can then use this name. Raise a `ConfigError` if
    another class has the same name.
    """

    def add(kind: Kind) -> Kind:
        if LIKELIHOODS.get(name, kind).__qualname__ != kind.__qualname__:
            raise ConfigError(f"there is another likelihood called {name!r}: choose another name")
        kind.name = name
        LIKELIHOODS[name] = kind
        return kind

    return add


def constructor_options(kind: type[Likelihood]) -> list[str]:
    """The names of the arguments that the constructor of this likelihood takes."""
    return [] if kind.__init__ is nn.Module.__init__ else list(inspect.signature(kind).parameters)


def find_likelihood(name: str) -> type[Likelihood]:
    """Return the likelihood class of this name; raise a `ConfigError` if none is registered."""
    if not isinstance(name, str):
        advice = f": write {name.__name__}(...)" if isinstance(name, type) else ""
        raise ConfigError(
            f"likelihood must be a name or an object of recmix.likelihoods, got {shown(name)}{advice}"
        )
    if name not in LIKELIHOODS:
        raise ConfigError(unknown("likelihood", name, LIKELIHOODS))
    return LIKELIHOODS[name]
