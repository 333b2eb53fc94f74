"""The mixing weights and the ELBO of a mixture that grows by one component at a time.

Step m adds the component q_m with the weight ε_m: Q_m = (1 - ε_m) Q_{m-1} + ε_m q_m.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recmix.model.replaceable import fusable

__all__ = ["bounded", "extend_mixture", "extended_elbo", "recursive_log_weights"]


def recursive_log_weights(log_eps: Tensor, log_rest: Tensor) -> Tensor:
    """The log mixing weights of a mixture that is built by Q_m = (1 - ε_m) Q_{m-1} + ε_m q_m.

    The weight of component q_m is α_m = ε_m Π_{j>m} (1 - ε_j), with ε_0 = 1.

    Args:
        log_eps: log ε_1 … log ε_M, (B, M).
        log_rest: log(1 - ε_1) … log(1 - ε_M), (B, M).

    Returns:
        log α_0 … log α_M, (B, M + 1).

    >>> half = torch.full((1, 2), 0.5).log()
    >>> recursive_log_weights(half, half).exp()
    tensor([[0.2500, 0.2500, 0.5000]])
    """
    first = torch.zeros_like(log_eps[:, :1])
    later = log_rest.flip(-1).cumsum(-1).flip(-1)  # Σ_{j>=m} log(1 - ε_j), m = 1 … M
    return torch.cat([first, log_eps], -1) + torch.cat([later, first], -1)


@fusable
def bounded(score: Tensor, minimum: float, maximum: float) -> tuple[Tensor, Tensor]:
    """log ε and log(1 - ε) for ε = minimum + (maximum - minimum)·sigmoid(score), of any shape."""
    span = maximum - minimum
    # 1 - ε is formed as a sum of positive terms too: log(1 - ε) stays finite for ε_max near 1.
    log_eps = (minimum + span * torch.sigmoid(score)).log()
    log_rest = ((1 - maximum) + span * torch.sigmoid(-score)).log()
    return log_eps, log_rest


@fusable
def extend_mixture(
    score: Tensor, minimum: float, maximum: float, log_alpha: Tensor, before: Tensor, new: Tensor
) -> tuple[Tensor, Tensor]:
    """The log-weights and the log density of Q_m = (1 - ε) Q_{m-1} + ε q_m.

    Q_{m-1} is a mixture of m components.

    Args:
        score: output s of a gate network, (B,). ε = minimum + (maximum - minimum)·sigmoid(s).
        minimum: the smallest ε.
        maximum: the largest ε.
        log_alpha: log-weights of Q_{m-1}, (m, B).
        before: log Q_{m-1}(z) at one sample z of each of the m + 1 components, (m + 1, B).
        new: log q_m(z) at the same samples, (m + 1, B).

    Returns:
        The log-weights of Q_m and log Q_m(z) at the samples, (m + 1, B) each.
    """
    log_eps, log_rest = bounded(score, minimum, maximum)
    weights = torch.cat([log_alpha + log_rest, log_eps[None]])
    return weights, torch.logaddexp(before + log_rest, new + log_eps)


@fusable
def extended_elbo(
    score: Tensor,
    minimum: float,
    maximum: float,
    log_alpha: Tensor,
    before: Tensor,
    new: Tensor,
    log_joint: Tensor,
) -> Tensor:
    """The ELBO of the mixture Q_m = (1 - ε) Q_{m-1} + ε q_m, averaged over the batch, a scalar.

    The ELBO is estimated from one sample z of each of the m + 1 components. All arguments except
    `log_joint` are those of `extend_mixture`.

    Args:
        log_joint: log p(x, z) at the samples, (m + 1, B).
    """
    weights, log_mixture = extend_mixture(score, minimum, maximum, log_alpha, before, new)
    return (weights.exp() * (log_joint - log_mixture)).sum(0).mean()
