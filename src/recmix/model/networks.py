"""Networks: the paper's convolutional ones, fully connected ones of the same size, and gates.

An encoder maps images x (B, C, H, W) to the mean and log-variance of q(z|x), concatenated in one
tensor (B, 2·latent); a decoder maps z (N, latent) to what the likelihood reads, (N, C, H, W).
Any modules with these shapes can be used; `check_encoder` and `check_decoder` test them.

Reference: Kim and Pavlovic, Recursive Inference for Variational Autoencoders, NeurIPS 2020,
supplement, tables of network architectures.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError, unknown
from recmix.model.replaceable import fusable

__all__ = [
    "DECODERS",
    "ENCODERS",
    "Decoder",
    "Encoder",
    "Gate",
    "Shape",
    "WeightNet",
    "bounded",
    "check_decoder",
    "check_encoder",
    "conv_decoder",
    "conv_encoder",
    "dense_decoder",
    "dense_encoder",
    "encode_with_features",
    "feature_size",
    "make_decoder",
    "make_encoder",
    "parameter_count",
    "reset",
]

Shape = tuple[int, int, int]
"""Channels, height and width of one image."""

SMALLEST_SIDE, LARGEST_SIDE = 8, 128
LEAK = 0.01
TWIN_TOLERANCE = 0.03
"""Largest relative difference between the parameter counts of a network and its twin."""


class Encoder(nn.Module):
    """An encoder in two parts: features of the image, and a linear head on them.

    Normalising flows use the features as their context.

    Args:
        features: Maps x (B, C, H, W) to (B, hidden).
        head: Maps (B, hidden) to (B, 2·latent), the mean and log-variance of q(z|x).

    Attributes:
        hidden: Number of features.
        latent: Dimension of z.

    >>> encoder = Encoder(nn.Flatten(), nn.Linear(64, 2 * 5))
    >>> encoder(torch.zeros(3, 1, 8, 8)).shape
    torch.Size([3, 10])
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
        """The mean and log-variance of q(z|x), (B, 2·latent), of images x (B, C, H, W)."""
        output: Tensor = self.head(self.features(x))
        return output


