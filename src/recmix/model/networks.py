"""Make encoders and decoders by the name of a kind of network.

An encoder maps examples x (B, *shape) to the mean and log-variance of q(z|x), concatenated in one
tensor (B, 2·latent). A decoder maps z (N, latent) to the parameters of the likelihood, (N,
*output). Any modules with these shapes can be used.

To add a kind of network, write a file with the function that makes its encoder and the function
that makes its decoder, and add them to `NETWORKS`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from recmix.errors import ConfigError, unknown
from recmix.model.encoder_decoder import (
    Decoder,
    Encoder,
    checked_shape,
    encode_with_features,
    feature_size,
)
from recmix.model.graph_networks import graph_decoder, graph_encoder
from recmix.model.mlp import mlp_decoder, mlp_encoder
from recmix.model.options import ModelOptions
from recmix.model.paper_networks import SIDES, conv_decoder, conv_encoder, dense_decoder, dense_encoder
from recmix.model.resnet import resnet_decoder, resnet_encoder
from recmix.model.sequence_networks import (
    gru_decoder,
    gru_encoder,
    transformer_decoder,
    transformer_encoder,
)
from recmix.model.video_networks import is_clip, video_decoder, video_encoder

__all__ = [
    "AUTO_NETWORK",
    "NETWORKS",
    "TOKEN_NETWORKS",
    "Decoder",
    "Encoder",
    "Network",
    "check_network_name",
    "check_network_options",
    "default_network",
    "encode_with_features",
    "feature_size",
    "keyword_options",
    "make_decoder",
    "make_encoder",
    "network_options",
]

AUTO_NETWORK = "auto"
"""The option value for the default kind of network; `default_network` says which kind this is."""


class Network(NamedTuple):
    """A kind of network, such as "conv": the functions that make its encoder and its decoder.

    The keyword-only arguments of these functions are the options of the network. Every encoder has the
    option `width`, which multiplies the sizes of its layers.

    Attributes:
        encoder: makes the encoder from (shape, latent, *, options).
        decoder: makes the decoder from (shape, latent, output, *, options).
        reads_classes: whether the encoder reads class numbers, such as tokens. Then its output has no
            derivative with respect to an example.
    """

    encoder: Callable[..., Encoder]
    decoder: Callable[..., Decoder]
    reads_classes: bool = False


NETWORKS: dict[str, Network] = {
    "conv": Network(conv_encoder, conv_decoder),
    "dense": Network(dense_encoder, dense_decoder),
    "mlp": Network(mlp_encoder, mlp_decoder),
    "resnet": Network(resnet_encoder, resnet_decoder),
    "transformer": Network(transformer_encoder, transformer_decoder, reads_classes=True),
    "gru": Network(gru_encoder, gru_decoder, reads_classes=True),
    "graph": Network(graph_encoder, graph_decoder, reads_classes=True),
    "video": Network(video_encoder, video_decoder),
}
"""Kinds of networks by name."""


TOKEN_NETWORKS = ("transformer", "gru")
"""The kinds of networks whose encoder takes tokens: examples are vectors of T token numbers, (T,)."""
KIND_NETWORK = {"tokens": "transformer", "graph": "graph"}
"""The default network by kind of data. For kinds not listed here, the shape of an example decides."""


def default_network(shape: Sequence[int], kind: str = "") -> str:
    """The kind of network that is used for examples of this shape if the user chooses none.

    - "transformer": texts
    - "graph": graphs
    - "video": clips (T, C, H, W) with sides from 8 to 64
    - "conv": images (C, H, W) with sides from 8 to 128
    - "mlp": all other shapes

    `kind` is the kind of the data, such as "tokens", "graph" or "real".

    >>> default_network((1, 28, 28)), default_network((784,)), default_network((3, 256, 256))
    ('conv', 'mlp', 'mlp')
    >>> default_network((50,), "tokens"), default_network((10, 1, 16, 16))
    ('transformer', 'video')
    """
    checked = checked_shape(shape)
    if kind in KIND_NETWORK:
        return KIND_NETWORK[kind]
    if is_clip(checked):
        return "video"
    image = len(checked) == 3 and all(SIDES[0] <= side <= SIDES[1] for side in checked[1:])
    return "conv" if image else "mlp"


def make_encoder(kind: str, shape: Sequence[int], latent: int, **options: Any) -> Encoder:
    """Make an encoder by the name of its kind of network.

    Args:
        kind: A name in `NETWORKS`, or "auto" for the default kind for this shape.
        **options: Options of this kind, such as the keyword-only arguments of `conv_encoder`.

    >>> import torch
    >>> make_encoder("mlp", (13,), 2, widths=(64,))(torch.zeros(3, 13)).shape
    torch.Size([3, 4])
    """
    return _maker(kind, shape, "encoder", options)(shape, latent, **options)


def make_decoder(
    kind: str, shape: Sequence[int], latent: int, output: Sequence[int] | None = None, **options: Any
) -> Decoder:
    """Make a decoder by the name of its kind of network. Other arguments are those of `make_encoder`.

    Args:
        output: Shape of the decoder's output for one example; by default the shape of the example.

    >>> import torch
    >>> make_decoder("conv", (1, 8, 8), 2, (2, 8, 8))(torch.zeros(3, 2)).shape
    torch.Size([3, 2, 8, 8])
    """
    return _maker(kind, shape, "decoder", options)(shape, latent, output, **options)


DATA_OPTIONS = ("classes", "node_classes", "edge_classes", "end_token")
"""Options that describe the data. A network that does not have such an option ignores it."""


def network_options(kind: str, options: ModelOptions, role: str = "decoder") -> dict[str, Any]:
    """Select the model options that a kind of network has and that differ from their defaults.

    The result, {name: value}, is passed to `make_encoder` or `make_decoder`. `role` says to which of
    the two: "encoder" or "decoder".

    >>> network_options("mlp", ModelOptions(widths=(64, 64), blocks=3))
    {'widths': (64, 64)}
    """
    if kind not in NETWORKS:
        raise ConfigError(unknown("network", kind, NETWORKS))
    known = keyword_options(getattr(NETWORKS[kind], role))
    return {name: value for name, value in options.changed().items() if name in known}


def check_network_options(
    options: ModelOptions, kinds: Iterable[str], others: Iterable[str] = ()
) -> None:
    """Raise an error if a network option is set that neither the encoder nor the decoder uses.

    Args:
        options: The model's options.
        kinds: Names of the kinds of the encoder and the decoder. A user's own module has no name here.
        others: Names of options that are used by other parts of the model, such as the likelihood.
    """
    kinds, others = list(kinds), {*others, *DATA_OPTIONS}
    for name, value in options.changed().items():
        users = [
            kind
            for kind, network in NETWORKS.items()
            if name in (*keyword_options(network.encoder), *keyword_options(network.decoder))
        ]
        if users and not set(users) & set(kinds) and name not in others:
            raise ConfigError(
                f"{name}={value!r} is an option of network {' and '.join(users)}, got network "
                f"{' and '.join(dict.fromkeys(kinds))}: leave {name} out, or choose another network"
            )


def keyword_options(make: Callable[..., Any]) -> list[str]:
    """The names of a function's keyword-only arguments.

    >>> keyword_options(mlp_decoder)
    ['widths', 'activation', 'normalisation', 'dropout']
    """
    parameters = inspect.signature(make).parameters.values()
    return [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]


def check_network_name(name: str, role: str) -> None:
    """Raise a `ConfigError` if there is no kind of network of this name.

    `role` is "encoder" or "decoder"; the message uses this word.
    """
    if name not in NETWORKS and name != AUTO_NETWORK:
        raise ConfigError(unknown(role, name, [*NETWORKS, AUTO_NETWORK]))


def _maker(kind: str, shape: Sequence[int], role: str, options: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the function that makes the encoder or the decoder of a kind of network.

    Raise a `ConfigError` if an option is unknown, or if a required option is missing.
    `role` is "encoder" or "decoder".
    """
    if kind == AUTO_NETWORK:
        kind = default_network(shape)
    check_network_name(kind, role)
    make: Callable[..., Any] = getattr(NETWORKS[kind], role)
    valid = keyword_options(make)
    for option in options:
        if option not in valid:
            raise ConfigError(unknown(f"option of the {kind} {role}", option, valid))
    for name, parameter in inspect.signature(make).parameters.items():
        if name in valid and parameter.default is parameter.empty and name not in options:
            raise ConfigError(
                f"the {kind} {role} needs the option {name}, which texts and graphs give by their "
                "vocabulary: give it, or choose another network"
            )
    return make
