"""Layers for sequences: a transformer block and a gated recurrent unit.

Torch's fused kernels for these layers have no forward-mode derivatives and no second derivatives. So
each layer can also be computed with elementary operations, which have them. The fused kernels are used
only where no such derivative is needed.

References: Vaswani et al., Attention is all you need, 2017; Cho et al., Learning phrase representations
using RNN encoder-decoder, 2014.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recmix.errors import ConfigError
from recmix.model.encoder_decoder import check_shares
from recmix.model.mlp import make_activation
from recmix.model.normalisation import LayerNorm

__all__ = ["GRU", "Places", "TransformerBlock", "checked_units"]


def checked_units(units: int, heads: int) -> int:
    """Return `units`, the size of hidden states.

    Raise a `ConfigError` if `units` is not a multiple of the number of attention heads.
    """
    if units < 1 or heads < 1 or units % heads:
        raise ConfigError(
            f"units={units}, heads={heads}: expected units to be a multiple of heads, both at least 1, "
            "such as units=128 and heads=4"
        )
    return units


class Places(nn.Module):
    """Learned position embeddings, which are added to hidden states (..., T, U).

    `spread` is the standard deviation of the initial embeddings.

    >>> Places(5, 8)(torch.zeros(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, length: int, units: int, *, spread: float = 0.1) -> None:
        super().__init__()
        self.spread = spread
        self.vectors = nn.Parameter(torch.empty(length, units))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new position embeddings (T, U) from N(0, spread²)."""
        nn.init.normal_(self.vectors, std=self.spread)

    def forward(self, h: Tensor) -> Tensor:
        """Add the embedding of each position to the hidden states h: (..., T, U) -> (..., T, U)."""
        return h + self.vectors


class TransformerBlock(nn.Module):
    """A transformer block: attention, then a small network at each position, (N, T, U) -> (N, T, U).

    Both parts have a residual connection.

    Args:
        units: U, the size of the hidden states, a multiple of `heads`.
        dropout: share of the outputs of both parts that are set to zero in training mode.
        activation: a key of `recmix.model.mlp.ACTIVATIONS`, such as "gelu".
        fused: whether to use torch's fused attention. It has no forward-mode derivative and no second
            derivative.

    >>> TransformerBlock(8, 2)(torch.zeros(3, 5, 8)).shape
    torch.Size([3, 5, 8])
    """

    def __init__(
        self,
        units: int,
        heads: int,
        *,
        dropout: float = 0.0,
        activation: str = "gelu",
        fused: bool = False,
    ) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.size = checked_units(units, heads) // heads
        check_shares(dropout=dropout)
        self.drop = dropout
        self.first, self.second = LayerNorm(units), LayerNorm(units)
        self.qkv, self.out = nn.Linear(units, 3 * units), nn.Linear(units, units)
        self.mlp = nn.Sequential(
            nn.Linear(units, 4 * units), make_activation(activation), nn.Linear(4 * units, units)
        )

    def forward(self, h: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Apply the block to N sequences of T hidden states of size U: (N, T, U) -> (N, T, U).

        Args:
            h: the hidden states before the block, (N, T, U).
            hidden: attention mask, (1, T, T) or (N, 1, T), broadcast to (N, T, T). Entry (n, i, j) is
                True if position i of sequence n must not see position j.
        """
        q, k, v = self._parts(h)
        return self._after(h, self._attend(q, k, v, hidden))

    def extend(self, h: Tensor, cache: Tensor, t: int) -> Tensor:
        """Apply the block to position t alone: (N, U) -> (N, U). Earlier positions come from a cache.

        Sampling of tokens calls this method for one position after the other.

        Args:
            h: hidden states of position t before the block, (N, U).
            cache: keys and values of all positions, (2, N, heads, T, U / heads). The key and value of
                position t are written into it.
            t: the position.
        """
        q, k, v = self._parts(h[:, None])
        cache[0, :, :, t], cache[1, :, :, t] = k[:, :, 0], v[:, :, 0]
        seen = cache[:, :, :, : t + 1]
        return self._after(h[:, None], self._attend(q, seen[0], seen[1], None))[:, 0]

    def _parts(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (N, heads, T, U / heads) each, for hidden states h (N, T, U)."""
        parts = self.qkv(self.first(h)).unflatten(-1, (3, self.heads, self.size))
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        return q, k, v

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None) -> Tensor:
        """The output of the attention, (N, T, U). `hidden` is the mask of `forward`."""
        if self.fused and not torch._C._are_functorch_transforms_active():
            visible = None if hidden is None else ~hidden[:, None]
            found = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
        else:
            scores = q @ k.mT / self.size**0.5
            if hidden is not None:
                scores = scores.masked_fill(hidden[:, None], torch.finfo(scores.dtype).min)
            found = scores.softmax(-1) @ v
        return found.transpose(1, 2).flatten(2)

    def _after(self, h: Tensor, attended: Tensor) -> Tensor:
        h = h + self._dropped(self.out(attended))
        return h + self._dropped(self.mlp(self.second(h)))

    def _dropped(self, h: Tensor) -> Tensor:
        return F.dropout(h, self.drop, self.training) if self.drop else h


@contextmanager
def _precision_of_products() -> Iterator[None]:
    """A context in which cuDNN uses TF32 only if torch's matrix products also use TF32.

    By default cuDNN uses TF32 and matrix products do not. Then the results of a `GRU` would depend on
    whether it uses the fused kernel, which is part of cuDNN.
    """
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.get_float32_matmul_precision() != "highest"
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


class GRU(nn.Module):
    """A gated recurrent unit that reads positions in order: inputs (N, T, U) -> states (N, T, U).

    With gradients enabled, and in `torch.func` transformations, it runs as a loop over positions.
    Otherwise it uses torch's fused kernel.

    Args:
        units: U, the size of inputs and states.
        fused: whether to use the fused kernel also with gradients enabled. The kernel has no
            forward-mode derivative and no second derivative.

    >>> GRU(8)(torch.zeros(3, 5, 8)).shape
    torch.Size([3, 5, 8])
    """

    def __init__(self, units: int, *, fused: bool = False) -> None:
        super().__init__()
        self.units, self.fused = units, fused
        self.cell = nn.GRU(units, units, batch_first=True)

    def forward(self, inputs: Tensor) -> Tensor:
        """The states (N, T, U) after each of T inputs (N, T, U). The initial state is 0."""
        if not torch._C._are_functorch_transforms_active() and (
            self.fused or not torch.is_grad_enabled()
        ):
            with _precision_of_products():
                states: Tensor = self.cell(inputs)[0]
            return states
        given = self._given(inputs)
        state = torch.zeros_like(inputs[:, 0])
        found = []
        for one in given.unbind(1):
            state = self._next(one, state)
            found.append(state)
        return torch.stack(found, 1)

    def advance(self, given: Tensor, state: Tensor) -> Tensor:
        """The next state (N, U) of N sequences, for the next input `given` (N, U)."""
        return self._next(self._given(given), state)

    def _given(self, inputs: Tensor) -> Tensor:
        """The linear function of the inputs (..., U) that all gates need, (..., 3 U)."""
        cell: Any = self.cell
        return F.linear(inputs, cell.weight_ih_l0, cell.bias_ih_l0)

    def _next(self, given: Tensor, state: Tensor) -> Tensor:
        """The next state (N, U), from the result of `_given` (N, 3 U) and the state before (N, U)."""
        cell: Any = self.cell
        own = F.linear(state, cell.weight_hh_l0, cell.bias_hh_l0)
        first = 2 * self.units
        reset, update = torch.sigmoid(given[..., :first] + own[..., :first]).chunk(2, -1)
        new = torch.tanh(given[..., first:] + reset * own[..., first:])
        return new + update * (state - new)
