"""Small networks that compute the mixing weights of a mixture posterior from an example."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError
from recmix.model.encoder_decoder import check_sizes, checked_shape
from recmix.model.graph_networks import GraphFeatures
from recmix.model.networks import Encoder
from recmix.model.pair_features import one_hot
from recmix.model.sequence_networks import TokenFeatures
from recmix.posteriors.recursion import bounded

__all__ = ["Classes", "Gate", "WeightNet", "token_classes"]

HIDDEN = 10
"""Size of the hidden layer."""
Classes = int | tuple[tuple[int, int], ...]
"""Number of classes of the tokens in x, or 0 if x holds no tokens. For a graph it is two pairs
(number of values, number of classes): the first pair for nodes, the second for edges."""


class Gate(nn.Module):
    """A small network that computes the mixing weight ε(x) of a new mixture component.

    ε(x) = ε_min + (ε_max - ε_min)·sigmoid(s(x)), where s is a network with one hidden layer. The upper
    bound ε_max keeps a new component from getting nearly all of the weight.

    Args:
        shape: Shape of one example.
        classes: Number of classes, see `Classes`. 0 if x holds no classes.
        minimum: ε_min, above 0.
        maximum: ε_max, above ε_min and below 1.

    >>> log_eps, log_rest = Gate((1, 8, 8))(torch.zeros(3, 1, 8, 8))
    >>> log_eps.shape, torch.allclose(log_eps.exp() + log_rest.exp(), torch.ones(3))
    (torch.Size([3]), True)
    """

    def __init__(
        self,
        shape: Sequence[int],
        *,
        classes: Classes = 0,
        minimum: float = 0.001,
        maximum: float = 0.1,
    ) -> None:
        super().__init__()
        if not 0 < minimum < maximum < 1:
            raise ConfigError(
                f"the smallest and largest weight of a new component are eps_min={minimum} and "
                f"eps_max={maximum}; expected 0 < eps_min < eps_max < 1 (the paper's are 0.001 and 0.1)"
            )
        self.minimum = minimum
        self.maximum = maximum
        self.layers = _small_network(shape, 1, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """log ε(x) and log(1 - ε(x)), (B,) each, for examples x (B, *shape)."""
        return bounded(self.layers(x).squeeze(-1), self.minimum, self.maximum)


class WeightNet(nn.Module):
    """A small network that gives the logarithms of all mixing weights α(x) of a mixture.

    It maps examples (B, *shape) to log α, (B, order): the log-softmax of the network's outputs.

    Args:
        shape: Shape of one example.
        order: Number of mixture components.
        classes: Number of classes, see `Classes`. 0 if x holds no classes.

    >>> WeightNet((1, 8, 8), 4)(torch.zeros(3, 1, 8, 8)).exp().sum(-1).allclose(torch.ones(3))
    True
    """

    def __init__(self, shape: Sequence[int], order: int, *, classes: Classes = 0) -> None:
        super().__init__()
        check_sizes(order=order)
        self.order = order
        self.layers = _small_network(shape, order, classes)

    def forward(self, x: Tensor) -> Tensor:
        """The logarithms of the mixing weights α(x), (B, order), for examples x (B, *shape).

        `order` is the number of mixture components.
        """
        scores: Tensor = self.layers(x)
        return scores.log_softmax(-1)


class _TokenCounts(nn.Module):
    """A network that averages learned vectors of the tokens over all positions: (B, T) -> (B, hidden).

    Values below 0 are padding. Their vector is zero.
    """

    def __init__(self, classes: int, hidden: int) -> None:
        super().__init__()
        self.vectors = nn.Embedding(classes, hidden)

    def forward(self, x: Tensor) -> Tensor:
        present = (x >= 0)[..., None]
        each: Tensor = self.vectors(x.clamp(min=0).long()) * present
        return each.sum(1) / x.shape[1]


class _ClassShares(nn.Module):
    """A module that computes the fraction of values in each class: (B, values) -> (B, classes).

    The fractions are computed for each group separately, such as the nodes and the edges of a graph, and
    concatenated. Values below 0 are padding. They belong to no class, but count as values of the group.

    Args:
        groups: for each group, the pair (number of values, number of classes).
    """

    def __init__(self, groups: tuple[tuple[int, int], ...]) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part.mean(1) for part in one_hot(x, self.groups)], -1)


def token_classes(encoder: nn.Module | None) -> Classes:
    """The number of token classes in the input of an encoder, or 0 if the input is not tokens.

    For graphs the result is two pairs (number of values, number of classes): of nodes and of edges.

    >>> from recmix.model.graph_networks import graph_encoder
    >>> from recmix.model.mlp import mlp_encoder
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


def _small_network(shape: Sequence[int], outputs: int, classes: Classes) -> nn.Sequential:
    """Make a network with one hidden layer: examples (B, *shape) -> (B, outputs).

    If the examples hold tokens or classes, their counts or fractions are the input of the hidden layer.
    """
    values = math.prod(checked_shape(shape))
    first: list[nn.Module]
    if isinstance(classes, tuple):
        total = sum(count for _, count in classes)
        first = [_ClassShares(classes), nn.Linear(total, HIDDEN)]
    elif classes:
        first = [_TokenCounts(classes, HIDDEN), nn.Linear(HIDDEN, HIDDEN)]
    else:
        first = [nn.Flatten(), nn.Linear(values, HIDDEN)]
    return nn.Sequential(*first, nn.ReLU(), nn.Linear(HIDDEN, outputs))
