"""The likelihood of graphs whose nodes and edges have classes, such as molecules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from recmix.errors import ConfigError
from recmix.model.likelihoods.classes import class_log_probs, class_residuals, draw_class
from recmix.model.likelihoods.likelihood import Likelihood, Shape, register_likelihood

__all__ = ["CategoricalGraph", "graph_nodes"]


@register_likelihood("graph")
class CategoricalGraph(Likelihood):
    """A likelihood of graphs of up to n nodes: a categorical distribution per node and node pair.

    An example has the fields ``nodes``, (n,), and ``edges``, (n(n-1)/2,), the upper triangle row by row.
    Node class 0 means "no node". The first node of class 0 ends the graph. Later nodes, and edges to
    nodes that do not exist, are padding (-1). Edge class 0 means "no edge".

    The decoder's output for one example is one vector of logits: A logits for each node, then E logits
    for each edge. log p(x|z) is the sum of the log-probabilities of all nodes and edges that are not
    padding. So p(x|z) sums to 1 over the graphs of all sizes.

    Methods take examples as a dict of the two fields or as one tensor (B, n(n+1)/2) that holds both.

    Args:
        nodes: n, the largest number of nodes.
        node_classes: A, the number of node classes, "no node" included.
        edge_classes: E, the number of edge classes, "no edge" included.

    >>> likelihood = CategoricalGraph(2, node_classes=3, edge_classes=2)
    >>> x = {"nodes": torch.tensor([[2.0, 1.0]]), "edges": torch.tensor([[1.0]])}
    >>> round(likelihood.log_prob(x, torch.zeros(1, 8)).item(), 4)  # 2 log ⅓ + log ½
    -2.8904
    >>> alone = {"nodes": torch.tensor([[2.0, 0.0]]), "edges": torch.tensor([[-1.0]])}
    >>> round(likelihood.log_prob(alone, torch.zeros(1, 8)).item(), 4)  # 2 log ⅓
    -2.1972
    """

    values = "classes"
    can_temper = True

    _rows: Tensor
    _columns: Tensor

    def __init__(self, nodes: int, node_classes: int, edge_classes: int) -> None:
        super().__init__()
        if nodes < 2:
            raise ConfigError(f"graph likelihood with nodes={nodes}: expected at least 2")
        for name, count in (("node_classes", node_classes), ("edge_classes", edge_classes)):
            if count < 2:
                raise ConfigError(
                    f"graph likelihood with {name}={count}: expected at least 2, 'none' and one more"
                )
        self.nodes, self.edges = nodes, nodes * (nodes - 1) // 2
        self.node_classes, self.edge_classes = node_classes, edge_classes
        rows, columns = torch.triu_indices(nodes, nodes, 1)
        self.register_buffer("_rows", rows, persistent=False)
        self.register_buffer("_columns", columns, persistent=False)

    def model_options(self) -> dict[str, Any]:
        """The numbers of node and edge classes as model options, {name: value}."""
        return {"node_classes": self.node_classes, "edge_classes": self.edge_classes}

    @classmethod
    def for_data(cls, shape: Shape, **options: Any) -> Likelihood:
        """Make a new likelihood for graphs of up to n nodes, packed as vectors of n(n+1)/2 numbers."""
        sizes = {"nodes": graph_nodes(shape), "node_classes": 0, "edge_classes": 0}
        return super().for_data(shape, **sizes | options)

    @property
    def requirement(self) -> str:
        """The text "graph:A*n+E*m", for n nodes of A classes, then m edges of E classes."""
        nodes, edges = f"{self.node_classes}*{self.nodes}", f"{self.edge_classes}*{self.edges}"
        return f"graph:{nodes}+{edges}"

    def blank(self, shape: Shape) -> Tensor:
        """The graph without nodes, (1, *shape)."""
        x = torch.full((1, *shape), -1.0)
        x[:, 0] = 0
        return x

    def output_shape(self, shape: Shape) -> Shape:
        """The shape of the decoder's output: (n·A + n(n-1)/2·E,) for A node and E edge classes."""
        return (self.nodes * self.node_classes + self.edges * self.edge_classes,)

    def split(self, decoded: Tensor) -> tuple[Tensor, Tensor]:
        """Split P logits of a graph (..., P) into those of the nodes and those of the edges.

        The results are (..., n, A) for A classes of n nodes and (..., n(n-1)/2, E) for E edge classes.
        """
        nodes, edges = decoded.split(
            [self.nodes * self.node_classes, self.edges * self.edge_classes], dim=-1
        )
        return (
            nodes.unflatten(-1, (self.nodes, self.node_classes)),
            edges.unflatten(-1, (self.edges, self.edge_classes)),
        )

    def log_prob(self, x: Any, decoded: Tensor) -> Tensor:
        """log p(x | z), (S, B), for B graphs x and logits (S, B, P) of S samples of z for each graph.

        Args:
            x: graphs: a dict with the classes ``nodes`` (B, n) and ``edges`` (B, n(n-1)/2), or both in
                one tensor (B, n(n+1)/2). n is the largest number of nodes.
            decoded: P logits of each graph: those of all nodes, then those of all edges.
        """
        nodes, edges = self._fields(x)
        node_logits, edge_logits = self.split(decoded / self.noise)
        scores = class_log_probs(nodes, node_logits).sum(-1)
        return scores + class_log_probs(edges, edge_logits).sum(-1)

    def mean(self, decoded: Tensor) -> Tensor:
        """The class probabilities (..., P) for P logits of a graph (..., P), in the same order."""
        return self._join(*(part.softmax(-1) for part in self.split(decoded / self.noise)))

    def most_likely(self, decoded: Tensor) -> Tensor:
        """The graph of the most likely classes, (..., n(n+1)/2), for P logits of a graph (..., P).

        Nodes after the first "no node", and edges to nodes that do not exist, are -1.
        """
        with torch.no_grad():
            nodes, edges = (part.argmax(-1) for part in self.split(decoded))
            return self._consistent(nodes, edges).to(decoded.dtype)

    def sample(self, decoded: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw one graph, (..., n(n+1)/2), for P logits of a graph (..., P), without gradient.

        Nodes after the first "no node", and edges to nodes that do not exist, are -1.
        """
        with torch.no_grad():
            nodes, edges = (draw_class(part, generator) for part in self.split(decoded / self.noise))
            return self._consistent(nodes, edges).to(decoded.dtype)

    def residual(self, x: Any, decoded: Tensor) -> Tensor:
        """The derivative of log p(x | z) with respect to the P logits, (B, P).

        It is (1 - p_k) / τ for the class k of a node or edge and -p_k / τ for other classes k. p_k is
        the probability of class k, and τ the temperature `noise`. The derivative is 0 where x is
        padding.
        """
        pairs = zip(self._fields(x), self.split(decoded / self.noise), strict=True)
        return self._join(*(class_residuals(values, logits) for values, logits in pairs)) / self.noise

    def precision(self, x: Any, decoded: Tensor) -> Tensor:
        """The diagonal of the Fisher information with respect to the P logits, (B, P).

        It is p_k·(1 - p_k) / τ² for the probability p_k of class k and the temperature τ = `noise`, and
        0 where x is padding.
        """
        parts = []
        for values, p in zip(self._fields(x), self.split(self.mean(decoded)), strict=True):
            parts.append(p * (1 - p) * (values >= 0)[..., None])
        return self._join(*parts) / self.noise**2

    def fisher(self, x: Any, decoded: Tensor, vectors: Tensor) -> Tensor:
        """The Fisher information times `vectors` (B, P, D), for P logits of a graph: (B, P, D).

        The Fisher information has one block for each node and edge: (diag(p) - p pᵀ) / τ², where p are
        the class probabilities and τ is the temperature `noise`. The block is 0 where x is padding.
        """
        parts = []
        found = zip(self._fields(x), self.split(self.mean(decoded)), self.split(vectors.mT), strict=True)
        for values, probabilities, columns in found:  # columns (B, D, values, K)
            p = probabilities[:, None]
            weighted = p * (columns - (p * columns).sum(-1, keepdim=True))
            parts.append(weighted * (values >= 0)[:, None, :, None])
        return self._join(*parts).mT / self.noise**2

    def _fields(self, x: Any) -> tuple[Tensor, Tensor]:
        """The classes of the nodes, (B, n), and of the edges, (B, n(n-1)/2), of the graphs x."""
        if isinstance(x, Mapping):
            return x["nodes"], x["edges"]
        nodes, edges = x.split([self.nodes, self.edges], dim=-1)
        return nodes, edges

    def _join(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """Undo `split`: flatten and concatenate the values of the nodes and of the edges, (..., P)."""
        return torch.cat([nodes.flatten(-2), edges.flatten(-2)], -1)

    def _consistent(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """Concatenate the class numbers of nodes and edges to one tensor, (..., n(n+1)/2).

        Nodes after the first "no node", and edges to nodes that do not exist, become -1.
        """
        ended = (nodes == 0).cumsum(-1)
        exists = ended == 0
        nodes = nodes.masked_fill(ended - (nodes == 0).long() > 0, -1)  # after the first 0
        both = exists[..., self._rows] & exists[..., self._columns]
        return torch.cat([nodes, edges.masked_fill(~both, -1)], -1)


def graph_nodes(shape: Shape) -> int:
    """The largest number of nodes n of a graph, from the shape (n(n+1)/2,) of its vector of classes.

    >>> graph_nodes((741,))
    38
    """
    size = math.prod(shape)
    nodes = (math.isqrt(8 * size + 1) - 1) // 2
    if len(shape) != 1 or nodes * (nodes + 1) // 2 != size or nodes < 2:
        raise ConfigError(
            f"graphs of shape {tuple(shape)}: expected (n(n+1)/2,) for n nodes, n of 2 or more, such as "
            "(741,) for 38: the fields 'nodes' (n,) and 'edges' (n(n-1)/2,)"
        )
    return nodes