class Decoder(nn.Module):
    """A decoder: a chain of layers from z (N, latent) to (N, C, H, W), without a last activation.

    Args:
        layers: The chain.
        shape: Channels, height and width of the images it gives.
        latent: Dimension of z.

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
        """What the likelihood reads, (N, C, H, W), for latent points z (N, latent)."""
        decoded: Tensor = self.layers(z)
        return decoded


def conv_encoder(shape: Shape, latent: int, *, hidden: int | None = None, width: float = 1.0) -> Encoder:
    """The paper's convolutional encoder, for any side from 8 to 128.

    4x4 convolutions (stride 2, padding 1) halve the image, rounding down, while its shorter side
    exceeds 4: 28 -> 14 -> 7 -> 3, 32 -> 16 -> 8 -> 4, 64 -> ... -> 4. The first two have 32
    channels, the others 64. Then a hidden layer and a linear head; LeakyReLU(0.01) between.

    Args:
        shape: Channels, height and width of the images.
        latent: Dimension of z.
        hidden: Size of the hidden layer; by default 256 up to 1024 values per image, else 512.
        width: Multiplies the channels and the hidden layer.

    >>> encoder = conv_encoder((1, 28, 28), 20)
    >>> encoder(torch.zeros(2, 1, 28, 28)).shape, encoder.hidden
    (torch.Size([2, 40]), 256)
    """
    shape = _checked_shape(shape, latent)
    if not (math.isfinite(width) and width > 0):
        raise ConfigError(f"width={width}: expected a positive factor; 1 is the paper's encoder")
    hidden = _scaled(_hidden_size(shape, hidden), width)
    sizes = _halvings(shape)
    channels = [shape[0], *(_scaled(n, width) for n in _channels(sizes))]
    layers: list[nn.Module] = []
    for before, after in pairwise(channels):
        layers += [nn.Conv2d(before, after, 4, stride=2, padding=1), nn.LeakyReLU(LEAK)]
    layers += [nn.Flatten(), nn.Linear(channels[-1] * math.prod(sizes[-1]), hidden)]
    layers += [nn.LeakyReLU(LEAK)]
    return Encoder(nn.Sequential(*layers), nn.Linear(hidden, 2 * latent))


def conv_decoder(shape: Shape, latent: int, *, hidden: int | None = None) -> Decoder:
    """The paper's convolutional decoder: the encoder's sizes and channels in reverse, with ReLU.

    Two linear layers, then 4x4 transposed convolutions (stride 2, padding 1). Each doubles the
    image; where the encoder rounded down, an output padding of 1 restores the odd size
    (3 -> 7 -> 14 -> 28).

    Args:
        shape: Channels, height and width of the images.
        latent: Dimension of z.
        hidden: Size of the hidden layer; by default 256 up to 1024 values per image, else 512.

    >>> conv_decoder((1, 28, 28), 20)(torch.zeros(2, 20)).shape
    torch.Size([2, 1, 28, 28])
    """
    shape = _checked_shape(shape, latent)
    hidden = _hidden_size(shape, hidden)
    sizes = _halvings(shape)[::-1]
    channels = [*_channels(sizes)[::-1], shape[0]]
    smallest = (channels[0], *sizes[0])
    layers: list[nn.Module] = [nn.Linear(latent, hidden), nn.ReLU()]
    layers += [nn.Linear(hidden, math.prod(smallest)), nn.ReLU(), nn.Unflatten(1, smallest)]
    for (c_in, c_out), ((h_in, w_in), (h_out, w_out)) in zip(
        pairwise(channels), pairwise(sizes), strict=True
    ):
        extra = (h_out - 2 * h_in, w_out - 2 * w_in)
        layers += [
            nn.ConvTranspose2d(c_in, c_out, 4, stride=2, padding=1, output_padding=extra),
            nn.ReLU(),
        ]
    return Decoder(nn.Sequential(*layers[:-1]), shape=shape, latent=latent)


def dense_encoder(
    shape: Shape, latent: int, *, hidden: int | None = None, width: float = 1.0
) -> Encoder:
    """A fully connected encoder with as many parameters as its twin `conv_encoder` (within 3 %).

    Two hidden layers with LeakyReLU(0.01). Both get the largest equal width that does not exceed
    the twin's parameter count. Then the layer farther from the image is widened to match it.

    Args:
        shape: Channels, height and width of the images.
        latent: Dimension of z.
        hidden: The hidden layer of the convolutional twin.
        width: The width of the convolutional twin.

    >>> dense = dense_encoder((1, 28, 28), 20)
    >>> dense.features
    Sequential(
      (0): Flatten(start_dim=1, end_dim=-1)
      (1): Linear(in_features=784, out_features=202, bias=True)
      (2): LeakyReLU(negative_slope=0.01)
      (3): Linear(in_features=202, out_features=202, bias=True)
      (4): LeakyReLU(negative_slope=0.01)
    )
    >>> parameter_count(dense), parameter_count(conv_encoder((1, 28, 28), 20))
    (207696, 207784)
    """
    with torch.device("meta"):
        twin = conv_encoder(shape, latent, hidden=hidden, width=width)
    pixels = math.prod(shape)
    near, far = _twin_widths(lambda near, far: _chain_count(pixels, near, far, 2 * latent), twin, shape)
    features = nn.Sequential(
        nn.Flatten(),
        nn.Linear(pixels, near),
        nn.LeakyReLU(LEAK),
        nn.Linear(near, far),
        nn.LeakyReLU(LEAK),
    )
    return Encoder(features, nn.Linear(far, 2 * latent))


def dense_decoder(shape: Shape, latent: int, *, hidden: int | None = None) -> Decoder:
    """A fully connected decoder with as many parameters as its twin `conv_decoder` (within 3 %).

    Two hidden layers with ReLU, their widths found as in `dense_encoder`.

    Args:
        shape: Channels, height and width of the images.
        latent: Dimension of z.
        hidden: The hidden layer of the convolutional twin.

    >>> dense_decoder((1, 28, 28), 20)(torch.zeros(2, 20)).shape
    torch.Size([2, 1, 28, 28])
    """
    with torch.device("meta"):
        twin = conv_decoder(shape, latent, hidden=hidden)
    pixels = math.prod(shape)
    near, far = _twin_widths(lambda near, far: _chain_count(latent, far, near, pixels), twin, shape)
    layers = nn.Sequential(
        nn.Linear(latent, far),
        nn.ReLU(),
        nn.Linear(far, near),
        nn.ReLU(),
        nn.Linear(near, pixels),
        nn.Unflatten(1, twin.shape),
    )
    return Decoder(layers, shape=twin.shape, latent=latent)


ENCODERS: dict[str, Callable[..., Encoder]] = {"conv": conv_encoder, "dense": dense_encoder}
DECODERS: dict[str, Callable[..., Decoder]] = {"conv": conv_decoder, "dense": dense_decoder}


def make_encoder(
    kind: str, shape: Shape, latent: int, *, hidden: int | None = None, width: float = 1.0
) -> Encoder:
    """The encoder of that kind, "conv" or "dense"; for the arguments see `conv_encoder`.

    >>> make_encoder("dense", (1, 8, 8), 2)(torch.zeros(3, 1, 8, 8)).shape
    torch.Size([3, 4])
    """
    if kind not in ENCODERS:
        raise ConfigError(unknown("encoder", kind, ENCODERS))
    return ENCODERS[kind](shape, latent, hidden=hidden, width=width)


def make_decoder(kind: str, shape: Shape, latent: int, *, hidden: int | None = None) -> Decoder:
    """The decoder of that kind, "conv" or "dense"; for the arguments see `conv_decoder`.

    >>> make_decoder("dense", (1, 8, 8), 2)(torch.zeros(3, 2)).shape
    torch.Size([3, 1, 8, 8])
    """
    if kind not in DECODERS:
        raise ConfigError(unknown("decoder", kind, DECODERS))
    return DECODERS[kind](shape, latent, hidden=hidden)


class Gate(nn.Module):
    """The mixing weight ε(x) of a new component, kept between two bounds.

    ε(x) = ε_min + (ε_max - ε_min)·sigmoid(s(x)), where s is a network with one small hidden layer.
    The paper's bound ε_max keeps a new component from taking over the mixture.

    Args:
        shape: Channels, height and width of the images.
        hidden: Size of the hidden layer.
        minimum: ε_min, above 0.
        maximum: ε_max, above ε_min and below 1.

    >>> log_eps, log_rest = Gate((1, 8, 8))(torch.zeros(3, 1, 8, 8))
    >>> log_eps.shape, torch.allclose(log_eps.exp() + log_rest.exp(), torch.ones(3))
    (torch.Size([3]), True)
    """

    def __init__(
        self, shape: Shape, *, hidden: int = 10, minimum: float = 0.001, maximum: float = 0.1
    ) -> None:
        super().__init__()
        if not 0 < minimum < maximum < 1:
            raise ConfigError(
                f"gate with minimum={minimum}, maximum={maximum}: "
                "expected 0 < minimum < maximum < 1 (the paper's are 0.001 and 0.1)"
            )
        self.minimum = minimum
        self.maximum = maximum
        self.layers = _pixel_network(shape, hidden, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The pair log ε(x) (B,), log(1 - ε(x)) (B,) of images x (B, C, H, W)."""
        return self.bounded(self.layers(x).squeeze(-1))

    def bounded(self, score: Tensor) -> tuple[Tensor, Tensor]:
        """The pair log ε, log(1 - ε) of a score s of any shape."""
        return bounded(score, self.minimum, self.maximum)

    def extra_repr(self) -> str:
        """The bounds."""
        return f"minimum={self.minimum}, maximum={self.maximum}"


