"""Small networks that compute the mixing weights of a mixture posterior from an example."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError
from recmix.model.encoder_decoder import check_sizes, checked_shape
from recmix.model.replaceable import fusable

__all__ = ["Classes", "Gate", "WeightNet", "bounded", "one_hot"]

Classes = int | tuple[tuple[int, int], ...]
"""Number of classes; for a graph two pairs (number of values, number of classes): nodes, then edges."""


class Gate(nn.Module):
    """A small network that computes the mixing weight ε(x) of a new mixture component.

    ε(x) = ε_min + (ε_max - ε_min)·sigmoid(s(x)), where s is a network with one hidden layer. The upper
    bound ε_max keeps a new component from getting nearly all of the weight.

    Args:
        hidden: Size of the hidden layer.
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
        hidden: int = 10,
        classes: Classes = 0,
        minimum: float = 0.001,
        maximum: float = 0.1,
    ) -> None:
        super().__init__()
        if not 0 < minimum < maximum < 1:
            raise ConfigError(
                f"gate with minimum={minimum}, maximum={maximum}: "
                "expected 0 < minimum < maximum < 1 (the paper's are 0.001 and 0.1)"
            )
        self.minimum = minimum
        self.maximum = maximum
        self.layers = _small_network(shape, hidden, 1, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """log ε(x) and log(1 - ε(x)), (B,) each, for examples x (B, *shape)."""
        return bounded(self.layers(x).squeeze(-1), self.minimum, self.maximum)


@fusable
def bounded(score: Tensor, minimum: float, maximum: float) -> tuple[Tensor, Tensor]:
    """log ε and log(1 - ε) for ε = minimum + (maximum - minimum)·sigmoid(score), of any shape."""
    span = maximum - minimum
    # 1 - ε is formed as a sum of positive terms too: log(1 - ε) stays finite for ε_max near 1.
    log_eps = (minimum + span * torch.sigmoid(score)).log()
    log_rest = ((1 - maximum) + span * torch.sigmoid(-score)).log()
    return log_eps, log_rest


class WeightNet(nn.Module):
    """A small network that gives the logarithms of all mixing weights α(x) of a mixture.

    It maps examples (B, *shape) to log α, (B, order): the log-softmax of the network's outputs.

    Args:
        order: Number of mixture components.
        hidden: Size of the hidden layer.
        classes: Number of classes, see `Classes`. 0 if x holds no classes.

    >>> WeightNet((1, 8, 8), 4)(torch.zeros(3, 1, 8, 8)).exp().sum(-1).allclose(torch.ones(3))
    True
    """

    def __init__(
        self, shape: Sequence[int], order: int, *, hidden: int = 10, classes: Classes = 0
    ) -> None:
        super().__init__()
        check_sizes(order=order)
        self.order = order
        self.layers = _small_network(shape, hidden, order, classes)

    def forward(self, x: Tensor) -> Tensor:
        """The logarithms of the mixing weights α(x), (B, order), for examples x (B, *shape)."""
        scores: Tensor = self.layers(x)
        return scores.log_softmax(-1)


class _TokenCounts(nn.Module):
    """The sum of a learned vector for each token, divided by the length: (B, T) -> (B, hidden).

    Values below 0 are padding and add nothing.
    """

    def __init__(self, classes: int, hidden: int) -> None:
        super().__init__()
        self.vectors = nn.Embedding(classes, hidden)

    def forward(self, x: Tensor) -> Tensor:
        present = (x >= 0)[..., None]
        each: Tensor = self.vectors(x.clamp(min=0).long()) * present
        return each.sum(1) / x.shape[1]


class _ClassShares(nn.Module):
    """The share of each class among the values of each group: (B, values) -> (B, classes).

    Groups are, for example, the nodes and the edges of a graph. Values below 0 are padding. They belong
    to no class, but count as values of the group.
    """

    def __init__(self, groups: tuple[tuple[int, int], ...]) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part.mean(1) for part in one_hot(x, self.groups)], -1)


def one_hot(x: Tensor, groups: tuple[tuple[int, int], ...]) -> list[Tensor]:
    """Convert class numbers to one-hot vectors (B, values, classes), separately for each group.

    Groups are, for example, the nodes and the edges of a graph. Padding gives zeros.

    Args:
        x: class numbers (B, number of values of all groups); values below 0 are padding.
        groups: for each group, the pair (number of values, number of classes).
    """
    found = []
    for values, (_, classes) in zip(x.split([size for size, _ in groups], -1), groups, strict=True):
        kinds = torch.arange(classes, device=x.device, dtype=x.dtype)
        found.append((values[..., None] == kinds).to(x.dtype))
    return found


def _small_network(shape: Sequence[int], hidden: int, outputs: int, classes: Classes) -> nn.Sequential:
    """The paper's small network, with one hidden layer. Tokens and classes are counted first."""
    values = math.prod(checked_shape(shape))
    check_sizes(hidden=hidden)
    first: list[nn.Module]
    if isinstance(classes, tuple):
        total = sum(count for _, count in classes)
        first = [_ClassShares(classes), nn.Linear(total, hidden)]
    elif classes:
        first = [_TokenCounts(classes, hidden), nn.Linear(hidden, hidden)]
    else:
        first = [nn.Flatten(), nn.Linear(values, hidden)]
    return nn.Sequential(*first, nn.ReLU(), nn.Linear(hidden, outputs))
