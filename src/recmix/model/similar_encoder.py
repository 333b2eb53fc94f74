"""Make a second encoder of the same kind as a given encoder, with other layer sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from recmix.model.graph_networks import GraphFeatures
from recmix.model.networks import Encoder, make_encoder
from recmix.model.sequence_networks import TokenFeatures, TransformerFeatures, token_encoder

if TYPE_CHECKING:
    from recmix.model.latent import LatentModel

__all__ = ["similar_encoder", "token_features"]


def token_features(encoder: nn.Module | None, model: LatentModel, width: float) -> TokenFeatures | None:
    """Make a new network that computes features of tokens, like the one inside `encoder`.

    If the encoder is None or the user's own module, the new network is the default transformer. The
    result is None if the examples are not sequences of tokens. `width` multiplies the size of hidden
    states.
    """
    if isinstance(encoder, Encoder):
        given = encoder.features
        return given.wider(width) if isinstance(given, TokenFeatures) else None
    sequences = model.likelihood.values == "classes" and model.fields is None and len(model.shape) == 1
    classes: int = getattr(model.likelihood, "classes", 0) if sequences else 0
    return TransformerFeatures(model.shape[0], classes).wider(width) if classes else None


def similar_encoder(encoder: nn.Module, model: LatentModel, width: float) -> Encoder:
    """Make a new encoder of the same kind as `encoder`, with layers `width` times as large.

    If `encoder` takes neither tokens nor graphs, the new encoder is the default encoder for the shape of
    an example.
    """
    if (tokens := token_features(encoder, model, width)) is not None:
        return token_encoder(tokens, model.latent)
    if isinstance(encoder, Encoder) and isinstance(graphs := encoder.features, GraphFeatures):
        return token_encoder(graphs.wider(width), model.latent)
    return make_encoder("auto", model.shape, model.latent, width=width)