@fusable
def bounded(score: Tensor, minimum: float, maximum: float) -> tuple[Tensor, Tensor]:
    """The pair log ε, log(1 - ε) of a gate's score s, for ε between the two bounds."""
    span = maximum - minimum
    # 1 - ε is formed as a sum of positive terms too: log(1 - ε) stays finite for ε_max near 1.
    log_eps = (minimum + span * torch.sigmoid(score)).log()
    log_rest = ((1 - maximum) + span * torch.sigmoid(-score)).log()
    return log_eps, log_rest


class WeightNet(nn.Module):
    """All the weights α(x) of a mixture at once: a softmax over a small network's outputs.

    Args:
        shape: Channels, height and width of the images.
        order: Number of components.
        hidden: Size of the hidden layer.

    >>> WeightNet((1, 8, 8), 4)(torch.zeros(3, 1, 8, 8)).exp().sum(-1).allclose(torch.ones(3))
    True
    """

    def __init__(self, shape: Shape, order: int, *, hidden: int = 10) -> None:
        super().__init__()
        if order < 1:
            raise ConfigError(f"order={order}: expected at least one component")
        self.order = order
        self.layers = _pixel_network(shape, hidden, order)

    def forward(self, x: Tensor) -> Tensor:
        """The log weights log α(x), (B, order), of images x (B, C, H, W)."""
        scores: Tensor = self.layers(x)
        return scores.log_softmax(-1)


