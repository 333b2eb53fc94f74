"""The central objects: a latent model p(x, z), a posterior q(z | x), a method that learns both."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor, nn

from recmix.model.latent import LatentModel
from recmix.posteriors.posterior import Posterior

__all__ = ["Component"]


class Component(nn.Module, ABC):
    """One amortised posterior: an encoder, and what turns its output into a density.

    Methods are made of components: the VAE of one Gaussian, a flow of one with its flow, a mixture of
    several of any kind. Keyword-only constructor arguments are its options.

    Args:
        encoder: (B, C, H, W) -> (B, 2 D).
        model: for the shapes of what is built on top; not kept.
    """

    kind: ClassVar[str]
    setting: ClassVar[str | None] = None
    """The option that the paper's tables vary, if any."""
    sees_before: ClassVar[bool] = False
    """Whether `forward` also takes the posterior of the component before, which it corrects."""
    several: ClassVar[bool] = False
    """Whether it can begin from several points, of which the best counts: then it has `best`."""
    teachable: ClassVar[bool] = True
    """Whether its density carries gradients to its encoder, so that samples can teach it."""

    def __init__(self, encoder: nn.Module, model: LatentModel) -> None:
        super().__init__()
        self.encoder = encoder

    @abstractmethod
    def forward(self, x: Tensor, model: LatentModel) -> Posterior:
        """q(z | x) for images x (B, C, H, W) in [0, 1]."""
