"""The categorical likelihood, for classes and tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from recmix.errors import ConfigError
from recmix.model.likelihoods.likelihood import Likelihood, Shape, register_likelihood, sum_event

__all__ = ["Categorical", "class_log_probs", "class_residuals", "draw_class", "pad_after_end"]


def draw_class(logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw one class number for each vector of K logits: (..., K) -> (...).

    `torch.multinomial` would make the CPU wait for the GPU. Here each class gets an exponential waiting
    time with the rate e^logit, and the class with the shortest time is drawn.

    >>> draw_class(torch.tensor([[-200.0, 0.0], [0.0, -200.0]])).tolist()
    [1, 0]
    """
    waiting = torch.empty_like(logits).exponential_(generator=generator)
    return (logits - waiting.log()).argmax(-1)


def pad_after_end(tokens: Tensor) -> Tensor:
    """Replace all tokens after the first end token (class 0) by -1: (..., T) -> (..., T).

    >>> pad_after_end(torch.tensor([2, 0, 3, 0])).tolist()
    [2, 0, -1, -1]
    """
    ended = (tokens == 0).cumsum(-1) - (tokens == 0).long()
    return torch.where(ended > 0, -1, tokens)


def class_log_probs(x: Tensor, logits: Tensor) -> Tensor:
    """The log-probability of each class number x (B, ...) for logits (S, B, ..., K): (S, B, ...).

    S is the number of samples of z for each example. Values of x below 0 are padding; they get 0.
    """
    log_p = logits.log_softmax(-1)
    chosen = x.clamp(min=0).long().expand(log_p.shape[:-1])[..., None]
    return log_p.gather(-1, chosen).squeeze(-1) * (x >= 0)


def class_residuals(x: Tensor, logits: Tensor) -> Tensor:
    """The derivative of the result of `class_log_probs` with respect to the logits, (B, ..., K).

    Values of x below 0 are padding; for these the derivative is 0.
    """
    classes = torch.arange(logits.shape[-1], device=x.device, dtype=x.dtype)
    hot = (x[..., None] == classes).to(logits.dtype)
    return (hot - logits.softmax(-1)) * (x >= 0)[..., None]


@register_likelihood("categorical")
class Categorical(Likelihood):
    """A likelihood of class numbers 0 to K - 1. The decoder's output l holds logits (..., K).

    log p(x|z) is the sum over all values x of l_x - log Σ_k exp l_k, where l_k is the logit of
    class k. Negative values of x are padding; they do not contribute to the sum.

    Args:
        classes: K, the number of classes.
        end_token: whether class 0 marks the end of a text. In samples all later values are then padding
            (-1).

    >>> categorical = Categorical(4)
    >>> x = torch.tensor([[3.0, 0.0, -1.0]])  # the third is padding
    >>> round(categorical.log_prob(x, torch.zeros(1, 3, 4)).item(), 4)  # 2 log ¼
    -2.7726
    """

    values = "classes"
    can_temper = True

    def __init__(self, classes: int, *, end_token: bool = False) -> None:
        super().__init__()
        if classes < 2:
            raise ConfigError(
                f"categorical likelihood with classes={classes}: expected at least 2; give the number "
                "of classes, one more than the largest value in the data"
            )
        self.classes, self.end_token = classes, end_token

    def model_options(self) -> dict[str, Any]:
        """The number of classes and the end token as model options, {name: value}."""
        return {"classes": self.classes, "end_token": self.end_token}

    @property
    def requirement(self) -> str:
        """The text "padded_classes:K": examples hold whole numbers below K, and padding below 0."""
        return f"padded_classes:{self.classes}"

    def output_shape(self, shape: Shape) -> Shape:
        """The shape of the decoder's output, (*shape, K): K logits for each value of an example."""
        return (*shape, self.classes)

    def log_prob(self, x: Tensor, decoded: Tensor) -> Tensor:
        """log p(x | z), (S, B), for class numbers x (B, *event) and logits (S, B, *event, K).

        S is the number of samples of z for each example.
        """
        return sum_event(class_log_probs(x, decoded / self.noise), x)

    def mean(self, decoded: Tensor) -> Tensor:
        """The probabilities of the K classes for logits (..., K), in the same shape."""
        return (decoded / self.noise).softmax(-1)

    def sample(self, decoded: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw one class for each vector of K logits: (..., *event, K) -> (..., *event)."""
        with torch.no_grad():
            return self._padded(draw_class(decoded / self.noise, generator)).to(decoded.dtype)

    def most_likely(self, decoded: Tensor) -> Tensor:
        """The most likely class for each vector of K logits: (..., *event, K) -> (..., *event)."""
        return self._padded(decoded.argmax(-1)).to(decoded.dtype)

    def _padded(self, drawn: Tensor) -> Tensor:
        return pad_after_end(drawn) if self.end_token else drawn

    def residual(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The derivative of log p(x | z) with respect to the logits, (B, *event, K).

        It is (1 - p_k) / τ for the class k = x and -p_k / τ for other classes k. p_k is the probability
        of class k, and τ the temperature `noise`. The derivative is 0 where x is padding.
        """
        return class_residuals(x, decoded / self.noise) / self.noise

    def precision(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The diagonal of the Fisher information with respect to the logits, (B, *event, K).

        It is p_k·(1 - p_k) / τ² for the probability p_k of class k and the temperature τ = `noise`, and
        0 where x is padding.
        """
        p = self.mean(decoded)
        return p * (1 - p) * (x >= 0)[..., None] / self.noise**2

    def fisher(self, x: Tensor, decoded: Tensor, vectors: Tensor) -> Tensor:
        """The Fisher information times `vectors` (B, P, D), for P logits of an example: (B, P, D).

        The Fisher information has one K by K block for each value of x: (diag(p) - p pᵀ) / τ², where p
        are the class probabilities and τ is the temperature `noise`. The block is 0 where x is padding.
        """
        p = self.mean(decoded).flatten(1, -2)[..., None]  # (B, values, K, 1)
        columns = vectors.unflatten(1, (-1, self.classes))  # (B, values, K, D)
        weighted = p * (columns - (p * columns).sum(2, keepdim=True)) / self.noise**2
        return (weighted * (x >= 0).flatten(1)[..., None, None]).flatten(1, 2)
