"""Causal networks: they predict each token from the tokens before it and a context vector.

The likelihood `recmix.model.likelihoods.Autoregressive` uses these networks. Each network can run on
all positions at once (teacher forcing) or one position at a time (sampling).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from recmix.model.encoder_decoder import check_shares, check_sizes
from recmix.model.normalisation import LayerNorm
from recmix.model.sequence_layers import GRU, Places, TransformerBlock, checked_units

__all__ = ["CAUSAL", "CausalGRU", "CausalNetwork", "CausalTransformer"]


class CausalNetwork(nn.Module, ABC):
    """Base class of networks that predict the next token from the tokens before it and a context.

    The context is a vector of size U for each sequence, such as the decoder's output. It is added to the
    input of every position and to the last hidden state. The last layer shares its weights with the
    token embedding.

    Args:
        length: T, the number of positions.
        classes: K, the number of different tokens.
        units: U, the size of hidden states and of the context.
        heads: number of attention heads of a transformer.
        blocks: number of layers.
        dropout: share of hidden values that are set to zero in training mode.
        token_dropout: share of the input tokens that are replaced by a special token in training mode.
    """

    def __init__(
        self,
        length: int,
        classes: int,
        *,
        units: int = 128,
        heads: int = 4,
        blocks: int = 2,
        dropout: float = 0.0,
        token_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_sizes(blocks=blocks)
        check_shares(dropout=dropout, token_dropout=token_dropout)
        self.length, self.classes, self.units, self.heads = length, classes, units, heads
        self.dropout, self.token_dropout, self.blocks = dropout, token_dropout, blocks
        self.tokens = nn.Embedding(classes + 2, units)  # also for "start" and "hidden"
        self.inward, self.outward = nn.Linear(units, units), nn.Linear(units, units, bias=False)
        self.norm = LayerNorm(units)
        self.bias = _Bias(classes)
        nn.init.normal_(self.tokens.weight, std=0.5 * units**-0.5)
        self._add_layers()

    @abstractmethod
    def _add_layers(self) -> None:
        """Make the layers between the embedding and the last normalisation."""

    def forward(self, tokens: Tensor, context: Tensor) -> Tensor:
        """The hidden states (..., B, T, U) of all T positions at once.

        The hidden state of position t depends on the context and on the tokens before t. `logits`
        converts it to the logits of token t.

        Args:
            tokens: whole numbers from 0 to K - 1, (B, T), where K is the number of different tokens.
            context: context vectors (..., B, U), where U is the size of a hidden state.
        """
        first = torch.full_like(tokens[:, :1], self.classes)
        before = torch.cat([first, self._some_hidden(tokens[:, :-1])], 1)
        h = self._embed(before) + self.inward(context)[..., None, :]
        lead = h.shape[:-2]
        states = self._run(h.reshape(-1, *h.shape[-2:])).reshape(*lead, *h.shape[-2:])
        return self.norm(states + self.outward(context)[..., None, :])

    def logits(self, hidden: Tensor) -> Tensor:
        """The logits (..., K) of the next token, from hidden states (..., U)."""
        return self.bias(hidden @ self.tokens.weight[: self.classes].mT)

    @abstractmethod
    def start(self, context: Tensor) -> Tensor:
        """The state before the first position, for N context vectors (N, U), as `advance` needs it."""

    @abstractmethod
    def _advance(self, h: Tensor, state: Tensor, t: int) -> tuple[Tensor, Tensor]:
        """Apply all layers to position t alone, for inputs h (N, U) and the state of `advance`.

        Return the outputs (N, U) of position t, and the state for the next position.
        """

    @abstractmethod
    def _run(self, h: Tensor) -> Tensor:
        """Apply all layers to all positions at once: inputs (N, T, U) -> outputs (N, T, U)."""

    def advance(
        self, before: Tensor | None, context: Tensor, state: Tensor, t: int
    ) -> tuple[Tensor, Tensor]:
        """Compute the logits (N, K) of the token at position t, and the state for the next position.

        Sampling calls this method for one position after the other.

        Args:
            before: the tokens at position t - 1, (N,), whole numbers; None at the first position.
            context: context vectors (N, U), where U is the size of a hidden state.
            state: the result of `start`, or the state that this method returned for position t - 1.
            t: the position.
        """
        if before is None:
            before = torch.full(context.shape[:1], self.classes, device=context.device)
        h = self._embed(before[:, None], t)[:, 0] + self.inward(context)
        found, state = self._advance(h, state, t)
        return self.logits(self.norm(found + self.outward(context))), state

    def _embed(self, tokens: Tensor, t: int | None = None) -> Tensor:
        """The embeddings (B, T, U) of input tokens (B, T).

        If t is given, the tokens (B, 1) are those of position t alone.
        """
        return self.tokens(tokens) * self.units**0.5

    def _some_hidden(self, tokens: Tensor) -> Tensor:
        """Return the tokens; in training mode, random ones are replaced by the special token "hidden".

        Each token is replaced with the probability `token_dropout`.
        """
        if not (self.training and self.token_dropout):
            return tokens
        drawn = torch.rand(tokens.shape, device=tokens.device)
        return torch.where(drawn < self.token_dropout, self.classes + 1, tokens)


class CausalTransformer(CausalNetwork):
    """A transformer that predicts each token from the tokens before it and a context vector.

    The arguments are those of `CausalNetwork`. A call returns hidden states of size U, which the method
    `logits` converts to logits of the K tokens. In the example, T = 5, K = 10 and U = 8. There are 3
    sequences, and 4 context vectors for each of them.

    >>> network = CausalTransformer(5, 10, units=8)
    >>> network(torch.zeros(3, 5, dtype=torch.int64), torch.zeros(4, 3, 8)).shape
    torch.Size([4, 3, 5, 8])
    """

    future: Tensor

    def _add_layers(self) -> None:
        checked_units(self.units, self.heads)
        self.places = Places(self.length, self.units)
        self.layers = nn.ModuleList(
            TransformerBlock(self.units, self.heads, dropout=self.dropout) for _ in range(self.blocks)
        )
        later = torch.ones(1, self.length, self.length, dtype=torch.bool).triu(1)
        self.register_buffer("future", later, persistent=False)

    def start(self, context: Tensor) -> Tensor:
        """The state before the first position: an empty cache of attention keys and values.

        Its shape is (layers, 2, N, heads, T, U / heads), for N sequences and hidden states of size U.
        """
        size = (len(self.layers), 2, context.shape[0], self.heads, self.length, self.units // self.heads)
        return context.new_zeros(size)

    def _embed(self, tokens: Tensor, t: int | None = None) -> Tensor:
        h = super()._embed(tokens)
        return h + (self.places.vectors if t is None else self.places.vectors[t])

    def _advance(self, h: Tensor, state: Tensor, t: int) -> tuple[Tensor, Tensor]:
        for layer, cache in zip(self.layers, state, strict=True):
            h = layer.extend(h, cache, t)  # type: ignore[operator]
        return h, state

    def _run(self, h: Tensor) -> Tensor:
        for layer in self.layers:
            h = layer(h, self.future)
        return h


class CausalGRU(CausalNetwork):
    """Recurrent layers that predict each token from the tokens before it and a context vector.

    The layers have residual connections. The arguments are those of `CausalNetwork`. A call returns
    hidden states of size U, which the method `logits` converts to logits of the K tokens. In the
    example, T = 5, K = 10 and U = 8. There are 3 sequences, and 4 context vectors for each of them.

    >>> network = CausalGRU(5, 10, units=8)
    >>> network(torch.zeros(3, 5, dtype=torch.int64), torch.zeros(4, 3, 8)).shape
    torch.Size([4, 3, 5, 8])
    """

    def _add_layers(self) -> None:
        self.layers = nn.ModuleList(GRU(self.units) for _ in range(self.blocks))
        self.drop = nn.Dropout(self.dropout)

    def start(self, context: Tensor) -> Tensor:
        """The states of all layers before the first position: zeros (layers, N, U) for N sequences."""
        return context.new_zeros(len(self.layers), *context.shape)

    def _advance(self, h: Tensor, state: Tensor, t: int) -> tuple[Tensor, Tensor]:
        following = []
        for layer, now in zip(self.layers, state, strict=True):
            following.append(layer.advance(h, now))  # type: ignore[operator]
            h = h + self.drop(following[-1])
        return h, torch.stack(following)

    def _run(self, h: Tensor) -> Tensor:
        for layer in self.layers:
            h = h + self.drop(layer(h))
        return h


class _Bias(nn.Module):
    """Adds a learned number to the logit of each class. The initial numbers are 0."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.zeros(classes))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.values)

    def forward(self, logits: Tensor) -> Tensor:
        return logits + self.values


CAUSAL: dict[str, type[CausalNetwork]] = {"transformer": CausalTransformer, "gru": CausalGRU}
"""Causal networks by name."""
