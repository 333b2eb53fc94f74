"""The autoregressive likelihood, for texts and other sequences of tokens."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import jvp, vjp, vmap

from recmix.errors import ConfigError, unknown
from recmix.model.causal_networks import CAUSAL, CausalNetwork
from recmix.model.encoder_decoder import evaluation_mode
from recmix.model.likelihoods.classes import draw_class, pad_after_end
from recmix.model.likelihoods.likelihood import Likelihood, Shape, register_likelihood

__all__ = ["Autoregressive"]

TANGENT_VALUES = {"cpu": 2**24, "cuda": 2**27}
"""Memory limit of `fisher` by device: the largest number of logits that it computes in one pass.

This number is (vectors in the pass) x (examples) x (positions) x (classes).
"""
PROBES = 4
"""Number of random vectors from which `mean_precision` is estimated."""


@register_likelihood("autoregressive")
class Autoregressive(Likelihood):
    """A likelihood of tokens that predicts each token from the tokens before it and z.

    p(x|z) = Π p(x_t | x_<t, z), where x_<t are the tokens before position t. A causal network computes
    the factors.

    The decoder's output is a context vector, which the causal network gets at every position. The causal
    network is a part of the likelihood and is trained like the decoder. Values of x below 0 are padding.
    They do not contribute to log p(x|z), and must come last.

    Args:
        shape: Shape of an example, such as (T,). Several axes are flattened to T positions.
        classes: K, the number of different tokens.
        causal: the causal network, ``transformer`` or ``gru``.
        units: F, the size of the network's hidden states and of the context vector.
        heads: number of attention heads of a transformer.
        blocks: number of layers.
        dropout: share of hidden values that are set to zero in training mode.
        token_dropout: share of the input tokens that are hidden from the network in training mode. Then
            the network must rely more on z.
        end_token: whether class 0 marks the end of a text. In samples all later values are then padding
            (-1).

    >>> likelihood = Autoregressive((3,), 4, units=8)
    >>> x, context = torch.tensor([[3.0, 0.0, -1.0]]), torch.zeros(5, 1, 8)
    >>> likelihood.output_shape((3,)), likelihood.log_prob(x, context).shape
    ((8,), torch.Size([5, 1]))

    Reference: Bowman et al., Generating Sentences from a Continuous Space, CoNLL 2016.
    """

    values = "classes"
    can_temper = True

    def __init__(
        self,
        shape: Shape,
        classes: int,
        *,
        causal: str = "transformer",
        units: int = 128,
        heads: int = 4,
        blocks: int = 2,
        dropout: float = 0.0,
        token_dropout: float = 0.0,
        end_token: bool = False,
    ) -> None:
        super().__init__()
        if classes < 2:
            raise ConfigError(
                f"autoregressive likelihood with classes={classes}: expected at least 2; give the "
                "number of classes, one more than the largest value in the data"
            )
        if causal not in CAUSAL:
            raise ConfigError(unknown("value of causal", causal, CAUSAL))
        self.shape, self.classes = tuple(shape), classes
        self.causal, self.end_token = causal, end_token
        self.network: CausalNetwork = CAUSAL[causal](
            math.prod(self.shape),
            classes,
            units=units,
            heads=heads,
            blocks=blocks,
            dropout=dropout,
            token_dropout=token_dropout,
        )

    def model_options(self) -> dict[str, Any]:
        """The settings of the causal network as model options, {name: value}."""
        network = self.network
        found = {"classes": self.classes, "causal": self.causal, "end_token": self.end_token}
        sizes = {"units": network.units, "heads": network.heads, "blocks": network.blocks}
        shares = {"dropout": network.dropout, "token_dropout": network.token_dropout}
        return found | sizes | shares

    @property
    def requirement(self) -> str:
        """The text "padded_classes:K": examples hold whole numbers below K, and padding below 0."""
        return f"padded_classes:{self.classes}"

    def output_shape(self, shape: Shape) -> Shape:
        """The shape of the decoder's output, (F,): one context vector for each example."""
        return (self.network.units,)

    def log_prob(self, x: Tensor, decoded: Tensor) -> Tensor:
        """log p(x | z), (S, B), for tokens x (B, *event) and context vectors (S, B, F).

        S is the number of samples of z for each example. The network runs once for all positions
        (teacher forcing): it predicts each token from the tokens of x before it.
        """
        tokens, present = _tokens(x)
        logits = self.logits(x, decoded)
        chosen = logits.gather(-1, tokens[..., None].expand(*logits.shape[:-1], 1)).squeeze(-1)
        return ((chosen - logits.logsumexp(-1)) * present).sum(-1)

    def logits(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The logits of each token given z and the tokens before it: (S, B, T, K).

        Args:
            x: token numbers (B, *event), with T values for each example.
            decoded: the decoder's outputs, which are context vectors (S, B, F), for S samples of z for
                each example.
        """
        return self.network.logits(self.network(_tokens(x)[0], decoded)) / self.noise

    def sample(self, decoded: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw tokens (..., *event), one after the other, for each context vector (..., F)."""
        return self._generate(decoded, lambda logits: draw_class(logits, generator))

    def most_likely(self, decoded: Tensor) -> Tensor:
        """Choose the most likely token at each position: (..., *event) for context vectors (..., F).

        Each choice depends on the tokens that are chosen before it (greedy decoding). So the result is
        not always the most likely sequence.
        """
        return self._generate(decoded, lambda logits: logits.argmax(-1))

    def mean(self, decoded: Tensor) -> Tensor:
        """The tokens of `most_likely` as one-hot vectors of K classes, (..., *event, K).

        They replace the mean, which has no closed form. The vector of a padding value is 0.
        """
        tokens = self.most_likely(decoded)
        classes = torch.arange(self.classes, device=decoded.device, dtype=decoded.dtype)
        return (tokens[..., None] == classes).to(decoded.dtype)

    def precision(self, x: Tensor, decoded: Tensor) -> Tensor:
        """The diagonal of the Gauss-Newton matrix of -log p(x | z), (B, F); see `fisher`.

        The computation needs F derivatives of the causal network, where F is the size of the context
        vector.
        """
        count = decoded.shape[-1]
        units = torch.eye(count, dtype=decoded.dtype, device=decoded.device)
        return self.fisher(x, decoded, units.expand(len(decoded), -1, -1)).diagonal(dim1=1, dim2=2)

    def mean_precision(self, x: Tensor, decoded: Tensor) -> Tensor:
        """An estimate of the mean of `precision` for each example, (B,).

        It is the average of vᵀ G v / F over a few fixed vectors v with F entries ±1, where G is the
        Gauss-Newton matrix of `fisher`. This needs fewer derivatives of the causal network than
        `precision`.
        """
        signs = _signs(decoded.shape[-1], decoded.dtype, decoded.device)  # (F, PROBES)
        columns = signs.expand(len(decoded), -1, -1)
        products = (columns * self.fisher(x, decoded, columns)).mean((1, 2))
        return products.clamp(min=0)

    def fisher(self, x: Tensor, decoded: Tensor, vectors: Tensor) -> Tensor:
        """The product G V of the Gauss-Newton matrix G with column vectors V (B, F, D): (B, F, D).

        G = Jᵀ W J approximates the second derivative of -log p(x | z) with respect to the context
        vector. J is the derivative of the logits with respect to the context vector. W is the Fisher
        information of the tokens with respect to the logits. Each token is predicted from the observed
        tokens before it. The average of G over x ~ p(x | z) is the Fisher information.

        Dropout is off, also in training mode, because J and Jᵀ must belong to the same function.
        """
        with evaluation_mode(self.network):
            return self._gauss_newton(x, decoded.contiguous(), vectors)

    def _gauss_newton(self, x: Tensor, decoded: Tensor, vectors: Tensor) -> Tensor:
        """Compute the result of `fisher`. `torch.func.jvp` needs a contiguous tensor `decoded`."""
        tokens, present = _tokens(x)
        hidden_of = functools.partial(self.network, tokens)
        words = self.network.tokens.weight[: self.classes]  # logits = hidden @ words.mT + bias, (K, F)
        hidden, pull = vjp(hidden_of, decoded)  # type: ignore[misc]
        p = (self.network.logits(hidden) / self.noise).softmax(-1) * present[..., None]

        def times(column: Tensor) -> Tensor:
            moved: Tensor = jvp(hidden_of, (decoded,), (column,))[1]  # (B, T, F)
            change = moved @ words.mT / self.noise
            weighted = p * (change - (p * change).sum(-1, keepdim=True))
            (found,) = pull(weighted @ words / self.noise)
            return found

        each = tokens.numel() * self.classes
        most = TANGENT_VALUES.get(x.device.type, TANGENT_VALUES["cpu"])
        chunk = max(1, most // max(1, each))
        columns = vectors.movedim(-1, 0)  # (D, B, F)
        return torch.cat([vmap(times)(some) for some in columns.split(chunk)]).movedim(0, -1)

    @torch.no_grad()
    def _generate(self, decoded: Tensor, choose: Callable[[Tensor], Tensor]) -> Tensor:
        """Generate tokens (..., *event), one position after the other, for context vectors (..., F).

        `choose` maps the logits of N tokens to N token numbers, (N, K) -> (N,).
        """
        context = decoded.reshape(-1, decoded.shape[-1])
        state, before, found = self.network.start(context), None, []
        for t in range(self.network.length):
            logits, state = self.network.advance(before, context, state, t)
            before = choose(logits / self.noise)
            found.append(before)
        tokens = torch.stack(found, -1)
        tokens = pad_after_end(tokens) if self.end_token else tokens
        return tokens.reshape(*decoded.shape[:-1], *self.shape).to(decoded.dtype)


def _tokens(x: Tensor) -> tuple[Tensor, Tensor]:
    """Token numbers (B, T), with 0 where x is padding, and a mask (B, T) that is False for padding."""
    flat = x.flatten(1)
    return flat.clamp(min=0).long(), flat >= 0


@functools.lru_cache(maxsize=32)  # a constant of a captured CUDA graph must not be copied from the host
def _signs(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Fixed random vectors with entries ±1, as the columns of a matrix (size, PROBES)."""
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode(False):
        drawn = torch.randint(2, (size, PROBES), generator=generator)
        return (2.0 * drawn - 1).to(device, dtype)
