"""Networks for graphs: an encoder by message passing, and a decoder that makes all nodes at once.

A graph has up to n nodes. The encoder takes B graphs as a dict with the classes of the nodes, (B, n),
and of the edges, (B, n(n-1)/2), or as one tensor (B, n(n+1)/2) that holds both. See
`recmix.model.likelihoods.CategoricalGraph`. Class 0 and negative values mean that there is no node or
edge. The layers use dense n by n matrices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError
from recmix.model.encoder_decoder import Decoder, Encoder, check_sizes, checked_shape, scaled
from recmix.model.likelihoods.graph import graph_nodes
from recmix.model.mlp import make_activation
from recmix.model.normalisation import LayerNorm

__all__ = ["GraphFeatures", "graph_decoder", "graph_encoder"]

UNITS, BLOCKS, HEADS = 128, 2, 4
"""Defaults: the size of a node's state, the number of blocks, the decoder's attention heads."""


def graph_encoder(
    shape: Sequence[int],
    latent: int,
    *,
    node_classes: int,
    edge_classes: int,
    units: int = UNITS,
    blocks: int = BLOCKS,
    activation: str = "silu",
    width: float = 1.0,
) -> Encoder:
    """Make an encoder of graphs: message passing, then a gated sum over the nodes.

    It maps packed graphs (B, n(n+1)/2) to the mean and log-variance of q(z|x), (B, 2·latent). A packed
    graph is one vector: the classes of all nodes, then the classes of all edges.

    Args:
        shape: Shape of a packed example, (n(n+1)/2,) for up to n nodes.
        node_classes: Number of node classes, "no node" included.
        edge_classes: Number of edge classes, "no edge" included.
        units: Size of the state of a node.
        blocks: Number of blocks. Each has two layers of message passing.
        activation: relu, leaky_relu, elu, silu, gelu or tanh.
        width: Multiplies `units`.

    >>> encoder = graph_encoder((10,), 2, node_classes=3, edge_classes=2, units=8)
    >>> encoder(torch.zeros(5, 10)).shape
    torch.Size([5, 4])
    """
    check_sizes(latent=latent)
    features = GraphFeatures(
        graph_nodes(checked_shape(shape)),
        node_classes,
        edge_classes,
        units=scaled(units, width),
        blocks=blocks,
        activation=activation,
    )
    return Encoder(features, nn.Linear(features.hidden, 2 * latent))


def graph_decoder(
    shape: Sequence[int],
    latent: int,
    output: Sequence[int] | None = None,
    *,
    node_classes: int,
    edge_classes: int,
    units: int = UNITS,
    blocks: int = BLOCKS,
    heads: int = HEADS,
    activation: str = "silu",
) -> Decoder:
    """Make a decoder of graphs: a transformer over the nodes, then logits of nodes and node pairs.

    It maps z (N, latent) to logits (N, P): first of all nodes, then of all edges. The other options are
    those of `graph_encoder`.

    Args:
        output: Shape of the output that the likelihood needs. A `ConfigError` is raised if it is not
            (P,). None means (P,).
        heads: Number of attention heads, which divides `units`.

    >>> graph_decoder((10,), 2, node_classes=3, edge_classes=2, units=8)(torch.zeros(5, 2)).shape
    torch.Size([5, 24])
    """
    check_sizes(latent=latent)
    nodes = graph_nodes(checked_shape(shape))
    logits = _GraphLogits(nodes, latent, node_classes, edge_classes, units, blocks, heads, activation)
    made = (nodes * node_classes + nodes * (nodes - 1) // 2 * edge_classes,)
    if output is not None and tuple(output) != made:
        raise ConfigError(
            f"the graph decoder gives {made} numbers for an example, the likelihood needs "
            f"{tuple(output)}: use likelihood 'graph' or another network"
        )
    return Decoder(nn.Sequential(logits), shape=made, latent=latent)


class GraphFeatures(nn.Module):
    """A network that computes features (B, units) of B graphs, by message passing.

    The first state h_i of node i depends on its class and on its index i, because nodes come in a fixed
    order, as in molecules. Each layer updates the state: h_i += MLP(LN(h_i), Σ_j W_e(ij) LN(h_j)). LN is
    layer normalisation, e(ij) is the class of the edge between i and j, and W_e is a matrix for each
    edge class e, with W_e = 0 for "no edge". A gated sum over the nodes gives the features. Nodes that
    do not exist have no influence. `nodes` is n, the largest number of nodes; `graph_encoder` explains
    the other arguments.

    >>> GraphFeatures(4, 3, 2, units=8)(torch.zeros(5, 10)).shape
    torch.Size([5, 8])
    """

    _pairs: Tensor

    def __init__(
        self,
        nodes: int,
        node_classes: int,
        edge_classes: int,
        *,
        units: int = UNITS,
        blocks: int = BLOCKS,
        activation: str = "silu",
    ) -> None:
        super().__init__()
        check_sizes(units=units, blocks=blocks)
        self.nodes, self.units, self.hidden = nodes, units, units
        self.node_classes, self.edge_classes = node_classes, edge_classes
        self.blocks, self.activation = blocks, activation
        self.embedding = nn.Embedding(node_classes, units)
        self.position = nn.Embedding(nodes, units)
        self.layers = nn.ModuleList(
            _MessageLayer(units, edge_classes, activation) for _ in range(2 * blocks)
        )
        self.norm = LayerNorm(units)
        self.gate = nn.Linear(units, units)
        self.value = nn.Linear(units, units)
        self.last = nn.Sequential(nn.Linear(units, units), LayerNorm(units), make_activation(activation))
        self.register_buffer("_pairs", _pair_numbers(nodes), persistent=False)

    def forward(self, x: Any) -> Tensor:
        """The features (B, units) of B graphs with up to n nodes.

        Args:
            x: a dict with the classes ``nodes`` (B, n) and ``edges`` (B, n(n-1)/2), or both in one
                tensor (B, n(n+1)/2).
        """
        if isinstance(x, Mapping):
            nodes, edges = x["nodes"], x["edges"]
        else:
            nodes, edges = x.split([self.nodes, self.nodes * (self.nodes - 1) // 2], dim=-1)
        dtype = self.embedding.weight.dtype
        exists = (nodes > 0).to(dtype)[..., None]  # (B, n, 1)
        h = self.embedding(nodes.clamp(min=0).long()) + self.position.weight
        adjacency = self._adjacency(edges, dtype)
        for layer in self.layers:
            h = layer(h * exists, adjacency)
        h = self.norm(h)
        pooled = (exists * torch.sigmoid(self.gate(h)) * self.value(h)).sum(-2)
        return self.last(pooled)

    def wider(self, width: float) -> GraphFeatures:
        """Make a network like this one with new weights and `width` times as many units."""
        return GraphFeatures(
            self.nodes,
            self.node_classes,
            self.edge_classes,
            units=scaled(self.units, width),
            blocks=self.blocks,
            activation=self.activation,
        )

    def _adjacency(self, edges: Tensor, dtype: torch.dtype) -> Tensor:
        """One adjacency matrix for each of the E edge classes except "no edge": (B, E - 1, n, n)."""
        none = torch.zeros_like(edges[..., :1])
        square = torch.cat([edges, none], -1)[..., self._pairs]  # (B, n, n), symmetric
        classes = torch.arange(1, self.edge_classes, device=edges.device, dtype=edges.dtype)
        return (square[..., None, :, :] == classes[:, None, None]).to(dtype)


class _MessageLayer(nn.Module):
    """One layer of message passing with a residual connection, (B, n, units) -> (B, n, units).

    The formula is in `GraphFeatures`.
    """

    def __init__(self, units: int, edge_classes: int, activation: str) -> None:
        super().__init__()
        self.kinds = edge_classes - 1
        self.norm = LayerNorm(units)
        self.message = nn.Linear(units, units * self.kinds, bias=False)
        self.update = nn.Sequential(
            nn.Linear(2 * units, 2 * units), make_activation(activation), nn.Linear(2 * units, units)
        )

    def forward(self, h: Tensor, adjacency: Tensor) -> Tensor:
        normal = self.norm(h)
        sent = self.message(normal).unflatten(-1, (self.kinds, -1)).movedim(-2, -3)  # (B, E-1, n, units)
        received = (adjacency @ sent).sum(-3)
        return h + self.update(torch.cat([normal, received], -1))


class _GraphLogits(nn.Module):
    """A transformer over the nodes that maps latent points z (N, latent) to logits (N, P).

    The logits of all nodes come first, then the logits of all edges. Each node starts with its own
    vector plus a linear function of z. The logit of edge class e between nodes i and j is (⟨a_ei, b_ej⟩
    + ⟨a_ej, b_ei⟩)/(2√r) + c_e,ij. Here a_ei and b_ei are linear functions of the state of node i with r
    values each, and c_e,ij is a parameter. So the logit is the same for (i, j) and (j, i).
    """

    _upper: Tensor

    def __init__(
        self,
        nodes: int,
        latent: int,
        node_classes: int,
        edge_classes: int,
        units: int,
        blocks: int,
        heads: int,
        activation: str,
    ) -> None:
        super().__init__()
        check_sizes(units=units, blocks=blocks, heads=heads)
        if units % heads:
            raise ConfigError(f"units={units} with heads={heads}: expected a multiple of {heads}")
        self.nodes, self.edge_classes = nodes, edge_classes
        self.rank = max(4, units // 4)
        self.start = nn.Linear(latent, units)
        self.own = nn.Embedding(nodes, units)
        self.layers = nn.ModuleList(_AttentionLayer(units, heads, activation) for _ in range(blocks))
        self.norm = LayerNorm(units)
        self.node = nn.Linear(units, node_classes)
        self.first = nn.Linear(units, edge_classes * self.rank)
        self.second = nn.Linear(units, edge_classes * self.rank)
        self.bias = nn.Embedding(nodes * (nodes - 1) // 2, edge_classes)
        rows, columns = torch.triu_indices(nodes, nodes, 1)
        self.register_buffer("_upper", rows * nodes + columns, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set c_e,ij, the bias for edge class e and nodes i and j, to its initial value 0."""
        nn.init.zeros_(self.bias.weight)

    def forward(self, z: Tensor) -> Tensor:
        h = self.start(z)[..., None, :] + self.own.weight  # (N, n, units)
        for layer in self.layers:
            h = layer(h)
        h = self.norm(h)
        a, b = (
            part(h).unflatten(-1, (self.edge_classes, self.rank)).movedim(-2, -3)
            for part in (self.first, self.second)
        )  # (N, E, n, rank)
        square = a @ b.mT * (0.5 / math.sqrt(self.rank))
        pairs = (square + square.mT).flatten(-2)[..., self._upper]  # (N, E, edges)
        edges = pairs.mT + self.bias.weight
        return torch.cat([self.node(h).flatten(-2), edges.flatten(-2)], -1)


