"""Make a second encoder of the same kind as a given encoder, with other layer sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from recmix.model.gates import Classes
from recmix.model.graph_networks import GraphFeatures
from recmix.model.networks import Encoder, make_encoder
from recmix.model.sequence_networks import TokenFeatures, TransformerFeatures, token_encoder

if TYPE_CHECKING:
    from recmix.model.latent import LatentModel

__all__ = ["similar_encoder", "token_classes", "token_features"]


def token_classes(encoder: nn.Module | None) -> Classes:
    """Return the number of different tokens that an encoder reads.

    For an encoder of graphs, the result is two pairs (number of values, number of classes): of nodes and
    of edges. It is 0 for all other encoders.

    >>> from recmix.model.networks import graph_encoder, mlp_encoder
    >>> from recmix.model.sequence_networks import gru_encoder
    >>> token_classes(gru_encoder((5,), 2, classes=7)), token_classes(mlp_encoder((5,), 2))
    (7, 0)
    >>> token_classes(graph_encoder((10,), 2, node_classes=3, edge_classes=2))
    ((4, 3), (6, 2))
    """
    features = encoder.features if isinstance(encoder, Encoder) else None
    if isinstance(features, GraphFeatures):
        nodes = features.nodes
        edges = nodes * (nodes - 1) // 2
        return ((nodes, features.node_classes), (edges, features.edge_classes))
    return features.classes if isinstance(features, TokenFeatures) else 0


def _classes(model: LatentModel) -> int:
    """The number of classes of a model whose examples are sequences of tokens (T,); 0 for others."""
    classes: int = getattr(model.likelihood, "classes", 0)
    tokens = model.likelihood.values == "classes" and model.fields is None and len(model.shape) == 1
    return classes if tokens else 0


def token_features(encoder: nn.Module | None, model: LatentModel, width: float) -> TokenFeatures | None:
    """Make a new network that computes features of tokens, like the network inside an encoder.

    If the encoder is None or the user's own module, the new network is the default transformer.

    Args:
        encoder: the encoder whose kind of network is used, or None.
        model: the model, which gives the shape of an example and the number of classes.
        width: factor by which the size of hidden states is multiplied.

    Returns:
        The new network, or None if the examples or the encoder have no tokens.
    """
    if isinstance(encoder, Encoder):
        given = encoder.features
        return given.wider(width) if isinstance(given, TokenFeatures) else None
    classes = _classes(model)
    return TransformerFeatures(model.shape[0], classes).wider(width) if classes else None


def similar_encoder(encoder: nn.Module, model: LatentModel, width: float) -> Encoder:
    """Make a new encoder that is similar to a given encoder but has other layer sizes.

    For tokens and graphs the new encoder has the same kind of network as the given encoder. Otherwise it
    has the default network for the shape of an example.

    Args:
        encoder: the given encoder.
        model: the model, which gives the shapes of x and z.
        width: factor of the layer sizes. For tokens and graphs it multiplies the sizes of the given
            encoder, otherwise the sizes of the default encoder.
    """
    if (tokens := token_features(encoder, model, width)) is not None:
        return token_encoder(tokens, model.latent)
    if isinstance(encoder, Encoder) and isinstance(graphs := encoder.features, GraphFeatures):
        return token_encoder(graphs.wider(width), model.latent)
    return make_encoder("auto", model.shape, model.latent, width=width)
