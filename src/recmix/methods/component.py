"""The base class `Component`: one amortised posterior. A method has one or several components."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import ClassVar, Self

from torch import Tensor, nn

from recmix.errors import ConfigError
from recmix.model.latent import LatentModel
from recmix.posteriors import Posterior

__all__ = ["MAX_ORDER", "Component", "CountsTraining"]

MAX_ORDER = 16
"""Largest number of components of a mixture."""


class CountsTraining(nn.Module):
    """Base class of modules that count how often they were switched to training mode.

    The replay of a CUDA graph changes weights without changing the version numbers of the tensors. So a
    cached copy of the weights is outdated if the count has changed since the copy was made.
    """

    trainings: int = 0

    def train(self, mode: bool = True) -> Self:
        """Set the mode as `nn.Module.train` does, and count the calls with mode True in `trainings`."""
        self.trainings += mode
        super().train(mode)
        return self


class Component(CountsTraining, ABC):
    """Base class of amortised posteriors: an encoder, and the function from its output to a density.

    The VAE has one Gaussian component. A flow has one component, which contains the flow. A mixture has
    several components. Keyword-only constructor arguments are the component's options.

    Args:
        encoder: network from examples (B, *shape) to (B, 2 D), for the latent dimension D.
        model: gives the shapes of x and z; it is not stored.
    """

    kind: ClassVar[str]
    setting: ClassVar[str | None] = None
    """Name of the component's main option, which tables of results vary; None if there is none."""
    corrects: ClassVar[bool] = False
    """Whether `forward` also takes the posterior of the previous component and corrects it."""
    steps_per_example: int = 0
    """Number of optimisation steps that `forward` makes for each example."""
    feed_forward: ClassVar[bool] = False
    """Whether `forward` decodes and corrects its result, without steps for each example."""
    uses_jacobian: ClassVar[bool] = False
    """Whether `forward` uses the Jacobian of the decoder, see `recmix.inference.gauss_newton`."""
    can_be_distilled: ClassVar[bool] = True
    """Whether log q carries gradients to the encoder, as distillation needs."""
    closed_form_entropy: ClassVar[bool] = False
    """Whether the method `entropy` of the posterior works."""

    def __init__(self, encoder: nn.Module, model: LatentModel) -> None:
        super().__init__()
        self.encoder = encoder

    @abstractmethod
    def forward(self, x: Tensor, model: LatentModel) -> Posterior:
        """The posterior q(z | x) for examples x (B, *shape). Some components use the model's decoder."""

    def extra_networks(self) -> list[nn.Module]:
        """The networks that a training step evaluates in addition to the encoder."""
        return []

    @classmethod
    def for_mixture(
        cls, encoder: nn.Module, model: LatentModel, count: int, setting: int | None = None
    ) -> list[Component]:
        """Make the components of a mixture. By default, each component has its own copy of the encoder.

        Args:
            encoder: a network that is copied for each component.
            model: gives the shapes of x and z.
            count: number of components.
            setting: value of the component's main option, such as its number of steps. The class
                attribute `setting` is the name of this option. None means the option's default.
        """
        options = {}
        if setting is not None:
            if cls.setting is None:
                raise ConfigError(
                    f"component {cls.kind!r} has no setting, got component_setting={setting}"
                )
            options = {cls.setting: setting}
        return [cls(copy.deepcopy(encoder), model, **options) for _ in range(count)]

    @classmethod
    def for_recursion(
        cls, encoder: nn.Module, model: LatentModel, count: int, setting: int | None = None
    ) -> list[Component]:
        """Make the components of a recursive mixture. By default, this calls `for_mixture`."""
        return cls.for_mixture(encoder, model, count, setting)