class _AttentionLayer(nn.Module):
    """A transformer layer, (N, n, units) -> (N, n, units), that has forward-mode derivatives."""

    def __init__(self, units: int, heads: int, activation: str) -> None:
        super().__init__()
        self.heads = heads
        self.norm = LayerNorm(units)
        self.project = nn.Linear(units, 3 * units)
        self.join = nn.Linear(units, units)
        self.update = nn.Sequential(
            LayerNorm(units),
            nn.Linear(units, 2 * units),
            make_activation(activation),
            nn.Linear(2 * units, units),
        )

    def forward(self, h: Tensor) -> Tensor:
        split = self.project(self.norm(h)).unflatten(-1, (3, self.heads, -1)).movedim(-4, -2)
        query, key, value = split.unbind(-4)  # (N, heads, n, units / heads) each
        weights = (query @ key.mT / math.sqrt(query.shape[-1])).softmax(-1)
        h = h + self.join((weights @ value).movedim(-3, -2).flatten(-2))
        return h + self.update(h)


def _pair_numbers(nodes: int) -> Tensor:
    """The index of each pair of nodes (i, j) in the vector of n(n-1)/2 edges, as a matrix (n, n).

    The diagonal holds n(n-1)/2, which is the index of an entry that is added for "no edge".
    """
    rows, columns = torch.triu_indices(nodes, nodes, 1)
    numbers = torch.full((nodes, nodes), len(rows))
    numbers[rows, columns] = numbers[columns, rows] = torch.arange(len(rows))
    return numbers