def check_encoder(module: nn.Module, shape: Shape, latent: int) -> None:
    """Try an encoder on two images; an error says what it gave and what was expected.

    Args:
        module: Should map (2, C, H, W) to (2, 2·latent).
        shape: Channels, height and width of the images.
        latent: Dimension of z.

    Raises:
        ConfigError: The module fails, or gives another shape.

    >>> check_encoder(nn.Flatten(), (1, 8, 8), 32)
    """
    advice = f"mean and log-variance of {latent} latent dimensions side by side"
    _check_output("encoder", module, (2, *shape), (2, 2 * latent), advice)


def check_decoder(module: nn.Module, shape: Shape, latent: int) -> None:
    """Try a decoder on two latent points; an error says what it gave and what was expected.

    Args:
        module: Should map (2, latent) to (2, C, H, W).
        shape: Channels, height and width of the images.
        latent: Dimension of z.

    Raises:
        ConfigError: The module fails, or gives another shape.

    >>> check_decoder(nn.Unflatten(1, (1, 8, 8)), (1, 8, 8), 64)
    """
    advice = "one image for each latent point"
    _check_output("decoder", module, (2, latent), (2, *shape), advice)


def feature_size(encoder: nn.Module, latent: int) -> int:
    """The number of features that `encode_with_features` gives.

    >>> feature_size(conv_encoder((1, 8, 8), 5), 5), feature_size(nn.Flatten(), 32)
    (256, 64)
    """
    return encoder.hidden if isinstance(encoder, Encoder) else 2 * latent


