"""A second encoder of the same kind as a given one, with other sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from recmix.model.graph_networks import GraphFeatures, graph_encoder
from recmix.model.networks import Encoder, make_encoder
from recmix.model.sequence_networks import TokenFeatures, TransformerFeatures, token_encoder

if TYPE_CHECKING:
    from recmix.model.latent import LatentModel

__all__ = ["similar_encoder", "token_classes", "token_features"]


def token_classes(encoder: nn.Module) -> int:
    """The number of classes of an encoder that reads tokens; 0 for other encoders.

    >>> from recmix.model.networks import mlp_encoder
    >>> from recmix.model.sequence_networks import gru_encoder
    >>> token_classes(gru_encoder((5,), 2, classes=7)), token_classes(mlp_encoder((5,), 2))
    (7, 0)
    """
    features = encoder.features if isinstance(encoder, Encoder) else None
    return features.classes if isinstance(features, TokenFeatures) else 0


def _classes(model: LatentModel) -> int:
    """The number of classes of a model whose examples are sequences of tokens (T,); 0 for others."""
    classes: int = getattr(model.likelihood, "classes", 0)
    tokens = model.likelihood.values == "classes" and model.fields is None and len(model.shape) == 1
    return classes if tokens else 0


def token_features(encoder: nn.Module | None, model: LatentModel, width: float) -> TokenFeatures | None:
    """New features of tokens like those of an encoder; None if it does not read tokens.

    For a user's own encoder of tokens, they are those of the default transformer.

    Args:
        encoder: the given encoder, if there is one.
        model: gives the shape and the number of classes.
        width: factor of the size of hidden states.
    """
    if isinstance(encoder, Encoder):
        given = encoder.features
        return given.wider(width) if isinstance(given, TokenFeatures) else None
    classes = _classes(model)
    return TransformerFeatures(model.shape[0], classes).wider(width) if classes else None


def similar_encoder(encoder: nn.Module, model: LatentModel, width: float) -> Encoder:
    """A new encoder of the kind of a given one, or of the default kind for the shape of an example.

    Args:
        encoder: the given encoder.
        model: gives the shapes of x and z.
        width: factor of the layer sizes. For tokens it multiplies the sizes of the given encoder, else
            those of the default encoder.
    """
    if (tokens := token_features(encoder, model, width)) is not None:
        return token_encoder(tokens, model.latent)
    if isinstance(encoder, Encoder) and isinstance(given := encoder.features, GraphFeatures):
        return graph_encoder(
            model.shape,
            model.latent,
            node_classes=given.node_classes,
            edge_classes=given.edge_classes,
            width=width,
        )
    return make_encoder("auto", model.shape, model.latent, width=width)
