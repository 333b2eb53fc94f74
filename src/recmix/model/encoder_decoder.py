"""The classes `Encoder` and `Decoder` of all built-in networks, and functions for networks of any kind.

An encoder maps examples x (B, *shape) to the mean and log-variance of q(z|x), concatenated in one tensor
(B, 2·latent). A decoder maps latent points z (N, latent) to the parameters of the likelihood, (N,
*output).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from numbers import Real

from torch import Tensor, nn

from recmix.errors import ConfigError

__all__ = [
    "Decoder",
    "Encoder",
    "Shape",
    "check_shares",
    "check_sizes",
    "checked_shape",
    "encode_with_features",
    "evaluation_mode",
    "feature_size",
    "parameter_count",
    "reset",
    "scaled",
]

Shape = tuple[int, ...]
"""Sizes of the axes of one example, such as (channels, height, width)."""


class Encoder(nn.Module):
    """An encoder in two parts: a network for features of the example, and a linear head.

    Normalising flows use the features as their context.

    Args:
        features: Maps x (B, *shape) to (B, hidden).
        head: Maps (B, hidden) to (B, 2·latent), the mean and log-variance of q(z|x).

    >>> import torch
    >>> encoder = Encoder(nn.Flatten(), nn.Linear(64, 2 * 5))
    >>> encoder(torch.zeros(3, 1, 8, 8)).shape, encoder.hidden, encoder.latent
    (torch.Size([3, 10]), 64, 5)
    """

    def __init__(self, features: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        if head.out_features % 2:
            raise ConfigError(
                f"the encoder's head gives {head.out_features} numbers, expected an even count: "
                "a mean and a log-variance for each latent dimension"
            )
        self.features = features
        self.head = head
        self.hidden = head.in_features
        self.latent = head.out_features // 2

    def forward(self, x: Tensor) -> Tensor:
        """The mean and log-variance of q(z|x), in one tensor (B, 2·latent), for x (B, *shape)."""
        return self.head(self.features(x))


class Decoder(nn.Module):
    """A decoder: layers that map z (N, latent) to (N, *shape), without a last activation.

    >>> import torch
    >>> layers = nn.Sequential(nn.Linear(5, 64), nn.Unflatten(1, (1, 8, 8)))
    >>> Decoder(layers, shape=(1, 8, 8), latent=5)(torch.zeros(3, 5)).shape
    torch.Size([3, 1, 8, 8])
    """

    def __init__(self, layers: nn.Sequential, *, shape: Shape, latent: int) -> None:
        super().__init__()
        self.layers = layers
        self.shape = shape
        self.latent = latent

    def forward(self, z: Tensor) -> Tensor:
        """The parameters of the likelihood, (N, *shape), for latent points z (N, latent)."""
        return self.layers(z)


def feature_size(encoder: nn.Module, latent: int) -> int:
    """The number of features F that `encode_with_features` returns for this encoder.

    For a module that is not an `Encoder`, F is 2·latent, the size of the module's output.

    >>> feature_size(Encoder(nn.Flatten(), nn.Linear(64, 10)), 5), feature_size(nn.Flatten(), 32)
    (64, 64)
    """
    return encoder.hidden if isinstance(encoder, Encoder) else 2 * latent


def encode_with_features(encoder: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """An encoder's F features, (B, F), and its output, (B, 2·latent), for examples x (B, *shape).

    The output holds the mean and log-variance of q(z|x). If the module is not an `Encoder`, its output
    is returned as the features too.

    >>> import torch
    >>> encoder = Encoder(nn.Flatten(), nn.Linear(64, 10))
    >>> features, output = encode_with_features(encoder, torch.zeros(3, 1, 8, 8))
    >>> features.shape, output.shape
    (torch.Size([3, 64]), torch.Size([3, 10]))
    """
    if isinstance(encoder, Encoder):
        features: Tensor = encoder.features(x)
        return features, encoder.head(features)
    output: Tensor = encoder(x)
    return output, output


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """A context in which a module is in evaluation mode.

    At the end of the context, each submodule gets back the mode that it had before.
    """
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def parameter_count(module: nn.Module) -> int:
    """The number of values in all parameters of a module."""
    return sum(parameter.numel() for parameter in module.parameters())


def reset(module: nn.Module) -> None:
    """Initialise all parameters of a module again, like those of a new module.

    The function calls `reset_parameters` of every submodule. Inner submodules come before the modules
    that contain them, so that an outer module can override their values. If a parameter belongs to a
    module without `reset_parameters`, raise a `ConfigError` and change nothing.
    """
    for path, part in module.named_modules():
        if not hasattr(part, "reset_parameters"):
            for name, _ in part.named_parameters(recurse=False):
                raise ConfigError(
                    f"cannot reset parameter {'.'.join(filter(None, (path, name)))!r}: its "
                    f"module {type(part).__name__} has no reset_parameters(); give it one"
                )
    for part in reversed(list(module.modules())):
        redraw = getattr(part, "reset_parameters", None)
        if redraw is not None:
            redraw()


def checked_shape(shape: Sequence[int]) -> Shape:
    """Return the shape of an example as a tuple of ints; raise a `ConfigError` if it is not valid."""
    sizes = list(shape) if isinstance(shape, Sequence) else []
    if not sizes or not all(_is_size(size) for size in sizes):
        given = tuple(shape) if isinstance(shape, Sequence) else shape
        raise ConfigError(
            f"examples of shape {given!r}: expected a tuple of whole numbers of at least 1, such as "
            "(784,) for vectors or (channels, height, width) for images"
        )
    return tuple(int(size) for size in sizes)


def check_sizes(**sizes: int) -> None:
    """Raise a `ConfigError` if one of the sizes is below 1, as in `check_sizes(latent=0)`."""
    for name, size in sizes.items():
        if size < 1:
            raise ConfigError(f"{name}={size}: expected at least 1")


def check_shares(**shares: float) -> None:
    """Raise a `ConfigError` if one of the shares is not in [0, 1), as in `check_shares(dropout=1.0)`."""
    for name, share in shares.items():
        if not 0 <= share < 1:
            raise ConfigError(f"{name}={share}: expected a share from 0 to below 1")


def scaled(units: int, width: float) -> int:
    """Multiply a layer's number of units by the factor `width`. Return a whole number of at least 1.

    >>> scaled(32, 2.0), scaled(10, 0.01)
    (64, 1)
    """
    if not (math.isfinite(width) and width > 0):
        raise ConfigError(f"width={width}: expected a positive factor; 1 is the encoder's usual width")
    return max(1, round(units * width))


def _is_size(size: object) -> bool:
    return isinstance(size, Real) and float(size) >= 1 and float(size).is_integer()