def encode_with_features(encoder: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """An encoder's features (B, F) and its output (B, 2·latent), in one pass.

    A module that is not an `Encoder` has no features of its own: its output is used as features. To
    define the features of your own network, build it as `Encoder(features, head)`.

    >>> features, output = encode_with_features(conv_encoder((1, 8, 8), 5), torch.zeros(3, 1, 8, 8))
    >>> features.shape, output.shape
    (torch.Size([3, 256]), torch.Size([3, 10]))
    """
    if isinstance(encoder, Encoder):
        features: Tensor = encoder.features(x)
        return features, encoder.head(features)
    output: Tensor = encoder(x)
    return output, output


def parameter_count(module: nn.Module) -> int:
    """The number of parameters.

    >>> parameter_count(nn.Linear(3, 2))
    8
    """
    return sum(parameter.numel() for parameter in module.parameters())


def reset(module: nn.Module) -> None:
    """Give all parameters new random values, as when the module was made.

    Calls `reset_parameters` of every submodule, inner ones first, so that an outer module can override
    them. Nothing changes if a parameter cannot be reset.

    Raises:
        ConfigError: A parameter belongs to a module without `reset_parameters`.

    >>> layer = nn.Linear(3, 2)
    >>> before = layer.weight.clone()
    >>> reset(layer)
    >>> bool((layer.weight == before).any())
    False
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


def _checked_shape(shape: Sequence[int], latent: int) -> Shape:
    """The shape as a tuple of ints; refuses invalid shapes and latent dimensions."""
    if latent < 1:
        raise ConfigError(f"latent={latent}: expected a latent dimension of at least 1")
    checked = _positive_shape(shape)
    if not all(SMALLEST_SIDE <= side <= LARGEST_SIDE for side in checked[1:]):
        raise ConfigError(
            f"images of shape {checked} (channels, height, width): the built-in networks take "
            f"sides from {SMALLEST_SIDE} to {LARGEST_SIDE}; crop, pad or resize the images, "
            "or bring your own encoder and decoder modules"
        )
    return checked


def _positive_shape(shape: Sequence[int]) -> Shape:
    if len(shape) != 3 or not all(int(n) == n and n >= 1 for n in shape):
        raise ConfigError(
            f"images of shape {tuple(shape)}: expected three whole numbers of at least 1, "
            "(channels, height, width); a grey image has one channel"
        )
    channels, height, width = (int(n) for n in shape)
    return channels, height, width


def _hidden_size(shape: Shape, hidden: int | None) -> int:
    if hidden is None:
        return 256 if math.prod(shape) <= 1024 else 512
    if hidden < 1:
        raise ConfigError(f"hidden={hidden}: expected a hidden layer of at least 1 unit")
    return hidden


def _scaled(units: int, width: float) -> int:
    return max(1, round(units * width))


def _halvings(shape: Shape) -> list[tuple[int, int]]:
    """Heights and widths from the image's down to the smallest feature map's."""
    sizes = [shape[1:]]
    while min(sizes[-1]) > 4:
        height, width = sizes[-1]
        sizes.append((height // 2, width // 2))
    return sizes


def _channels(sizes: Sequence[object]) -> list[int]:
    """Channels of the feature map at each size after the image's."""
    return [32 if layer < 2 else 64 for layer in range(len(sizes) - 1)]


def _chain_count(*sizes: int) -> int:
    """Weights and biases of a chain of linear layers."""
    return sum((before + 1) * after for before, after in pairwise(sizes))


def _twin_widths(count: Callable[[int, int], int], twin: nn.Module, shape: Shape) -> tuple[int, int]:
    """Widths of two hidden layers that match a twin's parameter count: near the image, far from it."""
    target = parameter_count(twin)
    near = bisect_right(range(target + 1), target, key=lambda width: count(width, width)) - 1
    if near >= 1:
        base, step = count(near, near), count(near, near + 1) - count(near, near)
        far = near + round((target - base) / step)
        if abs(count(near, far) - target) <= TWIN_TOLERANCE * target:
            return near, far
    raise ConfigError(
        f"no fully connected network for images of shape {tuple(shape)} has about the {target} "
        f"parameters of its convolutional twin: one hidden unit next to the image takes "
        f"{math.prod(shape)}; use kind 'conv' or bring your own module"
    )


def _pixel_network(shape: Sequence[int], hidden: int, outputs: int) -> nn.Sequential:
    """The paper's small network on all pixels: one hidden layer with ReLU."""
    pixels = math.prod(_positive_shape(shape))
    if hidden < 1:
        raise ConfigError(f"hidden={hidden}: expected a hidden layer of at least 1 unit")
    return nn.Sequential(nn.Flatten(), nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def _check_output(
    role: str, module: nn.Module, given: tuple[int, ...], expected: tuple[int, ...], advice: str
) -> None:
    """Run a module on an example and check the shape of its output."""
    like = next((p for p in module.parameters() if p.is_floating_point()), torch.empty(0))
    example = torch.linspace(0, 1, math.prod(given), dtype=like.dtype, device=like.device)
    modes = [(part, part.training) for part in module.modules()]
    what = f"the {role} {type(module).__name__}"
    module.eval()
    try:
        with torch.no_grad():
            output = module(example.reshape(given))
    except Exception as error:
        raise ConfigError(
            f"{what} failed on an input of shape {given}: {error}; "
            f"expected an output of shape {expected}, {advice}"
        ) from error
    finally:
        for part, training in modes:
            part.training = training
    if not isinstance(output, Tensor):
        raise ConfigError(
            f"{what} gave a {type(output).__name__} for an input of shape {given}; "
            f"expected one tensor of shape {expected}, {advice}"
        )
    if output.shape != expected:
        raise ConfigError(
            f"{what} gave shape {tuple(output.shape)} for an input of shape {given}; "
            f"expected {expected}, {advice}"
        )
