"""Small networks that compute the mixing weights of a mixture posterior from an example."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError
from recmix.model.encoder_decoder import checked_hidden, checked_shape
from recmix.model.replaceable import fusable

__all__ = ["Gate", "TokenCounts", "WeightNet", "bounded"]


class Gate(nn.Module):
    """The mixing weight ε(x) of a new mixture component, kept between two bounds.

    ε(x) = ε_min + (ε_max - ε_min)·sigmoid(s(x)), where s is a network with one small hidden layer.
    The upper bound ε_max, which comes from the paper, keeps a new component from taking over the
    mixture.

    Args:
        shape: Shape of one example, with any number of axes.
        hidden: Size of the hidden layer.
        classes: Number of classes if an example is a sequence of tokens, else 0.
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
        classes: int = 0,
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
        """The pair (log ε(x), log(1 - ε(x))), each (B,), for examples x (B, *shape)."""
        return self.bounded(self.layers(x).squeeze(-1))

    def bounded(self, score: Tensor) -> tuple[Tensor, Tensor]:
        """The pair (log ε, log(1 - ε)) for a score s, the network's output before the sigmoid."""
        return bounded(score, self.minimum, self.maximum)

    def extra_repr(self) -> str:
        """The bounds ε_min and ε_max, shown when the module is printed."""
        return f"minimum={self.minimum}, maximum={self.maximum}"


@fusable
def bounded(score: Tensor, minimum: float, maximum: float) -> tuple[Tensor, Tensor]:
    """The pair (log ε, log(1 - ε)) with ε = minimum + (maximum - minimum)·sigmoid(score)."""
    span = maximum - minimum
    # 1 - ε is formed as a sum of positive terms too: log(1 - ε) stays finite for ε_max near 1.
    log_eps = (minimum + span * torch.sigmoid(score)).log()
    log_rest = ((1 - maximum) + span * torch.sigmoid(-score)).log()
    return log_eps, log_rest


class WeightNet(nn.Module):
    """All mixing weights α(x) of a mixture: a softmax over the outputs of a small network.

    Args:
        shape: Shape of one example, with any number of axes.
        order: Number of mixture components.
        hidden: Size of the hidden layer.
        classes: Number of classes if an example is a sequence of tokens, else 0.

    >>> WeightNet((1, 8, 8), 4)(torch.zeros(3, 1, 8, 8)).exp().sum(-1).allclose(torch.ones(3))
    True
    """

    def __init__(self, shape: Sequence[int], order: int, *, hidden: int = 10, classes: int = 0) -> None:
        super().__init__()
        if order < 1:
            raise ConfigError(f"order={order}: expected at least one component")
        self.order = order
        self.layers = _small_network(shape, hidden, order, classes)

    def forward(self, x: Tensor) -> Tensor:
        """The logarithms of the mixing weights α(x), (B, order), for examples x (B, *shape)."""
        scores: Tensor = self.layers(x)
        return scores.log_softmax(-1)


class TokenCounts(nn.Module):
    """A linear function of how often each token occurs in an example: (B, T) -> (B, hidden).

    It is the sum of a learned vector for each token, divided by T. Values below 0 are padding.

    Args:
        classes: Number of different tokens.
        hidden: Size of the result.

    >>> TokenCounts(10, 4)(torch.tensor([[3.0, 0.0, -1.0]])).shape
    torch.Size([1, 4])
    """

    def __init__(self, classes: int, hidden: int) -> None:
        super().__init__()
        self.vectors = nn.Embedding(classes, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """The function of the counts, (B, hidden), for tokens x (B, T)."""
        present = (x >= 0)[..., None]
        each: Tensor = self.vectors(x.clamp(min=0).long()) * present
        return each.sum(1) / x.shape[1]


def _small_network(shape: Sequence[int], hidden: int, outputs: int, classes: int) -> nn.Sequential:
    """The paper's small network: it flattens an example and has one hidden layer with ReLU.

    For tokens, the hidden layer sees how often each one occurs.
    """
    values = math.prod(checked_shape(shape))
    hidden = checked_hidden(hidden)
    if classes:
        first = [TokenCounts(classes, hidden), nn.Linear(hidden, hidden)]
    else:
        first = [nn.Flatten(), nn.Linear(values, hidden)]
    return nn.Sequential(*first, nn.ReLU(), nn.Linear(hidden, outputs))
